"""Streams for clients of HTTP/1.0, which has no transfer codings: the body ends with the connection (RFC 9112, 6.3). nginx speaks this
version to what is behind it unless it is told otherwise.

That a body was cut off shows all the same: a whole stream ends with an event that says so (`data: [DONE]`).
"""

from __future__ import annotations

from typing import Final

from gateway.pipeline.exchange import Client

_LEFT_OUT: Final = (b"transfer-encoding:", b"trailer:")


class UntilClose:
    """A client that gets what is written for chunked transfer coding without it. Each write has whole chunks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._headed = self._coded = False
        self.read_body, self.reserve = client.read_body, client.reserve
        self.settle_when_taken, self.finished = client.settle_when_taken, client.finished

    @property
    def paused(self) -> bool:
        return self._client.paused

    def send(self, data: bytes) -> None:
        if not self._headed:
            self._headed = True
            head, _, data = data.partition(b"\r\n\r\n")
            lines = head.split(b"\r\n")
            kept = [line for line in lines if not line.startswith(_LEFT_OUT)]
            self._coded = len(kept) < len(lines)
            self._client.send(b"\r\n".join([*kept, b"", b""]))
        if self._coded:
            data = decoded(data)
        if data:
            self._client.send(data)


def decoded(data: bytes) -> bytes:
    """What whole chunks hold; trailer fields are left out."""
    found: list[bytes] = []
    place = 0
    while place < len(data):
        begin = data.index(b"\r\n", place) + 2
        size = int(data[place:begin], 16)
        if not size:
            break
        found.append(data[begin : begin + size])
        place = begin + size + 2
    return b"".join(found)
