"""One client connection of HTTP/1.1 (RFC 9112) as an asyncio protocol: bytes in, calls of a Receiver out, no tasks, no futures.

The parser's callbacks only record. The receiver gets what was recorded after the parser has consumed the whole read, so that nothing a
receiver does (cancel, pause, send another request) happens inside the parser, and so that bytes that follow a response are seen before its
connection is reused. The body's callback is `list.append` itself and
the headers' is `dict.setdefault`: both are called from C without a Python frame.

A connection is reused only when its response was read to the end, the engine keeps it open, nothing followed the response
and the whole request had been sent. Interim responses (1xx) are skipped. HEAD and upgrades are not supported.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final, Protocol, cast

import httptools

from gateway.core.errors import EngineError, EngineTimeout
from gateway.core.ports import Receiver
from gateway.core.types import ResponseHead
from gateway.core.uploads import BodySource
from gateway.transport.assignment import Kept
from gateway.transport.repeated import TRIES, KnownResponse, known_response

log = logging.getLogger("gatehouse.transport")

MAX_HEAD_BYTES: Final = 64 * 1024
"""Bound on a response's head, on its trailers and on everything else that is not body (chunk extensions), in bytes."""
MAX_HEADERS: Final = 128
"""Bound on the number of different header fields in one head."""

RECEIVE_BUFFER: Final = 64 * 1024
"""Bytes of an unread stream that the kernel (which doubles this) and the TLS layer may hold. Left alone, the kernel holds megabytes, and a
paused stream pauses its engine far too late. The price is a throughput of one window per round trip."""


class ProtocolViolation(Exception):
    """The engine did not send an acceptable HTTP/1.1 response. Raised only in the parser's callbacks."""


class _TlsTransport(Protocol):
    """What asyncio's and uvloop's TLS transports have, but their base class does not declare."""

    def set_read_buffer_limits(self, high: int) -> None: ...


class Owner(Protocol):
    """What a connection needs of the client that owns it."""

    in_flight: int
    failed: int

    def release(self, connection: Connection) -> None:
        """The connection is idle and reusable: keep it or close it."""
        ...

    def retire(self, connection: Connection) -> None:
        """The connection is closing and must not be used for another call. May be called more than once."""
        ...

    def lost(self, connection: Connection) -> None:
        """The connection is closed."""
        ...

    def redial(self, call: EngineCall) -> None:
        """The kept connection was stale: send the call's request again on a new one."""
        ...


class EngineCall:
    """One request under way: the Call that `EngineClient.send` returns. It ends exactly once: end, failure or cancellation.

    `request`: head and body as one, or separately where the body is too large to be copied; empty once the response's head is complete.
    `source`: gives the rest of a body that is still arriving, in chunks.
    `due`: the monotonic time of the next deadline; 0.0 until the first sweep sees the call.
    `active`: bytes arrived since the last sweep. `heard`: a byte of the response has arrived. `lost`: the engine closed a connection
    without a word when it had the request.
    """

    __slots__ = (
        "active",
        "connecting",
        "connection",
        "done",
        "due",
        "first_byte_timeout",
        "heard",
        "idle_timeout",
        "lost",
        "owner",
        "paused",
        "receiver",
        "request",
        "reused",
        "source",
    )

    def __init__(
        self, owner: Owner, receiver: Receiver, request: bytes | tuple[bytes, bytes], first_byte_timeout: float, idle_timeout: float
    ) -> None:
        self.owner, self.receiver, self.request = owner, receiver, request
        self.first_byte_timeout, self.idle_timeout = first_byte_timeout, idle_timeout
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.source: BodySource | None = None
        self.active = self.heard = self.paused = self.done = self.reused = self.lost = False
        self.due = 0.0

    def pause(self) -> None:
        """Stops reading from the engine. The rest of the present read still arrives."""
        if not self.paused and not self.done:
            self.paused = True
            if self.connection is not None:
                self.connection.pause()

    def resume(self) -> None:
        if self.paused and not self.done:
            self.paused = False
            if self.connection is not None:
                self.connection.resume()

    def more(self, data: bytes) -> None:
        """Sends some of the body that `source` gives."""
        if data and not self.done and self.connection is not None:
            self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def last(self) -> None:
        if not self.done and self.connection is not None:
            self.connection.write(b"0\r\n\r\n")

    def cancel(self) -> None:
        """Gives up: closes the connection, or the attempt to connect. Does nothing after the end."""
        if self.done:
            return
        self.done = True
        self.owner.in_flight -= 1
        self._leave()

    def fail(self, error: Exception) -> None:
        """Ends the call with an error: closes its connection and tells its receiver. Does nothing after the end."""
        if self.done:
            return
        self.done = True
        self.owner.in_flight -= 1
        self.owner.failed += 1
        receiver = self.receiver
        self._leave()
        if self.lost and isinstance(error, EngineError):
            error.lost = True
        _tell(receiver, error)

    def end(self) -> None:
        """Ends the call after a complete response; its connection has been released already."""
        self.done = True
        self.connection = self.source = None
        self.owner.in_flight -= 1
        receiver, self.receiver = self.receiver, DEAF
        try:
            receiver.on_end()
        except Exception as error:  # noqa: BLE001 - boundary: the receiver failed at the end, and is told so
            self.owner.failed += 1
            _tell(receiver, error)

    def overdue(self, now: float) -> bool:
        """Whether a deadline has passed. Called by the sweep; also starts and renews the deadlines."""
        waits = bool(self.request)  # until the head is complete: interim responses and pieces of a head do not move that deadline
        if self.paused or not self.due or (self.active and not waits):
            self.active = False
            self.due = now + (self.first_byte_timeout if waits else self.idle_timeout)
            return False
        return now >= self.due

    def expire(self) -> None:
        """Ends the call because a deadline has passed."""
        what = "did not answer in time" if self.request else "went silent in the middle of its answer"
        self.fail(failure(f"The engine {what}.", safe=not self.heard, kind=EngineTimeout))

    def _leave(self) -> None:
        connection, self.connection = self.connection, None
        connecting, self.connecting = self.connecting, None
        self.request = b""
        self.receiver, self.source = DEAF, None
        if connection is not None:
            connection.drop()
        elif connecting is not None:
            connecting.cancel()


