"""A request as the connection hands it over, and what answers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.core.errors import GatehouseError
from gateway.core.specs import ListenSpec
from gateway.core.types import Headers, Peer, Principal
from gateway.pipeline.memory import UNCOUNTED
from gateway.transport.repeated import KnownHead


class Handler(Protocol):
    """Answers one request: an Exchange, or an ASGI cycle."""

    keep_alive: bool
    principal: Principal | None
    """Who asks, once that is known."""
    peer: Peer

    def body_complete(self, body: bytes) -> None: ...

    def client_gone(self) -> None: ...

    def cancel(self, error: GatehouseError) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class ParsedRequest:
    """A request whose head is complete; its body follows.

    admitted: whether its body may be read. room: how large it may become before more memory is taken for it. reserved: what was taken,
    for `owner`. bound: the most bytes of its body. streams: the body is not gathered: its handler takes the `parts` as they arrive, which
    `arrived` tells it, and `taken` counts.
    """

    __slots__ = (
        "admitted",
        "arrived",
        "body",
        "bound",
        "complete",
        "handler",
        "headers",
        "keep_alive",
        "method",
        "owner",
        "parts",
        "query",
        "raw_path",
        "request_id",
        "reserved",
        "room",
        "size",
        "streams",
        "taken",
    )

    def __init__(self, method: bytes, raw_path: bytes, query: bytes, headers: Headers, keep_alive: bool, request_id: bytes) -> None:
        self.method, self.raw_path, self.query, self.headers = method, raw_path, query, headers
        self.keep_alive, self.request_id = keep_alive, request_id
        self.parts: list[bytes] = []
        self.size = 0
        self.body: bytes | None = None
        self.complete = self.admitted = False
        self.room = UNCOUNTED
        self.reserved = 0
        self.owner = ""
        self.handler: Handler | None = None
        self.bound = 0
        self.streams = False
        self.taken = 0
        self.arrived: Callable[[], None] | None = None

    def declared(self) -> int | None:
        """The length of the body as its head says it; None for a chunked one."""
        length = self.headers.get(b"content-length")
        return int(length) if length is not None else None if b"transfer-encoding" in self.headers else 0


class KnownRequest:
    """The meaning of a request's head, remembered in case the head comes again. named: the identifier in the head; b"" if each request is
    given a new one. limits: the settings under which it was accepted."""

    __slots__ = ("head", "headers", "limits", "method", "named", "path", "query")

    def __init__(self, head: KnownHead, request: ParsedRequest, named: bytes, limits: ListenSpec) -> None:
        self.head, self.named, self.limits = head, named, limits
        self.method, self.path, self.query, self.headers = request.method, request.raw_path, request.query, request.headers.copy()


class Refusal:
    """Why a connection reads no further, and the request that it is about, where its head was whole.

    drops: a request of the same read that has not started yet is not to be served either.
    """

    __slots__ = ("drops", "error", "request")

    def __init__(self, error: GatehouseError, request: ParsedRequest | None = None, drops: bool = False) -> None:
        self.error, self.request, self.drops = error, request, drops
