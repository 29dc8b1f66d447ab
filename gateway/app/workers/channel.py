"""One end of the feed: messages over a connected socket, in order, with questions and acknowledged changes.

Nothing here waits without a deadline or grows without a bound: an ask has a deadline and there are at most MAX_ASKS of them, what the peer
does not read is bounded by MAX_BACKLOG bytes, a frame by codec.MAX_FRAME. A channel ends once, for one reason, which `on_end` hears.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

from gateway.app.workers.codec import (
    ACK,
    ANSWER,
    ASK,
    CHANGE,
    MAX_FRAME,
    REFUSAL,
    TELL,
    Codec,
    FeedError,
    Frame,
    FrameReader,
    Refusal,
    UnknownKind,
)
from gateway.core.errors import GatehouseError, Overloaded
from gateway.core.messages import Ask, Message
from gateway.core.pauses import slept
from gateway.core.tasks import TaskOwner
from gateway.telemetry.logging import TRACE

log = logging.getLogger("gatehouse.feed")

MAX_ASKS: Final = 4096
"""Questions that may be under way in one direction."""
MAX_BACKLOG: Final = MAX_FRAME + 16 * 1024 * 1024
"""Bytes that may wait for a peer that does not read."""

M = TypeVar("M", bound=Message)
A = TypeVar("A", bound=Message)


class FeedClosed(GatehouseError):
    """The other process is gone, or the feed to it has ended. In a worker, whoever needs the store says so
    (gateway.app.workers.store_feed)."""

    status = 503
    type = "overloaded_error"
    default_code = "overloaded"


class FeedTimeout(FeedClosed):
    """The other process did not answer in time."""


class AskRefused(GatehouseError):
    """The other process refused: its error, raised again here."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, code=refusal.code, status=refusal.status, retry_after=refusal.retry_after, param=refusal.param)
        self.type, self.headers = refusal.type, refusal.headers


class Handlers:
    """What happens for each kind of message that arrives at one process. Each kind is registered once; `peer` says who sent it."""

    def __init__(self) -> None:
        self._told: dict[type[Message], Callable[[str, Any], object]] = {}
        self._asked: dict[type[Message], Callable[[str, Any], Any]] = {}
        self._changed: dict[type[Message], Callable[[str, Any], Awaitable[None] | None]] = {}

    def on(self, kind: type[M], handler: Callable[[str, M], object]) -> None:
        """Registers the handler of messages that need no answer. It must not raise: that is logged as a defect."""
        self._add(self._told, kind, handler)

    def answer(self, kind: type[Ask[A]], handler: Callable[[str, Any], A | Awaitable[A]]) -> None:
        """For an Ask: returns the answer or an awaitable of it. A GatehouseError is raised again where it was asked."""
        self._add(self._asked, kind, handler)

    def change(self, kind: type[M], handler: Callable[[str, M], Awaitable[None] | None]) -> None:
        """Handles a kind of numbered changes. A change is in force when the handler, or what it returns, is done. A failure ends the
        channel."""
        self._add(self._changed, kind, handler)

    def _add(self, table: dict[type[Message], Callable[[str, Any], Any]], kind: type[Message], handler: Callable[[str, Any], Any]) -> None:
        if any(kind in known for known in (self._told, self._asked, self._changed)):
            raise ValueError(f"{kind.__name__} has a handler already")
        table[kind] = handler

    def kinds(self) -> frozenset[type[Message]]:
        """Every kind that has a handler."""
        return frozenset((*self._told, *self._asked, *self._changed))

    def told(self, message: Message) -> Callable[[str, Any], object] | None:
        return self._told.get(type(message))

    def asked(self, message: Message) -> Callable[[str, Any], Any] | None:
        return self._asked.get(type(message))

    def changed(self, message: Message) -> Callable[[str, Any], Awaitable[None] | None] | None:
        return self._changed.get(type(message))


