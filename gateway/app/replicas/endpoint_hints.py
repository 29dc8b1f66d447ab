"""Endpoints that fail at one replica are probed at once by the others that send requests to the same address.

An engine that several replicas share (an external one) would otherwise fail one request at each of them, or stay out until each one's
own next probe. A replica whose view of an endpoint changes, either way, names the address to the others; each probes it now and believes
its own probe only. So a hint that is wrong, or made up, costs one probe a second per endpoint at most. Sidecars are not named: nobody else
reaches them.

A hint is acted on when it comes or not at all, and nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.clock import Clock, SystemClock
from gateway.routing.endpoints import Endpoint
from gateway.routing.registry import EndpointRegistry
from gateway.store.hints import MOST

PAUSE: Final = 1.0
"""Seconds between two hints about one endpoint, and between two probes of one for hints."""
GATHER: Final = 0.02
"""Seconds for which changes are gathered into one hint: a machine that dies takes several endpoints with it."""
_IN: Final = frozenset(("ready", "half_open"))
_OUT: Final = frozenset(("open", "unhealthy"))


def digest(address: str) -> str:
    """Names an address without showing it."""
    return hashlib.sha256(address.rstrip("/").removesuffix("/v1").encode()).hexdigest()[:16]


class EndpointHints:
    """send: up to MOST digests in one hint. Everything runs on the event loop. Life: `close`."""

    def __init__(self, registry: EndpointRegistry, send: Callable[[Sequence[str]], None], clock: Clock | None = None) -> None:
        self._registry, self._send, self._clock = registry, send, clock or SystemClock()
        self._leaving: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self.probes = 0
        """Probes made for hints."""

    def changed(self, name: str, old: str, new: str) -> None:
        """For the registry: an endpoint's state has changed."""
        went, came = old in _IN and new in _OUT, new == "ready" and old in _OUT | {"half_open"}
        endpoint = self._registry.find(name)
        if endpoint is None or not (went or came) or endpoint.breaker.forced is not None or (address := _shared(endpoint)) is None:
            return
        key = digest(address)
        if self._may(self._told, key):
            self._leaving[key] = None
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(GATHER, self._leave)

    def _leave(self) -> None:
        self._timer = None
        keys, self._leaving = list(self._leaving), {}
        for start in range(0, len(keys), MOST):
            self._send(keys[start : start + MOST])

    def heard(self, digests: Sequence[str]) -> None:
        """Another replica's view of these addresses has changed: probes those that are in force here."""
        named = frozenset(digests)
        for endpoint in self._registry.in_force():
            address = _shared(endpoint)
            if address is not None and (key := digest(address)) in named and self._may(self._looked, f"{key} {endpoint.name}"):
                self.probes += 1
                self._registry.suspect(endpoint)

    def _may(self, last: dict[str, float], key: str) -> bool:
        """Whether PAUSE has passed since the last time; notes this time. Holds what is younger than PAUSE, and so stays small."""
        now = self._clock.monotonic()
        for old in [known for known, moment in last.items() if now - moment >= PAUSE]:
            del last[old]
        if key in last:
            return False
        last[key] = now
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _shared(endpoint: Endpoint) -> str | None:
    """The address, if other machines may send requests there too."""
    return endpoint.address if endpoint.spec.runtime == "external" else None
