"""A machine's receipts on their way to the gateways: on its disk until the gateway that gave the ticket has taken them.

The file has a line for each ticket and receipt; what was taken gets a line with its id. It is emptied when nothing is left. A kill loses no
receipt that was written (a power loss may, and then the ticket is charged in full).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gateway.core.tickets import TICKET, Report, ReportedTicket, Taken, Ticket, opened

log = logging.getLogger("gatehouse.machine")
MOST: Final = 10_000
"""Receipts that wait. A machine with so many takes no tickets."""
AT_ONCE: Final = 8
KEEP: Final = 86400.0
"""Seconds after a ticket's end for which its receipt is offered."""
AGAIN: Final = 1.0
MOST_PAUSE: Final = 64.0
"""Seconds between two tries to tell a receipt: the first pause, and the longest."""
BEGUN: Final = 0.3
IN_TIME: Final = 2.0
"""A ticket that expires sooner than that is told of at once when it begins: its gateway may be about to charge it."""
GATHER: Final = 0.005
"""Seconds for which a receipt waits for those of other requests that have begun just now: one message tells them all. To sign and verify a
message costs more than all the rest of a receipt. Until it is told, the request has its slot."""
COMPACT: Final = 4 * 1024 * 1024
Send = Callable[[bytes], Awaitable[bytes | None]]
"""Tells one gateway; its answer, None where there is none."""

_reported = msgspec.json.Decoder(ReportedTicket)
_taken = msgspec.json.Decoder(Taken)


class _Waiting:
    """What is told of a ticket until somebody takes it. until: seconds since the epoch. again: monotonic seconds at which it is told.
    pause: seconds after that."""

    __slots__ = ("again", "pause", "told", "until")

    def __init__(self, told: ReportedTicket, until: float, again: float) -> None:
        self.told, self.until, self.again, self.pause = told, until, again, AGAIN


