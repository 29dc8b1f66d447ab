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

from gateway.core.tickets import TICKET, Report, Taken, Ticket, Told, opened

log = logging.getLogger("gatehouse.machine")
MOST: Final = 10_000
"""Receipts that wait. A machine with so many takes no tickets."""
AT_ONCE: Final = 8
KEEP: Final = 86400.0
"""Seconds after a ticket's end for which its receipt is offered."""
AGAIN: Final = 1.0
COMPACT: Final = 4 * 1024 * 1024
Send = Callable[[bytes], Awaitable[bytes | None]]
"""Tells one gateway; its answer, None where there is none."""

_told = msgspec.json.Decoder(Told)
_taken = msgspec.json.Decoder(Taken)


class Receipts:
    """path: of the file. gateways: those who are told. Raises OSError."""

    def __init__(self, path: Path, gateways: Sequence[Send]) -> None:
        self._path, self._gateways = path, gateways
        self._waiting: dict[str, tuple[Told, float]] = {}
        """By id: what is told, and until when (seconds since the epoch)."""
        self._begun: dict[str, Told] = {}
        self._news = asyncio.Event()
        self._load()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST

    def _load(self) -> None:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            if line.startswith(b"-"):
                self._waiting.pop(line[1:].decode("ascii", "replace"), None)
                continue
            try:
                told = _told.decode(line)
                ticket = opened(TICKET, told.ticket, Ticket)[0]
            except (msgspec.MsgspecError, ValueError):
                continue  # a line that a kill has torn
            self._waiting[ticket.id] = (told, ticket.expires + ticket.seconds + KEEP)
        if self._waiting:
            self._news.set()

    def begun(self, ticket: Ticket, text: str) -> None:
        """Its gateway waits for the receipt from now on."""
        self._begun[ticket.id] = Told(ticket=text)
        self._news.set()

    def add(self, ticket: Ticket, text: str, receipt: str) -> None:
        """Raises OSError: then nobody may be told that there is a receipt."""
        told = Told(ticket=text, receipt=receipt)
        self._write(msgspec.json.encode(told) + b"\n")
        self._begun.pop(ticket.id, None)
        self._waiting[ticket.id] = (told, ticket.expires + ticket.seconds + KEEP)
        self._news.set()

    def _write(self, line: bytes) -> None:
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self._path} takes no more")

    async def tell(self) -> None:
        """Tells gateways until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            if not await self.flush() and not self._news.is_set():  # what came meanwhile need not wait
                await asyncio.sleep(AGAIN)
                self._news.set()

    async def flush(self) -> bool:
        """Tells everything once; whether nothing is left."""
        begun, self._begun = self._begun, {}
        everything = [*begun.items(), *((id, told) for id, (told, _) in self._waiting.items())]
        for place in range(0, len(everything), AT_ONCE):
            part = everything[place : place + AT_ONCE]
            whole = {id for id, told in part if told.receipt}  # of the others a receipt may be written while this is told
            report = msgspec.json.encode(Report(told=tuple([told for _, told in part])))
            for answer in await asyncio.gather(*(send(report) for send in self._gateways)):
                if answer is not None:
                    self._take(answer, whole)
        now = time.time()
        self._drop([id for id, (_, until) in self._waiting.items() if until <= now])
        return not self._waiting

    def _take(self, answer: bytes, told: Collection[str]) -> None:
        """told: the receipts that this is about."""
        try:
            self._drop([id for id in _taken.decode(answer).ids if id in told])
        except msgspec.MsgspecError:
            log.warning("the answer to a report of tickets is not that of a gateway")

    def _drop(self, ids: Sequence[str]) -> None:
        gone = [id for id in ids if self._waiting.pop(id, None) is not None]
        try:
            if gone:
                self._write(b"".join(b"-%b\n" % id.encode() for id in gone))
            if not self._waiting and os.fstat(self._file).st_size:
                os.ftruncate(self._file, 0)
            elif os.fstat(self._file).st_size > COMPACT:
                self._compact()
        except OSError as error:
            log.error("receipts cannot be written down: %s", error)

    def _compact(self) -> None:
        partial = self._path.with_suffix(".new")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = b"".join(msgspec.json.encode(told) + b"\n" for told, _ in self._waiting.values())
        if os.write(descriptor, data) != len(data):
            os.close(descriptor)
            raise OSError(f"{partial} takes no more")
        partial.replace(self._path)
        os.close(self._file)
        self._file = descriptor

    def close(self) -> None:
        os.close(self._file)
