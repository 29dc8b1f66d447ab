"""One WebSocket at `/v1/stream`: several requests at once, each an Exchange of its own (docs/clients.md has the messages).

A read is worked off in small steps (gateway.server.websocket_frames) within a bounded time, because one read can hold thousands of frames.
While the client does not take what is written, nothing more is read from it, and its engines' streams pause.

    open ──close frame, bound, drain, deadline──▶ closing ──its close frame, or LINGER_SECONDS──▶ gone
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

from gateway.core.errors import (
    AuthenticationError,
    ClientGone,
    ClientStalled,
    GatehouseError,
    InternalError,
    LimitExceeded,
    Overloaded,
    PermissionDenied,
    RequestError,
)
from gateway.core.ports import Reservation
from gateway.core.snapshot import Snapshot
from gateway.core.specs import ListenSpec
from gateway.core.types import Headers, Peer, Usage
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.memory import STEP, UNCOUNTED
from gateway.pipeline.pipeline import serve
from gateway.server.closing import LINGER_SECONDS, half_close
from gateway.server.head import REQUEST_ID, check_head
from gateway.server.login import identified, owner_of
from gateway.server.peers import forwarded_peer, judged, let_in, refusal
from gateway.server.protocol import Connection
from gateway.server.reading import NEVER
from gateway.server.sending import bound_sending
from gateway.server.websocket import CREDENTIALS, Sockets
from gateway.server.websocket_calls import SocketCall
from gateway.server.websocket_frames import BINARY, CLOSED, Frames
from gateway.server.websocket_messages import (
    ENVELOPE,
    NO_ID,
    Auth,
    Cancel,
    Request,
    done,
    is_utf8,
    own_headers,
    read,
    refused,
    written_id,
)
from gateway.telemetry.metrics import PHASES
from gateway.wire.table import is_inference
from gateway.wire.table import refusal as refusal_of

TURN_SECONDS: Final = 0.004
"""How long a socket works on one read before others have their turn."""
NORMAL, GOING_AWAY, UNSUPPORTED, NOT_TEXT, VIOLATION, TRY_AGAIN = 1000, 1001, 1003, 1007, 1008, 1013
"""Codes of close frames (RFC 6455, 7.4.1, and its registry)."""
LOGIN_SECONDS: Final = 10.0
FAILED_LOGINS: Final = 5
UNBOUNDED: Final = ListenSpec(memory_bytes=1 << 53, memory_share=1.0)
"""The bounds for memory that is already accounted for."""
LEAVING: Final = "The gateway is shutting down; connect again."


class Socket:
    """An asyncio.Protocol by its methods. `due`: when something is to be done if nothing happens before. `owner`: whose it is, "" as long
    as nobody has logged in."""

    __slots__ = (
        "_auth_due", "_bodies", "_counted_as", "_failed_logins", "_frames", "_leaves", "_logging_in", "_pinged", "_proxy", "_reading",
        "_room", "_server_state", "_taken_by", "_work_due", "calls", "closing", "due", "headers", "heard", "held", "owner", "paused",
        "peer", "plane", "snapshot", "sockets", "transport", "unsettled", "used",
    )  # fmt: skip

    def __init__(self, sockets: Sockets, connection: Connection, headers: Headers, peer: Peer, owner: str) -> None:
        self.sockets, self.transport, self._server_state = sockets, connection.transport, connection.server_state
        self._counted_as = connection.peer.address
        self._proxy = connection.peer
        self.plane = plane = sockets.plane
        self.snapshot = plane.current()
        listen = self.snapshot.spec.listen
        self.headers, self.peer, self.owner, self.paused = headers, peer, owner, connection.paused
        self._frames = Frames(listen.max_body_bytes + ENVELOPE)
        self.calls: dict[bytes, SocketCall] = {}
        self.unsettled: list[tuple[Reservation, Usage | None]] = []
        self.held = 0
        self._bodies = 0
        self._room = UNCOUNTED
        self._reading = True
        self._logging_in = self.closing = self._leaves = False
        self._work_due = False
        self._failed_logins = 0
        now = plane.now
        self.heard = self.used = now
        self._pinged = 0.0
        self._auth_due = NEVER if owner else now + LOGIN_SECONDS
        self._taken_by = NEVER
        self.due = now

    def opened(self) -> None:
        """The handshake is answered: from now on the transport is this one's."""
        self.sockets.listener.sockets.add(self)
        self._server_state.connections.add(self)
        bound_sending(self.transport, self.snapshot.spec.stream.buffer_bytes)
        self.transport.resume_reading()

    # --- the transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport was made for the handshake's connection."""

    def data_received(self, data: bytes) -> None:
        self.heard = self.plane.now
        if self._frames.ended:
            return
        self._frames.add(data)
        if not self._work_due:
            self._work()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True
        self._taken_by = self.plane.now + self.plane.current().spec.stream.send_timeout
        self.due = min(self.due, self._taken_by)
        self._read(False)
        for call in list(self.calls.values()):
            call.exchange.pause()

    def resume_writing(self) -> None:
        self.paused = False
        self.heard = self.plane.now  # it takes what is written; the answer to a ping was not read meanwhile
        self._taken_by = NEVER
        self._taken()
        for call in list(self.calls.values()):
            call.exchange.resume()
        self._later()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._end_calls(ClientGone("The client closed the socket."))
        listener = self.sockets.listener
        listener.sockets.discard(self)
        listener.left(self._counted_as)
        self._server_state.connections.discard(self)
        if self.owner:
            self.sockets.leave(self.owner)
        self._taken()
        self._forget()
        self.due = NEVER

    # --- reading

    def _read(self, wanted: bool) -> None:
        if self._reading != wanted and not self.transport.is_closing():
            self._reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _later(self) -> None:
        """Goes on in the next round of the loop."""
        if not self._work_due:
            self._work_due = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._work_due = False
        if not self.transport.is_closing():
            self._work()

    def _work(self) -> None:
        """Works off what was read, for a while."""
        frames, late = self._frames, perf_counter() + TURN_SECONDS
        while not (self.paused or self._logging_in):
            if frames.idle:
                self._read(True)
                return
            found = frames.step()
            if isinstance(found, bytes):
                self._forget()
                if not self.closing:
                    self._message(found)
            elif found == CLOSED:
                self._flush()
                self._closed()
                return
            elif found == BINARY:
                self.close(UNSUPPORTED, "Send messages as text.")
            else:
                self._flush()
                if frames.underway > self._room and not self.closing:
                    self._grow()
            if perf_counter() > late:
                self._later()
                break
        self._read(False)

    def _grow(self) -> None:
        """Takes memory for a message that is large; without it the socket ends."""
        try:
            self.plane.memory.take(self._payer(), STEP, self.plane.current().spec.listen)
        except GatehouseError as error:
            self.close(TRY_AGAIN, error.message)
        else:
            self._room += STEP

    def _forget(self) -> None:
        """The message is whole, or will never be: its memory is free, or is its request's from now on."""
        if self._room > UNCOUNTED:
            self.plane.memory.give_back(self._payer(), self._room - UNCOUNTED)
            self._room = UNCOUNTED

    def _payer(self) -> str:
        return self.owner or f"peer {self.peer.address}"

    # --- messages

    def _message(self, data: bytes) -> None:
        self.used = self.plane.now
        try:
            message = read(data)
        except RequestError as error:
            if is_utf8(data):
                self._refuse(NO_ID, error)
            else:
                self.close(NOT_TEXT, "A text message must be UTF-8.")
            return
        if isinstance(message, Request):
            self._request(message)
        elif isinstance(message, Cancel):
            call = self.calls.get(written_id(message.id))
            if call is not None:  # else it has just ended
                call.exchange.cancel(ClientGone("The client cancelled the request."))
        else:
            self._authenticate(message)

    def _request(self, message: Request) -> None:
        plane, id = self.plane, written_id(message.id)
        if id in self.calls:
            wrong = RequestError(f"id: the request {id.decode()[:140]} has not ended; use another id.", param="id")
            self._refuse(NO_ID, wrong)
            return
        snapshot, path, body = plane.current(), message.path.encode("utf-8", "replace"), bytes(message.body)
        limits = snapshot.spec.listen
        headers, reserved = dict(self.headers), 0
        request_id, peer = plane.next_id(), self._peer_now(snapshot)
        try:
            if message.headers:
                headers |= own_headers(message.headers)
            given = headers.get(b"x-request-id")
            if given is not None and REQUEST_ID(given):
                request_id = given
            self._admit(path, body, headers, snapshot, peer)
            if self._bodies + len(body) > UNCOUNTED:
                plane.memory.take(self._payer(), len(body), limits)
                reserved = len(body)
        except GatehouseError as error:
            status, shown = refusal_of(error, path, headers, request_id)
            plane.metrics.denied(status, error.code)
            self.write(refused(id, error, request_id, status, shown))
            self.write(done(id))
            return
        call = self.calls[id] = SocketCall(self, id, len(body), reserved)
        self._bodies += len(body)
        exchange = call.exchange = Exchange(plane, snapshot, call, path, headers, peer, request_id)
        exchange.body = body
        exchange.clock.mark(PHASES[0])
        exchange.run(serve(exchange))

    def _peer_now(self, snapshot: Snapshot) -> Peer:
        """Who asks. What a proxy says counts for as long as it is trusted, and the certificate that it forwards is verified anew."""
        if not self._proxy.trusted:
            return self.peer
        spec = snapshot.spec
        proxy, listen = judged(self._proxy, spec.listen.trusted_peers), spec.listen
        return forwarded_peer(proxy, self.headers, listen.trusted_peers, spec.identity, listen.forwarding) if proxy.trusted else proxy

    def _admit(self, path: bytes, body: bytes, headers: Headers, snapshot: Snapshot, peer: Peer) -> None:
        """What a listener asks of a request before the pipeline does. Raises GatehouseError."""
        limits = snapshot.spec.listen
        if self._leaves:
            raise Overloaded(LEAVING, retry_after=1.0)
        if len(self.calls) >= limits.sockets.max_requests:
            raise LimitExceeded(
                f"This socket has {limits.sockets.max_requests} requests in progress, the maximum.",
                code="concurrency_exceeded",
                retry_after=1.0,
            )
        if snapshot is not self.snapshot:  # a reload may have changed who is let in
            rules = snapshot.networks
            error = refusal(peer, headers, limits.trusted_peers, limits.forwarding, rules) if peer.trusted else None
            if error is None and rules is not None and not let_in(rules, peer):
                error = PermissionDenied("Requests from this address are not accepted.", code="network_denied")
            if error is not None:
                raise error
            self.snapshot = snapshot
        wrong = check_head(b"POST", path, headers, limits.max_body_bytes)
        if wrong is not None:
            raise wrong
        if not is_inference(path):
            raise RequestError(
                f"path: a socket cannot send requests to {path.decode('utf-8', 'replace')[:200]}.", code="not_found", status=404
            )
        if len(body) > limits.max_body_bytes:
            raise RequestError(f"The body is larger than {limits.max_body_bytes} bytes.", code="request_too_large", status=413)

    # --- logging in

    def _authenticate(self, message: Auth) -> None:
        """Nothing more is read until it is known who this is."""
        self._logging_in = True
        self.plane.tasks.spawn(self._log_in(message), name="websocket login")

    async def _log_in(self, message: Auth) -> None:
        plane, id = self.plane, NO_ID if message.id is None else written_id(message.id)
        headers = {name: value for name, value in self.headers.items() if name not in CREDENTIALS}
        headers[b"authorization"] = b"Bearer " + message.token.encode("utf-8", "replace")
        try:
            owner = owner_of(await identified(plane, headers, self._peer_now(plane.current()), plane.next_id()))
            if self.owner and owner != self.owner:
                raise RequestError(
                    "The token belongs to another caller: a socket keeps the caller of its first credential.", code="ambiguous_credentials"
                )
            if self.closing:
                return
            if not self.owner:
                self._belongs_to(owner)
        except GatehouseError as error:
            self._failed_logins += 1
            self._refuse(id, error)
            if not self.owner or self._failed_logins >= FAILED_LOGINS:
                lasting = isinstance(error, AuthenticationError | PermissionDenied | RequestError)
                self.close(VIOLATION if lasting else TRY_AGAIN, error.message)
        except Exception:  # boundary: a login that fails in whatever way ends the socket
            self._refuse(id, InternalError("Internal error."))
            self.close(VIOLATION, "Internal error.")
            raise
        else:
            self.headers, self._auth_due, self._failed_logins = headers, NEVER, 0
            if id is not NO_ID:
                self.write(done(id))
        finally:
            self._logging_in = False
            self._later()

    def _belongs_to(self, owner: str) -> None:
        """Counts the socket, and what it holds, for its caller. Raises LimitExceeded, Overloaded."""
        self.sockets.enter(owner)
        before, self.owner = self._payer(), owner
        if held := self.held + sum(call.reserved for call in self.calls.values()):
            self.plane.memory.give_back(before, held)
            self.plane.memory.take(owner, held, UNBOUNDED)

    # --- writing

    def write(self, message: bytes) -> None:
        """Sends one message. What waits for a client that does not read counts against its caller's share of the memory."""
        if self.closing:
            return
        if self.paused and not self._counted(len(message)):
            return
        self._frames.text(message)
        self._flush()

    def _counted(self, size: int) -> bool:
        try:
            self.take(size)
        except GatehouseError:
            self._cut()
            return False
        return True

    def take(self, size: int) -> None:
        """Takes memory for what the client has not taken yet. Raises Overloaded, LimitExceeded."""
        self.plane.memory.take(self._payer(), size, self.plane.current().spec.listen)
        self.held += size

    def _taken(self) -> None:
        """The client has taken what was written, all but one buffer, or is gone."""
        if self.held:
            self.plane.memory.give_back(self._payer(), self.held)
            self.held = 0
        unsettled, self.unsettled = self.unsettled, []
        for reservation, usage in unsettled:
            reservation.settle(usage)

    def _refuse(self, id: bytes, error: GatehouseError) -> None:
        self.plane.metrics.denied(error.status, error.code)
        self.write(refused(id, error))

    def _flush(self) -> None:
        if data := self._frames.unsent():
            self.transport.write(data)

    def ended(self, call: SocketCall, status: int) -> None:
        """A request is settled."""
        self.calls.pop(call.id, None)
        self._bodies -= call.size
        if call.reserved:
            self.plane.memory.give_back(self._payer(), call.reserved)
        self.used = self.plane.now
        if self.closing:
            if self.held and not self.paused:
                self._taken()
            return
        self.write(done(call.id))
        if self.held and not self.paused:
            self._taken()
        if status == AuthenticationError.status:  # unless a new token comes, nobody is logged in any more
            self._auth_due = min(self._auth_due, self.plane.now + LOGIN_SECONDS)
            self.due = min(self.due, self._auth_due)
        elif status:
            self._auth_due = NEVER
        if self._leaves and not self.calls:
            self.close(GOING_AWAY, LEAVING)

    # --- the end

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self.calls)

    def shutdown(self) -> None:
        """Takes no further request, and ends when there is none under way."""
        self._leaves = True
        if not self.calls:
            self.close(GOING_AWAY, LEAVING)

    def close(self, code: int, reason: str) -> None:
        """Says why, ends what is under way, and closes once the client has closed too."""
        if self.closing:
            return
        self.closing = True
        self._frames.close(code, reason)
        self._flush()
        self._end_calls(ClientGone("The socket was closed."))
        self.due = self.plane.now + LINGER_SECONDS

    def _closed(self) -> None:
        """The client has closed, or has broken the protocol: what was written is sent, and that is all."""
        self.closing = True
        self._end_calls(ClientGone("The client closed the socket."))
        if not self.transport.is_closing():
            if half_close(self.transport, not self._reading):  # with unread bytes, closing could destroy what was written (closing.py)
                self._reading = True
            else:
                self.transport.close()
        self.due = self.plane.now + LINGER_SECONDS

    def _cut(self) -> None:
        self.closing = True
        self._end_calls(ClientStalled("The client did not read its answers in time."))
        self.transport.abort()

    def _end_calls(self, error: GatehouseError) -> None:
        for call in list(self.calls.values()):
            call.exchange.cancel(error)

    def overdue(self) -> None:
        """`due` has come."""
        now, sockets = self.plane.now, self.plane.current().spec.listen.sockets
        if self.closing:
            self.transport.abort()
            self.due = NEVER
            return
        if now >= self._taken_by:
            self._cut()
            return
        if now >= self._auth_due:
            self.close(VIOLATION, "No valid credential arrived in time.")
            return
        if self._pinged and self.heard < self._pinged and now >= self._pinged + sockets.ping_timeout and self._reading:
            self._end_calls(ClientGone("The client no longer responds."))
            self.closing = True
            self.transport.abort()
            return
        if not self.calls and now >= self.used + sockets.idle_timeout:
            self.close(NORMAL, "The socket was idle for too long.")
            return
        if self.heard >= self._pinged and now >= max(self.heard, self._pinged) + sockets.ping_interval and not self.paused:
            self._frames.ping()
            self._pinged = now
            self._flush()
        next_ping = max(self.heard, self._pinged) + (sockets.ping_timeout if self.heard < self._pinged else sockets.ping_interval)
        self.due = min(max(next_ping, now + 0.5), self._taken_by, self._auth_due, max(self.used + sockets.idle_timeout, now + 0.5))
