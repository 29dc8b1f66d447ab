"""Reads the answers that the pipeline writes, for clients that do not speak HTTP/1.1: sockets and gRPC.

An exchange writes the bytes of an HTTP/1.1 response whoever its client is, so that there is one pipeline. What comes here is our own: a
head, and a body with its length or in chunks (gateway.pipeline.exchange, gateway.pipeline.stream). Nothing that a client sends gets here.
"""

from __future__ import annotations

from typing import Final

from gateway.core.types import Headers

END_OF_HEAD: Final = b"\r\n\r\n"


class AnswerReader:
    """One answer. `status` is 0 until its head has come. streams: its body comes in chunks, each of which is whole events.

    `feed` returns what has come of the body: the parts of a body with a length, or one chunk each. `ended`: there is no more.
    """

    __slots__ = ("_rest", "ended", "headers", "left", "status", "streams")

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = {}
        self.streams = self.ended = False
        self.left = 0
        """Bytes of the body that are still to come, where it has a length."""
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self.ended:  # what follows the last chunk is a trailer
            return []
        if not self.status:
            data = self._rest + data
            end = data.find(END_OF_HEAD)
            if end < 0:
                self._rest = data
                return []
            self._rest = b""
            self._head(data[:end])
            data = data[end + 4 :]
        return self._chunks(data) if self.streams else self._measured(data)

    def _head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        self.status = int(first[9:12])
        for line in lines:
            name, _, value = line.partition(b": ")
            self.headers[name] = value
        self.streams = b"transfer-encoding" in self.headers
        if not self.streams:
            self.left = int(self.headers.get(b"content-length", b"0"))
            self.ended = self.left == 0

    def _measured(self, data: bytes) -> list[bytes]:
        if not data:
            return []
        self.left -= len(data)
        self.ended = self.left <= 0
        return [data]

    def _chunks(self, data: bytes) -> list[bytes]:
        if self._rest:
            data, self._rest = self._rest + data, b""
        found: list[bytes] = []
        place = 0
        while place < len(data):
            line = data.find(b"\r\n", place)
            if line < 0:
                self._rest = data[place:]
                break
            size = int(data[place:line], 16)
            if size == 0:
                self.ended = True
                break
            begin, end = line + 2, line + 2 + size
            if end + 2 > len(data):
                self._rest = data[place:]
                break
            found.append(data[begin:end])
            place = end + 2
        return found
