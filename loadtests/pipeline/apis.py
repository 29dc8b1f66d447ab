"""What each API costs: CPU a request and a chunk of a stream, beside a chat completion's, through the real pipeline, passed and translated.

As loadtests.pipeline.bench: no sockets, an engine that answers at once. All APIs take turns in one process, so that a busy machine slows
them alike; the smallest of many rounds is told.

usage: python -m loadtests.pipeline.apis [--rounds 200] [--chunks 100]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

import gateway.app.start  # noqa: F401 - puts the compiled hot path in place before anything of it is imported
from gateway.app.compiled import active
from gateway.app.configuration.plugins import OURS
from gateway.app.gateway import Gateway
from gateway.config.load import load
from gateway.core.types import ResponseHead
from gateway.server.app import DataApplication
from gateway.server.asgi import AsgiApplication
from gateway.server.health import Health
from gateway.server.protocol import Connection, ListenerState
from gateway.wire.table import is_inference
from loadtests.pipeline.bench import ANSWER, KEY, Call, Transport

CONFIG = """
version: 1
state_dir: {state}
engines:
  - {{name: chats, runtime: external, url: "http://127.0.0.1:9", slots: 1024}}
  - {{name: speaks, runtime: external, url: "http://127.0.0.1:9", slots: 1024, apis: [messages, responses]}}
