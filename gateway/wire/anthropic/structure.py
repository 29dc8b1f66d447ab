"""Checks a request's structure: no key twice, no name in the wrong case, no media to fetch, which of its fields are unknown, and that every
block is of a kind that is known here.

A request whose blocks are all plain texts, as many are, is checked by counting its colons (gateway.wire.openai.structure).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from gateway.core.errors import RequestError
from gateway.wire import engine_tools
from gateway.wire.anthropic import fields as lists
from gateway.wire.anthropic.fields import BLOCK, MESSAGE, METADATA, SERVER_RESULT, SOURCE, TOOL
from gateway.wire.bodies import plain
from gateway.wire.openai import fields as openai
from gateway.wire.openai import media
from gateway.wire.openai.structure import PAUSE, Structure, offered

_PLAIN: Final = (None, "", "custom")
"""Types of tools that the client defines itself."""
_SOURCED: Final = frozenset({"image", "document"})
"""Blocks whose source is the content itself. That of a search result is a text."""


def plain_keys(fields: dict[str, Raw], view: Any) -> int:
    """The keys of a body that has only its top-level keys, and messages and a system prompt that are texts or plain text blocks; -1 for
    any other. Each has a colon: with no more colons there are no other keys, and none twice."""
    keys = len(fields)
    for message in view.messages:
        keys += 2
        if message.content.__class__ is not str:
            if not _plain(message.content):
                return -1
            keys += 2 * len(message.content)
    system = view.system
    if system is not UNSET and system.__class__ is not str:
        if not _plain(system):
            return -1
        keys += 2 * len(system)
    return keys


def _plain(blocks: Sequence[Any]) -> bool:
    return all([block.type == "text" and block.text is not None for block in blocks])


class MessagesStructure(Structure):
    """The check of one request."""

    __slots__ = ()

    def _inside(self, name: str, found: Any) -> Generator[None, None, None]:
        if name == "messages":
            for number, message in enumerate(found):
                place = f"messages[{number}]."
                self._names(message, MESSAGE, place)
                self._blocks(message.get("content"), f"{place}content")
                if number % PAUSE == PAUSE - 1:
                    yield
        elif name == "system":
            self._blocks(found, "system")
        elif name == "metadata" and found.__class__ is dict:
            self._names(found, METADATA, "metadata.")
        elif name == "tool_choice" and found.__class__ is dict:
            self._names(found, lists.CHOICE, "tool_choice.")
        elif name == "tools" and found.__class__ is list:
            for number, tool in enumerate(found):
                self._tool(tool, f"tools[{number}].")
        yield

    def _tool(self, tool: Any, place: str) -> None:
        if tool.__class__ is not dict:
            raise RequestError(f"{place[:-1]}: expected an object.", param=place[:-1])
        if tool.get("type") in _PLAIN:
            self._names(tool, TOOL, place)
        elif not _at_clients(tool["type"]):
            self.unknown.append(f"{place}type")
        for name, value in tool.items():
            openai.wrong_case(name, TOOL, place)
            if name.casefold().endswith("url"):
                media.check_url(value, f"{place}{name}")

    def _blocks(self, blocks: Any, place: str) -> None:
        """The blocks of a content, or the only one. A text has none."""
        if blocks.__class__ is dict:
            self._block(blocks, f"{place}.")
        for number, block in enumerate(blocks if blocks.__class__ is list else ()):
            self._block(block, f"{place}[{number}].")

    def _block(self, block: Any, place: str) -> None:
        kind = block.get("type") if block.__class__ is dict else None
        if kind.__class__ is not str:
            raise RequestError(f"{place}type: every block has a type.", param=f"{place}type")
        known = BLOCK.get(kind)
        if known is None:
            if not kind.endswith(SERVER_RESULT):
                raise RequestError(
                    f"{place}type: {kind[:64]!r} is not a known kind of block; known are {', '.join(sorted(BLOCK))}.",
                    param=f"{place}type",
                    code="unsupported_content",
                )
            self._sources(block, place)
            return
        self._names(block, known, place)
        source = block.get("source")
        if source.__class__ is dict:
            self._source(source, f"{place}source.")
        elif kind in _SOURCED and source is not None:
            raise RequestError(f"{place}source: expected an object.", param=f"{place}source")
        self._blocks(block.get("content"), f"{place}content")
        if kind == "redacted_thinking":
            media.check_data(block.get("data"), f"{place}data")

    def _sources(self, block: dict[str, Any], place: str) -> None:
        """Finds media to fetch in what a server's tool gave, at any depth."""
        stack: list[tuple[str, Any]] = [(place, block)]
        while stack:
            at, found = stack.pop()
            if found.__class__ is list:
                stack.extend([(f"{at[:-1]}[{number}].", one) for number, one in enumerate(found)])
            elif found.__class__ is dict:
                source = found.get("source")
                if source.__class__ is dict and source.get("type") == "url":
                    raise _remote(f"{at}source.type")
                if found.get("type") in _SOURCED and source is not None and source.__class__ is not dict:
                    raise RequestError(f"{at}source: expected an object.", param=f"{at}source")
                stack.extend([(f"{at}{name}.", value) for name, value in found.items()])

    def _source(self, source: dict[str, Any], place: str) -> None:
        kind = source.get("type")
        if kind == "url":
            raise _remote(f"{place}type")
        known = SOURCE.get(kind) if kind.__class__ is str else None
        if known is None:
            raise RequestError(f"{place}type: known are base64, text and content.", param=f"{place}type", code="unsupported_content")
        self._names(source, known, place)
        if kind == "base64":
            media.check_data(source.get("data"), f"{place}data")
        elif source.get("data").__class__ in (dict, list):
            raise RequestError(f"{place}data: expected a text.", param=f"{place}data")
        self._blocks(source.get("content"), f"{place}content")


