"""What all carriers of hints share: one connection that listens, shows every few seconds that it still hears, and is replaced when not.

A connection that listens is silent for as long as nothing happens, so a dead one looks like a quiet one. Therefore each sends itself
something on a private channel, again and again. Only while that arrives, hints are `sure`. Whatever fails, a new connection is made, after
a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.core.clock import Entropy
from gateway.core.deadlines import within
from gateway.core.tasks import TaskOwner
from gateway.store.hints import CHANNEL, Hint, decode

log = logging.getLogger("gatehouse.store")
PING_SECONDS: Final = 5.0
PATIENCE: Final = 2.0
"""Seconds in which a connection must come about, and in which what it sent itself must arrive."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0


class Broken(Exception):
    """The connection cannot be used any more."""


class Ear(ABC):
    """One connection that listens, until `close`. What failed is raised by the wait under way, or by the next one."""

    def __init__(self, own: str, heard: Callable[[str], None]) -> None:
        self._own, self._heard = own, heard
        self._moved = asyncio.Event()
        self._failure: Exception | None = None
        self._doubt = False
        self._sent = self._came = 0

    @abstractmethod
    async def listen(self, patience: float) -> None:
        """Listens on both channels. Raises Broken or OSError, as the other waits do."""

    @abstractmethod
    def say(self, number: int) -> None:
        """Sends the number on the private channel."""

    @abstractmethod
    def close(self) -> None: ...

    async def prove(self, patience: float) -> None:
        """Returns when something that was sent now has arrived."""
        self._sent += 1
        self._doubt = False
        self.say(self._sent)
        await self.until(lambda: self._came >= self._sent, patience, "what it sent itself did not come back")

    async def doubted(self, seconds: float) -> None:
        """Returns after so many seconds, or as soon as somebody doubts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._reached(lambda: self._doubt)

    def doubt(self) -> None:
        self._doubt = True
        self._moved.set()

    async def until(self, condition: Callable[[], bool], seconds: float, fault: str) -> None:
        """Waits. Raises Broken with the fault when it takes too long; what came while this process stood still is read first."""
        try:
            async with within(seconds):
                await self._reached(condition)
        except TimeoutError:
            raise Broken(fault) from None

    async def _reached(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._failure is not None:
                raise self._failure
            self._moved.clear()
            await self._moved.wait()

    def moved(self) -> None:
        """Something arrived."""
        self._moved.set()

    def failed(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._moved.set()

    def take(self, channel: bytes, payload: str) -> None:
        """A message arrived."""
        if channel == CHANNEL.encode():
            self._heard(payload)
        elif channel == self._own.encode() and payload.isascii() and payload.isdigit():
            self._came = int(payload)


class Listener(ABC):
    """Base of the carriers. incarnation: names the private channel. hear: called with each hint. changed: `sure` is another one now."""

    name: str
    transactional: bool

    def __init__(
        self, incarnation: str, hear: Callable[[Hint], None], changed: Callable[[], None], entropy: Entropy, ping: float, patience: float
    ) -> None:
        self.own = f"{CHANNEL}_{incarnation}"
        self._hear, self._changed, self._entropy = hear, changed, entropy
        self._ping, self.patience = ping, patience
        self._sure = self._warned = False
        self._ear: Ear | None = None
        self._tasks = TaskOwner("hints")

    @abstractmethod
    async def open(self) -> Ear:
        """Connects; has `patience` seconds for it."""

    @property
    def sure(self) -> bool:
        return self._sure

    def start(self) -> None:
        self._tasks.spawn(self._run(), name="listen")

    def verify(self) -> None:
        if self._ear is not None:
            self._ear.doubt()

    async def aclose(self) -> None:
        await self._tasks.aclose()

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                async with within(self.patience):
                    self._ear = await self.open()
                try:
                    await self._ear.listen(self.patience)
                    while True:
                        await self._ear.prove(self.patience)
                        pause = FIRST_PAUSE
                        self._become(True, "")
                        await self._ear.doubted(self._ping)
                finally:
                    self._ear.close()
            except Exception as error:  # noqa: BLE001 - boundary: whatever fails, it is said, and another connection is tried
                why = "there was no answer in time" if isinstance(error, TimeoutError) else str(error).strip().partition("\n")[0]
                self._become(False, why or type(error).__name__)
            await asyncio.sleep(pause * (0.75 + self._entropy.uniform() / 2))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _become(self, sure: bool, why: str) -> None:
        if not sure and not self._warned:
            self._warned = True
            log.warning("hints of other replicas do not arrive over %s (%s)", self.name, why)
        elif sure and self._warned:
            self._warned = False
            log.info("hints of other replicas arrive over %s again", self.name)
        if sure != self._sure:
            self._sure = sure
            self._changed()

    def heard(self, payload: str) -> None:
        hint = decode(payload)
        if hint is not None:
            self._hear(hint)
