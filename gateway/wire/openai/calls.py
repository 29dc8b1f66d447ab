"""Tool calls in OpenAI answers, whole or in the pieces of a stream, and the tools, calls and results that a request carries.

Engines write calls in more places than the API names, and clients read some of them: so a call is whatever stands under one of KEYS at any
depth of a choice, in any case of letters, and every object whose `type` is one of TYPES. Each name that a client may take for the tool's
counts: of the call itself, of its `function` or `custom`, and of a name in pieces every piece and all together. What can be read in more
than one way is `unreadable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import EngineError, RequestError
from gateway.core.tools import Kind, ToolUse
from gateway.wire.bodies import plain
from gateway.wire.openai.fields import OFFERS, TEMPLATE
from gateway.wire.openai.views import TOOLS, Tool

KEYS: Final = frozenset({"tool_call", "tool_calls", "function_call", "function_calls"})
TYPES: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "tool_call", "custom_tool_call", "function_call", "mcp_call"})
NAMES: Final = frozenset({"name", "tool_name"})
ARGUMENTS: Final = frozenset({"arguments", "args", "input", "parameters"})
MAX_DEPTH: Final = 16
MAX_CALLS: Final = 256
"""Of one answer, and of one request."""
MAX_CHARACTERS: Final = 1024 * 1024
"""Of all calls of one answer: judging them takes about 5 ms for each 256 KiB."""
_NAME: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_MARKS: Final = (b"_call", b"tool_use", b"\\u")
"""One of these is in every event or answer with a call; the last, as any letter may be written so."""


class _Offering(msgspec.Struct):
    """A message, of which only its tools are read."""

    tools: Raw = Raw()


_MESSAGE_TOOLS: Final = msgspec.json.Decoder(list[_Offering])


def suspicious(data: bytes) -> bool:
    """Whether there may be a call in an answer, or an event of one."""
    lower = data.lower()
    return any([lower.find(mark) >= 0 for mark in _MARKS])


def found_in(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every (path, value) that is a call or a list of calls, at any depth. Raises EngineError where it is nested too deep to be read."""
    if depth > MAX_DEPTH:
        raise EngineError("The engine's answer is nested too deep to be inspected.")
    if value.__class__ is list:
        for number, inner in enumerate(value):
            if inner.__class__ in (dict, list):
                for path, found in found_in(inner, depth + 1):
                    yield f"[{number}]{path}", found
        return
    if value.get("type").__class__ is str and value["type"].casefold() in TYPES and depth:
        yield "", value
        return
    for key, inner in value.items():
        if key.casefold() in KEYS:
            if inner is not None:
                yield f".{key}", inner
        elif inner.__class__ in (dict, list):
            for path, found in found_in(inner, depth + 1):
                yield f".{key}{path}", found


class Pieces:
    """One call, put together from one piece or many."""

    __slots__ = ("_arguments", "_id", "_kind", "_names", "_place", "_type", "fault", "size")

    def __init__(self, place: str, kind: Kind = "call") -> None:
        self._place, self._kind = place, kind
        self._names: dict[str, list[str]] = {}
        self._arguments: dict[str, list[str]] = {}
        self._type = self._id = self.fault = ""
        self.size = 0

    def add(self, call: Any) -> None:
        """A piece, as decoded."""
        if not isinstance(call, dict):
            self.fault = "it is not an object"
            return
        for key, value in call.items():
            folded = key.casefold()
            if folded == "type" and isinstance(value, str):
                self._type = self._type or value
            elif folded in ("id", "call_id") and isinstance(value, str) and value:
                if folded == "id" and self._id not in ("", value):
                    self.fault = "two calls have the same index"
                self._id = value if folded == "id" else self._id
            elif folded in NAMES or folded in ARGUMENTS:
                self._take(folded, "", value)
            elif isinstance(value, dict):
                for inner, part in value.items():
                    if inner.casefold() in NAMES or inner.casefold() in ARGUMENTS:
                        self._take(inner.casefold(), folded, part)

    def _take(self, key: str, holder: str, value: Any) -> None:
        if value is None:
            return
        if key in NAMES:
            if not isinstance(value, str):
                self.fault = "its name is not text"
                return
            self._names.setdefault(f"{holder}.{key}", []).append(value)
        else:
            value = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            self._arguments.setdefault(f"{holder}.{key}", []).append(value)
        self.size += len(value)

    def use(self) -> ToolUse:
        names: dict[str, None] = {}
        for pieces in self._names.values():
            names.update(dict.fromkeys(name for name in ("".join(pieces), *pieces) if name))
        texts = list(dict.fromkeys(text for pieces in self._arguments.values() if (text := "".join(pieces))))
        fault = self.fault or ("it has two different sets of arguments" if len(texts) > 1 else "")
        free = self._type == "custom" and list(self._arguments) == ["custom.input"]
        return ToolUse(self._kind, tuple(names) or (self._type,), texts[0] if texts else "", self._place, fault, free)


