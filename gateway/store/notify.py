"""Hints over PostgreSQL's NOTIFY: one connection of its own that listens, and shows every few seconds that it still hears.

A connection that listens is silent for as long as nothing happens, so a dead one looks like a quiet one; and a pooler in front of the
server may take LISTEN and deliver nothing. Therefore the connection notifies itself on a private channel, again and again. Only while that
arrives, hints are `sure`, and the poller of changes may rest longer. Whatever fails, a new connection is made, after a growing pause.

The connection is driven by libpq's non-blocking calls on the event loop: nothing here waits for the server without a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from gateway.core.clock import Entropy
from gateway.core.tasks import TaskOwner
from gateway.store.hints import CHANNEL, Hint, decode, encode

if TYPE_CHECKING:
    from psycopg import AsyncConnection

log = logging.getLogger("gatehouse.store")
CONNECT_ARGUMENTS: Final = "gatehouse_connect_arguments"
"""The engine's execution option with what the driver is given beside the URL."""
PING_SECONDS: Final = 5.0
PATIENCE: Final = 2.0
"""Seconds in which a connection must come about, and in which its own notification must arrive."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
NOTIFY: Final = sa.text("SELECT pg_notify(:channel, :payload)")


def arguments(engine: sa.Engine) -> dict[str, Any]:
    """What psycopg needs to connect as the engine does."""
    _, named = engine.dialect.create_connect_args(engine.url)
    given: dict[str, Any] = {**named, **engine.get_execution_options().get(CONNECT_ARGUMENTS, {})}
    given.pop("context", None)
    return {**given, "application_name": "gatehouse hints"}


class Broken(Exception):
    """The connection cannot be used any more."""


class PostgresHints:
    """Implements gateway.store.hints.Carrier. hear: called with each hint. changed: `sure` is another one now.

    notify: sends a payload on the channel, over the store's own connections. incarnation: names the private channel.
    """

    name = "postgresql"

    def __init__(
        self,
        connect: dict[str, Any],
        incarnation: str,
        notify: Callable[[str], Awaitable[None]],
        hear: Callable[[Hint], None],
        changed: Callable[[], None],
        entropy: Entropy,
        *,
        ping: float = PING_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        self._connect, self._own, self._notify = connect, f"{CHANNEL}_{incarnation}", notify
        self._hear, self._changed, self._entropy = hear, changed, entropy
        self._ping, self._patience = ping, patience
        self._sure = self._warned = False
        self._ear: Ear | None = None
        self._tasks = TaskOwner("hints")

    @property
    def sure(self) -> bool:
        return self._sure

    def start(self) -> None:
        self._tasks.spawn(self._run(), name="listen")

    def verify(self) -> None:
        if self._ear is not None:
            self._ear.doubt()

    async def send(self, hint: Hint) -> None:
        await self._notify(encode(hint))

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def _run(self) -> None:
        import psycopg  # noqa: PLC0415 - only where PostgreSQL is used

        pause = FIRST_PAUSE
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    connection = await psycopg.AsyncConnection.connect(**self._connect, autocommit=True)
                self._ear = Ear(connection, self._own, self._heard)
                try:
                    await self._ear.listen(self._patience)
                    while True:
                        await self._ear.prove(self._patience)
                        pause = FIRST_PAUSE
                        self._become(True, "")
                        await self._ear.doubted(self._ping)
                finally:
                    self._ear.close()
            except (psycopg.Error, OSError, TimeoutError, Broken) as error:
                self._become(False, str(error).strip().partition("\n")[0] or type(error).__name__)
            await asyncio.sleep(pause * (0.75 + self._entropy.uniform() / 2))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _become(self, sure: bool, why: str) -> None:
        if not sure and not self._warned:
            self._warned = True
            log.warning("notifications of the store do not arrive (%s): changes of other replicas are asked for more often", why)
        elif sure and self._warned:
            self._warned = False
            log.info("notifications of the store arrive again")
        if sure != self._sure:
            self._sure = sure
            self._changed()

    def _heard(self, payload: str) -> None:
        hint = decode(payload)
        if hint is not None:
            self._hear(hint)


class Ear:
    """One connection that listens, until `close`. Reads whenever something arrives; what failed is raised by the next wait."""

    def __init__(self, connection: AsyncConnection[Any], own: str, heard: Callable[[str], None]) -> None:
        self._connection, self._libpq, self._own, self._heard = connection, connection.pgconn, own, heard
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._failure: Exception | None = None
        self._busy = self._doubt = False
        self._sent = self._came = 0
        self._descriptor = connection.fileno()
        self._loop.add_reader(self._descriptor, self._readable)

    async def listen(self, patience: float) -> None:
        """Raises Broken or OSError, as the other waits do."""
        self._say(f'LISTEN "{CHANNEL}"; LISTEN "{self._own}"')
        await self._until(lambda: not self._busy, patience, "LISTEN was not answered")

    async def prove(self, patience: float) -> None:
        """Returns when a notification that was sent now has arrived."""
        self._sent += 1
        self._doubt = False
        self._say(f"SELECT pg_notify('{self._own}', '{self._sent}')")
        await self._until(lambda: not self._busy and self._came >= self._sent, patience, "its own notification did not come back")

    async def doubted(self, seconds: float) -> None:
        """Returns after so many seconds, or as soon as somebody doubts."""
        await self._until(lambda: self._doubt, seconds)

    def doubt(self) -> None:
        self._doubt = True
        self._moved.set()

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._libpq.finish()

    async def _until(self, condition: Callable[[], bool], seconds: float, fault: str = "") -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    if self._failure is not None:
                        raise self._failure
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            if fault:
                raise Broken(fault) from None

    def _say(self, statement: str) -> None:
        self._busy = True
        self._libpq.send_query(statement.encode())
        self._libpq.flush()

    def _readable(self) -> None:
        try:
            self._libpq.consume_input()
            while self._busy and not self._libpq.is_busy():
                result = self._libpq.get_result()
                if result is None:
                    self._busy = False
                elif result.error_message:
                    raise Broken(result.error_message.decode(errors="replace"))
            while (note := self._libpq.notifies()) is not None:
                self._take(note.relname, note.extra.decode(errors="replace"))
        except Exception as error:  # noqa: BLE001 - boundary: a callback of the loop; the wait under way raises it
            self._failure = error
            self._loop.remove_reader(self._descriptor)
        self._moved.set()

    def _take(self, channel: bytes, payload: str) -> None:
        if channel == CHANNEL.encode():
            self._heard(payload)
        elif channel == self._own.encode() and payload.isascii() and payload.isdigit():
            self._came = int(payload)
