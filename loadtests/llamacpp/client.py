"""A client that costs the machine little: all streams of a measurement in one thread, read as they come, parsed when they have ended.

It shares its cores with the servers that it measures, and whatever it takes is missing there, for each of them alike.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from loadtests.llamacpp.peers import Server

SECONDS = 120.0
"""Longest wait for the next byte of any stream."""


class Reply:
    """One streamed answer: what was read and when, in seconds of the monotonic clock."""

    def __init__(self, sock: socket.socket, request: bytes) -> None:
        self.sock = sock
        self.reads: list[tuple[float, bytes]] = []
        self.ended = False
        self.times: list[float] = []
        self.text = ""
        self.usage: dict[str, Any] = {}
        sock.setblocking(True)
        self.started = time.monotonic()
        sock.sendall(request)
        sock.setblocking(False)

    def take(self) -> None:
        """Read what has come."""
        data = self.sock.recv(262144)
        if data:
            self.reads.append((time.monotonic(), data))
        else:
            self.ended = True

    def parse(self) -> Reply:
        """Fill `times` (of each event with a token of text), `text` and `usage`. Raises RuntimeError for an error of the server."""
        pending = b""
        for at, data in self.reads:
            lines = (pending + data).split(b"\n")
            pending = lines.pop()
            for line in lines:
                self._event(line.strip(), at)
        return self

    def _event(self, line: bytes, at: float) -> None:
        if line.startswith(b"HTTP/1.1 ") and not line.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(b"".join(data for _at, data in self.reads)[:600].decode(errors="replace"))
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"])
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            self.text += choice.get("text") or delta.get("content") or ""
            if choice.get("finish_reason") is None and "role" not in delta:
                self.times.append(at)

    @property
    def tokens(self) -> int:
        """Tokens generated, by the server's count where it gives one."""
        return int(self.usage.get("completion_tokens") or len(self.times))


class Client:
    """Streams to one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._selector = selectors.DefaultSelector()

    def send(self, path: str, body: dict[str, Any]) -> Reply:
        """Send a request on a connection of its own."""
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        sock = self._server.connect()
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n{self._server.headers}"
        reply = Reply(sock, f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self._selector.register(sock, selectors.EVENT_READ, reply)
        return reply

    def read(self, until: Callable[[], bool]) -> None:
        """Read from all streams until the condition holds, asked whenever something was read."""
        while not until():
            if not self._take(SECONDS):
                raise RuntimeError(f"{self._server.name} has sent nothing for {SECONDS:.0f} s")

    def wait(self, moment: float) -> None:
        """Read from all streams until this moment of the monotonic clock."""
        while (left := moment - time.monotonic()) > 0:
            if not self._selector.get_map():
                time.sleep(left)
                return
            self._take(left)

    def drop(self, replies: Sequence[Reply]) -> None:
        """Leave these streams."""
        for reply in replies:
            if not reply.ended:
                reply.ended = True
                self._close(reply)

    def _take(self, seconds: float) -> bool:
        """Read what comes first; False if nothing came in this time."""
        ready = self._selector.select(seconds)
        for key, _events in ready:
            reply: Reply = key.data
            reply.take()
            if reply.ended:
                self._close(reply)
        return bool(ready)

    def _close(self, reply: Reply) -> None:
        self._selector.unregister(reply.sock)
        reply.sock.close()
