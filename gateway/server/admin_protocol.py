"""The admin listener's connection: uvicorn's own, which also tells the application who sent a request."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.core.types import Headers, Peer
from gateway.pipeline.plane import DataPlane
from gateway.server.peers import FORWARDING, forwarded_peer, let_in, peer_of
from gateway.server.proxy_protocol import Header
from gateway.telemetry.refused import NETWORK

PEER: Final = "gatehouse.peer"
"""The ASGI scope's extension that holds the Peer (admin.auth reads it)."""


DENIED: Final = "gatehouse.denied"
"""That the listener's rules do not admit the client that a trusted proxy names."""
_ANSWER: Final = b"Requests from this address are not accepted.\n"


class Refusing:
    """The application, for clients that the listener's rules admit."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if DENIED not in scope.get("extensions", ()):
            await self._application(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_ANSWER)), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": _ANSWER})


class AdminConnection(HttpToolsProtocol):
    """Adds the Peer to the scope of each request: the other end of the connection, with its verified certificate, or the client that a
    trusted proxy names."""

    peer: Peer
    said: Header | None = None

    def __init__(self, plane: DataPlane, config: Any, server_state: Any, app_state: Any) -> None:
        super().__init__(config, server_state, app_state)
        self._plane = plane

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        snapshot = self._plane.current()
        self.peer = peer_of(transport, snapshot.spec.listen.admin_trusted_peers, self.said)
        rules = snapshot.admin_networks
        if rules is not None and not let_in(rules, self.peer):
            self._plane.refused.count("admin", NETWORK, self.peer.address)
            transport.abort()

    def on_headers_complete(self) -> None:
        peer = self.peer
        if peer.trusted:
            said: Headers = {}
            for name, value in self.headers:
                if name in FORWARDING:
                    said[name] = said[name] + b", " + value if name in said else value
            spec = self._plane.current().spec
            peer = forwarded_peer(peer, said, spec.listen.admin_trusted_peers, spec.identity)
        rules = self._plane.current().admin_networks
        scope: Any = self.scope
        scope["extensions"] = {PEER: peer}
        if rules is not None and not rules.admits(peer.address):
            scope["extensions"][DENIED] = True
        super().on_headers_complete()
