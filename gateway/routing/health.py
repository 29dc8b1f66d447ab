"""Active health: turns the results of single probes into one steady verdict, and runs the probes.

`Health` is pure: `fall` failed probes in a row make an endpoint unhealthy, `rise` good ones make it healthy again. A refused
connection counts at once. `Prober` owns one task per endpoint; what a probe does is behind the `Probe` protocol
(gateway.routing.probe has the one over HTTP).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from gateway.core.clock import Entropy
from gateway.core.slices import Steps, at_once, in_slices
from gateway.core.specs import EngineSpec, HealthSpec
from gateway.core.tasks import TaskOwner
from gateway.telemetry.logging import TRACE

log = logging.getLogger("gatehouse.probes")

ASSUMED = "taken as ready until its first probe"
"""The reason shown for an external engine that counts as ready before its first probe."""
JITTER = 0.1
"""Each interval varies by up to this share, so that probes of many endpoints do not coincide."""
SHORTEST = 0.05
"""The least seconds between two probes."""
MOST = 500
"""Probes a second of all endpoints together: with more endpoints than fit into their intervals, each is probed less often."""
AT_ONCE = 64
"""New endpoints that are probed at once; further ones follow at the pace of MOST."""
MANY = 64
"""Of more endpoints that come or go at once, the probes begin and end in slices."""
PATIENCE = 0.5
"""Seconds within which a suspect must answer."""
RECOVERY = 1.0
"""Seconds between probes of a suspect that failed one: at a long interval its return would be noticed late."""


class ProbeResult(Struct, frozen=True):
    """The result of one probe. refused: nothing accepts connections there. loading: the engine says that it is still loading its model.
    slots: how many requests it runs at once, if it said so."""

    ok: bool
    reason: str = ""
    refused: bool = False
    loading: bool = False
    slots: int | None = None
    details: dict[str, Any] = {}


class Probe(Protocol):
    """Probes one endpoint. Does not raise when the network fails: that is a result too."""

    async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult | None:
        """None: it could not be probed for a reason of the gateway's own."""
        ...

    async def forget(self, engine: str) -> None:
        """The engine is no longer probed; its connections can be closed."""
        ...

    async def aclose(self) -> None: ...


class Health:
    """Counts probes up and down. An endpoint is healthy until probes say otherwise: traffic shows failures sooner than they do."""

    __slots__ = ("healthy", "loading", "reason", "refused", "spec", "streak")

    def __init__(self, spec: HealthSpec) -> None:
        self.spec = spec
        self.reset()

    def reset(self) -> None:
        """Forgets the old process's results: there is a new one."""
        self.healthy, self.refused, self.loading, self.streak, self.reason = True, False, False, 0, ""

    def observe(self, result: ProbeResult, decisive: bool = False) -> bool:
        """Takes one result; True when `healthy` or `loading` changed. One failure is enough when it is decisive or when the engine gives
        the reason."""
        before = (self.healthy, self.loading)
        if result.ok == self.healthy:
            self.streak = 0
            self.refused, self.loading = result.refused, result.loading
            if not result.ok:
                self.reason = result.reason
            return before != (self.healthy, self.loading)
        self.streak += 1
        enough = self.spec.rise if result.ok else 1 if decisive or result.refused or result.loading else self.spec.fall
        if self.streak < enough:
            return False
        self.healthy, self.refused, self.loading, self.streak, self.reason = result.ok, result.refused, result.loading, 0, result.reason
        return True


class Probed(Protocol):
    """The prober's view of an endpoint. `address` is None while there is nothing to probe."""

    name: str
    spec: EngineSpec
    address: str | None

    def probed(self, result: ProbeResult, *, decisive: bool = False) -> None: ...