class Receipts:
    """path: of the file. gateways: those who are told. Raises OSError.

    A receipt that nobody has taken is told again after a second, then two, four ... 64. A gateway that does not answer is left alone until
    the next time, and told at once when it is `reached` again.
    """

    def __init__(
        self, path: Path, gateways: Sequence[Send], monotonic: Callable[[], float] = time.monotonic, gather: float = GATHER
    ) -> None:
        self._path, self._gateways, self._now, self._gather = path, gateways, monotonic, gather
        self._waiting: dict[str, _Waiting] = {}
        """Receipts by their tickets' ids."""
        self._begun: dict[str, _Waiting] = {}
        """Tickets whose requests have begun, which no gateway has heard yet."""
        self._silent: set[Send] = set()
        """Gateways that did not answer the last time."""
        self._news = asyncio.Event()
        self._torn = False
        """Whether the file ends in the middle of a line."""
        self._load()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST

    def _load(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        lines, self._torn = data.splitlines(), not data.endswith(b"\n") and bool(data)
        now = self._now()
        for line in lines:
            if line.startswith(b"-"):
                self._waiting.pop(line[1:].decode("ascii", "replace"), None)
                continue
            try:
                told = _reported.decode(line)
                ticket = opened(TICKET, told.ticket, Ticket)[0]
            except (msgspec.MsgspecError, RecursionError, ValueError):
                continue  # a line that a kill has torn
            self._waiting[ticket.id] = _Waiting(told, _until(ticket), now)

    def begun(self, ticket: Ticket, text: str) -> None:
        """Its gateway waits for the receipt from now on. That is told after BEGUN seconds: most requests are over then, and their receipts
        say it, too."""
        late = ticket.expires - time.time() < IN_TIME
        until = ticket.expires + ticket.seconds
        self._begun[ticket.id] = _Waiting(ReportedTicket(ticket=text), until, self._now() + (0.0 if late else BEGUN))
        self._news.set()

    def add(self, ticket: Ticket, text: str, receipt: str) -> None:
        """Keeps a receipt on the disk. Raises OSError; the receipt must then not be reported."""
        told = ReportedTicket(ticket=text, receipt=receipt)
        self._write(msgspec.json.encode(told) + b"\n")
        self._begun.pop(ticket.id, None)
        self._waiting[ticket.id] = _Waiting(told, _until(ticket), self._now())
        self._news.set()

    def reached(self, gateway: Send) -> None:
        """The gateway has answered something else: if it was silent, it is told what waits."""
        if gateway in self._silent:
            self._silent.discard(gateway)
            now = self._now()
            for one in self._waiting.values():
                one.again = min(one.again, now)
            self._news.set()

    def _write(self, line: bytes) -> None:
        whole = b"\n" + line if self._torn else line  # lest it be read as one with what a kill or a full disk has cut off
        written = os.write(self._file, whole)
        self._torn = written != len(whole)
        if self._torn:
            raise OSError(f"{self._path} takes no more")

    async def tell(self) -> None:
        """Tells gateways until it is cancelled."""
        while True:
            self._news.clear()
            pause = self._pause()
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                pass
            if self._pause() == 0.0:
                await self._gathered()
                await self.flush()

    async def _gathered(self) -> None:
        """Waits until other requests that have begun just now are over, there is a message's worth of receipts, or GATHER is over."""
        try:
            async with asyncio.timeout(self._gather):
                while self._begun and len(self._waiting) < AT_ONCE:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass

    def _pause(self) -> float | None:
        """Seconds until something is to be told; None: nothing waits."""
        moments = [one.again for one in (*self._begun.values(), *self._waiting.values())]
        return max(0.0, min(moments) - self._now()) if moments else None

    async def flush(self, *, everything: bool = False) -> bool:
        """Tells once what is due; whether nothing is left."""
        now = self._now()
        begun = {id: one for id, one in self._begun.items() if everything or one.again <= now}
        self._begun = {id: one for id, one in self._begun.items() if id not in begun}
        due = [*begun.items(), *((id, one) for id, one in self._waiting.items() if everything or one.again <= now)]
        if due:
            self._silent.clear()
        for place in range(0, len(due), AT_ONCE):
            await self._tell(due[place : place + AT_ONCE])
        now, wall = self._now(), time.time()
        for id, one in due:
            one.again, one.pause = now + one.pause, min(MOST_PAUSE, 2 * one.pause)
            if id in begun and self._silent and id not in self._waiting and wall < one.until:
                self._begun[id] = one
        self._drop([id for id, one in self._waiting.items() if one.until <= wall])
        return not self._waiting

    async def _tell(self, part: Sequence[tuple[str, _Waiting]]) -> None:
        whole = {id for id, one in part if one.told.receipt}  # of the others a receipt may be written while this is told
        report = msgspec.json.encode(Report(told=tuple([one.told for _, one in part])))
        asked = [send for send in self._gateways if send not in self._silent]
        for send, answer in zip(asked, await asyncio.gather(*(send(report) for send in asked)), strict=True):
            if answer is None:
                self._silent.add(send)
            else:
                self._take(answer, whole)

    def _take(self, answer: bytes, told: Collection[str]) -> None:
        """told: the receipts that this is about."""
        try:
            self._drop([id for id in _taken.decode(answer).ids if id in told])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            log.warning("the answer to a report of tickets is not that of a gateway")

    def _drop(self, ids: Sequence[str]) -> None:
        gone = [id for id in ids if self._waiting.pop(id, None) is not None]
        try:
            if gone:
                self._write(b"".join(b"-%b\n" % id.encode() for id in gone))
            if not self._waiting and os.fstat(self._file).st_size:
                os.ftruncate(self._file, 0)
                self._torn = False
            elif os.fstat(self._file).st_size > COMPACT:
                self._compact()
        except OSError as error:
            log.error("receipts cannot be written down: %s", error)

    def _compact(self) -> None:
        partial = self._path.with_suffix(".new")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = b"".join(msgspec.json.encode(one.told) + b"\n" for one in self._waiting.values())
        if os.write(descriptor, data) != len(data):
            os.close(descriptor)
            raise OSError(f"{partial} takes no more")
        partial.replace(self._path)
        os.close(self._file)
        self._file, self._torn = descriptor, False

    def close(self) -> None:
        os.close(self._file)


def _until(ticket: Ticket) -> float:
    """Until when its receipt is offered, seconds since the epoch."""
    return ticket.expires + ticket.seconds + KEEP
