"""Used DPoP proofs in Redis, so that each counts once over all replicas.

A proof is claimed in this replica's own table first (gateway.identity.replays), then in Redis by `SET NX PX`: who comes second anywhere is
refused. Waiting for Redis is bounded by `redis.timeout`, and while an answer is overdue nobody waits. Without an answer
`identity.dpop.on_failure` decides: `closed` refuses (503), `local` goes by the own table, as without Redis.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from math import ceil
from typing import Any, Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.replicas.membership import Clocks
from gateway.core.clock import Clock, SystemClock, SystemEntropy
from gateway.core.deadlines import Deadline
from gateway.core.errors import Overloaded
from gateway.core.proofs import ClaimProof
from gateway.core.specs.redis import RedisSpec
from gateway.core.tasks import TaskOwner
from gateway.core.waiting import Maybe
from gateway.identity.replays import Replays
from gateway.transport.redis.address import target
from gateway.transport.redis.connection import Connection, Unreachable
from gateway.transport.redis.keeper import Keeper
from gateway.transport.redis.resp import RedisError, command

log = logging.getLogger("gatehouse.identity")
SKEW_SECONDS: Final = 10.0
"""By which a replica's clock may differ from the store's: by the store's, a proof counts for at most so much longer, and so much earlier.
It is remembered for longer than that: no replica takes what another one has used and Redis has forgotten."""
FIRST: Final = 1.0
"""Seconds that a start waits for Redis at most."""
AGAIN: Final = 1.0
"""Seconds after which a Redis that refused is tried again."""
OnFailure = Literal["closed", "local"]
_LATE: Final = object()
"""Instead of an answer that did not come in time."""


class SharedProofs:
    """on_failure: the settings in force. clocks: of the replicas. Life: `start`, `aclose`. Raises ConfigError for settings that name no
    Redis."""

    def __init__(
        self,
        own: Replays,
        spec: RedisSpec,
        on_failure: Callable[[], OnFailure],
        owner: TaskOwner,
        clocks: Callable[[], Clocks] = Clocks,
        clock: Clock | None = None,
    ) -> None:
        self._own, self._on_failure, self._owner, self._clocks = own, on_failure, owner, clocks
        self._clock: Clock = clock or SystemClock()
        self._prefix, self._patience, self._target = f"{spec.prefix}:{{proofs}}:", spec.patience, target(spec)
        self._keeper = Keeper(self._target, self._connected, self._lost, SystemEntropy(), "gatehouse-proofs")
        self._line: Connection | None = None
        self._overdue: set[asyncio.Future[Any]] = set()
        """Questions whose answer did not come in time and has not come yet."""
        self._refused = self._said_lost = False
        self._trying: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        self.unshared = 0
        """Proofs that Redis was not asked about, or did not answer in time."""

    async def start(self) -> None:
        """Returns as soon as Redis has answered, or a little later without."""
        self._keeper.start()
        try:
            async with asyncio.timeout(FIRST):
                await self._ready.wait()
        except TimeoutError:
            self._say_lost("there is no connection yet")

    async def aclose(self) -> None:
        self._said_lost = True
        await self._keeper.aclose()
        self._try_no_more()

    @property
    def up(self) -> bool:
        """Whether Redis answers in time, and takes what it is sent."""
        return self._line is not None and not self._overdue and not self._refused

    def claim(self, proof: ClaimProof) -> Maybe[bool]:
        """As gateway.core.proofs.Claim."""
        if not self._timely(proof) or not self._own.claim(proof):
            return False
        line = self._line
        if line is None or self._overdue or line.clogged:
            return self._alone()
        return self._owner.wait(self._shared(line, proof), name="claim a proof")

    def _timely(self, proof: ClaimProof) -> bool:
        """Whether a proof counts by the clock that all replicas share. One that counts by this machine's alone may be used up and forgotten
        elsewhere already."""
        skew = self._clocks().own
        age = self._clock.wall() - skew - proof.issued
        if -proof.ahead - SKEW_SECONDS <= age <= proof.window - proof.ahead + SKEW_SECONDS:
            return True
        log.debug("a DPoP proof was refused: by the store's clock it is not valid now; this machine's is off by %.0f s", skew)
        return False

    async def _shared(self, line: Connection, proof: ClaimProof) -> bool:
        name = self._prefix + urlsafe_b64encode(sha256(proof.key + proof.id).digest()).decode().rstrip("=")
        milliseconds = ceil((proof.window + 2 * SKEW_SECONDS) * 1000)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        line.send(command("SET", name, "1", "NX", "PX", str(milliseconds)), lambda reply: self._replied(answer, reply))
        deadline = Deadline(self._patience, lambda: self._late(line, answer))
        try:
            reply = await answer
        finally:
            deadline.cancel()
        if reply is None:
            return False
        return True if reply == b"OK" else self._alone()

    def _late(self, line: Connection, answer: asyncio.Future[Any]) -> None:
        """Nobody waits for this answer any longer."""
        if answer.done():
            return
        answer.set_result(_LATE)
        if line is self._line:
            self._overdue.add(answer)
            self._say_lost("it does not answer in time")

    def _replied(self, answer: asyncio.Future[Any], reply: Any) -> None:
        """Also for answers that nobody waits for any more, and for a connection that is lost."""
        self._overdue.discard(answer)
        if not answer.done():
            answer.set_result(reply)
        if isinstance(reply, Unreachable):
            return
        self._answered(reply)

    def _alone(self) -> bool:
        """What happens without Redis. Raises Overloaded."""
        self.unshared += 1
        if self._on_failure() == "local":
            return True
        raise Overloaded("Used proofs cannot be looked up at the moment.", code="proofs_unavailable", retry_after=1.0)

    # --- the connection

    def _connected(self, line: Connection) -> None:
        self._line, self._refused = line, True
        self._overdue.clear()
        self._try(line)

    def _lost(self, error: Exception) -> None:
        self._line = None
        self._overdue.clear()
        self._try_no_more()
        self._say_lost(str(error))

    def _try(self, line: Connection) -> None:
        """A write like a proof's, which changes nothing: one that is full, loads its data or is a replica answers what only reads."""
        self._trying = None
        line.send(command("SET", f"{self._prefix}nothing", "1", "XX", "PX", "1"), lambda reply: self._tried(line, reply))

    def _tried(self, line: Connection, reply: Any) -> None:
        if line is self._line and not isinstance(reply, Unreachable):
            self._answered(reply)
            self._ready.set()

    def _try_no_more(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            self._trying = None

    def _answered(self, reply: Any) -> None:
        self._refused = isinstance(reply, RedisError)
        if isinstance(reply, RedisError):
            self._say_lost(str(reply))
            if not self._keeper.elsewhere(reply) and self._line is not None and self._trying is None:
                self._trying = asyncio.get_running_loop().call_later(AGAIN, self._try, self._line)
        elif not self._overdue and self._said_lost:
            self._say_back()

    def _say_lost(self, why: str) -> None:
        if not self._said_lost:
            log.warning("used proofs cannot be shared in redis at %s (%s); identity.dpop.on_failure applies", self._target, why)
        self._said_lost = True

    def _say_back(self) -> None:
        log.info("used proofs are shared in redis at %s", self._target)
        self._said_lost = False

    def collect(self) -> Iterable[Metric]:
        """`Metrics.gauges` calls it."""
        yield GaugeMetricFamily("gatehouse_proofs_redis_up", "Whether Redis answers about used proofs", value=1.0 if self.up else 0.0)
        yield CounterMetricFamily("gatehouse_proofs_unshared", "Proofs decided without Redis", value=float(self.unshared))