def document_of(body: bytes) -> dict[str, Any]:
    """An answer or a chunk, decoded. Raises EngineError."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's answer is not valid JSON.") from None
    if not isinstance(document, dict):
        raise EngineError("The engine's answer is not a JSON object.")
    return document


def in_answer(document: dict[str, Any]) -> list[ToolUse]:
    """The calls of a whole answer. Raises EngineError for more than MAX_CALLS, or MAX_CHARACTERS."""
    uses: list[ToolUse] = []
    size = 0
    for path, value in found_in(document):
        for number, call in enumerate(value if isinstance(value, list) else (value,)):
            one = Pieces(f"{path[1:]}[{number}]" if isinstance(value, list) else path[1:])
            one.add(call)
            uses.append(one.use())
            size += one.size
            if len(uses) > MAX_CALLS:
                raise EngineError(f"The engine's answer has more than {MAX_CALLS} tool calls.")
            if size > MAX_CHARACTERS:
                raise EngineError(f"The calls of the engine's answer have more than {MAX_CHARACTERS} characters.")
    return uses


def of_answer(body: bytes) -> tuple[bytes, list[ToolUse]]:
    """A whole answer written anew, so that no key is there twice, and its calls. Raises EngineError."""
    document = document_of(body)
    return msgspec.json.encode(document), in_answer(document)


class OpenAiCalls:
    """The calls of one stream, as a `CallReader`."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, str, Any], Pieces] = {}
        self._size = 0

    def feed(self, event: bytes) -> tuple[bytes, bool]:
        if not suspicious(event) or not event.startswith(b"data: {"):
            return event + b"\n\n", False
        document = document_of(event[6:])
        found = False
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                found |= self._choice(choice)
        found |= any(True for _ in found_in({key: value for key, value in document.items() if key != "choices"}))
        return b"data: %b\n\n" % msgspec.json.encode(document), found

    def _choice(self, choice: dict[str, Any]) -> bool:
        index, any_found = choice.get("index", 0), False
        for path, value in found_in(choice):
            any_found = True
            for number, call in enumerate(value if isinstance(value, list) else (value,)):
                listed = isinstance(value, list)
                at = call.get("index") if listed and isinstance(call, dict) else None
                if listed and at.__class__ is not int and not path.startswith(".message"):
                    self._piece((index, path, f"?{number}"), path).fault = "a piece of it has no index"
                self._add((index, path, number if listed and at is None else at), path, call)
        return any_found

    def _piece(self, key: tuple[Any, str, Any], path: str) -> Pieces:
        one = self._calls.get(key)
        if one is None:
            if len(self._calls) >= MAX_CALLS:
                raise EngineError(f"The engine's answer has more than {MAX_CALLS} tool calls.")
            one = self._calls[key] = Pieces(f"choices[{key[0]}]{path}" + ("" if key[2] is None else f"[{key[2]}]"))
        return one

    def _add(self, key: tuple[Any, str, Any], path: str, call: Any) -> None:
        one = self._piece(key, path)
        before = one.size
        one.add(call)
        self._size += one.size - before
        if self._size > MAX_CHARACTERS:
            raise EngineError(f"The calls of the engine's answer have more than {MAX_CHARACTERS} characters.")

    def uses(self) -> list[ToolUse]:
        return [one.use() for one in self._calls.values()]


# --- requests


