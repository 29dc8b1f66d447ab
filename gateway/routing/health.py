"""Active health: what single probes say, made into one steady answer; and the loop that probes.

`Health` is pure: `fall` failed probes in a row make an endpoint unhealthy, `rise` good ones make it healthy again. A refused
connection counts at once. `Prober` owns one task per endpoint; what a probe does is behind the `Probe` protocol
(gateway.routing.probe has the one over HTTP).
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from msgspec import Struct

from gateway.core.clock import Entropy
from gateway.core.specs import EngineSpec, HealthSpec
from gateway.core.tasks import TaskOwner

JITTER = 0.1
"""Each interval is longer or shorter by up to this share, so that probes of many endpoints do not beat together."""


class ProbeResult(Struct, frozen=True):
    """What one probe saw. refused: nothing accepts connections there. slots: how many requests it runs at once, if it said so."""

    ok: bool
    reason: str = ""
    refused: bool = False
    slots: int | None = None
    details: dict[str, Any] = {}


class Probe(Protocol):
    """Asks one endpoint how it is. Never raises for the network: that is a result."""

    async def probe(self, spec: EngineSpec, address: str) -> ProbeResult: ...

    async def aclose(self) -> None: ...


class Health:
    """Rise and fall. An endpoint is healthy until probes say otherwise: traffic itself tells sooner than a schedule."""

    __slots__ = ("healthy", "reason", "refused", "spec", "streak")

    def __init__(self, spec: HealthSpec) -> None:
        self.spec = spec
        self.reset()

    def reset(self) -> None:
        """A new process: the old one's record is gone."""
        self.healthy, self.refused, self.streak, self.reason = True, False, 0, ""

    def observe(self, result: ProbeResult) -> bool:
        """Takes one result; True when `healthy` changed."""
        if result.ok == self.healthy:
            self.streak = 0
            self.refused = result.refused
            if not result.ok:
                self.reason = result.reason
            return False
        self.streak += 1
        if not result.refused and self.streak < (self.spec.fall if self.healthy else self.spec.rise):
            return False
        self.healthy, self.refused, self.streak, self.reason = result.ok, result.refused, 0, result.reason
        return True


class Probed(Protocol):
    """What the prober needs of an endpoint. `address` is None while nothing is there to be probed."""

    name: str
    spec: EngineSpec
    address: str | None

    def probed(self, result: ProbeResult) -> None: ...


class Prober:
    """Probes every endpoint it watches, each in a task of its own, until closed. Control plane only."""

    def __init__(self, probe: Probe, entropy: Entropy) -> None:
        self._probe = probe
        self._entropy = entropy
        self._owner = TaskOwner("prober")
        self._watched: dict[Probed, tuple[asyncio.Task[None], asyncio.Event]] = {}

    def watch(self, endpoints: list[Probed]) -> None:
        """Exactly these from now on: starts probing new ones and stops probing those that are gone. Needs a running loop."""
        for endpoint in [known for known in self._watched if known not in endpoints]:
            task, _ = self._watched.pop(endpoint)
            task.cancel()
        for endpoint in endpoints:
            if endpoint not in self._watched:
                hurry = asyncio.Event()
                self._watched[endpoint] = (self._owner.spawn(self._run(endpoint, hurry), name=endpoint.name), hurry)

    def suspect(self, endpoint: Probed) -> None:
        """Something went wrong there: probe it now, not at the next interval."""
        if (watched := self._watched.get(endpoint)) is not None:
            watched[1].set()

    async def aclose(self) -> None:
        """Ends all probing and closes the probe."""
        await self._owner.aclose()
        self._watched.clear()
        await self._probe.aclose()

    async def _run(self, endpoint: Probed, hurry: asyncio.Event) -> None:
        while True:
            hurry.clear()
            address, spec = endpoint.address, endpoint.spec
            if address is not None:
                result = await self._probe.probe(spec, address)
                if endpoint.address == address:  # a new process may have come meanwhile: this was about the old one
                    endpoint.probed(result)
            interval = max(0.05, spec.health.interval) * (1 + JITTER * (2 * self._entropy.uniform() - 1))
            try:
                await asyncio.wait_for(hurry.wait(), interval)
                await asyncio.sleep(min(0.05, interval))  # many failures at once ask for one probe, not for many
            except TimeoutError:
                continue
