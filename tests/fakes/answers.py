"""What the scripted engine (tests/fakes/engine.py) answers: a Step says how, `pieces` turns it into bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

KINDS = frozenset(
    (
        *("normal", "status", "hold", "hang", "reset", "close", "garbage", "half_event", "short_length", "long_length", "endless_header"),
        *("dribble", "surplus", "huge_header", "until_close", "interim", "trailers"),
    )
)
ACTIONS = ("hold", "hang", "reset", "close", "garbage")
"""The kinds that happen at a position."""
POSITIONS = ("before", "head", "mid", "end")
GARBAGE = b"\x16\x03\x01 this is not HTTP\r\n\r\n"


@dataclass(frozen=True)
class Step:
    """How one request is answered; the module's docstring lists the kinds. `size`: further bytes of text in each chunk.

    `media`: the type of an event stream, none where it is empty. `linger`: seconds between the last byte and a reset or close, at least, so
    that the peer reads what was sent before."""

    kind: str = "normal"
    at: str = "before"
    chunks: int = 4
    interval: float = 0.0
    delay: float = 0.0
    code: int = 200
    retry_after: str = ""
    size: int = 0
    media: str = "text/event-stream"
    linger: float = 0.02

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.at not in POSITIONS:
            raise ValueError(f"unknown step {self.kind}:at={self.at}")


def parse_step(text: str) -> Step:
    """`reset:at=mid,chunks=8` as a Step."""
    kind, _, settings = text.strip().partition(":")
    plain = Step()
    given: dict[str, Any] = {"kind": kind}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        given[key.strip()] = type(getattr(plain, key.strip()))(value.strip())
    return Step(**given)


def parse_script(text: str) -> list[Step]:
    """`status:code=503*2; normal` as a list of three steps."""
    steps: list[Step] = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        step, _, count = part.partition("*")
        steps += [parse_step(step)] * (int(count) if count else 1)
    return steps


def pieces(method: str, path: str, request: bytes, step: Step, health: dict[str, Any]) -> list[bytes]:
    """The whole answer to a request: the head, then pieces of body with their framing."""
    if method == "GET":
        answer = health if path == "/health" else {"object": "list", "data": [{"id": health["model"], "object": "model"}]}
        return _plain(200, json.dumps(answer).encode(), step)
    if step.kind == "status":
        error = {"error": {"message": "scripted", "type": "engine_error", "param": None, "code": "scripted"}}
        return _plain(step.code, json.dumps(error).encode(), step)
    try:
        body = json.loads(request)
    except ValueError:
        return _plain(400, b'{"error":{"message":"not JSON","type":"invalid_request_error","param":null,"code":"invalid_json"}}', step)
    texts = _texts(body, step)
    if body.get("stream"):
        return _shape(_stream(body, texts, step), step)
    prompt = len(str(body.get("messages", body.get("prompt", ""))).split())
    usage = {"prompt_tokens": prompt, "completion_tokens": len(texts), "total_tokens": prompt + len(texts)}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    if path.endswith("/chat/completions"):
        choice["message"] = {"role": "assistant", "content": "".join(texts)}
    else:
        choice["text"] = "".join(texts)
    answer = {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model"),
        "choices": [choice],
        "usage": usage,
    }
    return _shape(_plain(200, json.dumps(answer).encode(), step), step)


def _texts(body: dict[str, Any], step: Step) -> list[str]:
    """What is generated: numbered words, marked with the request's `user` so that tests can tell whose they are."""
    mark = body.get("user") or "tok"
    count = min(step.chunks, int(body.get("max_tokens") or step.chunks))
    return [f" {mark}{i}" + "x" * step.size for i in range(count)]


def _plain(status: int, body: bytes, step: Step) -> list[bytes]:
    length = len(body) + {"short_length": -3, "long_length": 7}.get(step.kind, 0)
    retry = f"retry-after: {step.retry_after}\r\n" if step.retry_after else ""
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{retry}\r\n"
    return [head.encode(), body[: len(body) // 2], body[len(body) // 2 :]]


def _stream(body: dict[str, Any], texts: list[str], step: Step) -> list[bytes]:
    """The head and the chunks of an event stream, framed by `Transfer-Encoding: chunked` unless it ends with the connection."""
    base = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1, "model": body.get("model")}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    events = [_event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas]
    if step.kind == "half_event":
        events = [*events[:-1], events[-1][: len(events[-1]) // 2]]
    else:
        events.append(_event({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 3, "completion_tokens": len(texts), "total_tokens": 3 + len(texts)}
            events.append(_event({**base, "choices": [], "usage": usage}))
        events.append(b"data: [DONE]\n\n")
    kind = b"content-type: %b\r\n" % step.media.encode() if step.media else b""
    if step.kind == "until_close":
        return [b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n", *events]
    head = b"HTTP/1.1 200 OK\r\n" + kind + b"transfer-encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in events]
    if step.kind == "half_event":
        return [head, *chunks, b"0\r\n\r\n"]
    trailers = b"x-checksum: abc\r\nx-last: trailer\r\n" if step.kind == "trailers" else b""
    return [head, *chunks, b"0\r\n" + trailers + b"\r\n"]


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _shape(pieces: list[bytes], step: Step) -> list[bytes]:
    """The faults that change the bytes themselves."""
    if step.kind == "dribble":
        joined = b"".join(pieces)
        return [joined[i : i + 1] for i in range(len(joined))]
    if step.kind == "surplus":
        return [*pieces[:-1], pieces[-1] + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen"]
    if step.kind == "endless_header":
        return [pieces[0].removesuffix(b"\r\n")]
    if step.kind == "huge_header":
        return [pieces[0].removesuffix(b"\r\n") + b"x-huge: " + b"z" * 70_000 + b"\r\n\r\n", *pieces[1:]]
    if step.kind == "interim":
        return [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + pieces[0], *pieces[1:]]
    return pieces