class Applied:
    """Up to which number the changes are in force, as some take longer than others. Pure."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        """All changes up to this one are in force."""
        self._newest = number
        self._under_way: dict[int, None] = {}

    def reset(self, number: int) -> None:
        """The whole state came, with everything up to this change."""
        self.number = self._newest = number
        self._under_way.clear()

    def begin(self, number: int) -> None:
        """Raises FeedError for a number that does not follow the last one: changes are missing."""
        if number != self._newest + 1:
            raise FeedError(f"change {number} came over the feed after change {self._newest}")
        self._newest = number
        self._under_way[number] = None

    def done(self, number: int) -> bool:
        """Whether `number` has grown."""
        del self._under_way[number]
        before, self.number = self.number, next(iter(self._under_way), self._newest + 1) - 1
        return self.number > before


class Channel(asyncio.Protocol):
    """See the module. peer: who is at the other end. on_end: called once with the reason, after every open ask has failed.

    on_ack: called with the number up to which the peer has every change in force. Life: `open`, `aclose`.
    """

    def __init__(
        self,
        peer: str,
        codec: Codec,
        handlers: Handlers,
        tasks: TaskOwner,
        *,
        on_end: Callable[[str], None],
        on_ack: Callable[[int], None] = lambda number: None,
        max_asks: int = MAX_ASKS,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self.peer = peer
        self._codec, self._handlers, self._tasks = codec, handlers, tasks
        self._on_end, self._on_ack = on_end, on_ack
        self._max_asks, self._max_backlog = max_asks, max_backlog
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._next = 0
        self._asks: dict[int, tuple[asyncio.Future[Any], asyncio.TimerHandle]] = {}
        self._serving = 0
        self._patience = 0.0
        self.applied = Applied()
        """The changes received here. The owner resets it to the number that came with the whole state."""
        self._beyond = 0
        self._closing = False
        self._closed = asyncio.Event()
        self.ended: str | None = None
        """Why it has ended, or None."""

    async def open(self, sock: socket.socket) -> None:
        """Takes over a connected stream socket. The handlers are called from now on."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    async def resume(self, sock: socket.socket, unread: bytes, asked: int) -> None:
        """As `open`, for a socket on which another program has spoken before: what it told of `let_go`."""
        self._next = asked
        self._reader.feed(unread)
        await self.open(sock)

    def hold(self) -> None:
        """Stops reading, so that the peer's messages wait in the kernel."""
        if self._transport is not None and self.ended is None:
            self._transport.pause_reading()

    async def settled(self, seconds: float) -> None:
        """Returns once every question is answered and everything that was sent is with the kernel, or after so many seconds."""
        end = asyncio.get_running_loop().time() + seconds
        while (self._serving or self.backlog) and asyncio.get_running_loop().time() < end and self.ended is None:
            await asyncio.sleep(0.005)

    def let_go(self) -> tuple[int, bytes, int] | None:
        """For `resume` in another program: a descriptor of its own, the frame that has come in part, the number of the last question.
        Nobody hears of the end of this channel. None if it has ended."""
        if self._transport is None or self.ended is not None:
            return None
        descriptor = os.dup(self._transport.get_extra_info("socket").fileno())
        self.ended = "it was handed over"
        self._transport.abort()
        for answer, timer in list(self._asks.values()):
            timer.cancel()
            answer.cancel()
        return descriptor, self._reader.rest, self._next

    async def aclose(self, seconds: float = 1.0) -> None:
        """Sends what waits, for so many seconds at most, and ends."""
        transport = self._transport
        if transport is not None and self.ended is None:
            self._closing = True
            transport.close()
            try:
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
            except TimeoutError:
                transport.abort()
        self.end("it was closed here")

    # --- sending

    @property
    def backlog(self) -> int:
        """Bytes that the peer has not taken yet."""
        return 0 if self._transport is None or self.ended is not None else self._transport.get_write_buffer_size()

    def tell(self, message: Message) -> None:
        """Never waits. Does nothing once the channel has ended, which `on_end` reports. Raises FeedError for what cannot be encoded."""
        self._send(self._codec.encode(TELL, 0, message))

    def change(self, number: int, message: Message) -> None:
        """As `tell`; `on_ack` hears when it is in force."""
        self._send(self._codec.encode(CHANGE, number, message))

    def send(self, frame: bytes) -> None:
        """As `tell`, for a frame that was encoded once for several channels."""
        self._send(frame)

    def send_whole(self, frames: Sequence[bytes]) -> None:
        """As `send`, for frames that belong together and may wait whatever their size, if no more than MAX_BACKLOG waits before them: so at
        most one whole and MAX_BACKLOG beside it wait for a peer."""
        transport = self._transport
        if transport is None or self._closing or self.ended is not None:
            return
        if (waiting := transport.get_write_buffer_size()) > self._max_backlog:
            self._unread(waiting)
            return
        self._beyond = sum(map(len, frames))
        for frame in frames:
            transport.write(frame)

    def ask(self, message: Ask[A], seconds: float) -> asyncio.Future[A]:
        """The answer. Fails with the error of the handler (AskRefused), FeedTimeout after so many seconds, FeedClosed. Raises Overloaded
        when too many asks are under way. One that is cancelled is forgotten."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        if self.ended is not None or self._transport is None:
            answer.set_exception(FeedClosed(f"The feed to {self.peer} has ended.", retry_after=1.0))
            return answer
        if len(self._asks) >= self._max_asks:
            raise Overloaded("Too many questions to another process of this gateway are open.", retry_after=1.0)
        self._next += 1
        number = self._next
        encoded = self._codec.encode(ASK, number, message)
        self._wait(number, answer, seconds)
        answer.add_done_callback(lambda _: self._forget(number))
        self._send(encoded)
        return answer

    def wait_longer(self, seconds: float) -> None:
        """For so long no question fails because it is not answered: another program takes the peer's place."""
        self._patience = time.monotonic() + seconds

    def _wait(self, number: int, answer: asyncio.Future[Any], seconds: float) -> None:
        due = time.monotonic() + seconds
        self._asks[number] = (answer, asyncio.get_running_loop().call_later(seconds, self._late, number, seconds, due))

    def _late(self, number: int, seconds: float, due: float) -> None:
        answer, _ = self._asks[number]
        if answer.done():
            return
        now = time.monotonic()
        if now < self._patience or slept(due, 0.0, now):  # this process stood still, and so may have the other one: it gets its time again
            self._wait(number, answer, seconds)
        else:
            answer.set_exception(FeedTimeout("Another process of this gateway did not answer in time.", retry_after=1.0))

    def _forget(self, number: int) -> None:
        if (found := self._asks.pop(number, None)) is not None:
            found[1].cancel()

    def _send(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or self._closing or self.ended is not None:
            return
        waiting = transport.get_write_buffer_size()
        self._beyond = min(self._beyond, waiting)
        if waiting + len(data) > self._max_backlog + self._beyond:
            self._unread(waiting)
        else:
            transport.write(data)

    def _unread(self, waiting: int) -> None:
        self.end(f"it does not read what it is sent ({waiting} bytes wait)")

    # --- receiving: asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for part in self._reader.feed(data):
                if self.ended is None:
                    self._received(self._codec.frame(part))
        except FeedError as error:
            self.end(error.message)

    def eof_received(self) -> None:
        """The peer has closed its side, which ends the feed: returning None closes the transport."""

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        if self._closing:
            self.end("it was closed here")
        gone = error is None or isinstance(error, ConnectionError)  # reset: it left without reading everything
        self.end("it closed the feed" if gone else f"the feed broke: {error}")

    def _received(self, frame: Frame) -> None:
        if log.isEnabledFor(TRACE):
            log.log(TRACE, "from %s: %s %d", self.peer, frame.kind or "acknowledgement", frame.id)
        if frame.what == ACK:
            self._on_ack(frame.id)
        elif frame.what in (ANSWER, REFUSAL):
            self._answered(frame)
        elif frame.what == ASK:
            self._asked(frame)
        else:
            try:
                message = self._codec.message(frame)
            except UnknownKind as error:
                if frame.what == CHANGE:
                    raise
                log.warning("%s: %s", self.peer, error.message)
                return
            if frame.what == CHANGE:
                self._changed(frame.id, message)
            else:
                self._told(message)

    def _told(self, message: Message) -> None:
        handler = self._handlers.told(message)
        if handler is None:
            raise FeedError(f"a {type(message).__name__} came over the feed, which is not for this process")
        try:
            handler(self.peer, message)
        except Exception:  # boundary: one message's handler does not take the process with it
            log.exception("a %s of %s could not be handled", type(message).__name__, self.peer)

    def _changed(self, number: int, message: Message) -> None:
        handler = self._handlers.changed(message)
        if handler is None:
            raise FeedError(f"a {type(message).__name__} came over the feed, which is no change here")
        self.applied.begin(number)
        try:
            waiting = handler(self.peer, message)
        except Exception as error:  # noqa: BLE001 - boundary: what cannot be put into force ends the feed, and its reason is reported
            self.end(f"the change {type(message).__name__} could not be put into force: {_said(error)}")
            return
        if waiting is None:
            self._in_force(number)
        else:
            self._tasks.spawn(self._until_in_force(number, message, waiting), name="change")

    async def _until_in_force(self, number: int, message: Message, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except Exception as error:  # noqa: BLE001 - boundary: as above
            self.end(f"the change {type(message).__name__} could not be put into force: {_said(error)}")
        else:
            self._in_force(number)

    def _in_force(self, number: int) -> None:
        if self.applied.done(number):
            self._send(self._codec.encode(ACK, self.applied.number))

    def _asked(self, frame: Frame) -> None:
        try:
            message = self._codec.message(frame)
            handler = self._handlers.asked(message)
            if handler is None:
                raise UnknownKind(f"{type(message).__name__} is no question that this process answers")
            answer = handler(self.peer, message)
            encoded = None if inspect.isawaitable(answer) else self._codec.encode(ANSWER, frame.id, answer)
        except Exception as error:  # noqa: BLE001 - boundary: whoever asked hears of any failure
            self._refuse(frame, error)
            return
        if encoded is not None:
            self._send(encoded)
        elif self._serving >= self._max_asks:
            _dropped(answer)
            self._refuse(frame, Overloaded("Too many questions are being answered.", retry_after=1.0))
        else:
            self._serving += 1
            self._tasks.spawn(self._serve(frame, answer), name=frame.kind)

    async def _serve(self, frame: Frame, answer: Awaitable[Message]) -> None:
        try:
            self._send(self._codec.encode(ANSWER, frame.id, await answer))
        except Exception as error:  # noqa: BLE001 - boundary: as above
            self._refuse(frame, error)
        finally:
            self._serving -= 1

    def _refuse(self, frame: Frame, error: Exception) -> None:
        if not isinstance(error, GatehouseError):
            log.error("a %s of %s could not be answered", frame.kind[:64], self.peer, exc_info=error)
            error = GatehouseError("The gateway could not answer.")
        refusal = Refusal(error.message, error.type, error.code, error.status, error.retry_after, error.param, error.headers)
        self._send(self._codec.encode(REFUSAL, frame.id, refusal))

    def _answered(self, frame: Frame) -> None:
        found = self._asks.get(frame.id)
        if found is None or found[0].done():
            return  # it came too late, or nobody waits any more
        answer = found[0]
        try:
            message = self._codec.message(frame)
        except FeedError as error:
            answer.set_exception(error)
            raise
        if isinstance(message, Refusal):
            answer.set_exception(AskRefused(message))
        else:
            answer.set_result(message)

    # --- the end

    def end(self, reason: str) -> None:
        """Ends the channel at once; does nothing when it has ended."""
        if self.ended is not None:
            return
        self.ended = reason
        if self._transport is not None:
            self._transport.abort()
        for answer, timer in list(self._asks.values()):
            timer.cancel()
            if not answer.done():
                answer.set_exception(FeedClosed(f"The feed to {self.peer} has ended.", retry_after=1.0))
        self._on_end(reason)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, GatehouseError) else f"{type(error).__name__}: {error}"


def _dropped(answer: object) -> None:
    """A coroutine that will not be awaited."""
    if inspect.iscoroutine(answer):
        answer.close()
    elif isinstance(answer, asyncio.Future):
        answer.cancel()
