"""A kept answer in the other form: a whole message as the events of a stream, and the events of a stream as a whole message."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.slices import Steps, at_once
from gateway.wire.anthropic.answers import decoded
from gateway.wire.anthropic.stream import STOP, event
from gateway.wire.sse import data_of

EVENTS_AT_ONCE: Final = 64
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
    return at_once(whole_steps(events))


def whole_steps(events: bytes) -> Steps[bytes]:
    """The same in slices."""
    message: dict[str, Any] = {}
    blocks = _Blocks()
    for done, one in enumerate(events.split(b"\n\n")[:-1], 1):
        payload = data_of(one + b"\n\n")
        if not payload:
            continue
        try:
            document = msgspec.json.decode(payload)
            kind = document["type"]
            if kind == "message_start":
                message = document["message"]
            elif kind == "content_block_start":
                blocks.start(document["index"], document["content_block"])
            elif kind == "content_block_delta":
                blocks.go_on(document["index"], document["delta"])
            elif kind == "message_delta":
                message |= document["delta"]
                message["usage"] = {**(message.get("usage") or {}), **(document.get("usage") or {})}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
            raise EngineError("The kept answer cannot be read.") from None
        if done % EVENTS_AT_ONCE == 0:
            yield
    return msgspec.json.encode({**message, "content": blocks.whole()})


class _Blocks:
    """The blocks of a message. Their texts are lists of pieces until all are there: each piece costs what it is long, not what came
    before it."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, dict[str, list[str]]] = {}
        self._inputs: dict[int, list[str]] = {}

    def start(self, index: int, block: dict[str, Any]) -> None:
        self._blocks[index] = {**block}
        self._texts.pop(index, None)

    def go_on(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        for name, piece in delta.items():
            if name == "type":
                continue
            if name == "partial_json":
                self._inputs.setdefault(index, []).append(piece)
            elif isinstance(piece, str):
                self._texts.setdefault(index, {}).setdefault(name, []).append(piece)
            elif name == "citation":
                if not isinstance(block.get("citations"), list):
                    block["citations"] = []
                block["citations"].append(piece)

    def whole(self) -> list[dict[str, Any]]:
        """All of them, in their order. Raises EngineError for texts or calls that cannot be read."""
        try:
            for index, texts in self._texts.items():
                block = self._blocks[index]
                block |= {name: "".join([block.get(name) or "", *pieces]) for name, pieces in texts.items()}
            for index, pieces in self._inputs.items():
                self._blocks[index]["input"] = msgspec.json.decode("".join(pieces) or "{}")
            return [self._blocks[index] for index in sorted(self._blocks)]
        except (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError, RecursionError, TypeError):
            raise EngineError("The kept answer has a tool call that cannot be read.") from None
