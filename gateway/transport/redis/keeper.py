"""Keeps one connection to the Redis that is meant, whatever becomes of it: found anew through Sentinel, made anew after a pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gateway.core.clock import Entropy
from gateway.core.tasks import TaskOwner
from gateway.transport.redis.address import Address, Target, moved_to
from gateway.transport.redis.connection import Connection, Unreachable, connect
from gateway.transport.redis.resp import RedisError
from gateway.transport.redis.sentinel import locate, opened

log = logging.getLogger("gatehouse.redis")
PATIENCE: Final = 2.0
"""Seconds in which a connection must come about, log-in included."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
LISTEN_AGAIN: Final = 1.0
MOST_REDIRECTS: Final = 5
ASKS: Final = 10.0
"""Seconds for which a server that is about to get the keys is asked so. If they are not its own by then, it says where they are."""
ELSEWHERE: Final = ("READONLY", "MASTERDOWN", "NOAUTH", "STALE", "UNBLOCKED")
"""Errors after which another connection is made: this one leads to a server that is not the master, or not ours any more."""


class Keeper:
    """on_up(connection): there is a new one. on_down(error): it is lost, or none came about. name: how Redis lists it. Life: `start`,
    `aclose`.

    Pauses grow and are random, so that many processes do not come back in one moment.
    """

    def __init__(
        self, to: Target, on_up: Callable[[Connection], None], on_down: Callable[[Exception], None], entropy: Entropy, name: str = "redis"
    ) -> None:
        self.to = to
        self._on_up, self._on_down, self._entropy, self._name = on_up, on_down, entropy, name
        self._tasks = TaskOwner(name)
        self._lost: asyncio.Event = asyncio.Event()
        self._hurry: asyncio.Event = asyncio.Event()
        self._connection: Connection | None = None
        self.address: Address | None = None
        """The address of the newest connection."""
        self._moved: Address | None = None
        self._asking = False
        self._redirects = 0

    def start(self) -> None:
        self._tasks.spawn(self._keep(), name="connection")
        if self.to.master:
            self._tasks.spawn(self._listen(), name="sentinel")

    async def aclose(self) -> None:
        await self._tasks.aclose()
        self.drop(Unreachable("it is not needed any more"))

    def drop(self, error: Exception) -> None:
        """Ends the connection; another one is made."""
        if self._connection is not None:
            self._connection.lose(error)

    def redirect(self, address: Address, asking: bool = False) -> None:
        """A Redis Cluster says that another of its servers has the keys. asking: is about to get them."""
        self._redirects += 1
        if self._redirects <= MOST_REDIRECTS:
            self._moved, self._asking = address, asking
        self.drop(Unreachable(f"the keys are at {address}"))

    def elsewhere(self, error: RedisError) -> bool:
        """Whether an error says that another server is to be asked; then the connection is ended and the other one looked for."""
        if error.code in ("MOVED", "ASK") and (found := moved_to(error, self.address)) is not None:
            self.redirect(found, error.code == "ASK")
            return True
        if error.code in ELSEWHERE:
            self.drop(Unreachable(str(error)))
            return True
        return False

    async def _keep(self) -> None:
        pause = 0.0
        while True:
            self._lost.clear()
            try:
                async with asyncio.timeout(PATIENCE):
                    made = await self._made()
            except (OSError, Unreachable, TimeoutError) as error:
                self._on_down(Unreachable(f"{type(error).__name__}: {error}" if str(error) else "no connection came about in time"))
                pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * pause))
                await self._rest(pause * (0.5 + self._entropy.uniform() / 2))
                continue
            self._connection, began = made, asyncio.get_running_loop().time()
            self._on_up(made)
            await self._lost.wait()
            self._connection = None
            lasted = asyncio.get_running_loop().time() - began
            if self._moved is None:
                pause = FIRST_PAUSE if lasted > LONGEST_PAUSE else min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * pause))
                await asyncio.sleep(pause * self._entropy.uniform())
            if lasted > LONGEST_PAUSE:
                self._redirects = 0

    async def _rest(self, seconds: float) -> None:
        """A pause, which the news of another master ends: so all processes find it at about the same time."""
        self._hurry.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            return
        await asyncio.sleep(FIRST_PAUSE * self._entropy.uniform())

    async def _made(self) -> Connection:
        moved, self._moved = self._moved, None
        asking, self._asking = self._asking, False
        self.address = moved or await locate(self.to)
        made = await opened(self.to, self.address, self._was_lost, name=self._name)
        if asking and moved is not None:
            made.asking = True
            asyncio.get_running_loop().call_later(ASKS, setattr, made, "asking", False)
        return made

    def _was_lost(self, error: Exception) -> None:
        if self._connection is not None:
            self._on_down(error)
        self._lost.set()

    # --- Sentinel

    async def _listen(self) -> None:
        """Hears of failovers at once, from one Sentinel after the other."""
        turn = 0
        while True:
            at = self.to.servers[turn % len(self.to.servers)]
            turn += 1
            ended = asyncio.Event()
            made: Connection | None = None
            try:
                async with asyncio.timeout(PATIENCE):
                    made = await connect(self.to, at, self.to.sentinel_login, partial(_set, ended), self._heard)
                    await made.must("SUBSCRIBE", "+switch-master")
                    await self._compare()
                await ended.wait()
            except (OSError, Unreachable, TimeoutError) as error:
                log.debug("the Sentinel %s cannot be listened to: %s", at, error)
            finally:
                if made is not None:
                    made.close()
            await asyncio.sleep(LISTEN_AGAIN * (0.5 + self._entropy.uniform()))

    async def _compare(self) -> None:
        """What was announced before anybody listened is seen here: a master that froze closes no connection by itself."""
        found = await locate(self.to)
        if self._connection is not None and self.address != found:
            log.info("Sentinel says that %s is at %s", self.to.master, found)
            self.drop(Unreachable("another server is the master now"))

    def _heard(self, message: list[Any]) -> None:
        if len(message) != 3 or message[0] != b"message" or not isinstance(message[2], bytes):
            return
        words = message[2].decode(errors="replace").split()
        if len(words) != 5 or words[0] != self.to.master:
            return
        log.info("Sentinel says that %s is now at %s:%s", words[0], words[3], words[4])
        self._hurry.set()
        self.drop(Unreachable("another server is the master now"))


def _set(event: asyncio.Event, error: Exception) -> None:
    event.set()
