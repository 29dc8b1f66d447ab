"""A kept answer in the other form: a whole chat completion as the events of a stream, and the events of a stream as a whole answer."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.slices import Steps, at_once

DONE: Final = b"data: [DONE]\n\n"
_KEPT: Final = frozenset({"role", "type", "id"})
"""Texts that are not continued: the last one counts."""
_CONTINUED: Final = {"delta": "message", "text": "text", "logprobs": "logprobs"}
"""What a choice says piece by piece, and what the whole answer calls it."""
EVENTS_AT_ONCE: Final = 64


def as_stream(body: bytes, include_usage: bool) -> bytes:
    """The events of a stream that says the same: one with the whole of each choice, one with its end."""
    document = _decoded(body)
    frame = {key: value for key, value in document.items() if key not in ("choices", "usage", "object")}
    frame["object"] = "chat.completion.chunk" if any("message" in choice for choice in document["choices"]) else "text_completion"
    events: list[dict[str, Any]] = []
    for choice in document["choices"]:
        ends = {"index": choice.get("index", 0), "finish_reason": choice.get("finish_reason")}
        if "message" in choice:
            delta = dict(choice["message"])
            calls = delta.get("tool_calls")
            if isinstance(calls, list):
                delta["tool_calls"] = [{**call, "index": number} for number, call in enumerate(calls)]
            events.append({**frame, "choices": [{**ends, "delta": delta, "finish_reason": None}]})
            events.append({**frame, "choices": [{**ends, "delta": {}}]})
        else:
            events.append({**frame, "choices": [{**ends, "text": choice.get("text", "")}]})
    if include_usage and document.get("usage") is not None:
        events.append({**frame, "choices": [], "usage": document["usage"]})
    return b"".join([b"data: %b\n\n" % msgspec.json.encode(event) for event in events]) + DONE


def told(events: bytes, include_usage: bool) -> bytes:
    """The same stream, without the event that tells only the usage where it is not asked for."""
    if include_usage:
        return events
    return b"".join([event + b"\n\n" for event in events.split(b"\n\n")[:-1] if not _tells_usage(event)])


def _tells_usage(event: bytes) -> bool:
    if b'"usage"' not in event or b'"delta"' in event or not event.startswith(b"data: {"):  # few are worth decoding
        return False
    document = _decoded(event[6:])
    return not document["choices"] and document.get("usage") is not None


def as_whole(events: bytes) -> bytes:
    """The whole answer that the events say. Raises EngineError for what is not such a stream."""
    return at_once(whole_steps(events))


def whole_steps(events: bytes) -> Steps[bytes]:
    """The same in slices."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    joining = Joining()
    for done, event in enumerate(events.split(b"\n\n")[:-1], 1):
        if event.startswith(b"data: {"):
            document = _decoded(event[6:])
            answer.update({key: value for key, value in document.items() if key not in ("choices", "object") and value is not None})
            try:
                _choices(choices, document["choices"], joining)
            except (AttributeError, TypeError, RecursionError):
                raise EngineError("The kept answer cannot be read.") from None
        if done % EVENTS_AT_ONCE == 0:
            yield
    joining.end()
    for choice in choices.values():
        message = choice.get("message")
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                call.pop("index", None)
    chat = any("message" in choice for choice in choices.values())
    answer = {"id": "", **answer, "object": "chat.completion" if chat else "text_completion"}
    return msgspec.json.encode({**answer, "choices": [choices[index] for index in sorted(choices)]})


def _choices(choices: dict[int, dict[str, Any]], pieces: list[Any], joining: Joining) -> None:
    """Joins what an event says to the choices so far. Raises AttributeError, TypeError for what is none."""
    for choice in pieces:
        index = choice.get("index", 0)
        if not isinstance(index, int):
            raise TypeError(index)
        found = choices.setdefault(index, {"index": index})
        for key, value in choice.items():
            if key in _CONTINUED:
                joining.add(found, _CONTINUED[key], value)
            elif key != "index" and (value is not None or key not in found):
                found[key] = value


class Joining:
    """Puts values together that come in pieces: texts are continued, objects joined, lists joined by the index of their elements.

    Each piece costs what it is long, not what came before it: texts are lists of their pieces until `end`, and every list knows where its
    elements are.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[int, str], tuple[dict[str, Any], list[str]]] = {}
        self._places: dict[int, tuple[list[Any], dict[Any, dict[str, Any]]]] = {}
        """By identity of the object or list, which is kept here as long as its identity counts."""

    def add(self, whole: dict[str, Any], key: str, more: Any) -> None:
        """Joins a piece to the value of a key."""
        before = whole.get(key)
        if more is None:
            whole.setdefault(key, None)
        elif isinstance(more, list) and (before is None or isinstance(before, list)):
            if before is None:
                before = whole[key] = []
            self._extend(before, more)
        elif before is None:
            whole[key] = more
        elif isinstance(before, str) and isinstance(more, str):
            self._texts.setdefault((id(whole), key), (whole, [before]))[1].append(more)
        elif isinstance(before, dict) and isinstance(more, dict):
            for name, value in more.items():
                if name in _KEPT and isinstance(value, str):
                    before[name] = value or before.get(name)
                else:
                    self.add(before, name, value)
        else:
            self._texts.pop((id(whole), key), None)
            whole[key] = more

    def _extend(self, elements: list[Any], more: list[Any]) -> None:
        """Joins the pieces of elements to those of the same index; others are new elements."""
        known = self._places.get(id(elements))
        if known is None:
            known = self._places[id(elements)] = (elements, {})
            for element in reversed(elements):
                if (at := _index(element)) is not None:
                    known[1][at] = element
        places = known[1]
        for element in more:
            at = _index(element)
            same = None if at is None else places.get(at)
            if same is None:
                elements.append(element)
                if at is not None:
                    places[at] = element
                continue
            for name, value in element.items():
                if name in _KEPT and isinstance(value, str):
                    same[name] = value or same.get(name)
                elif name != "index":
                    self.add(same, name, value)

    def end(self) -> None:
        """Puts the texts in the places of their pieces."""
        for (_, key), (whole, pieces) in self._texts.items():
            whole[key] = "".join(pieces)
        self._texts.clear()


def _index(element: Any) -> int | str | None:
    """By which the pieces of an element are known."""
    at = element.get("index") if isinstance(element, dict) else None
    return at if isinstance(at, int | str) else None


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The kept answer cannot be read.") from None
    if not isinstance(document, dict) or not isinstance(document.get("choices"), list):
        raise EngineError("The kept answer has no choices.")
    return document
