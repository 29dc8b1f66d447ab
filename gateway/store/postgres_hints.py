"""Hints over PostgreSQL's NOTIFY.

A pooler in front of the server may take LISTEN and deliver nothing; what the connection sends itself then does not come back
(gateway.store.listening). It is driven by libpq's non-blocking calls on the event loop: nothing here waits for the server without a
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from gateway.core.clock import Entropy
from gateway.store.hints import CHANNEL, Hint, encode
from gateway.store.listening import PATIENCE, PING_SECONDS, Broken, Ear, Listener

if TYPE_CHECKING:
    from psycopg import AsyncConnection

CONNECT_ARGUMENTS: Final = "gatehouse_connect_arguments"
"""The engine's execution option with what the driver is given beside the URL."""
NOTIFY: Final = sa.text("SELECT pg_notify(:channel, :payload)")


def arguments(engine: sa.Engine) -> dict[str, Any]:
    """What psycopg needs to connect as the engine does."""
    _, named = engine.dialect.create_connect_args(engine.url)
    given: dict[str, Any] = {**named, **engine.get_execution_options().get(CONNECT_ARGUMENTS, {})}
    given.pop("context", None)
    return {**given, "application_name": "gatehouse hints"}


class PostgresHints(Listener):
    """Implements gateway.store.hints.Carrier. notify: sends a payload on the channel, over the store's own connections."""

    name = "postgresql"
    transactional = True

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
        super().__init__(incarnation, hear, changed, entropy, ping, patience)
        self._connect, self._notify = connect, notify

    async def open(self) -> Ear:
        import psycopg  # noqa: PLC0415 - only where PostgreSQL is used

        return PostgresEar(await psycopg.AsyncConnection.connect(**self._connect, autocommit=True), self.own, self.heard)

    async def send(self, hint: Hint) -> None:
        await self._notify(encode(hint))


class PostgresEar(Ear):
    """Reads whenever something arrives."""

    def __init__(self, connection: AsyncConnection[Any], own: str, heard: Callable[[str], None]) -> None:
        super().__init__(own, heard)
        self._connection, self._libpq = connection, connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._descriptor = connection.fileno()
        self._loop.add_reader(self._descriptor, self._readable)

    async def listen(self, patience: float) -> None:
        self._execute(f'LISTEN "{CHANNEL}"; LISTEN "{self._own}"')
        await self.until(lambda: not self._busy, patience, "LISTEN was not answered")

    async def prove(self, patience: float) -> None:
        await self.until(lambda: not self._busy, patience, "the statement before was not answered")
        await super().prove(patience)

    def say(self, number: int) -> None:
        self._execute(f"SELECT pg_notify('{self._own}', '{number}')")

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._libpq.finish()

    def _execute(self, statement: str) -> None:
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
                self.take(note.relname, note.extra.decode(errors="replace"))
        except Exception as error:  # noqa: BLE001 - boundary: a callback of the loop; the wait under way raises it
            self._loop.remove_reader(self._descriptor)
            self.failed(error)
        self.moved()
