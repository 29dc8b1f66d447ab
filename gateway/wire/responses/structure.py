"""Checks a request's structure: no key twice, no name in the wrong case, no media to fetch, nothing that an engine keeps for its operator,
which of its fields are unknown, and that every item, part and tool is of a kind that is known here.

A request whose items are all messages with plain texts is checked by counting its colons (gateway.wire.openai.structure).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import RequestError
from gateway.wire import engine_tools
from gateway.wire.bodies import plain
from gateway.wire.openai import fields as openai
from gateway.wire.openai import media
from gateway.wire.openai.structure import PAUSE, Structure, offered
from gateway.wire.responses import fields as lists
from gateway.wire.responses.fields import IN_NAMESPACE, ITEM, NEVER, PART, TOOL
from gateway.wire.responses.tool_names import NAMESPACE
from gateway.wire.responses.views import Item

_TEXTS: Final = frozenset({"input_text", "output_text", "text"})
INPUT: Final[Any] = str | list[Item]
_CITED: Final = "annotations"
"""Where an answer names its sources; nobody fetches them."""


def plain_keys(fields: dict[str, Raw], view: Any) -> int:
    """The keys of a body that has only its top-level keys and messages that are texts or plain parts; -1 for any other."""
    keys = len(fields)
    if view.input.__class__ is str:
        return keys
    for item in view.input:
        if item.role == "":
            return -1
        keys += 2
        if item.type.__class__ is str:
            if item.type != "message":
                return -1
            keys += 1
        if item.content.__class__ is not str:
            if item.content is None:
                return -1
            for part in item.content:
                if part.type not in _TEXTS or part.text is None:
                    return -1
            keys += 2 * len(item.content)
    return keys


class ResponsesStructure(Structure):
    """The check of one request."""

    __slots__ = ()

    def _inside(self, name: str, found: Any) -> Generator[None, None, None]:
        if name == "input":
            for number, item in enumerate(found if found.__class__ is list else ()):
                self._one(item, f"input[{number}].")
                if number % PAUSE == PAUSE - 1:
                    yield
        elif name == "tools" and found.__class__ is list:
            for number, tool in enumerate(found):
                self._tool(tool, f"tools[{number}].", TOOL)
        elif name == "tool_choice" and found.__class__ is dict:
            self._names(found, lists.CHOICE, "tool_choice.")
        elif name == "reasoning" and found.__class__ is dict:
            self._names(found, lists.REASONING, "reasoning.")
        elif name == "stream_options" and found.__class__ is dict:
            self._names(found, openai.STREAM_OPTIONS, "stream_options.")
        elif name == "text" and found.__class__ is dict:
            self._names(found, lists.TEXT, "text.")
            if found.get("format").__class__ is dict:
                self._names(found["format"], lists.FORMAT, "text.format.")
        yield

    def _one(self, item: Any, place: str) -> None:
        kind = kind_of(item)
        known = ITEM.get(kind)
        if known is None:
            raise _unknown_kind(kind, f"{place}type", "item", ITEM)
        self._names(item, known, place)
        if kind == "message" and item.get("role") not in _ROLES:
            raise RequestError(f"{place}role: known are user, assistant, system and developer.", param=f"{place}role")
        for name, value in item.items():
            if name in _CONTENTS and value.__class__ is list:
                self._parts(value, f"{place}{name}")
            elif kind != "web_search_call":
                _refuse(name, value, place)

    def _parts(self, parts: list[Any], place: str) -> None:
        for number, part in enumerate(parts):
            where = f"{place}[{number}]."
            kind = part.get("type") if part.__class__ is dict else None
            if kind.__class__ is not str:
                if part.__class__ is dict and kind is None and "stdout" in part:  # what a shell gave
                    for name, value in part.items():
                        _refuse(name, value, where)
                    continue
                raise RequestError(f"{where}type: every part has a type.", param=f"{where}type")
            known = PART.get(kind)
            for name, value in part.items():
                if name in NEVER and value is not None:
                    raise _kept_elsewhere(f"{where}{name}")
            if known is None:
                raise _unknown_kind(kind, f"{where}type", "part", PART)
            self._names(part, known, where)
            if kind == "input_image":
                media.check_url(part.get("image_url"), f"{where}image_url")
            elif kind == "input_file":
                media.check_data(part.get("file_data"), f"{where}file_data")
            if kind in _MEDIA:
                media.refuse_addresses(part.get("detail"), f"{where}detail")

    def _tool(self, tool: Any, place: str, kinds: Mapping[str, frozenset[str]]) -> None:
        kind = tool.get("type") if tool.__class__ is dict else None
        known = kinds.get(kind) if kind.__class__ is str else None
        if known is None:
            raise _unknown_kind(kind, f"{place}type", "tool", kinds)
        if kind in lists.AT_ENGINES:
            self.unknown.append(f"{place}type")
        self._names(tool, known, place)
        if kind == NAMESPACE:
            self._namespace(tool, place)
            return
        for name, value in tool.items():
            if name not in _FREE and not engine_tools.of_its_own(name, value):
                _refuse(name, value, place)

    def _namespace(self, tool: dict[str, Any], place: str) -> None:
        named, tools = tool.get("name"), tool.get("tools")
        if named.__class__ is not str or not named:
            raise RequestError(f"{place}name: a namespace has a name.", param=f"{place}name")
        if tools.__class__ is not list:
            raise RequestError(f"{place}tools: a namespace has a list of functions.", param=f"{place}tools")
        for number, inner in enumerate(tools):
            self._tool(inner, f"{place}tools[{number}].", IN_NAMESPACE)


_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_CONTENTS: Final = frozenset({"content", "summary", "output"})
_MEDIA: Final = frozenset({"input_image", "input_file"})
_FREE: Final = frozenset({"parameters", "output_schema", "format", "filters"})
"""Of a tool: written by the caller, with names of its own."""


def kind_of(item: Any) -> Any:
    """The type of an item; of one that names none, a message if it has a role."""
    if item.__class__ is not dict:
        return None
    return item.get("type", "message" if "role" in item else None)


def _refuse(name: str, value: Any, place: str) -> None:
    """Refuses what an engine would look up for the caller, at any depth. Raises RequestError."""
    if name in NEVER and value is not None:
        raise _kept_elsewhere(f"{place}{name}")
    if name.casefold().endswith("url"):
        media.check_url(value, f"{place}{name}")
    if value.__class__ is dict:
        for inner, found in value.items():
            _refuse(inner, found, f"{place}{name}.")
    elif value.__class__ is list and name != _CITED:
        for number, found in enumerate(value):
            if found.__class__ is dict:
                for inner, one in found.items():
                    _refuse(inner, one, f"{place}{name}[{number}].")


def _kept_elsewhere(place: str) -> RequestError:
    return RequestError(
        f"{place}: files and ids that an engine stores cannot be named; send the content itself.",
        param=place,
        code="unsupported_content",
    )


def _unknown_kind(kind: Any, place: str, what: str, known: Mapping[str, frozenset[str]]) -> RequestError:
    shown = kind[:64] if isinstance(kind, str) else kind
    return RequestError(
        f"{place}: {shown!r} is not a known kind of {what}; known are {', '.join(sorted(known))}.",
        param=place,
        code="unsupported_content",
    )


# --- unknown fields, once the model is known


def settle_unknown(fields: dict[str, Raw], unknown: Sequence[str], policy: str, tools: Sequence[str] = ()) -> None:
    """Refuses unknown fields, removes them, or lets them pass, except those that never may. tools: what the engine may do by itself.
    Raises RequestError."""
    unknown = engine_tools.others(fields, unknown, policy, tools)
    if not unknown:
        return
    if policy == "refuse":
        place = unknown[0]
        raise openai.refused(place, lists.TOP if place.find(".") < 0 else frozenset())
    if policy == "drop":
        _drop(fields, tools)
        return
    for place in unknown:
        if openai.never(place) or place.rpartition(".")[2].casefold() in NEVER:
            raise openai.refused(place, frozenset())
    for name, value in fields.items():
        if name not in lists.TOP and not engine_tools.keeps(name, tools) and (inner := openai.forbidden(plain(value, name))) is not None:
            raise openai.refused(f"{name}.{inner}", frozenset())


def _drop(fields: dict[str, Raw], allowed: Sequence[str]) -> None:
    for name in [one for one in fields if one not in lists.TOP and not engine_tools.keeps(one, allowed)]:
        del fields[name]
    if "input" in fields:
        found = plain(fields["input"], "input")
        for item in found if found.__class__ is list else ():
            known = ITEM.get(kind_of(item))
            if known is None:  # of an earlier answer, which was kept here
                continue
            _keep(item, known)
            for name in _CONTENTS:
                for part in item[name] if item.get(name).__class__ is list else ():
                    if part.get("type") in PART:
                        _keep(part, PART[part["type"]])
        fields["input"] = Raw(msgspec.json.encode(found))
    if "tools" in fields and (offer := plain(fields["tools"], "tools")).__class__ is list:
        tools = [tool for tool in offer if tool["type"] not in lists.AT_ENGINES or engine_tools.allows(tool, allowed)]
        for tool in tools:
            _keep(tool, TOOL[tool["type"]])
            for inner in tool["tools"] if tool["type"] == NAMESPACE else ():
                _keep(inner, IN_NAMESPACE[inner["type"]])
        offered(tools, fields)
    for name, known in (("tool_choice", lists.CHOICE), ("reasoning", lists.REASONING), ("text", lists.TEXT)):
        if name in fields and (value := plain(fields[name], name)).__class__ is dict:
            _keep(value, known)
            if name == "text" and value.get("format").__class__ is dict:
                _keep(value["format"], lists.FORMAT)
            fields[name] = Raw(msgspec.json.encode(value))
    if "stream_options" in fields and (value := plain(fields["stream_options"], "stream_options")).__class__ is dict:
        _keep(value, openai.STREAM_OPTIONS)
        fields["stream_options"] = Raw(msgspec.json.encode(value))


def _keep(found: dict[str, Any], known: frozenset[str]) -> None:
    for name in [name for name in found if name not in known]:
        del found[name]
