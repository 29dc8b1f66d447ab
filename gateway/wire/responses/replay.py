"""A kept answer in the other form: a whole response as the events of a stream, and the events of a stream as a whole response."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.slices import Steps, at_once
from gateway.wire.responses.answers import decoded
from gateway.wire.responses.events import PIECES, line
from gateway.wire.sse import data_of

EVENTS_AT_ONCE: Final = 64
_PARTS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text", "summary_text": "text"}
_NAMES = {kind: name for name, (kind, index, _) in reversed(list(PIECES.items())) if index or kind in ("arguments", "input")}


def as_stream(body: bytes) -> bytes:
    """The events of a stream that says the same: of each text one piece and its end."""
    document = decoded(body)
    begun = {**document, "output": [], "status": "in_progress", "usage": None, "incomplete_details": None}
    events: list[dict[str, Any]] = [{"type": kind, "response": begun} for kind in ("response.created", "response.in_progress")]
    for number, item in enumerate(document["output"]):
        where = {"item_id": str(item.get("id", "")), "output_index": number}
        opened = {**item, "status": "in_progress"} if "status" in item else dict(item)
        opened |= {name: [] for name in ("content", "summary") if isinstance(item.get(name), list)}
        opened |= {name: "" for name in ("arguments", "input") if isinstance(item.get(name), str)}
        events.append({"type": "response.output_item.added", "output_index": number, "item": opened})
        for name, index in (("content", "content_index"), ("summary", "summary_index")):
            parts = item.get(name)
            for at, part in enumerate(parts if isinstance(parts, list) else ()):
                events += _part(part, {**where, index: at}, name == "summary")
        for name in ("arguments", "input"):
            if isinstance(item.get(name), str):
                events += _text(_NAMES[name], where, item[name], name)
        events.append({"type": "response.output_item.done", "output_index": number, "item": item})
    status = document.get("status")
    events.append({"type": f"response.{status if status == 'incomplete' else 'completed'}", "response": document})
    return b"".join([line({**event, "sequence_number": number}) + b"\n\n" for number, event in enumerate(events)])


def _part(part: Any, where: dict[str, Any], of_summary: bool) -> list[dict[str, Any]]:
    field = _PARTS.get(part.get("type", "")) if isinstance(part, dict) else None
    name = "response.reasoning_summary_part" if of_summary else "response.content_part"
    if field is None:
        return [{"type": f"{name}.{end}", **where, "part": part} for end in ("added", "done")]
    text = part.get(field) or ""
    return [
        {"type": f"{name}.added", **where, "part": {**part, field: ""}},
        *_text(_NAMES[part["type"]], where, text, field),
        {"type": f"{name}.done", **where, "part": part},
    ]


def _text(name: str, where: dict[str, Any], text: str, field: str) -> list[dict[str, Any]]:
    pieces = [{"type": f"{name}.delta", **where, "delta": text}] if text else []
    return [*pieces, {"type": f"{name}.done", **where, field: text}]


def as_whole(events: bytes) -> bytes:
    """The whole response that the events end with. Raises EngineError for what is not such a stream."""
    return at_once(whole_steps(events))


def whole_steps(events: bytes) -> Steps[bytes]:
    """The same in slices."""
    for done, one in enumerate(reversed(events.split(b"\n\n")), 1):
        if done % EVENTS_AT_ONCE == 0:
            yield
        payload = data_of(one + b"\n\n")
        if not payload.startswith(b"{"):
            continue
        try:
            document = msgspec.json.decode(payload)
            if document["type"] in ("response.completed", "response.incomplete"):
                return msgspec.json.encode(document["response"])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
            break
    raise EngineError("The kept answer cannot be read.")
