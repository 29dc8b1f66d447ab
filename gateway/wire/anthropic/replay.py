"""A kept answer in the other form: a whole message as the events of a stream, and the events of a stream as a whole message."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.wire.anthropic.answers import decoded
from gateway.wire.anthropic.stream import STOP, event
from gateway.wire.sse import data_of

_PIECES: Final = {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}


def as_stream(body: bytes) -> bytes:
    """The events of a stream that says the same: of each block one with each of its texts."""
    document = decoded(body)
    usage = document.get("usage") or {}
    events = [event({"type": "message_start", "message": {**document, "content": [], "stop_reason": None, "stop_sequence": None}})]
    for index, block in enumerate(document["content"]):
        opened = dict(block)
        deltas: list[dict[str, Any]] = []
        if "input" in opened:
            deltas.append({"type": "input_json_delta", "partial_json": msgspec.json.encode(opened["input"]).decode()})
            opened["input"] = {}
        for name, kind in _PIECES.items():
            if opened.get(name).__class__ is str and opened[name]:
                deltas.append({"type": kind, name: opened[name]})
                opened[name] = ""
        events.append(event({"type": "content_block_start", "index": index, "content_block": opened}))
        events += [event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas]
        events.append(event({"type": "content_block_stop", "index": index}))
    ends = {"stop_reason": document.get("stop_reason"), "stop_sequence": document.get("stop_sequence")}
    events.append(event({"type": "message_delta", "delta": ends, "usage": usage}))
    return b"".join(events) + STOP


def as_whole(events: bytes) -> bytes:
    """The whole message that the events say. Raises EngineError for what is not such a stream."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for one in events.split(b"\n\n")[:-1]:
        payload = data_of(one + b"\n\n")
        if not payload:
            continue
        try:
            document = msgspec.json.decode(payload)
            kind = document["type"]
            if kind == "message_start":
                message = document["message"]
            elif kind == "content_block_start":
                blocks[document["index"]] = document["content_block"]
            elif kind == "content_block_delta":
                _continue(blocks, inputs, document["index"], document["delta"])
            elif kind == "message_delta":
                message |= document["delta"]
                message["usage"] = {**(message.get("usage") or {}), **(document.get("usage") or {})}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
            raise EngineError("The kept answer cannot be read.") from None
    for index, text in inputs.items():
        try:
            blocks[index]["input"] = msgspec.json.decode(text or "{}")
        except (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError, RecursionError):
            raise EngineError("The kept answer has a tool call that cannot be read.") from None
    return msgspec.json.encode({**message, "content": [blocks[index] for index in sorted(blocks)]})


def _continue(blocks: dict[int, dict[str, Any]], inputs: dict[int, str], index: int, delta: dict[str, Any]) -> None:
    block = blocks[index]
    for name, piece in delta.items():
        if name == "type":
            continue
        if name == "partial_json":
            inputs[index] = inputs.get(index, "") + piece
        elif isinstance(piece, str):
            block[name] = (block.get(name) or "") + piece
        elif name == "citation":
            block["citations"] = [*(block.get("citations") or ()), piece]