def offered(fields: dict[str, Raw]) -> list[ToolUse]:
    """The tools that a chat request offers: of all its messages, of one, or as arguments of the engine's template. Raises RequestError."""
    found: list[ToolUse] = []
    for field in OFFERS:
        given = fields.get(field)
        if given is not None:
            found += _listed(given, field)
    messages = fields.get("messages")
    if messages is not None and may_offer(messages):
        for number, message in enumerate(_MESSAGE_TOOLS.decode(messages)):
            if bytes(message.tools):
                found += _listed(message.tools, f"messages[{number}].tools")
    given = fields.get(TEMPLATE)
    if given is not None:
        arguments = plain(given, TEMPLATE)
        for name, value in arguments.items() if isinstance(arguments, dict) else ():
            if value and any(word in name.casefold() for word in ("tool", "function")):
                found += _argued(value, f"{TEMPLATE}.{name}")
    return found


def may_offer(messages: Raw) -> bool:
    """Whether one of the messages may bring tools of its own."""
    raw = bytes(messages)
    return raw.find(b'"tools"') >= 0 or raw.find(b"\\u") >= 0


def _listed(given: Raw, place: str) -> list[ToolUse]:
    try:
        tools = TOOLS.decode(given) or ()
    except msgspec.DecodeError as error:
        raise RequestError(f"{place}: {error}.", param=place, code="invalid_value") from None
    return [ToolUse("definition", tuple(tool.names), "", f"{place}[{number}]") for number, tool in enumerate(tools)]


def _argued(value: Any, place: str) -> list[ToolUse]:
    """Tools that a template writes into the prompt: definitions, names, or what only the template can read."""
    if isinstance(value, list):
        return [use for number, one in enumerate(value) for use in _argued(one, f"{place}[{number}]")]
    if isinstance(value, dict):
        try:
            return [ToolUse("definition", tuple(msgspec.convert(value, Tool).names), "", place)]
        except msgspec.ValidationError as error:
            raise RequestError(f"{place}: {error}.", param=place, code="invalid_value") from None
    if isinstance(value, str):
        return [ToolUse("definition", (value,), "", place, "" if _NAME.fullmatch(value) else "it is written for the template")]
    return []


def in_request(fields: dict[str, Raw]) -> list[ToolUse]:
    """The tools that a chat request offers, and the results that it carries, each by the name of the call that it answers. Raises
    RequestError."""
    uses = offered(fields)
    called: dict[str, list[str]] = {}
    for number, message in enumerate(plain(fields["messages"], "messages")):
        calls = message.get("tool_calls") or ()
        for call in calls if isinstance(calls, list) else ():
            one = Pieces("")
            one.add(call)
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                called.setdefault(call["id"], []).extend(one.use().names)
        uses += _results(message, f"messages[{number}]", called)
    if len(uses) > MAX_CALLS:
        raise RequestError(f"messages, tools: the request has more than {MAX_CALLS} tools and results together.", param="messages")
    return uses


def _results(message: dict[str, Any], place: str, called: dict[str, list[str]]) -> list[ToolUse]:
    """The results in one message: that of a tool, or parts of a content that say they are one."""
    role, content = message.get("role"), message.get("content")
    if isinstance(role, str) and role.casefold() in ("tool", "function"):
        return [ToolUse("result", _names_of(message, called), _text_of(content), place)]
    parts = content if isinstance(content, list) else ()
    return [
        ToolUse("result", _names_of(part, called), _text_of(part.get("content")), f"{place}.content[{number}]")
        for number, part in enumerate(parts)
        if isinstance(part, dict) and str(part.get("type", "")).casefold() in ("tool_result", "function_call_output", "tool_response")
    ]


def _names_of(result: dict[str, Any], called: dict[str, list[str]]) -> tuple[str, ...]:
    names: list[str] = []
    for key in ("tool_call_id", "tool_use_id", "call_id"):
        given = result.get(key)
        if isinstance(given, str):
            names += called.get(given, [])
    own = result.get("name")
    if isinstance(own, str) and own:
        names.append(own)
    return tuple(dict.fromkeys(names)) or ("",)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        return "\n".join(part["text"] for part in content)
    return "" if content is None else msgspec.json.encode(content).decode()
