"""The names of tools where a chat completion stands for a response.

A tool of a namespace (`{"type": "namespace", "name": ..., "tools": [...]}`) becomes a function named after both, `files__read`, as a chat
knows one list of functions only; a call of it becomes a call of `read` in `files` again. No two tools get the same name: where the name
would be another tool's, or too long, it ends with a digest of both.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Raw

from gateway.wire.responses.views import TOOLS, Tool

MAX_NAME: Final = 64
"""Characters of a function's name (OpenAI's API reference)."""
_BETWEEN: Final = "__"
_DIGEST: Final = 12
"""Hex digits."""
_KINDS: Final = frozenset({"function", "custom"})
NAMESPACE: Final = "namespace"


class OfferedTool(NamedTuple):
    """A tool by its names in the Responses API. custom: its input is a text."""

    namespace: str
    name: str
    custom: bool


class ToolNames:
    """The tools that one request offers, by their names in a chat. Names of tools that it only mentions are added when they are asked
    for."""

    __slots__ = ("_by_name", "_by_tool")

    def __init__(self, tools: list[Tool]) -> None:
        self._by_name: dict[str, OfferedTool] = {
            tool.name: OfferedTool("", tool.name, tool.type == "custom") for tool in tools if tool.type in _KINDS
        }
        self._by_tool: dict[tuple[str, str], str] = {}
        for tool in tools:
            if tool.type == NAMESPACE:
                for inner in tool.tools:
                    self._add(tool.name, inner.name, inner.type == "custom")

    def in_chat(self, namespace: str, name: str) -> str:
        """The name of a tool in a chat."""
        if not namespace:
            return name
        known = self._by_tool.get((namespace, name))
        return self._add(namespace, name, False) if known is None else known

    def _add(self, namespace: str, name: str, custom: bool) -> str:
        tool = (namespace, name)
        made = f"{namespace}{_BETWEEN}{name}"
        tried = 0
        while len(made) > MAX_NAME or (made in self._by_name and self._by_tool.get(tool) != made):
            digest = sha256(f"{namespace}\0{name}\0{tried}".encode()).hexdigest()[:_DIGEST]
            made = f"{f'{namespace}{_BETWEEN}{name}'[: MAX_NAME - 1 - _DIGEST]}_{digest}"
            tried += 1
        self._by_tool[tool], self._by_name[made] = made, OfferedTool(namespace, name, custom)
        return made

    def of(self, name: str) -> OfferedTool:
        """The tool that a chat calls so. One that was not offered is a function without a namespace."""
        return self._by_name.get(name) or OfferedTool("", name, False)


def tool_names(fields: dict[str, Raw]) -> ToolNames:
    """Of a request. Raises msgspec.DecodeError."""
    return ToolNames((TOOLS.decode(fields["tools"]) if "tools" in fields else None) or [])