class Prober:
    """Probes every endpoint it watches, each in a task of its own, until closed. Control plane only. Never more than MOST a second.

    A failed request makes its endpoint a suspect: it is probed at once, with a short timeout, and one failure is enough. So an engine
    that hangs is out soon after the first request to it timed out.
    """

    def __init__(self, probe: Probe, entropy: Entropy, heard: Callable[[Probed, ProbeResult, bool], None] | None = None) -> None:
        """heard: called with each result after its endpoint, and whether it is decisive. Must not raise."""
        self._probe, self._heard = probe, heard
        self._entropy = entropy
        self._owner = TaskOwner("prober")
        self._watched: dict[Probed, asyncio.Task[None] | None] = {}
        """The endpoints, each with the task that probes it, once that has begun."""
        self._suspects: set[Probed] = set()

    def watch(self, endpoints: list[Probed]) -> None:
        """Probes exactly these from now on. Needs a running loop."""
        wanted = set(endpoints)
        gone = [known for known in self._watched if known not in wanted]
        self.change(endpoints, gone, {endpoint.name for endpoint in endpoints})

    def change(self, new: Iterable[Probed], gone: Sequence[Probed], names: Container[str]) -> None:
        """Probes these too, unless it does so already, and those that are gone no longer; many in slices. names: of all that is probed."""
        begun = [endpoint for endpoint in new if endpoint not in self._watched]
        ended = [(endpoint, self._watched.pop(endpoint)) for endpoint in gone if endpoint in self._watched]
        self._watched.update(dict.fromkeys(begun))
        steps = self._exchange(begun, ended, names)
        if len(begun) + len(ended) > MANY:
            self._owner.spawn(in_slices(steps), name="watch")
        else:
            at_once(steps)

    def _exchange(self, begun: list[Probed], ended: list[tuple[Probed, asyncio.Task[None] | None]], names: Container[str]) -> Steps[None]:
        for endpoint, task in ended:
            if task is not None:
                task.cancel()
            if endpoint.name not in names:
                self._owner.spawn(self._probe.forget(endpoint.name), name=f"{endpoint.name}:forget")
            yield
        for place, endpoint in enumerate(begun):
            if endpoint in self._watched and self._watched[endpoint] is None:  # otherwise it has gone since
                delay = max(0, place + 1 - AT_ONCE) / MOST
                self._watched[endpoint] = self._owner.spawn(self._run(endpoint, delay), name=endpoint.name)
            yield

    def suspect(self, endpoint: Probed) -> None:
        """A request failed there: probes it now instead of at the next interval, one probe at a time."""
        if endpoint in self._watched and endpoint not in self._suspects:
            self._suspects.add(endpoint)
            self._owner.spawn(self._confirm(endpoint), name=f"{endpoint.name}:suspect")

    async def aclose(self) -> None:
        """Ends all probing and closes the probe."""
        await self._owner.aclose()
        self._watched.clear()
        await self._probe.aclose()

    def _interval(self, endpoint: Probed) -> float:
        return max(SHORTEST, endpoint.spec.health.interval, len(self._watched) / MOST)

    async def _run(self, endpoint: Probed, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        while True:
            await self._ask(endpoint, endpoint.spec.health.timeout, decisive=False)
            jitter = 1 + JITTER * (2 * self._entropy.uniform() - 1)
            await asyncio.sleep(self._interval(endpoint) * jitter)

    async def _confirm(self, endpoint: Probed) -> None:
        try:
            well = await self._ask(endpoint, min(PATIENCE, endpoint.spec.health.timeout), decisive=True)
            await asyncio.sleep(SHORTEST)
            good = endpoint.spec.health.rise if well else 0
            while good < endpoint.spec.health.rise and endpoint in self._watched and self._interval(endpoint) > RECOVERY:
                await asyncio.sleep(max(RECOVERY, len(self._suspects) / MOST))
                good = good + 1 if await self._ask(endpoint, endpoint.spec.health.timeout, decisive=False) else 0
        finally:
            self._suspects.discard(endpoint)

    async def _ask(self, endpoint: Probed, timeout: float, *, decisive: bool) -> bool:
        """Probes once and tells the endpoint. True when it is well, or when nothing was learnt."""
        address = endpoint.address
        result = None if address is None else await self._probe.probe(endpoint.spec, address, timeout)
        if result is None:
            return True
        log.log(TRACE, "endpoint %s: %s %s", endpoint.name, "well" if result.ok else "not well", result.reason)
        if endpoint.address == address and endpoint in self._watched:  # otherwise the result is about an earlier process
            endpoint.probed(result, decisive=decisive)
            if self._heard is not None:
                self._heard(endpoint, result, decisive)
        return result.ok
