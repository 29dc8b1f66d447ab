"""Connections that a listener has closed before a request: counted by reason, and told to the audit log in one event for each reason and
period, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.core.throttle import neighbourhood

MOST_PEERS: Final = 256
"""Peers that are counted one by one in a period."""
SHOWN: Final = 8
PERIOD: Final = 10.0
"""Seconds between two reports."""
NETWORK: Final = "network"
"""The listener's rules do not admit the peer."""
HEADER: Final = "proxy_header"
"""A trusted peer sent no header of the PROXY protocol, or a bad one."""


@dataclass
class _Window:
    count: int = 0
    peers: dict[str, int] = field(default_factory=dict)


class Refused:
    """The refused connections of all listeners of a process."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], int] = {}
        self._windows: dict[tuple[str, str], _Window] = {}
        self._due = 0.0

    def count(self, listener: str, reason: str, address: str) -> None:
        """listener: data or admin."""
        key = (listener, reason)
        self._totals[key] = self._totals.get(key, 0) + 1
        window = self._windows.setdefault(key, _Window())
        window.count += 1
        where = neighbourhood(address)
        if where in window.peers or len(window.peers) < MOST_PEERS:
            window.peers[where] = window.peers.get(where, 0) + 1

    def reports(self, now: float) -> list[tuple[str, dict[str, object]]]:
        """(listener, detail) of what was refused since the last report; nothing before PERIOD has passed."""
        if not self._windows or now < self._due:
            return []
        self._due = now + PERIOD
        found: list[tuple[str, dict[str, object]]] = []
        for (listener, reason), window in self._windows.items():
            most = sorted(window.peers.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
            found.append((listener, {"reason": reason, "count": window.count, "peers": [peer for peer, _ in most]}))
        self._windows.clear()
        return found

    def collect(self) -> Iterable[Metric]:
        refused = CounterMetricFamily(
            "gatehouse_connections_refused", "Connections closed before a request, by listener and reason", labels=["listener", "reason"]
        )
        for (listener, reason), count in self._totals.items():
            refused.add_metric([listener, reason], count)
        yield refused
