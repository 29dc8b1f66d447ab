"""What clients make the gateway hold, and what it gives back: resident memory after uploads that were aborted and answers that nobody read.

Starts `gatehouse serve` before an engine of its own whose answers are as large as asked for. First requests of every kind warm it up; then
rounds of uploads, each aborted before its last byte, and rounds of requests whose clients read nothing of their answer and leave. Prints
the resident memory at the start, at its peak and after each phase, and how many requests were refused for want of memory.

usage: python loadtests/memory/held.py [--uploads 300] [--upload-bytes 8000000] [--unread 200] [--answer-bytes 1048576] [--parallel 24]
       [--memory 256MiB] [--anonymous] [--malloc]
--anonymous: uploads without a key. --malloc: leaves the C library's allocator as it is, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEY = "held-key-0123456789abcdef0123456789abcdef"
CONFIG = """
version: 1
state_dir: {state}
listen: {{data: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}", memory_bytes: {memory}}}
engines: [{{name: up, runtime: external, url: "http://127.0.0.1:{engine}", slots: 1024, health: {{path: /health}}}}]
models: [{{name: m1, pool: [up]}}]
identity: {{api_keys: {{static: [{{id: held, key: {key}, tenant: held, models: ["m*"]}}]}}}}
"""
ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket that closes with a reset."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def resident(pid: int) -> float:
    """MB of resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> None:
    """Answers every request with the same large answer, and its health check briefly."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            await reader.readexactly(length)
            body = answer if head.startswith(b"POST") else b"{}"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
    writer.close()


class Run:
    """One gateway and what is done to it."""

    def __init__(self, arguments: argparse.Namespace, port: int, pid: int) -> None:
        self.arguments, self.port, self.pid = arguments, port, pid
        self.refused = 0
        self.peak = 0.0

    def head(self, length: int) -> bytes:
        key = "" if self.arguments.anonymous else f"authorization: Bearer {KEY}\r\n"
        return f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{key}content-length: {length}\r\n\r\n".encode()

    async def upload(self, body: bytes) -> None:
        """Sends all of a body but its last byte, and resets the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self.head(len(body)))
        answered = asyncio.ensure_future(reader.read(12))
        with contextlib.suppress(ConnectionError):
            for place in range(0, len(body) - 1, 1 << 18):
                writer.write(body[place : min(place + (1 << 18), len(body) - 1)])
                await writer.drain()
                if answered.done():
                    self.refused += 1
                    break
            else:
                await asyncio.sleep(0.05)  # the last bytes arrive
        self.peak = max(self.peak, resident(self.pid))
        answered.cancel()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        writer.transport.abort()

    async def unread(self) -> socket.socket:
        """Asks for a large answer and reads nothing."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", self.port))
        body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "x"}]}).encode()
        request = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(sock, request.encode() + body)
        return sock

    async def uploads(self, count: int) -> None:
        body = b'{"model":"m1","messages":[{"role":"user","content":"%b"}]}' % (b"x" * self.arguments.upload_bytes)
        gate = asyncio.Semaphore(self.arguments.parallel)

        async def one() -> None:
            async with gate:
                await self.upload(body)

        await asyncio.gather(*(one() for _ in range(count)))

    async def answers(self, count: int) -> None:
        sockets = [await self.unread() for _ in range(count)]
        await self.settled()
        self.peak = max(self.peak, resident(self.pid))
        for sock in sockets:
            with contextlib.suppress(BlockingIOError):
                self.refused += sock.recv(12, socket.MSG_PEEK)[9:12] in (b"503", b"429")
            sock.close()

    async def settled(self, seconds: float = 20.0) -> float:
        """The resident memory once it has stopped changing for a second."""
        until, before, same = time.monotonic() + seconds, -1.0, 0
        while time.monotonic() < until and same < 5:
            await asyncio.sleep(0.2)
            now = resident(self.pid)
            same = same + 1 if abs(now - before) < 0.5 else 0
            before = now
        return before

    async def phase(self, name: str, work: object, start: float) -> None:
        self.refused, self.peak = 0, 0.0
        began = time.monotonic()
        await work  # type: ignore[misc]
        seconds = time.monotonic() - began
        after = await self.settled()
        grown = f"{after:8.1f} MB after ({after / start:.2f} x start)"
        print(f"{name:28s} {self.peak:8.1f} MB peak {grown}  {self.refused} refused  {seconds:.1f} s")


async def measure(arguments: argparse.Namespace, state: str) -> None:
    answer = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%b"}}]}' % (b"x" * arguments.answer_bytes)
    server = await asyncio.start_server(lambda r, w: engine(r, w, answer), "127.0.0.1", 0)
    port, admin = free_port(), free_port()
    file = Path(state) / "held.yaml"
    file.write_text(
        CONFIG.format(state=state, port=port, admin=admin, memory=arguments.memory, engine=server.sockets[0].getsockname()[1], key=KEY)
    )
    environ = dict(os.environ, PYTHONPATH=str(ROOT)) | ({"GATEHOUSE_MALLOC": "0"} if arguments.malloc else {})
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "--config", str(file), env=environ, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await ready(port)
        run = Run(arguments, port, gateway.pid)
        await run.uploads(arguments.parallel)
        await run.answers(8)
        start = await run.settled()
        print(f"{'after the warm-up':28s} {start:8.1f} MB")
        for _ in range(2):
            await run.phase(f"{arguments.uploads} aborted uploads", run.uploads(arguments.uploads), start)
            await run.phase(f"{arguments.unread} unread answers", run.answers(arguments.unread), start)
    finally:
        gateway.terminate()
        await gateway.wait()
        server.close()


async def ready(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                if b" 200 " in answer[:20]:
                    return
            await asyncio.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", type=int, default=300)
    parser.add_argument("--upload-bytes", type=int, default=8_000_000)
    parser.add_argument("--unread", type=int, default=200)
    parser.add_argument("--answer-bytes", type=int, default=1 << 20)
    parser.add_argument("--parallel", type=int, default=24)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--anonymous", action="store_true")
    parser.add_argument("--malloc", action="store_true")
    with tempfile.TemporaryDirectory() as state:
        asyncio.run(measure(parser.parse_args(), state))


if __name__ == "__main__":
    main()
