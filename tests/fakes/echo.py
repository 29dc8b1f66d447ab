"""An engine that answers with the last message of a chat, or with what a test has prepared: content, reasoning, calls of tools, embeddings.

`max_tokens` is the number of characters of each piece of a stream.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class EchoEngine:
    """received: bodies of requests. answers: contents that are given before it echoes. vector: makes an embedding of a text."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.answers: deque[str] = deque()
        self.vector: Callable[[str], list[float]] = lambda text: [1.0, 0.0]
        self.port = 0

    def answer(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """The message, and its text."""
        text = self.answers.popleft() if self.answers else body["messages"][-1]["content"]
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if body.get("tools"):
            arguments = json.dumps({"to": text, "inner": json.dumps({"deep": text})})
            call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "send", "arguments": arguments}}
            message = {"role": "assistant", "content": None, "reasoning_content": text, "tool_calls": [call]}
        return message, text

    def whole(self, body: dict[str, Any]) -> bytes:
        if "messages" not in body:
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            data = [{"object": "embedding", "index": n, "embedding": self.vector(text)} for n, text in enumerate(texts)]
            return json.dumps({"object": "list", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}).encode()
        message, _ = self.answer(body)
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if body.get("tools") else "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()

    def events(self, body: dict[str, Any]) -> Iterator[bytes]:
        message, text = self.answer(body)
        size = body.get("max_tokens") or 4
        for start in range(0, len(text), size):
            yield _event({"reasoning_content" if body.get("tools") else "content": text[start : start + size]})
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            yield _event({"tool_calls": [{**call, "function": {"name": "send", "arguments": ""}}]})
            for start in range(0, len(arguments), size):
                yield _event({"tool_calls": [{"index": 0, "function": {"arguments": arguments[start : start + size]}}]})
        yield _event({}, "stop")
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        yield b"data: " + json.dumps({"id": "c", "choices": [], "usage": usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


def _event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


@contextmanager
def echo_engine() -> Iterator[EchoEngine]:
    engine = EchoEngine()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(b"{}", "application/json")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            engine.received.append(body)
            if body.get("stream"):
                self._send(b"".join(engine.events(body)), "text/event-stream")
            else:
                self._send(engine.whole(body), "application/json")

        def _send(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        engine.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield engine
        finally:
            server.shutdown()
            thread.join()
