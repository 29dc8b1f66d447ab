"""One set of metrics out of those of the control process and of all workers.

Counters and histograms are summed, with what workers counted that have ended. GAUGES says how each gauge is combined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final, Literal

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from gateway.app.workers.messages import Family, FiguresHeld, Scraped
from gateway.telemetry.detail import MOST_ERRORS, OTHER, OTHER_ERROR
from gateway.telemetry.metrics import MOST_REFUSED, OTHERS, exposed

Way = Literal["sum", "max", "min", "control"]
GAUGES: Final[dict[str, Way]] = {
    "gatehouse_approvals": "control",
    "gatehouse_approvals_bytes": "control",
    "gatehouse_kept_responses": "control",
    "gatehouse_kept_responses_bytes": "control",
    "gatehouse_audit_accepting": "min",
    "gatehouse_audit_archive_lag_seconds": "control",
    "gatehouse_audit_archive_up": "control",
    "gatehouse_audit_archive_waiting_bytes": "control",
    "gatehouse_audit_damage_seconds": "max",
    "gatehouse_audit_data_keys": "control",
    "gatehouse_audit_holds": "control",
    "gatehouse_audit_holds_known": "control",
    "gatehouse_audit_lag_seconds": "max",
    "gatehouse_audit_master_up": "control",
    "gatehouse_audit_sink_up": "min",
    "gatehouse_audit_sink_waiting_bytes": "sum",
    "gatehouse_audit_unsealed_segments": "control",
    "gatehouse_audit_waiting_records": "sum",
    "gatehouse_breaker_open": "max",
    "gatehouse_breaker_state": "control",
    "gatehouse_build_info": "control",
    "gatehouse_cache_behind_up": "min",
    "gatehouse_cache_bytes": "sum",
    "gatehouse_cache_entries": "sum",
    "gatehouse_shadow_waiting": "sum",
    "gatehouse_canary_withdrawn": "control",
    "gatehouse_clock_skew_seconds": "control",
    "gatehouse_config_refused": "control",
    "gatehouse_config_version": "max",
    "gatehouse_connections": "sum",
    "gatehouse_crl_expiry_seconds": "min",
    "gatehouse_disk_free_bytes": "control",
    "gatehouse_disk_size_bytes": "control",
    "gatehouse_dns_addresses": "control",
    "gatehouse_endpoint_in_flight": "sum",
    "gatehouse_endpoint_slots": "control",
    "gatehouse_endpoint_up": "control",
    "gatehouse_engine_kv_used_ratio": "control",
    "gatehouse_engine_loaded": "control",
    "gatehouse_engine_queue": "control",
    "gatehouse_model_store_up": "control",
    "gatehouse_engine_resident_bytes": "control",
    "gatehouse_engine_slots": "control",
    "gatehouse_engine_slots_in_use": "control",
    "gatehouse_engine_tokens_per_second": "control",
    "gatehouse_engine_vram_bytes": "control",
    "gatehouse_halts": "control",
    "gatehouse_held_bytes": "sum",
    "gatehouse_hints_sure": "control",
    "gatehouse_in_flight": "sum",
    "gatehouse_keys_cached": "sum",
    "gatehouse_limits_redis_evicts": "max",
    "gatehouse_limits_redis_up": "min",
    "gatehouse_load_shedding": "max",
    "gatehouse_machine_engine_kv_used_ratio": "control",
    "gatehouse_machine_engine_slots": "control",
    "gatehouse_machine_engine_slots_in_use": "control",
    "gatehouse_machine_engine_vram_bytes": "control",
    "gatehouse_machines": "control",
    "gatehouse_open_files": "sum",
    "gatehouse_placed_engine_failing": "control",
    "gatehouse_proofs_redis_up": "control",
    "gatehouse_queued": "sum",
    "gatehouse_replica_duplicates": "control",
    "gatehouse_replica_info": "control",
    "gatehouse_resident_bytes": "sum",
    "gatehouse_revocations": "control",
    "gatehouse_rollout_share": "control",
    "gatehouse_scaling_desired_replicas": "control",
    "gatehouse_scaling_engine_desired_replicas": "control",
    "gatehouse_scaling_engine_need_replicas": "control",
    "gatehouse_scaling_engine_replicas": "control",
    "gatehouse_scaling_need_replicas": "control",
    "gatehouse_scaling_queued_seconds": "control",
    "gatehouse_scaling_replicas": "control",
    "gatehouse_store_available": "control",
    "gatehouse_tickets_open": "sum",
    "gatehouse_tls_certificate_expiry_seconds": "control",
    "gatehouse_tls_refused": "control",
    "gatehouse_token_keys": "control",
    "gatehouse_usage_behind_bytes": "control",
    "gatehouse_workers": "control",
    "gatehouse_batches": "control",
    "gatehouse_batch_lines_running": "control",
    "gatehouse_files": "control",
    "gatehouse_jobs": "control",
    "gatehouse_jobs_running": "control",
    "gatehouse_files_bytes": "control",
    "gatehouse_file_uploads": "sum",
}
"""Every gauge; `control`: the control process's own value counts."""
SUMMED: Final = ("counter", "histogram")
MANY: Final = 256
"""Samples of a gauge; of more, a worker tells only those that are not 0, as the control process has all of them."""
BOUNDED: Final = {
    "gatehouse_tenant_requests": "tenants",
    "gatehouse_tenant_tokens": "tenants",
    "gatehouse_tenant_request_seconds": "tenants",
    "gatehouse_guardrail_refusals": "callers",
    "gen_ai_server_request_duration_seconds": "errors",
    "gen_ai_client_operation_duration_seconds": "errors",
}
"""Families with labels of which each worker shows its first values, while all workers, one after the other too, must not show more."""
BOUNDS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "tenants": (("tenant",), (OTHER,)),
    "callers": (("tenant", "principal"), OTHERS),
    "errors": (("error_type",), (OTHER_ERROR,)),
}
"""These labels, and what stands for all further values."""
KEPT: Final = frozenset({"gatehouse_cpu_seconds", "gatehouse_disk_read_bytes", "gatehouse_disk_written_bytes"})
"""Counters of the process itself, which go on when another program takes its place."""
Sample = tuple[str, tuple[tuple[str, str], ...]]


