"""Limiters over a real Redis whose time the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha1
from typing import Any

from gateway.core.clock import FakeClock, SystemEntropy
from gateway.core.ports import Reservation
from gateway.core.secret import Secret
from gateway.core.specs import LimitSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Signal, as_future
from gateway.limits.redis.calls import HOLD, Script
from gateway.limits.redis.limiter import Pots, RedisLimiter
from gateway.limits.redis.script import LUA
from gateway.limits.redis.shared import SharedLimits
from gateway.transport.redis.address import target
from gateway.transport.redis.keeper import Keeper
from gateway.transport.redis.resp import RedisError
from policies.limits import LimitRules, estimate
from tests.cluster.servers import RedisServer
from tests.waiting import reached

_TIME = b"local now = time[1] * 1000000 + time[2]"
assert _TIME in LUA
_LIVES = b"'PX', math.ceil(lives / 1000) + 1"
assert _LIVES in LUA
TIMED = LUA.replace(_TIME, b"local now = tonumber(redis.call('GET', '{limits}now'))").replace(_LIVES, b"'PX', 86400000")
"""The script with a time that is a key. Its keys live for long: a slow machine would end them by Redis's own clock, which the test does not
move, and what was used would be forgotten."""


LONG_HOLD = 3_600_000_000
"""Microseconds for which slots last by Redis's own clock: more than a machine stands still between two renewals."""


class Heard:
    """What is said of Redis."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def lost(self, why: str) -> None:
        if self.said[-1:] != [why]:
            self.said.append(why)

    def back(self) -> None:
        self.said.append("back")

    def moved(self, error: RedisError) -> bool:
        return False


class SharedProcess:
    """One process's side."""

    def __init__(
        self,
        socket: str,
        prefix: str,
        clock: FakeClock | None = None,
        *,
        parts: int = 1,
        patience: float = 30.0,
        url: str = "",
        **more: Any,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.clock, self.heard = clock, Heard()
        self.pots = Pots(prefix)
        text = TIMED if clock is not None else LUA
        more.setdefault("hold", LONG_HOLD if clock is None else HOLD)
        self.shared = SharedLimits(
            self.pots.process,
            patience,
            self.heard,
            lambda: parts,
            loop.call_soon,
            loop.call_later,
            clock=clock,
            script=Script.of(text, sha1(text).hexdigest()),
            **more,
        )
        to = target(RedisSpec(url=Secret(url or f"unix://{socket}")))
        self.keeper = Keeper(to, self.shared.connected, self.shared.disconnected, SystemEntropy(), "limits")

    def start(self) -> SharedProcess:
        self.keeper.start()
        return self

    async def aclose(self) -> None:
        await self.keeper.aclose()

    def limiter(self, limits: Sequence[LimitSpec]) -> RedisLimiter:
        return RedisLimiter(LimitRules(limits), self.shared, self.pots, estimate=estimate)


class TimedLimiter:
    """A Limiter that waits for its connection, and tells Redis the time before it asks."""

    def __init__(self, server: RedisServer, process: SharedProcess, limits: Sequence[LimitSpec]) -> None:
        self._server, self.process = server, process
        self._limiter = process.limiter(limits)

    def reserve(self, principal: Principal, request: InferenceRequest) -> asyncio.Task[Reservation]:
        return asyncio.ensure_future(self._reserve(principal, request))  # type: ignore[return-value]

    async def _reserve(self, principal: Principal, request: InferenceRequest) -> Reservation:
        assert self.process.clock is not None
        self.tell_time()
        await reached(lambda: self.process.shared.up)
        self.tell_time()
        found = self._limiter.reserve(principal, request)
        return await as_future(found) if isinstance(found, Signal) else found  # type: ignore[return-value]

    def tell_time(self) -> None:
        assert self.process.clock is not None
        assert self._server.command("SET", "{limits}now", str(round(self.process.clock.monotonic() * 1_000_000))) == b"+OK"
