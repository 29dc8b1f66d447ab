"""A request as the connection hands it over, and what answers it."""

from __future__ import annotations

from typing import Protocol

from gateway.core.errors import GatehouseError
from gateway.core.types import Headers


class Handler(Protocol):
    """Answers one request: an Exchange, or an ASGI cycle."""

    keep_alive: bool

    def body_complete(self, body: bytes) -> None: ...

    def client_gone(self) -> None: ...

    def cancel(self, error: GatehouseError) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class ParsedRequest:
    """A request whose head is complete; its body follows."""

    __slots__ = ("body", "complete", "handler", "headers", "keep_alive", "method", "parts", "query", "raw_path", "request_id", "size")

    def __init__(self, method: bytes, raw_path: bytes, query: bytes, headers: Headers, keep_alive: bool, request_id: bytes) -> None:
        self.method, self.raw_path, self.query, self.headers = method, raw_path, query, headers
        self.keep_alive, self.request_id = keep_alive, request_id
        self.parts: list[bytes] = []
        self.size = 0
        self.body: bytes | None = None
        self.complete = False
        self.handler: Handler | None = None


class Refusal:
    """Why a connection reads no further, and the request that it is about, where its head was whole."""

    __slots__ = ("error", "request")

    def __init__(self, error: GatehouseError, request: ParsedRequest | None = None) -> None:
        self.error, self.request = error, request
