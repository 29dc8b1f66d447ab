"""What is counted of settled requests beyond the plain metrics, where the configuration asks for it: OpenTelemetry's metrics for generative
AI (`telemetry.semconv`) and sums by tenant (`telemetry.tenant_metrics`). Where nothing is asked for, a request costs one test for None.

The former are those of the conventions 1.41 (in development), under the names that OpenTelemetry's rules for Prometheus give them: dots
become underscores, `s` is spelt out as a suffix
(https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/). To its clients the gateway is a server
(`gen_ai.server.*`), to engines a client (`gen_ai.client.*`). Not emitted: `gen_ai.client.operation.time_per_output_chunk`, which is
recorded once a chunk, where a chunk's whole budget is a few microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.core.types import Usage
from gateway.telemetry.lazy_families import LazyHistogramMetricFamily
from gateway.telemetry.metrics import Histogram

OPERATIONS: Final = {
    "chat": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    "responses": "chat",
    "messages": "chat",
}
"""The conventions' names of our operations; others keep ours."""
PROVIDER: Final = "gatehouse"
OTHER: Final = "other"
"""Stands for all tenants beyond the bound."""
MOST_ERRORS: Final = 128
"""Codes of errors with series of their own: an engine refuses requests with codes of its own making."""
OTHER_ERROR: Final = "_OTHER"
"""The conventions' word for every other one."""
SECONDS: Final[tuple[float, ...]] = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS: Final[tuple[float, ...]] = (
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262144.0,
    1048576.0,
    4194304.0,
    16777216.0,
    67108864.0,
)
FIRST: Final[tuple[float, ...]] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
EACH: Final[tuple[float, ...]] = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""The bounds that the conventions name."""
FAMILIES: Final[tuple[tuple[str, str, tuple[float, ...]], ...]] = (
    ("gen_ai_server_request_duration_seconds", "Time from a request's first byte to the last of its answer", SECONDS),
    ("gen_ai_server_time_to_first_token_seconds", "Time to the first token of a stream that succeeded", FIRST),
    ("gen_ai_server_time_per_output_token_seconds", "Time per token after the first, of a stream that succeeded", EACH),
    ("gen_ai_client_operation_duration_seconds", "Time of the last call to an engine", SECONDS),
    ("gen_ai_client_operation_time_to_first_chunk_seconds", "Time from the call to an engine to the first chunk of its stream", SECONDS),
    ("gen_ai_client_token_usage", "Tokens of a request, input and output", TOKENS),
)
REQUEST, FIRST_TOKEN, EACH_TOKEN, CALL, FIRST_CHUNK, USAGE = range(len(FAMILIES))


class GenAi:
    """One histogram for each metric, operation, model and kind: `error.type`, or for tokens `gen_ai.token.type`."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, str, str], Histogram] = {}
        self._errors: set[str] = set()

    def _observe(self, metric: int, operation: str, model: str, kind: str, value: float) -> None:
        key = (metric, operation, model, kind)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Histogram(FAMILIES[metric][2])
        found.observe(value)

    def settled(self, model: str, operation: str, error: str, times: tuple[int, int, int, int], usage: Usage | None) -> None:
        """Counts one request. error: its code, empty where it succeeded. times: of its first byte, of the call to the engine, of the first
        chunk and of the end, in nanoseconds; 0 for what did not happen."""
        started, sent, first, ended = times
        if error not in self._errors:
            if len(self._errors) < MOST_ERRORS:
                self._errors.add(error)
            else:
                error = OTHER_ERROR
        self._observe(REQUEST, operation, model, error, (ended - started) * 1e-9)
        if sent:
            self._observe(CALL, operation, model, error, (ended - sent) * 1e-9)
        if first and not error:
            self._observe(FIRST_TOKEN, operation, model, "", (first - started) * 1e-9)
            if sent:  # else the stream came from a cache
                self._observe(FIRST_CHUNK, operation, model, "", (first - sent) * 1e-9)
        if usage is None:
            return
        if usage.prompt_tokens:
            self._observe(USAGE, operation, model, "input", float(usage.prompt_tokens))
        if usage.completion_tokens:
            self._observe(USAGE, operation, model, "output", float(usage.completion_tokens))
            if first and not error and usage.completion_tokens > 1:
                self._observe(EACH_TOKEN, operation, model, "", (ended - first) * 1e-9 / (usage.completion_tokens - 1))

    def collect(self) -> Iterable[Metric]:
        """Families that are written in a thread: of a thousand models, their samples take half a second."""
        known = list(self._known.items())
        for number, (name, text, _) in enumerate(FAMILIES):
            yield LazyHistogramMetricFamily(name, text, _Series(known, number), _read)


