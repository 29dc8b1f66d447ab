"""What a scrape reads from the parts that carry traffic, in whichever process they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.app.configuration.parts import PartsBuilder
from gateway.audit.broker import AuditBroker
from gateway.audit.courier import Courier
from gateway.core.snapshot import ModelEntry
from gateway.identity.stored import StoredKeys
from gateway.pipeline.plane import DataPlane
from gateway.routing.endpoints import Endpoint
from gateway.routing.registry import EndpointRegistry
from gateway.telemetry.lazy_families import LazyGaugeMetricFamily


class TrafficGauges:
    """`Metrics.gauges` calls `collect`."""

    def __init__(
        self,
        plane: DataPlane,
        registry: EndpointRegistry,
        audit: AuditBroker,
        couriers: Sequence[Courier],
        keys: StoredKeys,
        parts: PartsBuilder,
    ) -> None:
        self._plane, self._registry, self._audit, self._couriers = plane, registry, audit, couriers
        self._keys, self._parts = keys, parts

    def collect(self) -> Iterable[Metric]:
        yield from self._endpoints()
        yield from self._audit_log()
        yield GaugeMetricFamily("gatehouse_keys_cached", "API keys of the store that are remembered", value=float(len(self._keys)))
        failures = CounterMetricFamily("gatehouse_guardrail_failures", "Guardrails that failed", labels=["guardrail", "fail_mode"])
        for (name, mode), count in self._parts.guardrail_failures.items():
            failures.add_metric([name, mode], count)
        yield failures
        verdicts = CounterMetricFamily(
            "gatehouse_guardrail_verdicts", "What guardrails found, and what was done", labels=["guardrail", "verdict", "action"]
        )
        seconds = CounterMetricFamily("gatehouse_guardrail_seconds", "Time spent in guardrails", labels=["guardrail"])
        for name, tally in self._parts.guardrail_tallies.items():
            verdicts.add_metric([name, "allow", "pass"], tally.allowed)
            for (verdict, action), count in tally.verdicts.items():
                verdicts.add_metric([name, verdict, action], count)
            seconds.add_metric([name], tally.ns * 1e-9)
        yield from (verdicts, seconds)
        if (ends := self._parts.login_gauges.get("crl")) is not None:
            yield GaugeMetricFamily(
                "gatehouse_crl_expiry_seconds",
                "When the list of revoked certificates is out of date, in seconds since the epoch",
                value=ends,
            )

    def _endpoints(self) -> Iterable[Metric]:
        endpoints = self._registry.in_force()
        yield LazyGaugeMetricFamily("gatehouse_endpoint_up", "Whether an endpoint takes requests", endpoints, _up)
        yield LazyGaugeMetricFamily("gatehouse_endpoint_in_flight", "Attempts under way at an endpoint", endpoints, _busy)
        yield LazyGaugeMetricFamily("gatehouse_endpoint_slots", "Requests that an endpoint takes at once", endpoints, _slots)
        yield LazyGaugeMetricFamily("gatehouse_breaker_open", "Whether an endpoint's circuit breaker is open", endpoints, _open)
        yield LazyGaugeMetricFamily("gatehouse_breaker_state", "1 for the state that a breaker is in", endpoints, _breaker)
        snapshot = self._plane.snapshot
        entries = list(set(snapshot.models.values())) if snapshot is not None else []  # aliases share an entry
        yield LazyGaugeMetricFamily("gatehouse_queued", "Requests that wait for a slot", entries, _queued)
        yield GaugeMetricFamily("gatehouse_load_shedding", "Level of load shedding, 0 (none) to 3 (all)", value=self._registry.shedding)

    def _audit_log(self) -> Iterable[Metric]:
        audit = self._audit
        yield GaugeMetricFamily("gatehouse_audit_accepting", "Whether the audit log accepts records", value=1.0 if audit.accepting else 0.0)
        yield CounterMetricFamily("gatehouse_audit_records", "Audit records written", value=audit.records)
        yield CounterMetricFamily("gatehouse_audit_refused", "Intents refused because the audit log took no records", value=audit.refused)
        yield CounterMetricFamily("gatehouse_audit_lost", "Audit records lost", value=audit.lost)
        yield CounterMetricFamily("gatehouse_audit_withheld", "Audit records without their people: no data key", value=audit.withheld)
        yield GaugeMetricFamily("gatehouse_audit_damage_seconds", "When damage of the audit log was last found", value=audit.damaged)
        writes = HistogramMetricFamily(
            "gatehouse_audit_write_seconds", "Time from the hand-over of a batch of records until it was written"
        )
        writes.add_metric([], buckets=audit.writes.buckets(), sum_value=audit.writes.sum)
        yield writes
        yield GaugeMetricFamily("gatehouse_audit_waiting_records", "Records that are not written yet", value=audit.waiting)
        yield GaugeMetricFamily("gatehouse_audit_lag_seconds", "How long the oldest unwritten record has been waiting", value=audit.lag)
        yield from self._sinks()

    def _sinks(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("gatehouse_audit_sink_up", "Whether a sink beside the log takes records", labels=["sink"])
        behind = GaugeMetricFamily("gatehouse_audit_sink_waiting_bytes", "Bytes of the log that a sink has not taken yet", labels=["sink"])
        sent = CounterMetricFamily("gatehouse_audit_sink_sent", "Records that a sink beside the log has taken", labels=["sink"])
        lost = CounterMetricFamily("gatehouse_audit_sink_lost", "Records that a sink beside the log did not get", labels=["sink"])
        refused = CounterMetricFamily("gatehouse_audit_sink_refused", "Records that a sink's receiver will never take", labels=["sink"])
        for courier in self._couriers:
            up.add_metric([courier.name], 1.0 if courier.fault is None and not courier.hangs else 0.0)
            behind.add_metric([courier.name], courier.waiting)
            sent.add_metric([courier.name], courier.sent)
            lost.add_metric([courier.name], courier.lost)
            refused.add_metric([courier.name], courier.refused)
        yield from (up, behind, sent, lost, refused)


_Read = list[tuple[dict[str, str], float]]


def _up(endpoint: Endpoint) -> _Read:
    if endpoint.state == "unloaded" and endpoint.code is None:  # nobody needs it now; with a code, its engine could not be loaded
        return []
    return [({"endpoint": endpoint.name}, 1.0 if endpoint.state in ("ready", "half_open") else 0.0)]


def _busy(endpoint: Endpoint) -> _Read:
    return [({"endpoint": endpoint.name}, endpoint.in_flight)]


def _slots(endpoint: Endpoint) -> _Read:
    return [({"endpoint": endpoint.name}, endpoint.limit)]


def _queued(entry: ModelEntry) -> _Read:
    return [({"model": entry.name}, entry.route.backlog)]


def _open(endpoint: Endpoint) -> _Read:
    return [({"endpoint": endpoint.name}, 0.0 if endpoint.breaker.effective == "closed" else 1.0)]


def _breaker(endpoint: Endpoint) -> _Read:
    state = endpoint.breaker.effective
    return [({"endpoint": endpoint.name, "state": name}, float(state == name)) for name in ("closed", "half_open", "open")]
