"""`GET /v1/stream`: the handshake of a WebSocket (RFC 6455, 4.2), and what the sockets of a process share.

A handshake logs in where it has a credential; what follows is gateway.server.websocket_socket, which is loaded with the first socket. The
socket proves nothing to the pipeline: each of its requests is authenticated anew, with the headers of the handshake.
"""

from __future__ import annotations

import base64
import binascii
import logging
from hashlib import sha1
from importlib import import_module
from typing import Any, Final

from gateway.core.errors import AuthenticationError, GatehouseError, InternalError, LimitExceeded, PermissionDenied, RequestError
from gateway.core.proofs import proven
from gateway.core.types import Headers, Principal
from gateway.pipeline.plane import DataPlane
from gateway.server.cors import allowed_origin, cors_headers
from gateway.server.login import identified, owner_of
from gateway.server.protocol import Application, Connection, ListenerState
from gateway.server.refusals import plain_error
from gateway.server.request import Handler, ParsedRequest
from gateway.server.sending import gone
from gateway.server.states import ANSWERING, LIFE, LOSE, LOSE_LIFE, OPEN, after

PATH: Final = b"/v1/stream"
GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, 1.3."""
OF_THE_HANDSHAKE: Final = frozenset(
    {
        b"accept",
        b"connection",
        b"content-length",
        b"content-type",
        b"expect",
        b"inference-header-content-length",
        b"origin",
        b"te",
        b"traceparent",
        b"transfer-encoding",
        b"upgrade",
        b"x-gatehouse-approval",
        b"x-request-id",
    }
)
"""Headers that say something of the handshake alone, and nothing of the requests on the socket."""
CREDENTIALS: Final = (b"authorization", b"x-api-key", b"api-key")
SOCKET_MODULE: Final = "gateway.server.websocket_socket"
"""Loaded with the first socket, together with its library."""

log = logging.getLogger("gatehouse.server")


class Sockets:
    """The sockets of one listener. `per_owner`: how many each caller has."""

    def __init__(self, plane: DataPlane, listener: ListenerState) -> None:
        self.plane, self.listener = plane, listener
        self.per_owner: dict[str, int] = {}

    def sweep(self) -> None:
        """Checks the deadlines of all sockets. Called with the listener's own sweep."""
        if self.plane.resting:
            return
        now = self.plane.now
        for socket in [each for each in self.listener.sockets if each.due <= now]:
            socket.overdue()

    def enter(self, owner: str) -> None:
        """Counts a socket for a caller. Raises LimitExceeded."""
        most = self.plane.current().spec.listen.sockets.max_per_principal
        if self.per_owner.get(owner, 0) >= most:
            raise LimitExceeded(f"You have {most} sockets open, the maximum.", code="concurrency_exceeded", retry_after=1.0)
        self.per_owner[owner] = self.per_owner.get(owner, 0) + 1

    def leave(self, owner: str) -> None:
        left = self.per_owner.get(owner, 1) - 1
        if left:
            self.per_owner[owner] = left
        else:
            self.per_owner.pop(owner, None)


