"""Checks a request's structure: no key twice in any object, no name that only differs in case from a declared one, no media to fetch, and
which of its fields are unknown.

A request whose messages each have only a role and a text, as nearly all do, is checked by counting its colons.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import RequestError
from gateway.wire import engine_tools, unique
from gateway.wire.bodies import plain
from gateway.wire.openai import fields as lists
from gateway.wire.openai import media
from gateway.wire.openai.fields import AUDIO, CALL, DOCUMENT, FUNCTION, KNOWN, MEDIA, MESSAGE, NEVER, PART, PROSE, TEXT_PART, wrong_case
from gateway.wire.scan import occurrences

SPACED: Final = (b" :", b"\n:", b"\t:", b"\r:")
_STORED: Final = frozenset({"id"})
PAUSE: Final = 256
"""Fields, messages or documents checked in one turn."""


def in_order(body: bytes, fields: dict[str, Raw], messages: Sequence[Any] | None) -> bool:
    """Whether a body has only its top-level keys, once each, and the role and content of messages whose contents are texts.

    False proves nothing. True is sound because each key of the decoded request has a colon in the body: with no more colons, there are
    no other keys. Colons in texts are not counted if every key's colon directly follows its quote.
    """
    keys = len(fields)
    if messages is not None:
        for message in messages:
            if type(message.content) is not str or message.tool_calls is not None:
                return False
        keys += 2 * len(messages)
    if occurrences(body, b":", keys + 1) == keys:
        return True
    if body.count(b'":') != keys:
        return False
    return body.find(b" :") < 0 and body.find(b"\n:") < 0 and body.find(b"\t:") < 0 and body.find(b"\r:") < 0  # SPACED, without a loop


def in_order_steps(body: bytes, fields: dict[str, Raw], messages: Sequence[Any] | None) -> Generator[None, None, bool]:
    """`in_order` for a large body, with pauses."""
    keys = len(fields)
    if messages is not None:
        for message in messages:
            if type(message.content) is not str or message.tool_calls is not None:
                return False
        keys += 2 * len(messages)
    return (yield from only_keys_steps(body, keys))


def only_keys(body: bytes, keys: int) -> bool:
    """Whether a body has as many colons as it has keys that are known, those inside its texts aside. False proves nothing."""
    if occurrences(body, b":", keys + 1) == keys:
        return True
    if body.count(b'":') != keys:
        return False
    return body.find(b" :") < 0 and body.find(b"\n:") < 0 and body.find(b"\t:") < 0 and body.find(b"\r:") < 0


def only_keys_steps(body: bytes, keys: int) -> Generator[None, None, bool]:
    """The same for a large body, with a pause after every search through it: each takes 5 ms for 8 MiB."""
    found = body.count(b":")
    yield
    if found == keys:
        return True
    found = body.count(b'":')
    yield
    if found != keys:
        return False
    for spaced in SPACED:
        if body.find(spaced) >= 0:
            return False
        yield
    return True


class Structure:
    """The check of one request. `unknown`: the places of its unknown fields, when `steps` has ended."""

    __slots__ = ("_fields", "_known", "_operation", "unknown")

    def __init__(self, operation: str, known: frozenset[str], fields: dict[str, Raw]) -> None:
        self._operation, self._fields, self._known = operation, fields, known
        self.unknown: list[str] = []

    def steps(self, body: bytes) -> Generator[None, None, None]:
        """The whole check, with pauses. Takes out of the fields what is dropped. Raises RequestError."""
        expected = len(self._fields)
        total = unique.colons(body)
        yield
        decoded: dict[str, Any] = {}
        for number, (name, value) in enumerate(self._fields.items()):
            if number % PAUSE == PAUSE - 1:
                yield
            raw = bytes(value)
            expected += name.count(":")
            if raw.find(b"{") < 0:
                expected += unique.colons(raw)
                continue
            decoded[name] = plain(value, name)
            yield
            there = unique.colons(raw)
            yield
            kept = unique.written(decoded[name])
            yield
            if there != kept:
                raise unique.duplicate(raw, name)
            expected += kept
            yield
        if total != expected:
            raise unique.duplicate(body, "")
        for name in [name for name in self._fields if name in lists.DROPPED]:
            del self._fields[name]
        self._names(self._fields, self._known, "")
        for name, found in decoded.items():
            yield from self._inside(name, found)

    def _inside(self, name: str, found: Any) -> Generator[None, None, None]:
        if name == "messages":
            if isinstance(found, list):
                yield from self._messages(found)
        elif name == "documents" and self._operation == "rerank":
            for number, document in enumerate(found):
                if isinstance(document, dict):
                    self._document(document, f"documents[{number}].")
                if number % PAUSE == PAUSE - 1:
                    yield
        elif name == "prediction":
            content = found.get("content") if isinstance(found, dict) else None
            self._parts(content, "prediction.content")
        elif name == "stream_options":
            _cases(found, lists.STREAM_OPTIONS, "stream_options.")
        elif name == "response_format":
            _cases(found, lists.FORMAT, "response_format.")
        elif name in lists.FREE and isinstance(found, dict):
            if name != lists.TEMPLATE:
                media.refuse_addresses(found, name)
            fixed = lists.ARGUMENTS if name == lists.TEMPLATE else NEVER
            for key in found:
                if key.casefold() in fixed:
                    raise lists.unheard(f"{name}.{key}")
        elif name == "tools" and isinstance(found, list):
            for number, tool in enumerate(found):
                _tool(tool, f"tools[{number}]")
                if self._operation == "chat" and isinstance(tool, dict) and not _at_clients(tool):
                    self.unknown.append(f"tools[{number}].type")
                if number % PAUSE == PAUSE - 1:
                    yield

    def _messages(self, messages: list[Any]) -> Generator[None, None, None]:
        """Where the operation has no messages, nothing has looked at their form before."""
        seen = 0
        for number, message in enumerate(messages):
            if not isinstance(message, dict):
                continue
            if not MESSAGE.issuperset(message):
                self._names(message, MESSAGE, f"messages[{number}].")
            if "audio" in message:
                media.refuse_addresses(message["audio"], f"messages[{number}].audio")
                if isinstance(message["audio"], dict):
                    self._audio(message["audio"], f"messages[{number}].audio.")
            if message.get("tools"):
                self._own_tools(message["tools"], f"messages[{number}].tools")
            content = message.get("content")
            if content.__class__ is list:
                for at, part in enumerate(content):
                    if isinstance(part, dict) and not TEXT_PART.issuperset(part):
                        self._part(part, f"messages[{number}].content[{at}].")
                    seen += 1
                    if seen % PAUSE == 0:
                        yield
            calls = message.get("tool_calls")
            if isinstance(calls, list):
                for at, call in enumerate(calls):
                    if not isinstance(call, dict):
                        continue
                    self._names(call, CALL, f"messages[{number}].tool_calls[{at}].")
                    function = call.get("function")
                    if isinstance(function, dict):
                        self._names(function, FUNCTION, f"messages[{number}].tool_calls[{at}].function.")
                    seen += 1
                    if seen % PAUSE == 0:
                        yield
            seen += 1
            if seen % PAUSE == 0:
                yield

    def _own_tools(self, tools: Any, place: str) -> None:
        """Tools that only one message offers. The caller runs them."""
        for number, tool in enumerate(tools if isinstance(tools, list) else ()):
            _tool(tool, f"{place}[{number}]")
            if isinstance(tool, dict) and not _at_clients(tool):
                where = f"{place}[{number}].type"
                raise RequestError(f"{where}: a message may only offer tools that the caller runs; offer others in `tools`.", param=where)
        self.unknown.append(place)

    def _parts(self, content: Any, place: str) -> None:
        """The parts of a content, or the only one."""
        if isinstance(content, dict):
            self._part(content, f"{place}.")
        for at, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict):
                self._part(part, f"{place}[{at}].")

    def _part(self, part: dict[str, Any], place: str) -> None:
        for name, value in part.items():
            if name in MEDIA:
                _media(value, f"{place}{name}", name)
                if isinstance(value, dict):
                    for inner, content in value.items():
                        if inner not in media.CONTENT:
                            media.refuse_addresses(content, f"{place}{name}.{inner}")
                    self._names(value, MEDIA[name], f"{place}{name}.")
                elif not isinstance(value, str):
                    media.refuse_addresses(value, f"{place}{name}")
            elif name.casefold().endswith("url"):
                media.check_url(value.get("url") if isinstance(value, dict) else value, f"{place}{name}")
            elif name not in PROSE or not isinstance(value, str):
                media.refuse_addresses(value, f"{place}{name}")
        self._names(part, PART, place)

    def _audio(self, audio: dict[str, Any], place: str) -> None:
        for name in audio:
            wrong_case(name, _STORED, place)
        self._names(audio, AUDIO, place)

    def _document(self, document: dict[str, Any], place: str) -> None:
        self._parts(document.get("content"), f"{place}content")
        for name, value in document.items():
            if name not in DOCUMENT:
                media.refuse_addresses(value, f"{place}{name}")
        self._names(document, DOCUMENT, place)

    def _names(self, found: dict[str, Any], known: frozenset[str], place: str) -> None:
        for name in found:
            if name not in known:
                wrong_case(name, known, place)
                self.unknown.append(f"{place}{name}")


def _tool(tool: Any, place: str) -> None:
    if isinstance(tool, dict):
        _cases(tool, lists.TOOL, f"{place}.")
        for inner, value in tool.items():
            if inner.casefold().endswith("url"):
                media.check_url(value, f"{place}.{inner}")
        _cases(tool.get("function"), lists.TOOL_FUNCTION, f"{place}.function.")


def _at_clients(tool: dict[str, Any]) -> bool:
    """Whether a tool of a chat is run by the caller."""
    kind = tool.get("type")
    return kind is None or (isinstance(kind, str) and kind in lists.TOOL_KINDS)


def _media(value: Any, place: str, kind: str) -> None:
    if kind.endswith("url"):
        media.check_url(value.get("url") if isinstance(value, dict) else value, place)
    elif not isinstance(value, dict):
        media.check_data(value, place)
    else:
        media.check_data(value.get("data"), place)
        media.check_data(value.get("file_data"), place)


def _cases(found: Any, known: frozenset[str], place: str) -> None:
    if isinstance(found, dict):
        for name in found:
            if name not in known:
                wrong_case(name, known, place)


# --- unknown fields, once the model is known


def settle_unknown(fields: dict[str, Raw], operation: str, unknown: Sequence[str], policy: str, tools: Sequence[str] = ()) -> None:
    """Refuses unknown fields, removes them, or lets them pass, except those that never may. tools: what the engine may do by itself.
    Raises RequestError."""
    unknown = engine_tools.others(fields, unknown, policy, tools)
    if not unknown:
        return
    if policy == "refuse":
        raise lists.refused(unknown[0], _known_at(unknown[0], operation))
    if policy == "drop":
        drop(fields, operation, tools)
        return
    for place in unknown:
        if lists.never(place):
            raise lists.refused(place, frozenset())
    for name, value in fields.items():
        if (
            name not in KNOWN[operation]
            and not engine_tools.keeps(name, tools)
            and (inner := lists.forbidden(plain(value, name))) is not None
        ):
            raise lists.refused(f"{name}.{inner}", frozenset())


_KEPT: Final = "store"


def drop(fields: dict[str, Raw], operation: str, allowed: Sequence[str] = ()) -> None:
    """Removes every unknown field, at the top level and inside messages and documents. allowed: what the engine may do by itself."""
    for name in [one for one in fields if (one not in KNOWN[operation] or one == _KEPT) and not engine_tools.keeps(one, allowed)]:
        del fields[name]
    if "messages" in fields:
        messages = plain(fields["messages"], "messages")
        for message in messages:
            _keep(message, MESSAGE)
            _drop_audio(message, allowed)
            content = message.get("content")
            for part in content if isinstance(content, list) else ():
                _keep_part(part)
            for call in message.get("tool_calls") or ():
                _keep(call, CALL)
                _keep(call.get("function") or {}, FUNCTION)
        fields["messages"] = Raw(msgspec.json.encode(messages))
    if "tools" in fields and operation == "chat":
        tools = plain(fields["tools"], "tools")
        if isinstance(tools, list):
            kept = [tool for tool in tools if not isinstance(tool, dict) or _at_clients(tool) or engine_tools.allows(tool, allowed)]
            offered(kept, fields)
    if "documents" in fields and operation == "rerank":
        documents = plain(fields["documents"], "documents")
        for document in documents:
            if isinstance(document, dict):
                _keep(document, DOCUMENT)
                content = document.get("content")
                for part in content if isinstance(content, list) else ():
                    if isinstance(part, dict):
                        _keep_part(part)
        fields["documents"] = Raw(msgspec.json.encode(documents))


def offered(tools: list[Any], fields: dict[str, Raw]) -> None:
    """Writes the tools that are left; engines refuse an empty list of them."""
    if tools:
        fields["tools"] = Raw(msgspec.json.encode(tools))
    else:
        for name in ("tools", "tool_choice"):
            fields.pop(name, None)


def _drop_audio(message: dict[str, Any], allowed: Sequence[str]) -> None:
    audio = message.get("audio")
    if isinstance(audio, dict):
        _keep(audio, AUDIO | _STORED if engine_tools.AUDIO in allowed else AUDIO)
        if not audio:
            del message["audio"]


def _keep_part(part: dict[str, Any]) -> None:
    _keep(part, PART)
    for name, value in part.items():
        if isinstance(value, dict) and name in MEDIA:
            _keep(value, MEDIA[name])


def _keep(found: dict[str, Any], known: frozenset[str]) -> None:
    for name in [name for name in found if name not in known]:
        del found[name]


def _known_at(place: str, operation: str) -> frozenset[str]:
    """The names known at the place of an unknown one."""
    holder = place.rpartition(".")[0]
    if not holder:
        return KNOWN[operation]
    last = holder.rpartition(".")[2].partition("[")[0]
    if last in MEDIA:
        return MEDIA[last]
    return {"messages": MESSAGE, "content": PART, "tool_calls": CALL, "function": FUNCTION, "documents": DOCUMENT}.get(last, frozenset())
