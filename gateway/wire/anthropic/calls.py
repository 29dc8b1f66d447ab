"""Tools in Anthropic's Messages API: what a request offers and brings, and the calls in one stream of events. Whole answers are read as
those of every format (gateway.wire.openai.calls).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from gateway.core.errors import EngineError, RequestError
from gateway.core.tools import ToolUse
from gateway.wire.anthropic.views import NAMED
from gateway.wire.bodies import plain
from gateway.wire.openai.calls import MAX_CALLS, MAX_CHARACTERS, TYPES, Pieces, document_of, found_in
from gateway.wire.sse import data_of

RESULT: Final = "tool_result"


def offered(fields: dict[str, Raw]) -> list[str]:
    """The names of the tools that a request offers; of one that Anthropic defines, its type where it has no name. Raises RequestError."""
    given = fields.get("tools")
    if given is None:
        return []
    try:
        return [tool.name or tool.type for tool in NAMED.decode(given) or ()]
    except msgspec.DecodeError as error:
        raise RequestError(f"tools: {error}.", param="tools", code="invalid_value") from None


def in_request(fields: dict[str, Raw]) -> list[ToolUse]:
    """The tools that a request offers, and the results that it brings, each by the name of the call that it answers. Raises
    RequestError."""
    uses = [ToolUse("definition", (name,), "", f"tools[{number}]") for number, name in enumerate(offered(fields))]
    called: dict[str, str] = {}
    for number, message in enumerate(plain(fields["messages"], "messages")):
        content = message["content"]
        for at, block in enumerate(content if content.__class__ is list else ()):
            kind = block["type"]
            name, identity = block.get("name"), block.get("id")
            if kind in TYPES and name.__class__ is str and identity.__class__ is str:
                called[identity] = name
            elif kind.endswith(RESULT):
                answered = called.get(str(block.get("tool_use_id")), "")
                uses.append(ToolUse("result", (answered,), _text_of(block.get("content")), f"messages[{number}].content[{at}]"))
    if len(uses) > MAX_CALLS:
        raise RequestError(f"messages, tools: the request has more than {MAX_CALLS} tools and results together.", param="messages")
    return uses


def _text_of(content: Any) -> str:
    if content.__class__ is str:
        return str(content)
    if content.__class__ is list and all([part.__class__ is dict and part.get("text").__class__ is str for part in content]):
        return "\n".join([part["text"] for part in content])
    return "" if content is None else msgspec.json.encode(content).decode()


class MessageCalls:
    """The calls of one stream, as a `CallReader`. A call is a block of one of TYPES: its input comes with the block's start, or after it in
    pieces of JSON."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, str], Pieces] = {}
        self._open: dict[Any, Pieces] = {}
        self._size = 0

    def feed(self, event: bytes) -> tuple[bytes, bool]:
        data = data_of(event + b"\n\n")
        if not data.startswith(b"{"):
            return event + b"\n\n", False
        if data.find(b"tool_") < 0 and data.find(b"_call") < 0 and data.find(b"json") < 0 and data.find(b"\\u") < 0:
            return event + b"\n\n", False
        document = document_of(data)
        found = self._read(document)
        kind = document.get("type")
        name = kind.encode() if kind.__class__ is str and kind.isidentifier() else b"message"
        return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(document)), found

    def _read(self, document: dict[str, Any]) -> bool:
        index, delta = document.get("index"), document.get("delta")
        found = False
        for path, value in found_in(document):
            found = True
            one = self._piece((index, path), path)
            self._open[index] = one
            if value.__class__ is dict and value.get("input") == {}:
                value = {key: inner for key, inner in value.items() if key != "input"}
            self._add(one, value)
        if delta.__class__ is dict and "partial_json" in delta:
            piece = self._open.get(index)
            if piece is None:
                piece = self._open[index] = self._piece((index, "?"), "")
                piece.fault = "it has no name"
            self._add(piece, {"input": delta["partial_json"]})
            return True
        return found

    def _piece(self, key: tuple[Any, str], path: str) -> Pieces:
        one = self._calls.get(key)
        if one is None:
            if len(self._calls) >= MAX_CALLS:
                raise EngineError(f"The engine's answer has more than {MAX_CALLS} tool calls.")
            one = self._calls[key] = Pieces(f"content[{key[0]}]{path.removeprefix('.content_block')}")
        else:
            one.fault = one.fault or ("two calls have the same index" if path else "")
        return one

    def _add(self, one: Pieces, piece: Any) -> None:
        before = one.size
        one.add(piece)
        self._size += one.size - before
        if self._size > MAX_CHARACTERS:
            raise EngineError(f"The calls of the engine's answer have more than {MAX_CHARACTERS} characters.")

    def uses(self) -> Sequence[ToolUse]:
        """A call without any piece of its input has an empty one, as in a whole answer."""
        found = [one.use() for one in self._calls.values()]
        return [use if use.arguments or use.unreadable else replace(use, arguments="{}") for use in found]
