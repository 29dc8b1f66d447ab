"""The admin listener's connection: uvicorn's own, which also tells the application who sent a request, and whose answers leave whole."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.core.deadlines import rest
from gateway.core.errors import GatehouseError, PermissionDenied
from gateway.core.gathering import GatheringTransport
from gateway.core.types import Headers, Peer
from gateway.pipeline.plane import DataPlane
from gateway.server.peers import FORWARDING, forwarded_peer, judged, let_in, peer_of, refusal
from gateway.server.proxy_protocol import Header
from gateway.telemetry.refused import NETWORK

PEER: Final = "gatehouse.peer"
"""The ASGI scope's extension that holds the Peer (admin.auth reads it)."""


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
    trusted proxy names."""

    peer: Peer
    said: Header | None = None

    def __init__(self, plane: DataPlane, config: Any, server_state: Any, app_state: Any) -> None:
        super().__init__(config, server_state, app_state)
        self._plane = plane

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, GatheringTransport(transport, self.loop)))
        snapshot = self._plane.current()
        self.peer = peer_of(transport, snapshot.spec.listen.admin_trusted_peers, self.said)
        rules = snapshot.admin_networks
        if rules is not None and not let_in(rules, self.peer):
            self._plane.refused.count("admin", NETWORK, self.peer.address)
            transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Rests once: a request that came while this process stood still lies unread."""
        due = self.timeout_keep_alive_task
        late = 0.0 if due is None else self.loop.time() - due.when()
        self.timeout_keep_alive_task = self.loop.call_later(rest(late, self.timeout_keep_alive), super().timeout_keep_alive_handler)

    def on_headers_complete(self) -> None:
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