def families(found: Iterable[Metric]) -> list[Family]:
    """Families as they travel over the feed."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [(sample.name, sample.labels, sample.value) for sample in metric.samples],
            [
                (number, sample.exemplar.labels["trace_id"], sample.exemplar.value, float(sample.exemplar.timestamp or 0.0))
                for number, sample in enumerate(metric.samples)
                if sample.exemplar is not None
            ],
        )
        for metric in found
    ]


def told(found: Iterable[Metric]) -> Scraped:
    """What a worker tells of its families; without what the control process knows by itself. May be called in a thread."""
    needed = families(metric for metric in found if GAUGES.get(metric.name) != "control")
    return Scraped(msgspec.Raw(_ENCODER.encode([_without_zeros(family) for family in needed])))


def heard(scraped: Scraped) -> list[Family]:
    """May be called in a thread."""
    return _DECODER.decode(scraped.families)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Family])


def _without_zeros(family: Family) -> Family:
    if family.type in SUMMED or len(family.samples) <= MANY or GAUGES.get(family.name, "sum") not in ("sum", "max"):
        return family
    return Family(family.name, family.documentation, family.type, [sample for sample in family.samples if sample[2]])


class _Sum:
    """One family while it is put together. Samples keep the order in which they came."""

    def __init__(self, like: Family) -> None:
        self.name, self.documentation, self.type = like.name, like.documentation, like.type
        self.values: dict[Sample, float] = {}
        self.exemplars: dict[Sample, Exemplar] = {}
        """The newest of each sample."""

    def add(self, family: Family, way: Way = "sum") -> None:
        values = self.values
        for name, labels, value in family.samples:
            key = (name, tuple(labels.items()))  # the same code writes them everywhere, in one order
            known = values.get(key)
            if known is None:
                values[key] = value
            elif way == "sum":
                values[key] = known + value
            elif way != "control":
                values[key] = max(known, value) if way == "max" else min(known, value)
        for number, trace, value, when in family.exemplars:
            name, labels, _ = family.samples[number]
            key = (name, tuple(labels.items()))
            newest = self.exemplars.get(key)
            if newest is None or float(newest.timestamp or 0.0) < when:
                self.exemplars[key] = Exemplar({"trace_id": trace}, value, when)

    def family(self) -> Family:
        return Family(
            self.name, self.documentation, self.type, [(name, dict(labels), value) for (name, labels), value in self.values.items()]
        )


class Figures(Collector):
    """own: the control process's families, made anew for each scrape. tenants: how many may have series of their own."""

    def __init__(self, own: Callable[[], Iterable[Metric]], tenants: Callable[[], int] = int) -> None:
        self._own = own
        self._most: dict[str, Callable[[], int]] = {"tenants": tenants, "callers": lambda: MOST_REFUSED, "errors": lambda: MOST_ERRORS}
        self._shown: dict[str, set[tuple[str, ...]]] = {kind: set() for kind in BOUNDS}
        self._latest: dict[str, list[Family]] = {}
        self._ended: dict[str, Family] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def note(self, worker: str, found: list[Family]) -> None:
        """What a worker has counted so far."""
        self._latest[worker] = found

    def gone(self, worker: str) -> None:
        """A worker has ended: what it counted stays, its gauges go."""
        for family in self._latest.pop(worker, ()):
            if family.type in SUMMED:
                _add(self._ended, self._bounded(family))

    # --- replacing the program

    def hand_over(self) -> FiguresHeld:
        """For the program that takes this one's place. It counts from 0, while its workers go on: without this a sum would fall, and
        whoever reads it would take all that the workers have ever counted for an increase."""
        told = {family.name for found in (*self._latest.values(), self._ended.values()) for family in found} - KEPT
        ended = dict(self._ended)
        for family in families(self._own()):
            if family.type in SUMMED and family.name in told:
                _add(ended, family)
        return FiguresHeld(list(ended.values()), dict(self._latest), {kind: list(shown) for kind, shown in self._shown.items()})

    def take_over(self, held: FiguresHeld, running: Collection[str]) -> None:
        """Goes on with what the program before this one knew. running: the workers that are left."""
        for kind, shown in self._shown.items():
            shown.update(held.shown.get(kind, ()))
        self._ended, self._latest = {family.name: family for family in held.ended}, dict(held.latest)
        for worker in held.latest.keys() - set(running):
            self.gone(worker)

    # --- what is shown

    def scrape(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)

    async def exposed(self, accept: str) -> tuple[bytes, str]:
        """As gateway.telemetry.metrics.Metrics.exposed. What counts is collected on the event loop, at one moment; it is put together and
        written in a thread."""
        return await asyncio.to_thread(exposed, _Moment(self._together, *self._now()), accept)

    def total(self, name: str, **labels: str) -> float:
        """The sum of a counter's or gauge's samples over the workers, as they were heard last, and over those that have ended."""
        wanted = labels.items()
        near = [family for found in self._told() for family in found if name.startswith(family.name)]
        return sum(value for family in near for sample, with_, value in family.samples if sample == name and wanted <= with_.items())

    def known(self, name: str) -> list[float]:
        """The samples of a gauge in the workers that run, as they were heard last."""
        return [value for found in self._latest.values() for family in found if family.name == name for _, _, value in family.samples]

    def collect(self) -> Iterable[Metric]:
        return self._together(*self._now())

    def _now(self) -> tuple[list[Metric], list[list[Family]]]:
        """What this process counts, and what the workers have told."""
        return list(self._own()), self._told()

    def _told(self) -> list[list[Family]]:
        return [*self._latest.values(), list(self._ended.values())]

    def _bounded(self, family: Family) -> Family:
        """Whose labels have values beyond the bound: those become one. What was shown once is shown for as long as the gateway lives."""
        kind = BOUNDED.get(family.name)
        if kind is None:
            return family
        by, others = BOUNDS[kind]
        shown, most = self._shown[kind], self._most[kind]()
        found = []
        for name, labels, value in family.samples:
            key = tuple(labels[label] for label in by)
            if key not in shown and key != others:
                if len(shown) < most:
                    shown.add(key)
                else:
                    key = others
            found.append((name, {**labels, **dict(zip(by, key, strict=True))}, value))
        return Family(family.name, family.documentation, family.type, found)

    def _together(self, own: list[Metric], told: list[list[Family]]) -> Iterable[Metric]:
        """May be called in a thread."""
        sums: dict[str, _Sum] = {}
        for family in families(own):
            sums.setdefault(family.name, _Sum(family)).add(family)
        for found in told:
            for family in found:
                way = "sum" if family.type in SUMMED else GAUGES.get(family.name, "sum")
                if way != "control" or family.name in sums:
                    sums.setdefault(family.name, _Sum(family)).add(self._bounded(family), way)
        for total in sums.values():
            metric = Metric(total.name, total.documentation, total.type)
            for (name, labels), value in total.values.items():
                metric.add_sample(name, dict(labels), value, exemplar=total.exemplars.get((name, labels)))
            yield metric


class _Moment(Collector):
    """What was collected at one moment, for a thread. together: Figures._together."""

    def __init__(
        self, together: Callable[[list[Metric], list[list[Family]]], Iterable[Metric]], own: list[Metric], told: list[list[Family]]
    ) -> None:
        self._together, self._own, self._told = together, own, told

    def collect(self) -> Iterable[Metric]:
        return self._together(self._own, self._told)


def _add(ended: dict[str, Family], family: Family) -> None:
    """Adds a family to the sums of what has ended. None of them is changed: a thread may be reading it."""
    total = _Sum(family)
    if (known := ended.get(family.name)) is not None:
        total.add(known)
    total.add(family)
    ended[family.name] = total.family()