models: [{{name: m1, pool: [chats]}}, {{name: m2, pool: [speaks]}}]
identity: {{api_keys: {{static: [{{id: bench, key: {key}, tenant: bench, models: ["m*"]}}]}}}}
limits: [{{name: per-key, per: key, requests: {{rate: 1000000, per: 1s}}, tokens: {{rate: 1000000000, per: 1m}}, concurrent: 10000}}]
"""
AT_ONCE = 32
QUESTION = "Hello! Please tell me about the weather in the capital of France, and keep it short."
SYSTEM = "You are a helpful assistant."
USER = [{"role": "user", "content": QUESTION}]
PART = {"type": "output_text", "text": "Hello! How can I help you today?", "annotations": [], "logprobs": []}
ITEM = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [PART]}
RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": [ITEM]}
COUNTS = {"input_tokens": 9, "output_tokens": 12, "total_tokens": 21}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None}
CASES = {
    "chat completion": (
        "/v1/chat/completions",
        {"model": "m1", "messages": [{"role": "system", "content": SYSTEM}, *USER], "max_tokens": 100},
    ),
    "Messages, passed": ("/v1/messages", {"model": "m2", "system": SYSTEM, "messages": USER, "max_tokens": 100}),
    "Messages, translated": ("/v1/messages", {"model": "m1", "system": SYSTEM, "messages": USER, "max_tokens": 100}),
    "Responses, passed": ("/v1/responses", {"model": "m2", "instructions": SYSTEM, "input": USER, "max_output_tokens": 100}),
    "Responses, translated": ("/v1/responses", {"model": "m1", "instructions": SYSTEM, "input": USER, "max_output_tokens": 100}),
}


def event(document: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (document["type"].encode(), json.dumps(document, separators=(",", ":")).encode())


def chat_stream(chunks: int) -> list[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}] if not more else []
        document = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}
        return b"data: %b\n\n" % json.dumps(document, separators=(",", ":")).encode()

    usage = {"prompt_tokens": 9, "completion_tokens": chunks, "total_tokens": 9 + chunks}
    pieces = [chunk({"content": f" word{number}"}) for number in range(chunks)]
    return [chunk({"role": "assistant", "content": ""}), *pieces, chunk({}, "stop"), chunk({}, usage=usage), b"data: [DONE]\n\n"]


def messages_stream(chunks: int) -> list[bytes]:
    usage = {"input_tokens": 9, "output_tokens": 1}
    block = {"type": "text", "text": ""}
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": chunks}}
    return [
        event({"type": "message_start", "message": {**MESSAGE, "usage": usage}}),
        event({"type": "content_block_start", "index": 0, "content_block": block}),
        *(
            event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f" word{number}"}})
            for number in range(chunks)
        ),
        event({"type": "content_block_stop", "index": 0}),
        event(ended),
        event({"type": "message_stop"}),
    ]


def responses_stream(chunks: int) -> list[bytes]:
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    text = "".join(f" word{number}" for number in range(chunks))
    opened = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
    part = {**PART, "text": text}
    item = {**ITEM, "content": [part]}
    found: list[dict[str, Any]] = [
        {"type": "response.created", "response": opened},
        {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "status": "in_progress", "content": []}},
        {"type": "response.content_part.added", **where, "part": {**PART, "text": ""}},
        *({"type": "response.output_text.delta", **where, "delta": f" word{number}", "logprobs": []} for number in range(chunks)),
        {"type": "response.output_text.done", **where, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **where, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**RESPONSE, "output": [item], "usage": COUNTS}},
    ]
    return [event({**one, "sequence_number": number}) for number, one in enumerate(found)]


class Engine:
    """Answers in the format of the path that it was asked at, when told."""

    base_path = b""

    def __init__(self, chunks: int) -> None:
        self.waiting: list[tuple[Any, bytes, bool]] = []
        said = {**MESSAGE, "content": [{"type": "text", "text": PART["text"]}], "stop_reason": "end_turn"}
        self.whole = {
            b"/v1/chat/completions": ANSWER,
            b"/v1/messages": json.dumps({**said, "usage": {"input_tokens": 9, "output_tokens": 12}}).encode(),
            b"/v1/responses": json.dumps({**RESPONSE, "usage": COUNTS}).encode(),
        }
        self.streams = {
            b"/v1/chat/completions": chat_stream(chunks),
            b"/v1/messages": messages_stream(chunks),
            b"/v1/responses": responses_stream(chunks),
        }

    def send(self, head: bytes, body: bytes, receiver: Any, first_byte: float, idle: float) -> Call:
        path = head.split(b" ", 2)[1]
        self.waiting.append((receiver, path, body.find(b'"stream":true') >= 0))
        return Call()

    async def aclose(self) -> None: ...

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for receiver, path, streams in waiting:
            kind = b"text/event-stream" if streams else b"application/json"
            receiver.on_head(ResponseHead(200, [(b"content-type", kind)]))
            for data in self.streams[path] if streams else (self.whole[path],):
                receiver.on_body(data)
            receiver.on_end()


def request(path: str, body: dict[str, Any], stream: bool) -> bytes:
    content = json.dumps({**body, **({"stream": True} if stream else {})}, separators=(",", ":")).encode()
    lines = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def measure(state: str, rounds: int, chunks: int) -> None:
    engine = Engine(chunks)
    file = Path(state) / "bench.yaml"
    file.write_text(CONFIG.format(state=state, key=KEY))
    running = Gateway(load(file, {}, OURS.schemas()), {})
    running.fleet.registry._client_factory = lambda spec, address: engine  # type: ignore[assignment,return-value]
    running.fleet.start_probing = lambda: None  # type: ignore[method-assign]
    await running.start()
    listener = ListenerState(running.plane, AsgiApplication(DataApplication(running.plane, Health(running.plane))), is_inference)
    server_state = type("State", (), {"connections": set(), "total_requests": 0})()
    connections = [Connection(listener, server_state) for _ in range(AT_ONCE)]
    transports = [Transport() for _ in connections]
    for connection, transport in zip(connections, transports, strict=True):
        connection.connection_made(transport)  # type: ignore[arg-type]
    gc.collect()
    gc.freeze()
    least: dict[tuple[str, bool], float] = {}
    for _ in range(rounds):
        for name, (path, body) in CASES.items():
            for stream in (False, True):
                sent = request(path, body, stream)
                begin = time.process_time()
                for connection in connections:
                    connection.data_received(sent)
                while len(engine.waiting) < AT_ONCE:
                    await asyncio.sleep(0)
                engine.answer()
                spent = (time.process_time() - begin) * 1e6 / AT_ONCE
                least[name, stream] = min(spent, least.get((name, stream), spent))
                assert all(b"200 OK" in one.last or stream for one in transports), transports[0].last
    await running.aclose()
    base = {stream: least["chat completion", stream] for stream in (False, True)}
    for name in CASES:
        whole, streamed = least[name, False], least[name, True]
        chunk, of_chat = (streamed - whole) / chunks, (base[True] - base[False]) / chunks
        print(f"{name:22s} {whole:7.1f} us a request ({whole / base[False]:4.2f})   {chunk:6.2f} us a chunk ({chunk / of_chat:4.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--chunks", type=int, default=100)
    arguments = parser.parse_args()
    print("the hot path", "is compiled" if active() else "runs from its sources")
    with tempfile.TemporaryDirectory() as state:
        uvloop.run(measure(state, arguments.rounds, arguments.chunks))


if __name__ == "__main__":
    main()