class _Deaf:
    """The receiver of a call that is over. Breaks the cycle with the real one, which often refers to its call."""

    __slots__ = ()

    def on_head(self, head: ResponseHead) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_failed(self, error: Exception) -> None: ...

    def stranded(self) -> bool:
        return False


DEAF: Final = _Deaf()


def _tell(receiver: Receiver, error: Exception) -> None:
    try:
        receiver.on_failed(error)
    except Exception:  # boundary: the call is over, and there is nobody left to tell
        log.exception("a receiver failed while it was told of a failure")


def failure(
    message: str, *, safe: bool, refused: bool = False, cause: BaseException | None = None, kind: type[EngineError] = EngineError
) -> EngineError:
    """An EngineError for a receiver. The message is for the client and names no address; the cause is for the log."""
    error = kind(message)
    error.safe, error.refused = safe, refused
    error.__cause__ = cause
    return error


class Connection(Kept):
    """A connection to one endpoint, an asyncio.Protocol by its methods; carries one call at a time.

    `generation`: the owner's when it was opened. `idle_since`: the owner's coarse monotonic time at the release, in seconds.
    """

    __slots__ = (
        "_chunks",
        "_complete",
        "_dropped",
        "_feed",
        "_head",
        "_headers",
        "_interim",
        "_keep",
        "_known",
        "_owner",
        "_parser",
        "_quiet",
        "_transport",
        "_tries",
        "_until_close",
        "call",
        "on_body",
        "on_header",
    )

    def __init__(self, owner: Owner, generation: int) -> None:
        Kept.__init__(self, generation)
        self._owner = owner
        self.call: EngineCall | None = None
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._head: ResponseHead | None = None
        self._quiet = 0  # bytes read since the receiver last got something
        self._known: KnownResponse | None = None
        self._tries = TRIES
        self._complete = self._interim = self._keep = self._until_close = self._dropped = False
        self.on_body = self._chunks.append
        self.on_header = self._headers.setdefault
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data

    # --- towards the engine

    def start(self, call: EngineCall) -> bool:
        """Sends the call's request. Does nothing and returns False when the connection is closing."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        self.call = call
        call.connection = self
        if call.paused:
            transport.pause_reading()
        request = call.request
        if isinstance(request, bytes):
            transport.write(request)
        else:
            transport.writelines(request)
        if call.source is not None:
            transport.write(b"\r\n")
            call.source.attached(call)
        return True

    def write(self, data: bytes) -> None:
        """More of the request."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Closes an idle connection."""
        self._shut()
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Closes at once, whatever is under way; discards unsent and unread bytes."""
        self._shut()
        if self._transport is not None:
            self._transport.abort()

    def _shut(self) -> None:
        self.call = None
        self._dropped = True
        self._chunks.clear()
        self._owner.retire(self)

    # --- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = kept = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it
        if self._dropped:
            kept.abort()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        if transport.get_extra_info("sslcontext") is not None:
            cast(_TlsTransport, transport).set_read_buffer_limits(high=RECEIVE_BUFFER)

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is None:  # bytes without a request: the connection cannot be trusted any more
            self.drop()
            return
        first, chunks, known = not call.heard, self._chunks, self._known
        call.heard = call.active = True
        violation: Exception | None = None
        again = known.again(data, chunks) if first and known is not None else None
        if again is not None:  # a whole response, of which the parser sees nothing
            self._head, self._until_close, self._tries = again, False, TRIES
            self._complete = self._keep = True
        else:
            try:
                self._feed(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                violation = error
            if known is not None and first:
                self._known = None  # it has not come again
            if first and self._tries and self._complete and self._keep and violation is None and self._head is not None:
                self._tries -= 1
                self._known = known_response(data, self._head)
        try:
            if self._head is not None and not self._hand_head(call, len(data)):
                return
            if chunks:
                self._quiet = 0
                body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                chunks.clear()
                call.receiver.on_body(body)
                if call.done:
                    return
            elif violation is None and not self._complete:
                self._quiet += len(data)
                if self._quiet > MAX_HEAD_BYTES:
                    violation = ProtocolViolation("a head, trailer or chunk extension without end")
        except Exception as error:  # noqa: BLE001 - boundary: a receiver that fails ends its own call only
            call.fail(error)
            return
        if self._complete:
            self._finish(call, violation is None and self._keep)
        elif violation is not None:
            call.fail(failure("The engine's answer is not valid HTTP.", safe=False, cause=violation))

    def pause_writing(self) -> None:
        """The engine takes a large request slowly. There is nothing to hold back of one that was written whole."""
        if self.call is not None and self.call.source is not None:
            self.call.source.pause()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        if self.call is not None and self.call.source is not None:
            self.call.source.resume()

    def eof_received(self) -> bool:
        """The engine closes. Leaves the idle list at once, because `connection_lost` comes in a later turn of the loop."""
        if self.call is None:
            self._owner.retire(self)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        call, self.call = self.call, None
        self._owner.retire(self)
        self._owner.lost(self)
        self._feed = self._parser = self._transport = None
        if call is None:
            return
        call.connection = None
        if not call.heard:
            call.lost = True
            if call.reused:
                self._owner.redial(call)
            else:
                call.fail(failure("The engine closed the connection before it answered.", safe=True, cause=exc))
        elif self._until_close and exc is None:
            call.end()
        else:
            call.fail(failure("The engine closed the connection in the middle of its answer.", safe=False, cause=exc))

    # --- from the parser: record only

    def on_message_begin(self) -> None:
        if self._complete:
            raise ProtocolViolation("bytes after the end of the response")

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        status = parser.get_status_code()
        if status < 200:
            if status == 101 or status < 100:
                raise ProtocolViolation("an upgrade that was not asked for" if status == 101 else "a status that is none")
            self._interim = True
            headers.clear()
            return
        if len(headers) > MAX_HEADERS:
            raise ProtocolViolation("too many header fields")
        fields = list(headers.items())
        headers.clear()
        self._keep = parser.should_keep_alive()
        self._until_close = not self._keep and status not in (204, 304) and not any(name.lower() in _FRAMING for name, _ in fields)
        self._head = ResponseHead(status, fields)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self._complete = True

    # --- towards the receiver

    def _hand_head(self, call: EngineCall, size: int) -> bool:
        """Hands the head to the receiver; False when the call ends or goes on elsewhere."""
        head, self._head = self._head, None
        assert head is not None
        if self._quiet + size > MAX_HEAD_BYTES and sum(len(n) + len(v) + 4 for n, v in head.headers) > MAX_HEAD_BYTES:
            call.fail(failure("The engine's answer is not valid HTTP.", safe=False, cause=ProtocolViolation("a head too large")))
            return False
        if head.status == 408 and call.reused and not self._keep:
            # The engine gave up on the idle connection just as we used it (RFC 9110, 15.5.9): stale, as if it had closed.
            self.drop()
            call.connection = None
            call.heard = False
            self._owner.redial(call)
            return False
        self._quiet = 0
        call.request = b""
        call.receiver.on_head(head)
        return not call.done

    def _finish(self, call: EngineCall, keep: bool) -> None:
        """Ends a complete response: releases the connection first, so that the receiver's next request may use it."""
        transport = self._transport
        assert transport is not None
        if keep and not transport.get_write_buffer_size() and (call.source is None or call.source.sent):
            self.call = None
            self._complete = False
            if self._headers:  # trailers
                self._headers.clear()
            if call.paused:
                self.resume()
            self._owner.release(self)
        else:
            self.drop()
        call.end()


_FRAMING = (b"content-length", b"transfer-encoding")
