"""The connections of one process to engines, and their deadlines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.core.pauses import Pauses
from gateway.core.ports import EngineClient
from gateway.core.specs import EngineSpec
from gateway.transport.pool import EndpointClient

TICK_SECONDS: Final = 0.1
"""Between two ticks at most, while nothing is in the way."""
ROUND: Final = 10
"""Ticks, about a second, in which each client that only has idle connections is looked at once."""


class Connections:
    """Makes the clients of endpoints, and looks at their deadlines. Who gets a client closes it.

    Of ten thousand endpoints most have no connection: those cost a tick nothing. Clients with a request under way are looked at by each
    tick, those with idle connections by every tenth."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._pauses = now, Pauses(TICK_SECONDS, now())
        self._connected: dict[EndpointClient, None] = {}
        self._round: list[EndpointClient] = []
        """Those that are still to be looked at in this round, from the end."""
        self._share = 0
        self._resends: Counter[str] = Counter()
        """Requests that were sent again, by engine. Outlives the clients: an engine gets a new one with each of its processes."""

    def client(self, engine: EngineSpec, address: str) -> EngineClient:
        """The connections to one address of an engine."""
        if engine.runtime == "external":
            address = address.rstrip("/").removesuffix("/v1")
        timeout, most = engine.timeouts.connect, engine.max_idle_connections
        opened, resent = partial(self._opened, engine.name), partial(self._resent, engine.name)
        return EndpointClient(address, tls=engine.tls, connect_timeout=timeout, max_idle=most, connected=opened, resent=resent)

    def tick(self) -> None:
        """Looks at every deadline."""
        now = self._now()
        stood = self._pauses.since(now)
        for client in [known for known in self._connected if known.in_flight]:
            client.tick(now, stood)
        if not self._round:
            self._round = list(self._connected)
            self._share = -(-len(self._round) // ROUND)
        resting = self._round[-self._share :] if self._share else []
        del self._round[len(self._round) - len(resting) :]
        for client in resting:
            if not client.has_connections:
                self._connected.pop(client, None)
            elif not client.in_flight:
                client.tick(now)

    def collect(self) -> Iterable[Metric]:
        """`Metrics.gauges` calls it."""
        resends = CounterMetricFamily(
            "gatehouse_engine_resends", "Requests sent again because the engine had closed the kept connection", labels=["engine"]
        )
        for engine, count in self._resends.items():
            resends.add_metric([engine], count)
        yield resends

    def _resent(self, engine: str) -> None:
        self._resends[engine] += 1

    def _opened(self, engine: str, client: EndpointClient) -> None:
        self._connected[client] = None
        self._resends.setdefault(engine, 0)  # from 0 on, or the first would not be growth
