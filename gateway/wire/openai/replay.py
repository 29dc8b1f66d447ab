"""A kept answer in the other form: a whole chat completion as the events of a stream, and the events of a stream as a whole answer."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError

DONE: Final = b"data: [DONE]\n\n"
_KEPT: Final = frozenset({"role", "type", "id"})
"""Texts that are not continued: the last one counts."""


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


def as_whole(events: bytes) -> bytes:
    """The whole answer that the events say. Raises EngineError for what is not such a stream."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events.split(b"\n\n")[:-1]:
        if not event.startswith(b"data: {"):
            continue
        document = _decoded(event[6:])
        answer.update({key: value for key, value in document.items() if key not in ("choices", "object") and value is not None})
        for choice in document["choices"]:
            index = choice.get("index", 0)
            found = choices.setdefault(index, {"index": index})
            for key, value in choice.items():
                if key == "delta":
                    found["message"] = _joined(found.get("message"), value)
                elif key == "text":
                    found["text"] = found.get("text", "") + value
                elif key != "index" and (value is not None or key not in found):
                    found[key] = value
    for choice in choices.values():
        for call in (choice.get("message") or {}).get("tool_calls") or ():
            call.pop("index", None)
    chat = any("message" in choice for choice in choices.values())
    answer = {"id": "", **answer, "object": "chat.completion" if chat else "text_completion"}
    return msgspec.json.encode({**answer, "choices": [choices[index] for index in sorted(choices)]})


def _joined(before: Any, more: Any) -> Any:
    """Two pieces of one value: texts are continued, objects joined, lists joined by the index of their elements."""
    if before is None:
        return _joined([], more) if isinstance(more, list) else more
    if more is None:
        return before
    if isinstance(before, str) and isinstance(more, str):
        return before + more
    if isinstance(before, dict) and isinstance(more, dict):
        found = dict(before)
        for key, value in more.items():
            kept = key in _KEPT and isinstance(value, str)
            found[key] = (value or found.get(key)) if kept else _joined(found.get(key), value)
        return found
    if isinstance(before, list) and isinstance(more, list):
        joined = list(before)
        for element in more:
            at = element.get("index") if isinstance(element, dict) else None
            same = next((number for number, one in enumerate(joined) if at is not None and one.get("index") == at), None)
            if same is None:
                joined.append(element)
            else:
                joined[same] = {
                    **_joined({k: v for k, v in joined[same].items() if k != "index"}, {k: v for k, v in element.items() if k != "index"}),
                    "index": at,
                }
        return joined
    return more


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The kept answer cannot be read.") from None
    if not isinstance(document, dict) or not isinstance(document.get("choices"), list):
        raise EngineError("The kept answer has no choices.")
    return document