class WithSockets:
    """An application whose path `/v1/stream` is a WebSocket."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self.sockets: Sockets = None  # type: ignore[assignment]
        """Set once there is a listener."""

    def start(self, connection: Connection, request: ParsedRequest) -> Handler:
        if request.raw_path == PATH and request.method == b"GET" and b"upgrade" in request.headers:
            handshake = Handshake(self.sockets, connection, request)
            connection.plane.tasks.spawn(handshake.run(), name="websocket")
            return handshake
        return self._inner.start(connection, request)


class Handshake:
    """One request for a socket, from its head to 101 or a refusal."""

    def __init__(self, sockets: Sockets, connection: Connection, request: ParsedRequest) -> None:
        self._sockets, self._connection, self._request = sockets, connection, request
        self.keep_alive = False
        self.principal: Principal | None = None
        self.peer = connection.peer_of(request)
        self._over = False

    # --- called by the connection

    def body_complete(self, body: bytes) -> None:
        """There is none: `_checked` refuses a handshake with a body."""

    def client_gone(self) -> None:
        self._over = True

    def cancel(self, error: GatehouseError) -> None:
        self._refuse(error)

    def pause(self) -> None:
        """Nothing is written before the answer."""

    def resume(self) -> None:
        """See `pause`."""

    # --- the answer

    async def run(self) -> None:
        try:
            accept = self._checked()
            await self._log_in()
            if not self._over:
                self._open(accept)
        except GatehouseError as error:
            self._refuse(error)
        except Exception as error:  # boundary: a handshake that fails is refused
            log.error("the handshake %s failed: %r", self._request.request_id.decode(), error, exc_info=error)
            self._refuse(InternalError(f"Internal error. The request id is {self._request.request_id.decode()}."))

    def _checked(self) -> bytes:
        """The value of Sec-WebSocket-Accept. Raises RequestError, PermissionDenied."""
        request, headers = self._request, self._request.headers
        if b":version" in headers or not request.complete or request.body or b"transfer-encoding" in headers:
            raise RequestError("A WebSocket begins with a GET of HTTP/1.1 without a body.", code="invalid_request")
        if not _has_token(headers, b"upgrade", b"websocket") or not _has_token(headers, b"connection", b"upgrade"):
            raise RequestError("Send 'Connection: Upgrade' and 'Upgrade: websocket'.", code="invalid_header")
        if headers.get(b"sec-websocket-version") != b"13":
            raise RequestError(
                "Sec-WebSocket-Version: only 13 is supported.",
                code="upgrade_required",
                status=426,
                headers=(("upgrade", "websocket"), ("sec-websocket-version", "13")),
            )
        key = headers.get(b"sec-websocket-key", b"")
        try:
            valid = len(base64.b64decode(key, validate=True)) == 16
        except binascii.Error:
            valid = False
        if not valid:
            raise RequestError("Sec-WebSocket-Key: 16 bytes in base64 are needed.", code="invalid_header")
        if b"origin" in headers and allowed_origin(self._connection.limits.cors, headers) is None:
            raise PermissionDenied("Pages of this origin may not open sockets here (listen.cors.origins).", code="origin_not_allowed")
        return base64.b64encode(sha1(key + GUID, usedforsecurity=False).digest())

    async def _log_in(self) -> None:
        """A credential in the headers must be good; without one, a message brings it."""
        headers, plane = self._request.headers, self._sockets.plane
        given = any(name in headers for name in CREDENTIALS)
        certified = self.peer.certificate is not None or self.peer.asserted is not None
        if not given and not (certified and plane.current().spec.identity.mtls is not None):
            return
        try:
            self.principal = await identified(plane, headers, self.peer, self._request.request_id)
        except AuthenticationError:
            if given:
                raise

    def _open(self, accept: bytes) -> None:
        connection, sockets = self._connection, self._sockets
        if connection.waiting or connection.in_request or connection.refusal is not None or connection.life != OPEN:
            raise RequestError("Send nothing after the handshake until it is answered.", code="invalid_request")
        make: Any = import_module(SOCKET_MODULE).Socket
        owner = "" if self.principal is None else owner_of(self.principal)
        if owner:
            sockets.enter(owner)
        headers = socket_headers(self._request.headers)
        socket = make(sockets, connection, headers, self.peer, owner)
        self._over = True
        plane, cors = sockets.plane, connection.limits.cors
        connection.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\ndate: %b\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            b"sec-websocket-accept: %b\r\nx-request-id: %b\r\n%b\r\n"
            % (plane.date, accept, self._request.request_id, cors_headers(cors, self._request.headers) if cors.origins else b"")
        )
        _hand_over(connection)
        connection.transport.set_protocol(socket)
        socket.opened()

    def _refuse(self, error: GatehouseError) -> None:
        if self._over:
            return
        self._over = True
        plane = self._sockets.plane
        plane.metrics.denied(error.status, error.code)
        self._connection.send(plain_error(error, plane.date, self._request.request_id))
        self._connection.finished(False)


def _has_token(headers: Headers, name: bytes, token: bytes) -> bool:
    return token in [each.strip().lower() for each in headers.get(name, b"").split(b",")]


def socket_headers(handshake: Headers) -> Headers:
    """What each request on the socket has of the handshake's headers."""
    headers = {name: value for name, value in handshake.items() if name not in OF_THE_HANDSHAKE and not name.startswith(b"sec-websocket-")}
    proven(headers)
    headers[b"content-type"] = b"application/json"
    return headers


def _hand_over(connection: Connection) -> None:
    """The connection serves nothing any more. Its peer still counts for it, until the socket ends."""
    state = connection.state
    state.connections.discard(connection)
    state.stalled.discard(connection)
    connection.server_state.connections.discard(connection)
    connection.life = after(LIFE, connection.life, LOSE_LIFE)
    connection.answering = after(ANSWERING, connection.answering, LOSE)
    connection.serving = None
    connection.stop_reading()
    connection.release_parser()
    connection.send = gone
