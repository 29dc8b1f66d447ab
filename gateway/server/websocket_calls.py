"""One request of a socket, as its exchange sees its client."""

from __future__ import annotations

from typing import Protocol

from gateway.core.ports import Reservation
from gateway.core.types import Usage
from gateway.pipeline.exchange import Exchange
from gateway.server.websocket_messages import MessageWriter


class Caller(Protocol):
    """The socket, as its requests see it (gateway.server.websocket_socket.Socket)."""

    paused: bool
    unsettled: list[tuple[Reservation, Usage | None]]

    def write(self, message: bytes) -> None: ...

    def take(self, size: int) -> None: ...

    def ended(self, call: SocketCall, status: int) -> None: ...


class SocketCall:
    """One request of a socket: its exchange's client (gateway.pipeline.exchange.Client)."""

    __slots__ = ("_writer", "exchange", "id", "reserved", "size", "socket")

    def __init__(self, socket: Caller, id: bytes, size: int, reserved: int) -> None:
        """size: of the body. reserved: bytes of it that were taken from the memory budget."""
        self.socket, self.id, self.size, self.reserved = socket, id, size, reserved
        self._writer = MessageWriter(id)
        self.exchange: Exchange = None  # type: ignore[assignment]

    @property
    def paused(self) -> bool:
        return self.socket.paused

    def send(self, data: bytes) -> None:
        socket = self.socket
        for message in self._writer.feed(data):
            socket.write(message)

    def finished(self, keep_alive: bool) -> None:
        self.socket.ended(self, self._writer.status)

    def read_body(self) -> None:
        """It came with the message."""

    def reserve(self, size: int) -> None:
        self.socket.take(size)

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None:
        self.socket.unsettled.append((reservation, usage))
