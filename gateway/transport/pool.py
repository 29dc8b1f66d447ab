"""The way to one endpoint: its kept connections, its deadlines, its counters.

A request that finds an idle connection costs no timer, task or future. Deadlines are checked by `tick`, which the owner of all clients
calls every 50 to 100 ms; they are late by up to two ticks and never early. Only connecting uses a task.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from gateway.core.deadlines import within
from gateway.core.errors import EngineTimeout, GatehouseError, Overloaded
from gateway.core.ports import Receiver
from gateway.core.specs import ClientTlsSpec
from gateway.core.tasks import TaskOwner
from gateway.core.uploads import BodySource
from gateway.transport.address import Address, parse_address, tls_context
from gateway.transport.assignment import assign
from gateway.transport.http1 import Connection, EngineCall, failure

log = logging.getLogger("gatehouse.transport")

OWN_FAULTS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of connecting that mean this machine ran out of descriptors, memory or ports; not the engine's fault."""
NOT_ACCEPTED: Final = "The engine does not accept connections."
NOT_IN_TIME: Final = "The engine did not accept a connection in time."
LARGE_BODY: Final = 64 * 1024
"""From this many bytes on, a body is written separately instead of being copied behind its head."""


class EndpointClient:
    """The EngineClient of one endpoint. Needs a running loop from the first `send` on.

    Counters, plain integers for metrics: `in_flight` calls now, `opened` connections, `reused` sends on a kept connection,
    `retried` sends repeated because a kept connection was stale, `failed` calls that ended in an error.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: ClientTlsSpec | None = None,
        connect_timeout: float = 2.0,
        max_idle: int = 128,
        idle_seconds: float = 55.0,
        connected: Callable[[EndpointClient], None] | None = None,
        resent: Callable[[], None] | None = None,
    ) -> None:
        """connected: called when the first of its connections is open, from when on it needs `tick` until it `has_connections` no more.
        resent: called for each send that is repeated because a kept connection was stale."""
        self.in_flight = self.opened = self.reused = self.retried = self.failed = 0
        self._tls_spec, self._on_connected, self._on_resent = tls, connected, resent
        self._connect_timeout, self._max_idle, self._idle_seconds = connect_timeout, max_idle, idle_seconds
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._opening: set[EngineCall] = set()
        self._tasks = TaskOwner("transport")
        self._generation = 0
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None
        self._now = time.monotonic()
        self._quiet_until = 0.0
        self._tls: ssl.SSLContext | None = None
        self._set_address(address)

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._idle)

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called: nothing more can be sent, and `tick` need not be called."""
        return self._closed

    @property
    def has_connections(self) -> bool:
        """Whether any connection is open, in use or idle. Without one, `tick` has nothing to do."""
        return bool(self._connections)

    @property
    def base_path(self) -> bytes:
        """The address's prefix for every path ("/base", or empty); the caller puts it into the request line."""
        return self._address.base_path

    @property
    def address(self) -> Address:
        return self._address

    def send(
        self,
        head: bytes,
        body: bytes,
        receiver: Receiver,
        first_byte_timeout: float,
        idle_timeout: float,
        source: BodySource | None = None,
    ) -> EngineCall:
        """Sends one request; see EngineClient. The timeouts are in seconds, from sending and from the last byte."""
        request: bytes | tuple[bytes, bytes]
        if source is not None:  # on a new connection: what was given cannot be given again
            call = EngineCall(self, receiver, (b"%b%b%x\r\n" % (head, self._chunked, len(body)), body), first_byte_timeout, idle_timeout)
            call.source = source
            self.in_flight += 1
            self._connect(call)
            return call
        if len(body) < LARGE_BODY:
            request = b"%b%b%d\r\n\r\n%b" % (head, self._fixed, len(body), body)
        else:
            request = b"%b%b%d\r\n\r\n" % (head, self._fixed, len(body)), body
        call = EngineCall(self, receiver, request, first_byte_timeout, idle_timeout)
        self.in_flight += 1
        while self._assigned(True):
            if self._idle.pop().start(call):
                call.reused = True
                self.reused += 1
                return call
        self._connect(call)
        return call

    def tick(self, now: float, stood: float = 0.0) -> None:
        """Ends calls whose deadline has passed, and closes connections that were idle for too long. now: monotonic seconds. stood: for so
        many of the last ones this process stood still; they do not count against engines."""
        self._now = now
        if stood:
            for connection in self._connections:
                if (late := connection.call) is not None and late.due:
                    late.due += stood
        overdue = [call for c in self._connections if (call := c.call) is not None and call.overdue(now)]
        for call in overdue:
            call.expire()
        if self._idle:
            self._assigned(False)

    def forsake(self) -> None:
        """Fails each call that has had no byte of a response and whose receiver can go elsewhere."""
        waiting = [call for c in self._connections if (call := c.call) is not None and not call.heard]
        for call in waiting:
            if not call.done and not call.heard and call.receiver.stranded():
                call.lost = True
                call.fail(failure("The engine does not answer.", safe=True))

    def replace(self, address: str) -> None:
        """The endpoint has moved or its process was restarted: new calls go to `address`, those under way end where they are."""
        self._set_address(address)
        self._generation += 1
        self._assigned(False)

    async def aclose(self, grace: float = 0.0) -> None:
        """Gives calls under way `grace` seconds, fails those that are left, and closes every connection. May be called again."""
        self._closed = True
        self._assigned(False)
        if grace > 0:
            await self._until_empty(grace)
        for call in [*self._opening, *(c.call for c in self._connections if c.call is not None)]:
            call.fail(failure("The gateway closed its connection to the engine.", safe=not call.heard))
        await self._tasks.aclose()
        for connection in list(self._connections):
            connection.drop()
        await self._until_empty(1.0)

    # --- the connections' owner (http1.Owner)

    def release(self, connection: Connection) -> None:
        connection.idle_since = self._now
        self._idle.append(connection)
        self._assigned(False)

    def retire(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def redial(self, call: EngineCall) -> None:
        self.retried += 1
        if self._on_resent is not None:
            self._on_resent()
        call.reused = False
        call.active = False
        call.due = 0.0
        self._connect(call)

    def _assigned(self, asked: bool) -> bool:
        """Closes the idle connections that `assign` names; whether the latest of the others carries the request that asked."""
        idle = self._idle
        room = 0 if self._closed else self._max_idle
        longest, latest, use = assign(idle, asked, self._generation, self._now - self._idle_seconds, room)
        if longest or latest:
            for connection in [*idle[:longest], *idle[len(idle) - latest :]]:
                connection.close()  # takes it out of `idle`
        return use

    # --- connecting

    def _set_address(self, address: str) -> None:
        parsed = parse_address(address)
        if parsed.scheme == "https" and self._tls is None:
            self._tls = tls_context(self._tls_spec)
        self._address = parsed
        self._fixed = b"host: " + parsed.host_header + b"\r\ncontent-length: "
        self._chunked = b"host: " + parsed.host_header + b"\r\ntransfer-encoding: chunked\r\n\r\n"

    def _connect(self, call: EngineCall) -> None:
        if self._closed:
            call.fail(failure("The gateway closed its connection to the engine.", safe=True))
            return
        self._opening.add(call)
        call.connecting = self._tasks.spawn(self._open(call), name="connect")

    async def _open(self, call: EngineCall) -> None:
        """Connects under the connect deadline and sends the call's request."""
        try:
            async with within(self._connect_timeout):
                connection = await self._dial()
        except TimeoutError as error:
            outcome: GatehouseError = failure(NOT_IN_TIME, safe=True, cause=error, kind=EngineTimeout)
        except OSError as error:
            outcome = self._not_connected(error)
        else:
            self.opened += 1
            if not self._connections:
                self._now = time.monotonic()
                if self._on_connected is not None:
                    self._on_connected(self)
            self._connections.add(connection)
            if not call.done and connection.start(call):
                return
            connection.drop()
            outcome = failure("The engine closed the connection before it answered.", safe=True)
        finally:
            call.connecting = None
            self._opening.discard(call)
        call.fail(outcome)

    def _not_connected(self, error: OSError) -> GatehouseError:
        if error.errno in OWN_FAULTS:
            if (now := time.monotonic()) >= self._quiet_until:
                self._quiet_until = now + 1.0
                log.error("cannot open a connection to an engine: %s", error.strerror or error)
            return Overloaded("The gateway cannot open another connection.", retry_after=1.0)
        refused = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
        return failure(NOT_ACCEPTED, safe=True, refused=refused, cause=error)

    async def _dial(self) -> Connection:
        """A connection to the first address that accepts one. Raises the OSError of the last address."""
        loop, address = asyncio.get_running_loop(), self._address
        if address.scheme == "unix":
            return await self._established(lambda factory: loop.create_unix_connection(factory, address.path))
        tls, name = None, None
        if address.scheme == "https":
            tls, name = self._tls, (self._tls_spec.server_name if self._tls_spec is not None else None) or address.host
        # Resolved here to see each address's own error: the loop merges those of several addresses into one text.
        error: OSError = OSError("no address")
        for host, port in await _places(address):
            try:
                return await self._established(partial(loop.create_connection, host=host, port=port, ssl=tls, server_hostname=name))
            except OSError as failed:
                error = failed
        raise error

    async def _established(self, connect: Callable[[Callable[[], Any]], Awaitable[object]]) -> Connection:
        connection = Connection(self, self._generation)
        try:
            await connect(lambda: connection)
        except BaseException:  # when cancelled, the transport may exist already and must not outlive this attempt
            connection.drop()
            raise
        return connection

    async def _until_empty(self, seconds: float) -> None:
        if self._connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=seconds)


async def _places(address: Address) -> list[tuple[str, int]]:
    """Where to connect to, in this order. Raises OSError."""
    if address.dial is not None:
        if not address.dial[0]:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "its name has no address")
        return [address.dial]
    found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(str(where[0]), int(where[1])) for _, _, _, _, where in found]
