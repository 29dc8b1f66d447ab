"""A process's limits in Redis: the connection, the buckets, and what is said of them in the log, the audit log and the metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.core.clock import SystemEntropy
from gateway.core.ports import Limiter
from gateway.core.specs import ConfigSpec
from gateway.core.specs.redis import RedisSpec
from gateway.limits.estimates import Estimates, bounds_of
from gateway.limits.redis.alerts import BudgetAlerts
from gateway.limits.redis.limiter import Pots, RedisLimiter
from gateway.limits.redis.shared import SharedLimits
from gateway.transport.redis.address import target
from gateway.transport.redis.connection import Connection
from gateway.transport.redis.keeper import Keeper
from gateway.transport.redis.resp import RedisError, command
from policies.limits import LimitRules, nothing

log = logging.getLogger("gatehouse.limits")
SETTLED: Final = 1.0
"""Seconds for which Redis must answer before that is said: one that stumbles is not announced again and again."""
FIRST: Final = 1.0
"""Seconds that a start waits for Redis at most."""
MOST_REASONS: Final = 4
"""Different reasons that are logged in one outage."""
REMIND: Final = 4.0
"""Seconds between two times that a replica shows that it counts: less than half of what a bucket must be unchanged for before anything
of it comes back."""
KNOWN_MS: Final = str(100 * 86_400_000)
"""How long Redis remembers that a replica has counted."""
LAST: Final = 0.5
"""Seconds that the end of a process waits until Redis has heard of its last settlements."""


class SharedLimitsPart:
    """record: (event, target, detail) for the audit log. parts: how many processes share the limits. noted: hears of each limit that would
    have refused a request if it were enforced. replica: whose process this is. Life: `start`,
    `aclose`. Raises ConfigError for settings that name no Redis."""

    def __init__(
        self,
        spec: RedisSpec,
        record: Callable[[str, str, dict[str, Any]], None],
        parts: Callable[[], int],
        noted: Callable[[str], None],
        replica: str = "",
    ) -> None:
        self._replica = replica
        self._reminding: asyncio.TimerHandle | None = None
        self._record, self._target = record, target(spec)
        loop = asyncio.get_running_loop()
        self.pots = Pots(spec.prefix)
        self._estimates = Estimates()
        self.shared = SharedLimits(
            self.pots.process,
            spec.patience,
            self,
            parts,
            loop.call_soon,
            loop.call_later,
            replica=replica,
            learn=self._estimates.learn,
            noted=noted,
            spent=BudgetAlerts(self.pots.names, self._nearly_spent, lambda: self.shared.line).crossed,
        )
        self.keeper = Keeper(self._target, self._connected, self.shared.disconnected, SystemEntropy(), "gatehouse-limits")
        self._loop = loop
        self._lost_at = 0.0
        self._said: bool | None = None
        self._reasons: set[str] = set()
        self._settling: asyncio.TimerHandle | None = None
        self._evicts = ""
        self._ready = asyncio.Event()
        self._closing = False
        if spec.timeout_ms is not None:
            log.warning("redis.timeout_ms is an older name: write 'timeout: %dms'", spec.timeout_ms)

    async def start(self) -> None:
        """Returns as soon as Redis answers, or a little later without: then the limits' `on_failure` applies."""
        self._remind()
        self.keeper.start()
        try:
            async with asyncio.timeout(FIRST):
                await self._ready.wait()
        except TimeoutError:
            self.lost("there is no connection yet")

    async def aclose(self) -> None:
        self._closing = True
        if self._reminding is not None:
            self._reminding.cancel()
        if self._settling is not None:
            self._settling.cancel()
        self.shared.finish()
        end = self._loop.time() + LAST
        while self.shared.busy and self._loop.time() < end:
            await asyncio.sleep(0.005)
        await self.keeper.aclose()

    def limiter(self, spec: ConfigSpec, rules: LimitRules, places: bool) -> Limiter:
        """The Limiter of these settings. rules: of their limits, or of places in queues."""
        self._estimates.bounds = bounds_of(spec.models)
        estimate = nothing if places else self._estimates.estimate
        return RedisLimiter(rules, self.shared, self.pots, estimate=estimate)

    def _remind(self) -> None:
        """Shows that this replica counts here. An earlier version that believes itself alone would take charges beyond its own log for
        nobody's."""
        if (line := self.shared.line) is not None:
            self._show(line)
        self._reminding = self._loop.call_later(REMIND, self._remind)

    def _show(self, line: Connection) -> None:
        if self._replica:
            line.send(command("SET", self.pots.names.replica(self._replica), "1", "PX", KNOWN_MS), lambda reply: None)

    def _connected(self, line: Connection) -> None:
        self._show(line)
        self.shared.connected(line)
        line.send(command("INFO", "memory"), self._memory)

    # --- what SharedLimits says

    def lost(self, why: str) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._closing:
            return
        if self._said is False:
            self._say_also(why)
            return
        self._said, self._lost_at, self._reasons = False, self._loop.time(), {why}
        log.warning("limits cannot be counted in redis at %s (%s); each limit's on_failure applies", self._target, why)
        self._record("limits_redis_lost", str(self._target), {"reason": why})

    def _say_also(self, why: str) -> None:
        """What keeps an outage going is often another thing than what began it: a connection that ended, then a certificate that has
        expired."""
        if why not in self._reasons and len(self._reasons) < MOST_REASONS:
            self._reasons.add(why)
            log.warning("redis at %s cannot be used for limits yet (%s)", self._target, why)

    def back(self) -> None:
        self._ready.set()
        if self._said is False and self._settling is None:
            self._settling = self._loop.call_later(SETTLED, self._settled)
        elif self._said is None:
            self._said = True
            log.info("limits are counted in redis at %s", self._target)

    def _settled(self) -> None:
        self._settling, self._said = None, True
        seconds = round(self._loop.time() - self._lost_at - SETTLED, 3)
        log.info("limits are counted in redis at %s again, after %.1f s", self._target, seconds)
        self._record("limits_redis_back", str(self._target), {"seconds": seconds})

    def _nearly_spent(self, limit: str, key: tuple[str, ...], percent: int) -> None:
        self._record("budget_used", limit, {"scope": "/".join(key), "percent": percent})

    def moved(self, error: RedisError) -> bool:
        return self.keeper.elsewhere(error)

    def _memory(self, reply: object) -> None:
        """What INFO says: a Redis that evicts keys when it is full forgets what was used."""
        if not isinstance(reply, bytes):
            return
        lines = dict(line.partition(":")[::2] for line in reply.decode(errors="replace").splitlines())
        policy = lines.get("maxmemory_policy", "noeviction")
        evicts = policy if policy != "noeviction" and lines.get("maxmemory", "0") != "0" else ""
        if evicts and evicts != self._evicts:
            log.warning("redis evicts keys when its memory is full (maxmemory-policy %s): limits would forget; use noeviction", policy)
        self._evicts = evicts

    # --- metrics

    def collect(self) -> Iterable[Metric]:
        """`Metrics.gauges` calls it."""
        shared = self.shared
        yield GaugeMetricFamily("gatehouse_limits_redis_up", "Whether Redis answers in time", value=1.0 if shared.up else 0.0)
        yield GaugeMetricFamily("gatehouse_limits_redis_evicts", "Whether Redis may evict keys", value=1.0 if self._evicts else 0.0)
        yield CounterMetricFamily("gatehouse_limits_redis_calls", "Calls to Redis", value=float(shared.called))
        yield CounterMetricFamily("gatehouse_limits_redis_requests", "Requests that Redis was asked about", value=float(shared.asked))
        yield CounterMetricFamily("gatehouse_limits_redis_late", "Calls that Redis did not answer in time", value=float(shared.late))
        yield CounterMetricFamily("gatehouse_limits_redis_dropped", "Settlements that Redis was never told of", value=float(shared.dropped))
        yield CounterMetricFamily(
            "gatehouse_limits_redis_leased", "Requests decided from shares in hand", value=float(shared.advance.decided)
        )
        fallbacks = CounterMetricFamily("gatehouse_limits_fallbacks", "Limits applied without Redis", labels=["mode"])
        for mode, count in shared.outage.decided.items():
            fallbacks.add_metric([mode], float(count))
        yield fallbacks
