"""Bytes of a WebSocket into messages, in steps that are small whatever the bytes are. Pure.

The frames are read by the sans-I/O protocol of the library `websockets`: it checks masks, sizes, fragments and control frames, and answers
pings. No extension is negotiated, so nothing is inflated.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from websockets.frames import Opcode
from websockets.protocol import OPEN, Protocol, Side

SLICE: Final = 4 * 1024
"""Bytes that are given to the parser at once: at most some 700 frames."""
BINARY: Final = 1
CLOSED: Final = 2


class Frames:
    """`underway`: bytes that have come of a message that is not whole yet."""

    __slots__ = ("_events", "_over", "_parts", "_place", "_protocol", "_rest", "underway")

    def __init__(self, max_size: int) -> None:
        self._protocol = Protocol(Side.SERVER, state=OPEN, max_size=max_size)
        self._events: deque[Any] = deque()
        self._rest, self._place = b"", 0
        self._parts: list[bytes] = []
        self.underway = 0
        self._over = False

    @property
    def ended(self) -> bool:
        """The closing handshake is over, or the protocol was broken: nothing more is read."""
        return bool(self._protocol.eof_sent)

    def add(self, data: bytes) -> None:
        """Takes what was read, for the following steps."""
        self._rest, self._place = self._rest[self._place :] + data if self._rest else data, 0

    @property
    def idle(self) -> bool:
        """Whether all that was read is worked off."""
        return not self._events and not self._rest

    def step(self) -> bytes | int | None:
        """Does one piece of the work. Returns a text message; BINARY for a message that is none; CLOSED when the client has closed or
        broken the protocol, which has been answered; None where nothing has become whole."""
        if self._events:
            found = self._frame(self._events.popleft())
        else:
            found = None
            self._feed()
        if found is None and self.ended and not self._events and not self._over:
            self._over = True
            return CLOSED
        return found

    def _feed(self) -> None:
        piece = self._rest[self._place : self._place + SLICE]
        self._place += SLICE
        if self._place >= len(self._rest):
            self._rest, self._place = b"", 0
        if not self.ended:
            self.underway += len(piece)
            self._protocol.receive_data(piece)
            self._events.extend(self._protocol.events_received())

    def _frame(self, frame: Any) -> bytes | int | None:
        opcode = frame.opcode
        if opcode is Opcode.BINARY:
            return BINARY
        if opcode is not Opcode.TEXT and opcode is not Opcode.CONT:
            return None
        parts = self._parts
        if frame.fin and not parts:
            self.underway = 0
            return bytes(frame.data)
        if frame.data:
            parts.append(bytes(frame.data))
        if not frame.fin:
            return None
        self._parts, self.underway = [], 0
        return b"".join(parts)

    # --- what is sent

    def text(self, message: bytes) -> None:
        """Adds a message to `unsent`; does nothing after a close frame."""
        if self._protocol.state is OPEN:
            self._protocol.send_text(message)

    def ping(self) -> None:
        if self._protocol.state is OPEN:
            self._protocol.send_ping(b"")

    def close(self, code: int, reason: str) -> None:
        if self._protocol.state is OPEN:
            self._protocol.send_close(code, reason.encode()[:120].decode("utf-8", "ignore"))

    def unsent(self) -> bytes:
        """The bytes to write now."""
        return b"".join(self._protocol.data_to_send())
