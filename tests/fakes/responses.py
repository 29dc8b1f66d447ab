"""An engine that speaks the Responses API: says what it was told, in capital letters, whole or in a stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER_ID = "resp_engine"


class ResponsesEngine:
    """received: the bodies of what it was asked. port: where it listens."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received: list[dict[str, Any]] = []


def text_of(body: dict[str, Any]) -> str:
    """What all of a request's input says."""
    given = body["input"]
    if isinstance(given, str):
        return given
    found: list[str] = []
    for item in given:
        content = item.get("content", "")
        found += [content] if isinstance(content, str) else [part["text"] for part in content]
    return " ".join(found)


def answer(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text_of(body).upper(), "annotations": [], "logprobs": []}
    usage = {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 3, "total_tokens": 10}
    return {
        "id": ANSWER_ID,
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": body["model"],
        "output": [{"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}],
        "previous_response_id": None,
        "store": body.get("store", True),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {**usage, "output_tokens_details": {"reasoning_tokens": 1}},
        **more,
    }


def events(body: dict[str, Any]) -> bytes:
    whole = answer(body)
    (item,) = whole["output"]
    (part,) = item["content"]
    text, where = part["text"], {"item_id": item["id"], "output_index": 0, "content_index": 0}
    opened = {**whole, "status": "in_progress", "output": [], "usage": None}
    found: list[dict[str, Any]] = [
        {"type": "response.created", "response": opened},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress", "content": []}},
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **where, "delta": text[at : at + 3], "logprobs": []} for at in range(0, len(text), 3)),
        {"type": "response.output_text.done", **where, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **where, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps({**one, "sequence_number": number}).encode())
        for number, one in enumerate(found)
    )


@contextmanager
def responses_engine() -> Iterator[ResponsesEngine]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            self._send(b'{"object":"list","data":[{"id":"m1","object":"model"}]}', "application/json")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            engine.received.append(body)
            if body.get("stream"):
                self._send(events(body), "text/event-stream")
            else:
                self._send(json.dumps(answer(body)).encode(), "application/json")

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    engine = ResponsesEngine(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
