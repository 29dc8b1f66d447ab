"""Who hears of a settled request, and that its path never waits for them."""

from __future__ import annotations

import logging
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.types import OutcomeRecord
from gateway.telemetry.observer import MOST, Observer, RequestLog, Seen, collector
from gateway.telemetry.tracing import Trace
from tests.waiting import until

UNTRACED = SimpleNamespace(trace=None, marks=[])


def record(status: int = 200, outcome: str = "ok", ms: float = 5.0) -> OutcomeRecord:
    return OutcomeRecord(1.0, "req-1", outcome, status, operation="chat", model="m", duration_ms=ms)


class Sink:
    def __init__(self) -> None:
        self.got: list[Seen] = []
        self.go, self.began, self.closed = Event(), Event(), False
        self.go.set()

    def send(self, traced: list[Seen]) -> int:
        self.began.set()
        self.go.wait(90)
        self.got += traced
        return 0

    def hurry(self) -> None:
        """Has no further tries."""

    def close(self) -> None:
        self.closed = True


def run(which: str, *told: tuple[OutcomeRecord, Any, bytes | None], traces: Sink | None = None) -> dict[str, int]:
    counts = {"sent": 0, "dropped": 0}
    observer = Observer(RequestLog(which, 1000.0), traces, counts)
    for one in told:
        observer.settled(*one)
    observer.start()
    observer.close()
    return counts


@pytest.mark.parametrize(
    ("which", "lines"),
    [
        ("none", []),
        ("slow", ["slow"]),
        ("failed", ["failed", "slow"]),
        ("all", ["ok", "denied", "failed", "slow"]),
    ],
)
def test_which_requests_get_a_line(which: str, lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gatehouse.requests")
    records = {"ok": record(), "denied": record(403, "denied"), "failed": record(502, "failed"), "slow": record(ms=1000.0)}
    run(which, *((one, UNTRACED, None) for one in records.values()))
    facts = [entry.request for entry in caplog.records]  # type: ignore[attr-defined]
    assert [fact["outcome"] if not fact.get("slow") else "slow" for fact in facts] == lines
    assert [entry.levelname for entry in caplog.records] == ["WARNING" if name in ("failed", "slow") else "INFO" for name in lines]


def test_what_is_traced_and_what_failed_is_sent_in_its_callers_trace() -> None:
    sink, traced = Sink(), SimpleNamespace(trace=Trace("a" * 32, ""), marks=[("", 1), ("settle", 2)])
    header = b"00-%b-%b-00" % (b"f" * 32, b"e" * 16)
    counts = run("none", (record(), traced, None), (record(), UNTRACED, None), (record(504, "timeout"), UNTRACED, header), traces=sink)
    assert [(one.trace.trace, one.trace.parent) for one in sink.got if one.trace] == [("a" * 32, ""), ("f" * 32, "e" * 16)]
    assert counts == {"sent": 2, "dropped": 0}
    assert sink.closed


def test_texts_that_the_audit_log_keeps_do_not_wait_for_a_receiver() -> None:
    sink, traced = Sink(), SimpleNamespace(trace=Trace("a" * 32, ""), marks=[])
    kept = replace(record(), text=[b"an answer"])
    run("none", (kept, traced, None), traces=sink)
    assert [one.record for one in sink.got] == [record()]
    assert kept.text == [b"an answer"], "the audit log has the same record"


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    sink, traced = Sink(), SimpleNamespace(trace=Trace("a" * 32, ""), marks=[])
    counts = run("none", *[(record(), traced, None)] * (MOST + 3), traces=sink)
    assert counts == {"sent": MOST, "dropped": 3}
    [family] = collector(counts)()
    assert {sample.labels["result"]: sample.value for sample in family.samples} == {"sent": MOST, "dropped": 3}


def test_a_sink_that_raises_loses_a_round_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sink):
        def send(self, traced: list[Seen]) -> int:
            raise RuntimeError("defect")

    traced = SimpleNamespace(trace=Trace("a" * 32, ""), marks=[])
    assert run("none", (record(), traced, None), traces=Broken()) == {"sent": 0, "dropped": 1}
    assert "defect" in caplog.text


def test_closing_does_not_wait_for_a_sink_that_hangs() -> None:
    sink, traced = Sink(), SimpleNamespace(trace=Trace("a" * 32, ""), marks=[])
    sink.go.clear()
    observer = Observer(RequestLog("none", 1.0), sink, {"sent": 0, "dropped": 0})
    observer.settled(record(), traced, None)
    observer.start()
    observer.close(0.05)
    assert not sink.closed
    sink.go.set()
    observer.close()
    assert sink.closed


@pytest.mark.parametrize("which", ["none", "slow", "failed", "all"])
def test_below_its_calm_nobody_wants_a_request_that_went_well(which: str) -> None:
    requests = RequestLog(which, 1000.0)
    observer = Observer(requests, None, {"sent": 0, "dropped": 0})
    for us in (0, 999_998.9, 999_999.4, 999_999.5, 999_999.9, 1_000_000.0, 1_000_000.4):
        seconds = us * 1e-6
        rounded = int(seconds * 1e6 + 0.5) / 1000.0  # as the record has it
        assert not (seconds < observer.calm and requests.wants(record(ms=rounded)))
    assert (observer.calm > 0.5) is (which != "all")


def test_a_sink_that_hangs_delays_no_line_and_holds_no_more_than_its_bound(caplog: pytest.LogCaptureFixture) -> None:
    sink, counts, traced = Sink(), {"sent": 0, "dropped": 0}, SimpleNamespace(trace=Trace("a" * 32, ""), marks=[])
    sink.go.clear()
    observer = Observer(RequestLog("failed", 1000.0), sink, counts)
    observer.start()
    observer.settled(record(), traced, None)
    until(sink.began.is_set, what="the sink that hangs")
    for half in (1, 2, 3):  # each of them fits into the first queue, all three not into the second
        for _ in range(MOST // 2 - 1):
            observer.settled(record(), traced, None)
        observer.settled(record(502, "failed"), traced, None)
        until(lambda half=half: len(caplog.records) == half, what="the line")  # type: ignore[misc]
    until(lambda: counts == {"sent": 0, "dropped": MOST // 2}, what="those for which there is no room")
    sink.go.set()
    observer.close()
    assert counts == {"sent": 1 + MOST, "dropped": MOST // 2} and sink.closed
