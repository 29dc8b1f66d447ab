"""The admin listener's connection: uvicorn's own, which also tells the application who sent a request, and whose answers leave whole."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.core.deadlines import Deadline, rest
from gateway.core.errors import GatehouseError, PermissionDenied
from gateway.core.gathering import GatheringTransport
from gateway.core.types import Headers, Peer
from gateway.pipeline.plane import DataPlane
from gateway.server.peers import FORWARDING, forwarded_peer, judged, let_in, peer_of, refusal
from gateway.server.proxy_protocol import Header
from gateway.telemetry.refused import NETWORK

PEER: Final = "gatehouse.peer"
"""The ASGI scope's extension that holds the Peer (admin.auth reads it)."""


TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
DENIED: Final = "gatehouse.denied"
"""Why a request that a trusted proxy forwards is not served: the error."""


class Refusing:
    """The application, for requests that the listener's rules admit and whose proxies do not contradict each other."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        error = scope.get("extensions", {}).get(DENIED)
        if error is None:
            await self._application(scope, receive, send)
            return
        answer = error.message.encode() + b"\n"
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(answer)), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class AdminConnection(HttpToolsProtocol):
    """Adds the Peer to the scope of each request: the other end of the connection, with its verified certificate, or the client that a
    trusted proxy names. Heads have the bounds of the data listener's, and so have connections: whoever has no key must not cost memory or
    descriptors."""

    peer: Peer
    said: Header | None = None

    def __init__(self, plane: DataPlane, config: Any, server_state: Any, app_state: Any) -> None:
        super().__init__(config, server_state, app_state)
        self._plane = plane
        self._head = 0
        """Bytes of a head that is not whole."""
        self._due: Deadline | None = None
        """By when it must be; None while none is awaited."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, GatheringTransport(transport, self.loop)))
        snapshot = self._plane.current()
        self.peer = peer_of(transport, snapshot.spec.listen.admin_trusted_peers, self.said)
        rules = snapshot.admin_networks
        if rules is not None and not let_in(rules, self.peer):
            self._plane.refused.count("admin", NETWORK, self.peer.address)
            transport.abort()
        elif len(self.connections) > snapshot.spec.listen.max_connections:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_ends()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._due is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        super().data_received(data)
        if self._due is not None:
            self._head += len(data)
            if self._head > self._plane.current().spec.listen.max_header_bytes:
                self._head_ends()
                self.transport.write(TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._due is None:
            self._await_head()

    def _await_head(self) -> None:
        self._head = 0
        self._due = Deadline(self._plane.current().spec.listen.header_timeout, self._overdue)

    def _head_ends(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            due.cancel()

    def _overdue(self) -> None:
        """The head has not come in time."""
        self._head_ends()
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Rests once: a request that came while this process stood still lies unread."""
        due = self.timeout_keep_alive_task
        late = 0.0 if due is None else self.loop.time() - due.when()
        self.timeout_keep_alive_task = self.loop.call_later(rest(late, self.timeout_keep_alive), super().timeout_keep_alive_handler)

    def on_headers_complete(self) -> None:
        self._head_ends()
        peer = self.peer
        error: GatehouseError | None = None
        snapshot = self._plane.current()
        trusted, by = snapshot.spec.listen.admin_trusted_peers, snapshot.spec.listen.admin_forwarding
        peer = judged(peer, trusted)
        if peer.trusted:
            said: Headers = {}
            for name, value in self.headers:
                if name in FORWARDING:
                    said[name] = said[name] + b", " + value if name in said else value
            peer = forwarded_peer(peer, said, trusted, snapshot.spec.identity, by)
            error = refusal(peer, said, trusted, by, snapshot.admin_networks)
        elif snapshot.admin_networks is not None and not snapshot.admin_networks.admits(peer.address):
            error = PermissionDenied("Requests from this address are not accepted.")
        scope: Any = self.scope
        scope["extensions"] = {PEER: peer} if error is None else {PEER: peer, DENIED: error}
        super().on_headers_complete()