class _Series:
    """The histograms of one metric with their labels, put together when they are read."""

    def __init__(self, known: list[tuple[tuple[int, str, str, str], Histogram]], metric: int) -> None:
        self._known, self._metric = known, metric
        kinds = {USAGE: ["gen_ai_token_type"], REQUEST: ["error_type"], CALL: ["error_type"]}.get(metric, [])
        self._names = ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", *kinds]

    def __iter__(self) -> Iterator[tuple[dict[str, str], Histogram]]:
        found: list[tuple[list[str], Histogram]] = []
        for (metric, operation, model, kind), histogram in self._known:
            if metric == self._metric:
                found.append(([OPERATIONS.get(operation, operation), PROVIDER, model, kind], histogram))
        for values, histogram in _merged(found):
            yield dict(zip(self._names, values, strict=False)), histogram


def _read(one: tuple[dict[str, str], Histogram]) -> tuple[dict[str, str], list[tuple[str, float]], float]:
    labels, histogram = one
    return labels, histogram.buckets(), histogram.sum


def _merged(found: list[tuple[list[str], Histogram]]) -> Iterable[tuple[list[str], Histogram]]:
    """Two of our operations may be one of theirs."""
    sums: dict[tuple[str, ...], Histogram] = {}
    for values, histogram in found:
        total = sums.setdefault(tuple(values), Histogram(histogram.bounds))
        total.counts = [a + b for a, b in zip(total.counts, histogram.counts, strict=True)]
        total.sum += histogram.sum
    return [(list(values), total) for values, total in sums.items()]


class _Tenant:
    """The sums of one tenant. outcomes: requests by outcome. tokens: prompt, completion, cached."""

    __slots__ = ("cached", "completion", "outcomes", "prompt", "seconds")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.prompt = self.completion = self.cached = 0
        self.seconds = 0.0


class Tenants:
    """most: so many tenants have series of their own, the first that are seen; all others share `other`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: dict[str, _Tenant] = {}

    def settled(self, tenant: str, outcome: str, seconds: float, usage: Usage | None) -> None:
        """Counts one request of a known caller."""
        found = self._known.get(tenant)
        if found is None:
            found = self._known.setdefault(tenant if len(self._known) < self.most else OTHER, _Tenant())
        found.outcomes[outcome] = found.outcomes.get(outcome, 0) + 1
        found.seconds += seconds
        if usage is not None:
            found.prompt += usage.prompt_tokens
            found.completion += usage.completion_tokens
            found.cached += usage.cached_tokens

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("gatehouse_tenant_requests", "Settled requests by tenant and outcome", labels=["tenant", "outcome"])
        tokens = CounterMetricFamily("gatehouse_tenant_tokens", "Tokens by tenant and kind", labels=["tenant", "kind"])
        seconds = CounterMetricFamily("gatehouse_tenant_request_seconds", "Time of settled requests by tenant", labels=["tenant"])
        for tenant, sums in list(self._known.items()):
            for outcome, count in list(sums.outcomes.items()):
                requests.add_metric([tenant, outcome], count)
            for kind, count in (("prompt", sums.prompt), ("completion", sums.completion), ("cached", sums.cached)):
                tokens.add_metric([tenant, kind], count)
            seconds.add_metric([tenant], sums.seconds)
        yield from (requests, tokens, seconds)


class Detail:
    """Either part may be missing. What was counted survives a change that leaves its part on."""

    def __init__(self, genai: GenAi | None, tenants: Tenants | None) -> None:
        self.genai, self.tenants = genai, tenants

    def settled(self, exchange: Any, model: str, outcome: str, code: str, usage: Usage | None, now_ns: int) -> None:
        """Called on a request's path. exchange: gateway.pipeline.exchange.Exchange, of a known model."""
        if self.genai is not None:
            times = (exchange.started_ns, exchange.sent_ns, exchange.first_ns, now_ns)
            self.genai.settled(model, exchange.request.operation, code if outcome != "ok" else "", times, usage)
        if self.tenants is not None:
            self.tenants.settled(exchange.principal.tenant, outcome, (now_ns - exchange.started_ns) * 1e-9, usage)

    def collect(self) -> Iterable[Metric]:
        for part in (self.genai, self.tenants):
            if part is not None:
                yield from part.collect()


def follow(before: Detail | None, semconv: bool, tenants: int) -> Detail | None:
    """What the configuration asks for now, with what was counted so far; None: nothing."""
    known = Detail(None, None) if before is None else before
    genai = (known.genai or GenAi()) if semconv else None
    kept = known.tenants if known.tenants is not None and known.tenants.most == tenants else None
    counted = (kept or Tenants(tenants)) if tenants else None
    return None if genai is None and counted is None else Detail(genai, counted)
