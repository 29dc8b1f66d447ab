"""One set of metrics out of several processes: what is summed, what is not, what stays of a process that has ended."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.app.telemetry.engine_gauges import REPORTED
from gateway.app.workers.figures import GAUGES, Figures, families, heard, told
from gateway.app.workers.messages import FiguresHeld
from gateway.core.types import OutcomeRecord
from gateway.telemetry.detail import MOST_ERRORS, OTHER_ERROR, GenAi, Tenants
from gateway.telemetry.exemplars import Exemplars
from gateway.telemetry.metrics import MOST_REFUSED, Metrics

ROOT = Path(__file__).parents[5]


def shown(figures: Figures) -> dict[tuple[str, ...], float]:
    """By name and the labels' values, in the order of the labels' names."""
    text = figures.scrape().decode()
    return {(s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(text) for s in f.samples}


def counted(model: str, number: int) -> Metrics:
    metrics = Metrics()
    for _ in range(number):
        metrics.meter(model).record("chat", 200, "ok", 100.0, 0.02, None)
    return metrics


def test_counters_and_histograms_are_summed() -> None:
    figures = Figures(Metrics().collect)
    figures.note("1", families(counted("a", 3).collect()))
    figures.note("2", families(counted("a", 4).collect()))
    figures.note("3", families(counted("b", 5).collect()))
    found = shown(figures)
    assert found["gatehouse_requests_total", "a", "chat", "ok", "200"] == 7
    assert found["gatehouse_requests_total", "b", "chat", "ok", "200"] == 5
    assert found["gatehouse_request_seconds_count", "a"] == 7
    assert found["gatehouse_request_seconds_bucket", "0.025", "a"] == 7
    assert found["gatehouse_request_seconds_bucket", "0.01", "a"] == 0


def test_what_a_worker_counted_stays_when_it_has_ended_and_its_gauges_go() -> None:
    figures = Figures(Metrics().collect)
    first = counted("a", 3)
    first.in_flight = lambda: 2
    figures.note("1", families(first.collect()))
    assert shown(figures)["gatehouse_in_flight",] == 2
    figures.gone("1")
    figures.note("1", families(counted("a", 1).collect()))  # another worker takes its id
    found = shown(figures)
    assert found["gatehouse_requests_total", "a", "chat", "ok", "200"] == 4
    assert found["gatehouse_in_flight",] == 0
    figures.gone("1")
    figures.gone("2")
    assert shown(figures)["gatehouse_requests_total", "a", "chat", "ok", "200"] == 4


def things(count: int, name: str = "gatehouse_things") -> Iterable[Metric]:
    yield CounterMetricFamily(name, "Things", value=float(count))


def upgraded(figures: Figures, own: Iterable[Metric], *running: str) -> Figures:
    """What the next program goes on with."""
    held = msgspec.msgpack.decode(msgspec.msgpack.encode(figures.hand_over()), type=FiguresHeld)
    found = Figures(lambda: own)
    found.take_over(held, running)
    return found


def test_a_sum_does_not_fall_when_another_program_takes_over() -> None:
    figures = Figures(lambda: things(5))
    for worker, count in (("1", 30), ("2", 20), ("3", 10)):
        figures.note(worker, families(things(count)))
    figures.gone("3")
    assert shown(figures)["gatehouse_things_total",] == 65
    after = upgraded(figures, [], "1")  # which counts from 0; the second worker has ended between the two programs
    assert shown(after)["gatehouse_things_total",] == after.total("gatehouse_things_total") == 65
    after.note("1", families(things(31)))
    after.gone("1")
    assert shown(upgraded(after, []))["gatehouse_things_total",] == 66


def test_what_the_process_goes_on_counting_is_not_handed_over_and_neither_are_gauges() -> None:
    def own() -> Iterable[Metric]:
        yield from (*things(7, "gatehouse_cpu_seconds"), *things(3, "gatehouse_alone"))
        yield GaugeMetricFamily("gatehouse_queued", "Waiting", value=4.0)

    figures = Figures(own)
    figures.note("1", families([*things(2, "gatehouse_cpu_seconds"), GaugeMetricFamily("gatehouse_queued", "Waiting", value=1.0)]))
    after = shown(upgraded(figures, list(own()), "1"))
    assert after == {("gatehouse_cpu_seconds_total",): 9, ("gatehouse_alone_total",): 3, ("gatehouse_queued",): 5}


def test_what_counts_is_collected_on_the_loop_and_no_worker_that_ends_meanwhile_is_missing() -> None:
    threads: list[threading.Thread] = []

    def own() -> Iterable[Metric]:
        threads.append(threading.current_thread())
        yield CounterMetricFamily("gatehouse_things", "Things", value=1.0)

    figures = Figures(own)
    figures.note("1", families(things(3)))

    async def scraped() -> str:
        asked = asyncio.create_task(figures.exposed("text/plain"))
        await asyncio.sleep(0)  # it is in its thread, or will be
        figures.gone("1")
        return (await asked)[0].decode()

    assert "gatehouse_things_total 4.0" in asyncio.run(scraped())
    assert threads == [threading.main_thread()]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=12))
def test_a_sum_never_falls(steps: list[tuple[str, int, bool]]) -> None:
    figures, total, latest = Figures(lambda: ()), 0, dict.fromkeys("abc", 0)
    for worker, number, ends in steps:
        latest[worker] += number
        total += number
        counter = CounterMetricFamily("gatehouse_things", "Things", value=float(latest[worker]))
        figures.note(worker, families([counter]))
        if ends:
            figures.gone(worker)
            latest[worker] = 0
        assert shown(figures)["gatehouse_things_total",] == total


def test_gauges_are_put_together_as_the_table_says() -> None:
    def own() -> Iterable[Metric]:
        yield GaugeMetricFamily("gatehouse_queued", "", value=1)
        yield GaugeMetricFamily("gatehouse_load_shedding", "", value=1)
        yield GaugeMetricFamily("gatehouse_audit_accepting", "", value=1)
        yield GaugeMetricFamily("gatehouse_store_available", "", value=1)

    def theirs(queued: float, level: float, accepting: float) -> Iterable[Metric]:
        yield GaugeMetricFamily("gatehouse_queued", "", value=queued)
        yield GaugeMetricFamily("gatehouse_load_shedding", "", value=level)
        yield GaugeMetricFamily("gatehouse_audit_accepting", "", value=accepting)
        yield GaugeMetricFamily("gatehouse_store_available", "", value=5)
        yield GaugeMetricFamily("gatehouse_engine_loaded", "", value=5)

    figures = Figures(own)
    figures.note("1", families(theirs(2, 0, 1)))
    figures.note("2", families(theirs(3, 2, 0)))
    assert shown(figures) == {
        ("gatehouse_queued",): 6,
        ("gatehouse_load_shedding",): 2,
        ("gatehouse_audit_accepting",): 0,
        ("gatehouse_store_available",): 1,
    }


def test_every_gauge_says_what_becomes_of_it() -> None:
    sources = [path for folder in ("app", "telemetry") for path in (ROOT / "gateway" / folder).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r'GaugeMetricFamily\(\s*"([a-z_]+)"', path.read_text(encoding="utf-8"))}
    assert named | {name for _, name, _ in REPORTED} == set(GAUGES)


def test_the_newest_exemplar_of_all_workers_is_shown() -> None:
    figures = Figures(lambda: [])
    for worker, trace, when in (("1", "a" * 32, 20.0), ("2", "b" * 32, 10.0)):
        metrics = Metrics()
        metrics.exemplars = Exemplars()
        metrics.meter("m").record("chat", 200, "ok", 1.0, 0.3, None)
        metrics.exemplars.note(OutcomeRecord(when, "req", "ok", 200, model="m", duration_ms=300.0), trace)
        figures.note(worker, families(metrics.collect()))
    text, _ = asyncio.run(figures.exposed("application/openmetrics-text; version=1.0.0"))
    [line] = [line for line in text.decode().splitlines() if "trace_id" in line]
    assert line == 'gatehouse_request_seconds_bucket{le="0.5",model="m"} 2.0 # {trace_id="%s"} 0.3 20.0' % ("a" * 32)


def test_the_tenants_of_all_workers_together_are_bounded() -> None:
    figures = Figures(lambda: [], lambda: 2)
    for worker, names in (("1", ("a", "b")), ("2", ("b", "c"))):
        tenants = Tenants(2)
        for name in names:
            tenants.settled(name, "ok", 1.0, None)
        figures.note(worker, families(tenants.collect()))
    found = {key[2]: value for key, value in shown(figures).items() if key[0] == "gatehouse_tenant_requests_total"}
    assert found == {"a": 1, "b": 2, "other": 1}
    assert figures.total("gatehouse_tenant_requests_total", outcome="ok") == 4


def test_callers_and_codes_are_bounded_over_workers_that_follow_each_other() -> None:
    figures = Figures(lambda: [])
    for worker in range(3):
        metrics, genai = Metrics(), GenAi()
        for number in range(MOST_REFUSED):
            metrics.guardrail_refused("acme", f"{worker}-{number}")
        for number in range(MOST_ERRORS):
            genai.settled("m", "chat", f"{worker}-{number}", (0, 1, 0, 2), None)
        figures.note(str(worker), [*families(metrics.collect()), *families(genai.collect())])
        if worker == 1:
            figures.gone(str(worker))
    figures = upgraded(figures, [], "0")  # the last one has ended between the two programs
    found = shown(figures)
    refusals = {key[1:]: value for key, value in found.items() if key[0] == "gatehouse_guardrail_refusals_total"}
    assert len(refusals) == MOST_REFUSED + 1 and sum(refusals.values()) == 3 * MOST_REFUSED
    assert refusals["other", "other"] == 2 * MOST_REFUSED
    failed = {key[1]: value for key, value in found.items() if key[0] == "gen_ai_server_request_duration_seconds_count"}
    assert len(failed) == MOST_ERRORS + 1 and failed[OTHER_ERROR] == 2 * MOST_ERRORS


def many(value: float) -> Iterable[Metric]:
    for name in ("gatehouse_endpoint_in_flight", "gatehouse_endpoint_up"):
        family = GaugeMetricFamily(name, "Of many endpoints", labels=["endpoint"])
        for number in range(300):
            family.add_metric([f"e{number}"], value if number == 7 else 0.0)
        yield family


def test_a_worker_tells_neither_what_the_control_process_knows_nor_thousands_of_zeros() -> None:
    metrics = counted("a", 3)
    metrics.gauges.append(lambda: many(2.0))
    found = {family.name: family for family in heard(told(metrics.collect()))}
    assert [sample[1:] for sample in found["gatehouse_endpoint_in_flight"].samples] == [({"endpoint": "e7"}, 2.0)]
    assert "gatehouse_endpoint_up" not in found
    figures = Figures(lambda: many(1.0))
    figures.note("1", list(found.values()))
    after = shown(figures)
    assert after["gatehouse_endpoint_in_flight", "e7"] == 3 and after["gatehouse_endpoint_in_flight", "e8"] == 0
    assert after["gatehouse_endpoint_up", "e7"] == 1 and after["gatehouse_requests_total", "a", "chat", "ok", "200"] == 3
    assert figures.total("gatehouse_requests_total") == 3 and figures.total("gatehouse_endpoint_in_flight", endpoint="e7") == 2
