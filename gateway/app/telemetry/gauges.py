"""What a scrape reads at that moment from what only the process with the store has: its replica, its sidecars, the store."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from engines.host.supervisor import Supervisor
from gateway.app import compiled
from gateway.app.limits.usage import UsageCounter
from gateway.app.release import release
from gateway.app.replicas.membership import Membership
from gateway.app.store.link import StoreLink


class Gauges:
    """`Metrics.gauges` calls `collect`. What carries traffic is in traffic_gauges."""

    def __init__(self, supervisor: Supervisor, link: StoreLink, replica: str, members: Membership, usage: UsageCounter) -> None:
        self._supervisor, self._link, self._replica, self._members, self._usage = supervisor, link, replica, members, usage

    def collect(self) -> Iterable[Metric]:
        named = GaugeMetricFamily("gatehouse_replica_info", "1, with the replica's id", labels=["replica"])
        named.add_metric([self._replica], 1.0)
        yield named
        build = GaugeMetricFamily("gatehouse_build_info", "1, with what runs", labels=["version", "compiled"])
        build.add_metric([release(), "yes" if compiled.active() else "no"], 1.0)
        yield build
        yield GaugeMetricFamily(
            "gatehouse_replica_duplicates", "Other gateways with this replica's id", value=float(len(self._members.rivals))
        )
        yield GaugeMetricFamily(
            "gatehouse_clock_skew_seconds", "Seconds by which this machine's clock is ahead of the store's", value=self._members.skew
        )
        yield from self._engines()
        yield GaugeMetricFamily(
            "gatehouse_usage_behind_bytes", "Bytes of the audit log whose usage is not in the store yet", value=float(self._usage.behind)
        )
        yield GaugeMetricFamily("gatehouse_store_available", "Whether the store answers", value=1.0 if self._link.store.available else 0.0)

    def _engines(self) -> Iterable[Metric]:
        loaded = GaugeMetricFamily("gatehouse_engine_loaded", "Whether a sidecar runs, by its version", labels=["engine", "version"])
        share = GaugeMetricFamily(
            "gatehouse_rollout_share", "Share of an engine's traffic on its new process", labels=["engine", "version"]
        )
        for engine in self._supervisor.engines():
            loaded.add_metric([engine["name"], engine["version"]], 1.0 if engine["state"] == "ready" else 0.0)
            if (rollout := engine["rollout"]) is not None:
                share.add_metric([engine["name"], rollout["version"]], rollout["share"])
        yield from (loaded, share)
