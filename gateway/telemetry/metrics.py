"""Metrics, summed in plain lists on the hot path and folded into Prometheus families when they are scraped.

A counter of prometheus_client costs 0.3 microseconds and a histogram 0.8 in a tight loop, two to three times that in a
running relay; an addition to a list costs 0.05. Names are listed in docs/metrics.md (a test holds the two together).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from gateway.core.types import Usage
from gateway.telemetry.lazy_families import LazyHistogramMetricFamily

OVERHEAD_BOUNDS: Final[tuple[float, ...]] = (
    25.0,
    50.0,
    75.0,
    100.0,
    150.0,
    200.0,
    300.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10000.0,
    50000.0,
    250000.0,
)
"""Microseconds inside the gateway."""
DURATION_BOUNDS: Final[tuple[float, ...]] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds from the first byte of a request to its settlement; also for the time to the first token."""
MOST_REFUSED: Final = 256
"""Callers whose refusals are counted one by one."""
OTHERS: Final = ("other", "other")
PHASES = (
    "receive",
    "authenticate",
    "parse",
    "authorise",
    "reserve",
    "inspect",
    "intent",
    "durable",
    "select",
    "dispatch",
    "engine",
    "relay",
    "settle",
)
PHASE_BOUNDS: Final[tuple[float, ...]] = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 500.0, 1000.0, 10000.0)
"""Microseconds in one phase, measured on a sample of the exchanges."""
QUEUE_BOUNDS: Final[tuple[float, ...]] = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds in the queue for a slot."""
Shown = tuple[str, float] | tuple[str, float, Exemplar]
"""A bucket as prometheus_client takes it."""
_Read = tuple[dict[str, str], list[Any], float]
MANY_MODELS: Final = 256
"""Where there are more, the series of a model begin with its first settled request."""


def slot_of(bounds: tuple[float, ...], value: float) -> int:
    """The index of the first bound that the value does not exceed; they ascend. Compiled, it costs less than a call of bisect."""
    low, high = 0, len(bounds)
    while low < high:
        middle = (low + high) >> 1
        if value <= bounds[middle]:
            high = middle
        else:
            low = middle + 1
    return low


class Histogram:
    """Counts by bucket and a sum. `bounds` ascend; one more bucket counts the values above."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[slot_of(self.bounds, value)] += 1
        self.sum += value

    def buckets(self, scale: float = 1.0) -> list[tuple[str, float]]:
        """Cumulative buckets, bounds written as OpenMetrics asks for; `scale` turns the unit of the bounds into seconds."""
        found, total = [], 0
        for bound, count in zip((*(b * scale for b in self.bounds), float("inf")), self.counts, strict=True):
            total += count
            found.append((floatToGoString(float(format(bound, "g"))), float(total)))  # type: ignore[no-untyped-call]
        return found


class Tally:
    """The settled exchanges with one operation, status and outcome."""

    __slots__ = ("count", "outcome", "status")

    def __init__(self, status: int, outcome: str) -> None:
        self.status, self.outcome = status, outcome
        self.count = 0


class ModelMeter:
    """The sums of one public model, kept by name in Metrics, so that they survive reloads. `tallies`: by operation."""

    __slots__ = (
        "cached_tokens",
        "completion_tokens",
        "duration",
        "model",
        "overhead",
        "prompt_tokens",
        "queue",
        "retries",
        "tallies",
        "ttft",
    )

    def __init__(self, model: str) -> None:
        self.model = model
        self.tallies: dict[str, list[Tally]] = {}
        self.overhead = Histogram(OVERHEAD_BOUNDS)
        self.duration = Histogram(DURATION_BOUNDS)
        self.ttft = Histogram(DURATION_BOUNDS)
        self.queue = Histogram(QUEUE_BOUNDS)
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.retries = 0

    def record(self, operation: str, status: int, outcome: str, overhead_us: float, seconds: float, usage: Usage | None) -> None:
        """Counts one settled exchange."""
        self._tally(operation, status, outcome).count += 1
        overhead, duration = self.overhead, self.duration
        overhead.counts[slot_of(OVERHEAD_BOUNDS, overhead_us)] += 1
        overhead.sum += overhead_us
        duration.counts[slot_of(DURATION_BOUNDS, seconds)] += 1
        duration.sum += seconds
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens
            self.cached_tokens += usage.cached_tokens

    def _tally(self, operation: str, status: int, outcome: str) -> Tally:
        tallies = self.tallies.get(operation)
        if tallies is None:
            tallies = self.tallies[operation] = []
        for tally in tallies:
            if tally.status == status and tally.outcome == outcome:
                return tally
        tally = Tally(status, outcome)
        tallies.append(tally)
        return tally

    def first_chunk(self, seconds: float) -> None:
        """Counts a stream's first chunk. seconds: since the request's first byte."""
        self.ttft.observe(seconds)

    def waited(self, seconds: float) -> None:
        """Counts a request that was in the queue for a slot, and what it waited there, whether it got one or not."""
        self.queue.observe(seconds)


