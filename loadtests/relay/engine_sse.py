"""An engine that streams: every request gets its first chunk at once and then one each interval, in step with all others.

    python engine_sse.py PORT CHUNKS INTERVAL_SECONDS

One timer serves all streams, so that the engine costs little beside the gateway under test. Answers anything that is not
a POST with a short JSON, which is what a router's health check wants.
"""

import asyncio
import json
import sys

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"


def http_chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(choices: list[dict[str, object]], usage: dict[str, int] | None = None) -> bytes:
    chunk = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1700000000, "model": "m1", "choices": choices}
    if usage:
        chunk["usage"] = usage
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def choice(delta: dict[str, str], finish: str | None = None) -> list[dict[str, object]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


TOKEN = http_chunk(event(choice({"content": " token"})))
DONE = http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def last(chunks: int) -> bytes:
    usage = {"prompt_tokens": 30, "completion_tokens": chunks, "total_tokens": 30 + chunks}
    return http_chunk(event(choice({}, "stop"))) + http_chunk(event([], usage)) + DONE


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


MODELS = whole(b'{"object":"list","data":[{"id":"m1","object":"model","created":1,"owned_by":"bench"}],"status":"ok"}')


class Engine:
    """All streams in progress, with how many chunks each still gets."""

    def __init__(self, chunks: int, interval: float) -> None:
        self.chunks = chunks
        self.last = last(chunks)
        self.interval = interval
        self.streams: dict[Connection, int] = {}

    def tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        for connection, left in list(self.streams.items()):
            if left > 0:
                connection.transport.write(TOKEN)
                self.streams[connection] = left - 1
            else:
                connection.transport.write(self.last)
                del self.streams[connection]
        loop.call_at(due + self.interval, self.tick, loop, due + self.interval)


class Connection(asyncio.Protocol):
    """Just enough of HTTP/1.1 for gateways: a head, a body of Content-Length or one chunked, keep-alive."""

    transport: asyncio.Transport

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (request := self._take()) is not None:
            if request.startswith(b"POST"):
                self.transport.write(HEAD + TOKEN)
                self.engine.streams[self] = self.engine.chunks - 1
            else:
                self.transport.write(MODELS)

    def _take(self) -> bytes | None:
        """The next whole request's head, taken out of the buffer with its body; None while it is incomplete."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head, length = self.buffer[:end], 0
        for line in head.lower().split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                last = self.buffer.find(b"\r\n0\r\n\r\n", end)
                if last < 0:
                    return None
                length = last + 7 - end - 4
        if len(self.buffer) < end + 4 + length:
            return None
        self.buffer = self.buffer[end + 4 + length :]
        return head


async def serve(port: int, chunks: int, interval: float) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(chunks, interval)
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=1024)
    engine.tick(loop, loop.time())
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
