"""An engine that calls tools: a real server which answers the last user message `call NAME {ARGUMENTS}` with that call."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ToolEngine:
    """Life: made running, `close`. asked: the bodies of all chats so far."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(b'{"status":"ok","object":"list","data":[]}', "application/json")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                engine.asked.append(body)
                if body.get("stream"):
                    self._send(events(body), "text/event-stream")
                else:
                    self._send(json.dumps(answer(body)).encode(), "application/json")

            def _send(self, body: bytes, media: str) -> None:
                self.send_response(200)
                self.send_header("content-type", media)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def wanted(body: dict[str, Any]) -> tuple[str, str] | None:
    """(name, arguments) of the call that the last user message asks for."""
    texts = [message["content"] for message in body["messages"] if message["role"] == "user"]
    if body["messages"][-1]["role"] != "user" or not texts[-1].startswith("call "):
        return None
    _, name, arguments = texts[-1].split(" ", 2)
    return name, arguments


def answer(body: dict[str, Any]) -> dict[str, Any]:
    call = wanted(body)
    message: dict[str, Any] = {"role": "assistant", "content": "I will." if call else "Done."}
    if call:
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": {"name": call[0], "arguments": call[1]}}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
    return {"id": "chat-1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice], "usage": USAGE}


def events(body: dict[str, Any]) -> bytes:
    """The same in a stream: the text, the call in three pieces, the end, the usage."""
    call = wanted(body)
    frame = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "I "}, {"content": "will." if call else "did."}]
    if call:
        half = len(call[1]) // 2
        deltas.append({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": call[0], "arguments": ""}}]})
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in (call[1][:half], call[1][half:])]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"})
    found = [{**frame, "choices": [choice]} for choice in choices] + [{**frame, "choices": [], "usage": USAGE}]
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in found) + b"data: [DONE]\n\n"