class Metrics(Collector):
    """Everything counted in this process, and its scrape.

    `gauges`: callables that give families when scraped (endpoints, queues, audit), added by the composition root. `detail`: what is counted
    beyond that (gateway.telemetry.detail.Detail), None where nothing is. `exemplars`: of traced requests (gateway.telemetry.exemplars).
    """

    def __init__(self) -> None:
        self.models: dict[str, ModelMeter] = {}
        self.denials: dict[tuple[int, str], int] = {}
        self.would_refuse: dict[str, int] = {}
        self.limited: dict[str, int] = {}
        self.refusals: dict[tuple[str, str], int] = {}
        self.phases = {phase: Histogram(PHASE_BOUNDS) for phase in PHASES}
        self.in_flight: Callable[[], int] = int
        self.connections: Callable[[], int] = int
        self.held_bytes: Callable[[], int] = int
        self.detail: Any = None
        self.exemplars: Any = None
        self.config_version = 0
        self.reloads = {"applied": 0, "refused": 0}
        self.gauges: list[Callable[[], Iterable[Metric]]] = []
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def meter(self, model: str) -> ModelMeter:
        """The meter of a configured model. The caller bounds the number of names."""
        found = self.models.get(model)
        if found is None:
            found = self.models[model] = ModelMeter(model)
        return found

    def denied(self, status: int, code: str) -> None:
        """Counts a request that was refused before its model was known."""
        key = (status, code)
        self.denials[key] = self.denials.get(key, 0) + 1

    def not_enforced(self, limit: str) -> None:
        """Counts a request that a limit would have refused if it were enforced."""
        self.would_refuse[limit] = self.would_refuse.get(limit, 0) + 1

    def limit_refused(self, limit: str) -> None:
        """Counts a request that a configured limit has refused; nothing for ""."""
        if limit:
            self.limited[limit] = self.limited.get(limit, 0) + 1

    def guardrail_refused(self, tenant: str, principal: str) -> None:
        """Counts a request that a guardrail refused. So many callers have a count of their own; all others have one together."""
        key = (tenant, principal)
        if key not in self.refusals and len(self.refusals) >= MOST_REFUSED:
            key = OTHERS
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def scrape(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self.registry)

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """What a scraper gets that accepts these formats (the header's value), and its media type: OpenMetrics where it asks for it."""
        return exposed(self.registry, accept)

    def totals(self) -> tuple[int, int, int]:
        """Requests so far, with those refused before they had a model; tokens of their prompts; and how many of these were cached."""
        meters = list(self.models.values())
        requests = sum(tally.count for meter in meters for tallies in meter.tallies.values() for tally in tallies)
        refused = sum(self.denials.values())
        return requests + refused, sum(meter.prompt_tokens for meter in meters), sum(meter.cached_tokens for meter in meters)

    def collect(self) -> Iterable[Metric]:
        yield from self._requests()
        yield from self._tokens()
        yield from self._histograms()
        yield GaugeMetricFamily("gatehouse_in_flight", "Exchanges that are not settled yet", value=self.in_flight())
        yield GaugeMetricFamily("gatehouse_connections", "Open client connections", value=self.connections())
        yield GaugeMetricFamily("gatehouse_held_bytes", "Bytes of bodies and unread answers", value=self.held_bytes())
        yield GaugeMetricFamily("gatehouse_config_version", "Number of the configuration in force", value=self.config_version)
        reloads = CounterMetricFamily("gatehouse_config_reloads", "Configuration changes, applied and refused", labels=["result"])
        for result, count in self.reloads.items():
            reloads.add_metric([result], count)
        yield reloads
        if self.detail is not None:
            yield from self.detail.collect()
        for gauge in self.gauges:
            yield from gauge()

    def _metered(self) -> list[ModelMeter]:
        """Those that have series. Of ten thousand models most may never be asked for, and each would have seventy."""
        meters = list(self.models.values())
        return meters if len(meters) <= MANY_MODELS else [meter for meter in meters if meter.tallies]

    def _requests(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "gatehouse_requests",
            "Settled exchanges by model, operation, status and outcome",
            labels=["model", "operation", "status", "outcome"],
        )
        retries = CounterMetricFamily("gatehouse_retries", "Further attempts before the first byte", labels=["model"])
        for meter in self._metered():
            for operation, tallies in meter.tallies.items():
                for tally in tallies:
                    requests.add_metric([meter.model, operation, str(tally.status), tally.outcome], tally.count)
            retries.add_metric([meter.model], meter.retries)
        denials = CounterMetricFamily("gatehouse_denials", "Requests refused before they had a model", labels=["status", "code"])
        for (status, code), count in list(self.denials.items()):
            denials.add_metric([str(status), code], count)
        would = CounterMetricFamily(
            "gatehouse_limit_not_enforced", "Requests that a limit would have refused if it were enforced", labels=["limit"]
        )
        for name, count in list(self.would_refuse.items()):
            would.add_metric([name], count)
        limited = CounterMetricFamily("gatehouse_limit_refusals", "Requests that a limit has refused", labels=["limit"])
        for name, count in list(self.limited.items()):
            limited.add_metric([name], count)
        refusals = CounterMetricFamily(
            "gatehouse_guardrail_refusals", "Requests that a guardrail refused, by caller", labels=["tenant", "principal"]
        )
        for (tenant, principal), count in list(self.refusals.items()):
            refusals.add_metric([tenant, principal], count)
        yield from (requests, retries, denials, would, limited, refusals)

    def _tokens(self) -> Iterable[Metric]:
        tokens = CounterMetricFamily("gatehouse_tokens", "Tokens by model and kind", labels=["model", "kind"])
        for meter in self._metered():
            tokens.add_metric([meter.model, "prompt"], meter.prompt_tokens)
            tokens.add_metric([meter.model, "completion"], meter.completion_tokens)
            tokens.add_metric([meter.model, "cached"], meter.cached_tokens)
        yield tokens

    def _histograms(self) -> Iterable[Metric]:
        meters = self._metered()

        def overhead(meter: ModelMeter) -> _Read:
            return {"model": meter.model}, meter.overhead.buckets(1e-6), meter.overhead.sum * 1e-6

        def duration(meter: ModelMeter) -> _Read:
            return {"model": meter.model}, self._shown("duration", meter.model, meter.duration), meter.duration.sum

        def first(meter: ModelMeter) -> _Read:
            return {"model": meter.model}, self._shown("first", meter.model, meter.ttft), meter.ttft.sum

        def queue(meter: ModelMeter) -> _Read:
            return {"model": meter.model}, meter.queue.buckets(), meter.queue.sum

        yield LazyHistogramMetricFamily("gatehouse_overhead_seconds", "Time inside the gateway, engine time excluded", meters, overhead)
        yield LazyHistogramMetricFamily("gatehouse_request_seconds", "Time from the first byte to settlement", meters, duration)
        yield LazyHistogramMetricFamily("gatehouse_ttft_seconds", "Time to the first chunk of a stream", meters, first)
        yield LazyHistogramMetricFamily("gatehouse_queue_seconds", "Time that requests waited for a slot", meters, queue)
        phases = HistogramMetricFamily("gatehouse_phase_seconds", "Time in one phase, on a sample of the exchanges", labels=["phase"])
        for phase, histogram in self.phases.items():
            phases.add_metric([phase], buckets=histogram.buckets(1e-6), sum_value=histogram.sum * 1e-6)
        yield phases

    def _shown(self, what: str, model: str, histogram: Histogram) -> Any:
        """Buckets, with exemplars where there are any."""
        buckets = histogram.buckets()
        return buckets if self.exemplars is None else self.exemplars.shown(what, model, buckets)


OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposed(collector: Collector, accept: str) -> tuple[bytes, str]:
    """A scrape in the format that the `Accept` header asks for: OpenMetrics 1.0 or the Prometheus text format. prometheus_client's own
    choice fails for a version that is no number, and does not see which of the two is preferred."""
    ranges = accept.lower().split(",")
    wanted = max([_quality(part, "application/openmetrics-text", ("0.0.1", "1.0.0")) for part in ranges])
    if wanted > 0 and wanted >= max([_quality(part, "text/plain", ()) for part in ranges]):
        return generate_open_metrics(collector), OPEN_METRICS  # type: ignore[no-untyped-call]
    return generate_latest(collector), PLAIN


def _quality(wanted: str, kind: str, versions: tuple[str, ...]) -> float:
    """How much a media range in lower case (RFC 9110, 12.5.1) wants this kind, 0 to 1. versions: that there are, where not any will do."""
    named, *rest = (field.strip() for field in wanted.split(";"))
    fields = dict(field.split("=", 1) for field in rest if "=" in field)
    if named != kind or (versions and fields.get("version", versions[0]) not in versions):
        return 0.0
    try:
        quality = float(fields.get("q", "1"))
    except ValueError:
        return 0.0
    return quality if 0.0 < quality <= 1.0 else 0.0
