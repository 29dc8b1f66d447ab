"""What a scrape reads at that moment, from the objects that know it: endpoints, queues, engines, the audit log, the store."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engines.host.supervisor import Supervisor
from gateway.app.membership import Membership
from gateway.app.parts import PartsBuilder
from gateway.app.shipping import Shipping
from gateway.app.store_link import StoreLink
from gateway.audit.broker import AuditBroker
from gateway.pipeline.plane import DataPlane
from gateway.routing.registry import EndpointRegistry


class Gauges:
    """`Metrics.gauges` calls `collect`."""

    def __init__(
        self,
        plane: DataPlane,
        registry: EndpointRegistry,
        supervisor: Supervisor,
        audit: AuditBroker,
        shipping: Shipping,
        link: StoreLink,
        parts: PartsBuilder,
        replica: str,
        members: Membership,
    ) -> None:
        self._plane, self._registry, self._supervisor = plane, registry, supervisor
        self._audit, self._shipping, self._link, self._parts = audit, shipping, link, parts
        self._replica, self._members = replica, members

    def collect(self) -> Iterable[Metric]:
        named = GaugeMetricFamily("gatehouse_replica_info", "1, with the replica's id", labels=["replica"])
        named.add_metric([self._replica], 1.0)
        yield named
        yield GaugeMetricFamily(
            "gatehouse_replica_duplicates", "Other gateways with this replica's id", value=float(len(self._members.rivals))
        )
        yield GaugeMetricFamily(
            "gatehouse_clock_skew_seconds", "Seconds by which this machine's clock is ahead of the store's", value=self._members.skew
        )
        yield from self._endpoints()
        yield from self._engines()
        yield from self._audit_log()
        yield GaugeMetricFamily("gatehouse_store_available", "Whether the store answers", value=1.0 if self._link.store.available else 0.0)
        yield GaugeMetricFamily("gatehouse_keys_cached", "API keys of the store that are remembered", value=float(len(self._link.keys)))
        failures = CounterMetricFamily("gatehouse_guardrail_failures", "Guardrails that failed", labels=["guardrail", "fail_mode"])
        for (name, mode), count in self._parts.guardrail_failures.items():
            failures.add_metric([name, mode], count)
        yield failures

    def _endpoints(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("gatehouse_endpoint_up", "Whether an endpoint takes requests", labels=["endpoint"])
        busy = GaugeMetricFamily("gatehouse_endpoint_in_flight", "Attempts under way at an endpoint", labels=["endpoint"])
        breaker = GaugeMetricFamily("gatehouse_breaker_open", "Whether an endpoint's circuit breaker is open", labels=["endpoint"])
        state = GaugeMetricFamily("gatehouse_breaker_state", "1 for the state that a breaker is in", labels=["endpoint", "state"])
        for view in self._registry.endpoints():
            up.add_metric([view["name"]], 1.0 if view["state"] in ("ready", "half_open") else 0.0)
            busy.add_metric([view["name"]], view["in_flight"])
            breaker.add_metric([view["name"]], 0.0 if view["breaker"]["state"] == "closed" else 1.0)
            for name in ("closed", "half_open", "open"):
                state.add_metric([view["name"], name], 1.0 if view["breaker"]["state"] == name else 0.0)
        queued = GaugeMetricFamily("gatehouse_queued", "Requests that wait for a slot", labels=["model"])
        snapshot = self._plane.snapshot
        for entry in set(snapshot.models.values()) if snapshot is not None else ():  # aliases share an entry
            queued.add_metric([entry.name], entry.route.queued)
        yield from (up, busy, breaker, state, queued)
        yield GaugeMetricFamily("gatehouse_load_shedding", "Level of load shedding, 0 (none) to 3 (all)", value=self._registry.shedding)

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

    def _audit_log(self) -> Iterable[Metric]:
        audit = self._audit
        yield GaugeMetricFamily("gatehouse_audit_accepting", "Whether the audit log accepts records", value=1.0 if audit.accepting else 0.0)
        yield CounterMetricFamily("gatehouse_audit_records", "Audit records written", value=audit.records)
        yield CounterMetricFamily("gatehouse_audit_refused", "Intents refused because the audit log took no records", value=audit.refused)
        yield CounterMetricFamily("gatehouse_audit_lost", "Audit records lost", value=audit.lost)
        behind = GaugeMetricFamily("gatehouse_audit_sink_waiting_bytes", "Bytes of the log that a sink has not taken yet", labels=["sink"])
        lost = CounterMetricFamily("gatehouse_audit_sink_lost", "Records that a sink beside the log did not get", labels=["sink"])
        for shipper in self._shipping.shippers:
            behind.add_metric([shipper.name], shipper.waiting)
            lost.add_metric([shipper.name], shipper.lost)
        yield from (behind, lost)
