"""Hints over Redis's PUBLISH and SUBSCRIBE, for databases that cannot carry them and for poolers that swallow PostgreSQL's.

Two connections, one that listens and one that publishes: a listening one may do nothing else (RESP2, which every Redis and Valkey speaks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.core.clock import Entropy
from gateway.core.deadlines import within
from gateway.core.errors import StoreUnavailable
from gateway.core.specs.redis import RedisSpec
from gateway.store.hints import CHANNEL, Hint, encode
from gateway.store.listening import PATIENCE, PING_SECONDS, Broken, Ear, Listener
from gateway.transport.redis.address import Target, target
from gateway.transport.redis.connection import Connection, Unreachable
from gateway.transport.redis.resp import command
from gateway.transport.redis.sentinel import locate, opened


class RedisHints(Listener):
    """Implements gateway.store.hints.Carrier. Raises ConfigError for settings that name no Redis."""

    name = "redis"
    transactional = False

    def __init__(
        self,
        spec: RedisSpec,
        incarnation: str,
        hear: Callable[[Hint], None],
        changed: Callable[[], None],
        entropy: Entropy,
        *,
        ping: float = PING_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(incarnation, hear, changed, entropy, ping, patience)
        self._target, self._timeout = target(spec), spec.patience

    async def open(self) -> Ear:
        return await RedisEar.opened(self._target, self.own, self.heard)

    async def send(self, hint: Hint) -> None:
        ear = self._ear
        if not isinstance(ear, RedisEar) or not self.sure:
            raise StoreUnavailable("Redis does not answer.")
        try:
            async with within(self._timeout):
                await ear.publishing.must("PUBLISH", CHANNEL, encode(hint))
        except (Unreachable, TimeoutError) as error:
            raise StoreUnavailable(f"Redis did not take a hint: {error or 'too late'}") from None


class RedisEar(Ear):
    listening: Connection
    publishing: Connection

    @classmethod
    async def opened(cls, to: Target, own: str, heard: Callable[[str], None]) -> RedisEar:
        """Opens both connections. Raises Broken and OSError."""
        made = cls(own, heard)
        try:
            address = await locate(to)
            made.listening = await opened(to, address, made.failed, made._message, name="gatehouse-hints")
            try:
                made.publishing = await opened(to, address, made.failed, name="gatehouse-hints")
            except BaseException:
                made.listening.close()
                raise
        except Unreachable as error:
            raise Broken(str(error)) from None
        return made

    def _message(self, message: list[Any]) -> None:
        if len(message) == 3 and isinstance(message[1], bytes) and isinstance(message[2], bytes):
            self.take(message[1], message[2].decode(errors="replace"))
            self.moved()

    async def listen(self, patience: float) -> None:
        try:
            async with within(patience):
                for channel in (CHANNEL, self._own):
                    await self.listening.must("SUBSCRIBE", channel)
        except Unreachable as error:
            raise Broken(str(error)) from None

    def say(self, number: int) -> None:
        self.publishing.send(command("PUBLISH", self._own, str(number)), _ignored)

    def close(self) -> None:
        self.listening.close()
        self.publishing.close()


def _ignored(reply: object) -> None:
    return None