def _remote(place: str) -> RequestError:
    return RequestError(
        f"{place}: remote media are not fetched; send the content in base64 (source.type: base64).",
        param=place,
        code="unsupported_content",
    )


def _at_clients(kind: Any) -> bool:
    """Whether a tool of a kind that Anthropic defines is run by the caller."""
    return isinstance(kind, str) and kind.startswith(lists.AT_CLIENTS)


def _runs_elsewhere(tool: dict[str, Any]) -> bool:
    return tool.get("type") in _PLAIN or _at_clients(tool["type"])


# --- unknown fields, once the model is known


def settle_unknown(fields: dict[str, Raw], known: frozenset[str], unknown: Sequence[str], policy: str, tools: Sequence[str] = ()) -> None:
    """Refuses unknown fields, removes them, or lets them pass, except those that never may. tools: what the engine may do by itself.
    Raises RequestError."""
    unknown = engine_tools.others(fields, unknown, policy, tools)
    if not unknown:
        return
    if lists.THREAD in unknown:
        raise RequestError(
            "thread: this gateway holds no conversations of this API; send the whole conversation, without thread. "
            "In Anthropic's SDK: tool_runner(thread=False).",
            param=lists.THREAD,
            code=lists.NO_THREADS,
        )
    if policy == "refuse":
        place = unknown[0]
        raise openai.refused(place, frozenset() if _never(place) else _known_at(place, known))
    if policy == "drop":
        _drop(fields, known, tools)
        return
    for place in unknown:
        if _never(place):
            raise openai.refused(place, frozenset())
    for name, value in fields.items():
        if name not in known and not engine_tools.keeps(name, tools) and (inner := openai.forbidden(plain(value, name))) is not None:
            raise openai.refused(f"{name}.{inner}", frozenset())


def _never(place: str) -> bool:
    return openai.never(place) or place in lists.NEVER


def _known_at(place: str, known: frozenset[str]) -> frozenset[str]:
    holder = place.rpartition(".")[0].rpartition(".")[2].partition("[")[0]
    if not holder:
        return known
    return {"messages": MESSAGE, "metadata": METADATA, "tools": TOOL, "tool_choice": lists.CHOICE}.get(holder, frozenset())


def _drop(fields: dict[str, Raw], known: frozenset[str], allowed: Sequence[str]) -> None:
    for name in [one for one in fields if one not in known and not engine_tools.keeps(one, allowed)]:
        del fields[name]
    for name in ("messages", "system", "tools", "metadata", "tool_choice"):
        if name in fields:
            value = plain(fields[name], name)
            if name == "messages":
                for message in value:
                    _keep(message, MESSAGE)
                    _drop_blocks(message.get("content"))
            elif name == "system":
                _drop_blocks(value)
            elif name == "tools":
                if value.__class__ is not list:
                    continue
                value = [tool for tool in value if _runs_elsewhere(tool) or engine_tools.allows(tool, allowed)]
                for tool in value:
                    if tool.get("type") in _PLAIN:
                        _keep(tool, TOOL)
                offered(value, fields)
                continue
            elif value.__class__ is dict:
                _keep(value, METADATA if name == "metadata" else lists.CHOICE)
            fields[name] = Raw(msgspec.json.encode(value))


def _drop_blocks(blocks: Any) -> None:
    if blocks.__class__ is dict:
        blocks = [blocks]
    for block in blocks if blocks.__class__ is list else ():
        known = BLOCK.get(block["type"])
        if known is not None:
            _keep(block, known)
            _drop_blocks(block.get("content"))
            source = block.get("source")
            if source.__class__ is dict:
                _keep(source, SOURCE[source["type"]])
                _drop_blocks(source.get("content"))


def _keep(found: dict[str, Any], known: frozenset[str]) -> None:
    for name in [name for name in found if name not in known]:
        del found[name]
