"""Every line comes to a sink at least once, in order, whatever happens to the sink, the process or the files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.courier import Courier
from gateway.audit.sink_positions import SinkPositions, SinkPositionsFile
from gateway.audit.sinks.contract import Batch, Unacceptable
from gateway.core.ledger import Position
from tests.waiting import reached


class Collecting:
    """Keeps what it gets. failures: how many tries fail first. poison: a line with this is never taken. gate: a write waits for it."""

    def __init__(self, failures: int = 0, poison: bytes = b"\0", gate: threading.Event | None = None) -> None:
        self.lines: dict[str, list[bytes]] = {}
        self.failures, self.poison, self.gate = failures, poison, gate
        self.came, self.reachable = threading.Event(), True

    def write(self, batch: Batch) -> None:
        self.came.set()
        if self.gate is not None:
            assert self.gate.wait(60)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route")
        if self.poison in batch:
            raise Unacceptable("too strange")
        self.lines.setdefault(batch.writer, []).extend(batch.splitlines(keepends=True))

    def probe(self) -> None:
        if not self.reachable:
            raise ConnectionError("nobody listens")

    async def aclose(self) -> None:
        return None


class Forgetful(Collecting):
    """Accepts without a confirmation, like a syslog server."""

    unsure_bytes = 1 << 20
    read = False

    def finish(self) -> bool:
        return self.read


def logged(bench: Any, writer: str = "0") -> list[bytes]:
    return [
        line for path in sorted(bench.directory.glob(f"audit-{writer}-0*.jsonl")) for line in path.read_bytes().splitlines(keepends=True)
    ]


@pytest.fixture
def positions(tmp_path: Path) -> SinkPositionsFile:
    return SinkPositionsFile(tmp_path, "siem")


def courier(bench: Any, sink: Collecting, positions: SinkPositionsFile, **more: Any) -> Courier:
    made = Courier("siem", sink, bench.directory, positions, **more)
    made.prepare()
    return made


async def test_all_writers_lines_arrive_in_order_over_segments_and_restarts(
    log_bench: Any, make: Any, positions: SinkPositionsFile
) -> None:
    sink = Collecting()
    first = courier(log_bench, sink, positions)
    writers = [log_bench.writer(writer=name, segment_bytes=2000) for name in ("gw", "gw-1")]
    for writer in writers:
        writer.open()
        for number in range(30):
            writer.write([make.intent(f"r{number}"), make.outcome(f"r{number}")])
    first.start()
    await reached(lambda: first.sent >= 60)
    await first.aclose(60)
    for writer in writers:
        writer.write([make.event("late")])
        writer.close()
    second = courier(log_bench, sink, positions)
    second.start()
    await second.aclose(60)
    assert sink.lines == {name: logged(log_bench, name) for name in ("gw", "gw-1")}, "each line exactly once"
    assert len(list(log_bench.directory.glob("audit-gw-0*.jsonl"))) > 2
    assert (second.waiting, second.lost, second.refused, second.fault) == (0, 0, 0, None)


@pytest.mark.parametrize("history", [True, False])
async def test_a_new_sink_gets_what_was_before_only_where_that_is_wanted(
    log_bench: Any, make: Any, positions: SinkPositionsFile, history: bool
) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([make.event("before")])
    sink = Collecting()
    made = courier(log_bench, sink, positions, history=history)
    writer.write([make.event("after")])
    writer.close()
    made.start()
    await made.aclose(60)
    text = b"".join(sink.lines["0"])
    assert b'"after"' in text and (b'"before"' in text) is history
    assert text.endswith(logged(log_bench)[-1])


async def test_a_sink_that_fails_is_tried_again_and_told_of_once(log_bench: Any, make: Any, positions: SinkPositionsFile) -> None:
    told: list[tuple[str, str | None]] = []
    sink = Collecting(failures=3)
    sink.reachable = False
    made = courier(log_bench, sink, positions, on_fault=lambda name, reason: told.append((name, reason)))
    writer = log_bench.writer()
    writer.open()
    made.start()
    await reached(lambda: made.sent)
    await made.aclose(60)
    assert told == [("siem", "nobody listens"), ("siem", None)]
    assert sink.lines["0"] == logged(log_bench)
    writer.close()


async def test_what_a_receiver_never_takes_is_left_out_alone(log_bench: Any, make: Any, positions: SinkPositionsFile) -> None:
    sink = Collecting(poison=b"poisoned")
    made = courier(log_bench, sink, positions)
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent(f"{'poisoned' if number in (3, 7) else 'r'}{number}") for number in range(12)])
    writer.close()
    made.start()
    await made.aclose(60)
    assert made.refused == 2 and made.fault is None
    assert sink.lines["0"] == [line for line in logged(log_bench) if b"poisoned" not in line]


async def test_segments_that_are_gone_are_counted_as_lost(log_bench: Any, make: Any, positions: SinkPositionsFile) -> None:
    sink = Collecting()
    made = courier(log_bench, sink, positions)
    writer = log_bench.writer(segment_bytes=1000)
    writer.open()
    made.start()
    await reached(lambda: made.sent)
    await made.aclose(60)
    before = len(sink.lines["0"])
    for number in range(20):
        writer.write([make.intent(f"r{number}")])
    writer.close()
    gone = sorted(log_bench.directory.glob("audit-0-0*.jsonl"))[:-1]
    expected = sum(path.read_bytes().count(b"\n") for path in gone) - before
    for path in gone:
        path.unlink()
    again = courier(log_bench, sink, positions)
    again.start()
    await again.aclose(60)
    assert again.lost == expected > 0
    assert sink.lines["0"][before:] == logged(log_bench)


async def test_a_segment_that_is_not_the_one_that_was_sent_is_sent_again(log_bench: Any, make: Any, positions: SinkPositionsFile) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.close()
    positions.write(SinkPositions({"0": Position("0", 1, 100, 1, "0" * 64)}))
    sink = Collecting()
    made = courier(log_bench, sink, positions)
    made.start()
    await made.aclose(60)
    assert sink.lines["0"] == logged(log_bench)


async def test_a_receiver_that_confirms_nothing_gets_the_newest_again_after_a_lost_connection(
    log_bench: Any, make: Any, positions: SinkPositionsFile
) -> None:
    sink = Forgetful()
    made = courier(log_bench, sink, positions)
    writer = log_bench.writer()
    writer.open()
    writer.write([make.event("one")])
    made.start()
    await reached(lambda: sum(b'"one"' in line for line in sink.lines.get("0", [])))
    sink.failures = 1
    writer.write([make.event("two")])
    await reached(lambda: sum(b'"two"' in line for line in sink.lines["0"]))
    writer.close()
    await made.aclose(60)
    assert sum(b'"one"' in line for line in sink.lines["0"]) == 2
    seen: list[bytes] = []
    for line in sink.lines["0"]:
        if line not in seen:
            seen.append(line)
    assert seen == logged(log_bench), "without the duplicates, everything in order"
    kept = positions.read()
    assert kept is not None and kept.writers["0"].seq == 0, "and again after a restart"
    sink.read = True
    again = courier(log_bench, sink, positions)
    again.start()
    await again.aclose(60)
    kept = positions.read()
    assert kept is not None and kept.writers["0"].seq == len(seen), "unless it said that it has read everything"


async def test_a_call_that_hangs_does_not_hold_up_the_end(log_bench: Any, make: Any, positions: SinkPositionsFile) -> None:
    sink = Collecting(gate=threading.Event())
    made = courier(log_bench, sink, positions)
    writer = log_bench.writer()
    writer.open()
    made.start()
    await reached(sink.came.is_set)
    await made.aclose(0.01)
    assert not made.hangs and sink.gate is not None
    log_bench.clock.advance(60)
    sink.gate.set()
    writer.close()


async def test_one_that_was_never_started_can_be_closed(log_bench: Any, positions: SinkPositionsFile) -> None:
    await courier(log_bench, Collecting(), positions).aclose()


@pytest.mark.parametrize(("required", "longest"), [(False, 30.0), (True, 2.0)])
async def test_a_sink_that_fails_is_tried_after_growing_pauses_and_soon_where_requests_depend_on_it(
    log_bench: Any, make: Any, positions: SinkPositionsFile, monkeypatch: pytest.MonkeyPatch, required: bool, longest: float
) -> None:
    sink = Collecting(failures=12)
    carrying = courier(log_bench, sink, positions, required=required, history=True)
    writer = log_bench.writer()
    writer.open()
    writer.close()
    pauses: list[float] = []
    monkeypatch.setattr(carrying, "_wait", pauses.append)
    carrying.start()
    await reached(lambda: bool(sink.lines), what="the records")
    await carrying.aclose(60)
    failed = pauses[: pauses.index(longest) + 1]
    assert failed[0] <= 0.5 and failed == sorted(failed) and max(pauses) == longest


async def test_a_disk_that_fails_is_tried_again_soon_and_the_sink_gets_everything(
    log_bench: Any, make: Any, positions: SinkPositionsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Collecting()
    carrying = courier(log_bench, sink, positions, history=True)
    writer = log_bench.writer()
    writer.open()
    writer.close()
    pauses: list[float] = []
    healed, writes = positions.write, []

    def write(found: SinkPositions) -> None:
        writes.append(found)
        if len(writes) < 10:
            raise OSError(28, "No space left on device")
        healed(found)

    monkeypatch.setattr(carrying, "_wait", pauses.append)
    monkeypatch.setattr(positions, "write", write)
    carrying.start()
    await reached(
        lambda: positions.read() != SinkPositions({}) and carrying.fault is None, what="the place is kept, and nothing fails any more"
    )
    await carrying.aclose(60)
    assert 2.0 in pauses and max(pauses) == 2.0 and sink.lines["0"] == logged(log_bench)
