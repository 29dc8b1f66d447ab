from pathlib import Path
from typing import Any

import pytest

from gateway.audit.reader import LogReader, _lines_backwards
from gateway.core.types import IntentRecord, OutcomeRecord


@pytest.fixture
def reader(log_bench: Any, make: Any) -> LogReader:
    """Ten exchanges of two tenants, a second apart from 1000 on, in several segments, and one denial."""
    writer = log_bench.writer(segment_bytes=1500)
    writer.open()
    for n in range(10):
        log_bench.clock.advance(1.0)
        tenant = "acme" if n % 2 else "globex"
        record = make.intent(f"r{n}", tenant)
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        writer.write([type(record)(**{**fields, "time": log_bench.clock.wall()})])
        writer.write([OutcomeRecord(time=log_bench.clock.wall() + 0.5, request_id=f"r{n}", outcome="ok", status=200)])
    writer.write([OutcomeRecord(time=log_bench.clock.wall() + 0.6, request_id="r99", outcome="denied", status=403, tenant="acme")])
    writer.close()
    return LogReader(log_bench.directory, log_bench.signer.verifier)


START = 1_800_000_000.0


def ids(records: Any) -> list[tuple[str, str]]:
    return [(record["kind"], record["request_id"]) for record in records]


def test_tail_gives_the_newest_oldest_first(reader: LogReader) -> None:
    tail = reader.tail(4)
    assert [record["kind"] for record in tail] == ["outcome", "outcome", "event", "checkpoint"]
    assert tail[1]["request_id"] == "r99"
    assert reader.tail(0) == []


def test_tail_reaches_over_segments(reader: LogReader) -> None:
    whole = reader.tail(10_000)
    assert [record["seq"] for record in whole] == list(range(1, len(whole) + 1)) and len(whole) > 30
    assert reader.tail(20) == whole[-20:]


def test_tail_reads_long_files_from_their_end(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer(segment_bytes=1 << 30)
    writer.open()
    writer.write([make.intent(f"r{n}") for n in range(3000)])
    writer.abandon()
    reader = LogReader(log_bench.directory, log_bench.signer.verifier)
    assert [record["request_id"] for record in reader.tail(1000)] == [f"r{n}" for n in range(2000, 3000)]


def test_tail_of_several_writers_is_in_the_order_of_time(log_bench: Any, make: Any) -> None:
    for name in ("0", "w1", "0", "w1"):
        log_bench.clock.advance(1.0)
        log_bench.log(batches=0, writer=name)
    times = [record["time"] for record in LogReader(log_bench.directory, log_bench.signer.verifier).tail(8)]
    assert len(times) == 8 and times == sorted(times)


def test_a_request_is_found_with_its_outcome(reader: LogReader) -> None:
    assert ids(reader.records(request_id="r3")) == [("intent", "r3"), ("outcome", "r3")]
    assert ids(reader.records(request_id="r")) == []
    assert ids(reader.records(request_id='r3"')) == []


def test_a_tenant_sees_its_exchanges_whole_and_nobody_elses(reader: LogReader) -> None:
    found = ids(reader.records(tenant="acme"))
    assert found[:4] == [("intent", "r1"), ("outcome", "r1"), ("intent", "r3"), ("outcome", "r3")]
    assert found[-1] == ("outcome", "r99") and len(found) == 11
    assert ids(reader.records(tenant="acme", kind="outcome")) == [("outcome", f"r{n}") for n in (1, 3, 5, 7, 9, 99)]


def test_times_are_half_open(reader: LogReader) -> None:
    found = ids(r for r in reader.records(since=START + 4, until=START + 6) if r["kind"] in ("intent", "outcome"))
    assert found == [("intent", "r3"), ("outcome", "r3"), ("intent", "r4"), ("outcome", "r4")]
    assert list(reader.records(since=START + 10_000, kind="intent")) == []
    assert list(reader.records(until=START - 10_000)) == []


@pytest.mark.parametrize("seconds", [60.0, 86_400.0])
def test_records_from_before_the_clock_was_set_back_are_found(log_bench: Any, make: Any, seconds: float) -> None:
    writer = log_bench.writer(segment_bytes=400)
    writer.open()
    for name, step in (("first", 0.0), ("ahead", seconds), ("back", -seconds), ("last", 1.0)):
        log_bench.clock.advance(step)
        writer.write(
            [
                IntentRecord(
                    time=log_bench.clock.wall(),
                    request_id=name,
                    tenant="acme",
                    principal="ci",
                    credential="api_key",
                    peer="::1",
                    operation="chat",
                    model="m",
                    stream=False,
                    bytes=1,
                )
            ]
            * 2
        )
    writer.close()
    reader = LogReader(log_bench.directory, log_bench.signer.verifier)
    since, until = START + seconds / 2, START + seconds / 2
    assert len({path.name for path in log_bench.directory.glob("audit-0-*.jsonl")}) > 3
    assert {r["request_id"] for r in reader.records(since=since) if r["kind"] == "intent"} == {"ahead"}
    assert {r["request_id"] for r in reader.records(until=until) if r["kind"] == "intent"} == {"first", "back", "last"}


def test_kinds_are_told_apart(reader: LogReader) -> None:
    assert [record["event"] for record in reader.records(kind="event")] == ["audit.opened", "audit.closed"]
    assert all(record["kind"] == "checkpoint" for record in reader.records(kind="checkpoint"))


def test_an_export_is_the_lines_as_they_are(reader: LogReader, log_bench: Any) -> None:
    whole = b"".join(path.read_bytes() for path in sorted(log_bench.directory.glob("audit-0-*.jsonl")))
    assert b"".join(reader.export()) == whole


def test_unfinished_and_damaged_lines_are_left_out(reader: LogReader, log_bench: Any) -> None:
    last = sorted(log_bench.directory.glob("audit-0-*.jsonl"))[-1]
    count = len(reader.tail(10_000))
    last.write_bytes(last.read_bytes() + b"garbage\n" + b'{"seq":1')
    assert len(reader.tail(10_000)) == count == len(list(reader.records()))


def test_verify_returns_the_report(reader: LogReader, log_bench: Any) -> None:
    report = reader.verify()
    assert report["ok"] is True and report["writers"][0]["signed"] == report["writers"][0]["last"] - 1
    path = log_bench.segment(2)
    path.write_bytes(path.read_bytes().replace(b'"chat"', b'"chAt"', 1))
    problem = reader.verify()["first_problem"]
    assert problem["file"] == path.name and problem["line"] > 0


def test_a_missing_log_is_not_ok(tmp_path: Any, log_bench: Any) -> None:
    reader = LogReader(tmp_path / "none", log_bench.signer.verifier)
    assert reader.tail(5) == [] and list(reader.records()) == [] and reader.verify()["ok"] is False


@pytest.fixture
def several(log_bench: Any, make: Any) -> LogReader:
    """Two writers at work at the same time; an intent may be a little older than the record before it."""
    writers = [log_bench.writer(writer=name, segment_bytes=1500) for name in ("gw-1", "gw-2")]
    for writer in writers:
        writer.open()
    for n in range(8):
        log_bench.clock.advance(1.0)
        now = log_bench.clock.wall()
        model, principal = ("big", "ci") if n % 2 else ("small", "dev")
        fields = {name: getattr(make.intent(), name) for name in IntentRecord.__struct_fields__}
        intent = IntentRecord(**{**fields, "time": now - 0.7, "request_id": f"r{n}", "model": model, "principal": principal})
        writers[n % 2].write([OutcomeRecord(time=now, request_id=f"d{n}", outcome="denied", status=403, tenant="acme", model=model)])
        writers[n % 2].write([intent, OutcomeRecord(time=now + 0.1, request_id=f"r{n}", outcome="ok", status=200)])
    for writer in writers:
        writer.close()
    return LogReader(log_bench.directory, log_bench.signer.verifier)


def test_a_tail_over_several_writers_keeps_each_ones_order_and_says_whose_a_record_is(several: LogReader) -> None:
    tail = several.tail(1000)
    for name in ("gw-1", "gw-2"):
        numbers = [record["seq"] for record in tail if record["writer"] == name]
        assert numbers == sorted(numbers) and numbers[0] == 1
        assert several.tail(1000, name) == [record for record in tail if record["writer"] == name]
    requests = [record["request_id"] for record in tail if record["kind"] == "intent"]
    assert requests == [f"r{n}" for n in range(8)]
    assert all(several.tail(count) == tail[-count:] for count in (1, 7, 20)), "the newest are the same, however many are asked for"
    assert several.tail(5, "gw-9") == []


def test_records_are_found_by_what_they_are_about(several: LogReader) -> None:
    assert ids(several.records(principal="ci")) == [(kind, f"r{n}") for n in (1, 3, 5, 7) for kind in ("intent", "outcome")]
    assert ids(several.records(model="small", outcome="denied")) == [("outcome", f"d{n}") for n in (0, 2, 4, 6)]
    assert ids(several.records(model="small", outcome="ok")) == [("outcome", f"r{n}") for n in (0, 2, 4, 6)]
    assert ids(several.records(outcome="denied", writer="gw-2")) == [("outcome", f"d{n}") for n in (1, 3, 5, 7)]
    events = [record["event"] for record in several.records(event="audit.*", outcome="ok")]
    assert events == ["audit.opened", "audit.closed"] * 2
    assert [record["event"] for record in several.records(event="*.op*")] == ["audit.opened"] * 2
    assert len(list(several.records(event="audit.opened"))) == 2 and not list(several.records(event="audit"))


def test_an_export_goes_writer_by_writer(several: LogReader, log_bench: Any) -> None:
    whole = b"".join(path.read_bytes() for path in sorted(log_bench.directory.glob("audit-gw-*.jsonl")))
    assert b"".join(several.export()) == whole


class TestBackwards:
    """The newest requests first."""

    def test_all_writers_newest_first(self, reader: LogReader) -> None:
        forward = [r for r in reader.records() if r["kind"] in ("intent", "outcome")]
        back = list(reader.newest())
        assert len(back) == len(forward) and {r["request_id"] for r in back} == {r["request_id"] for r in forward}
        times = [r["time"] for r in back]
        assert times == sorted(times, reverse=True) and all("writer" not in r for r in back)

    def test_since_and_by_text(self, reader: LogReader) -> None:
        assert {r["request_id"] for r in reader.newest(text="r3")} == {"r3"}
        assert list(reader.newest(text='r3"')) == [] and list(reader.newest(since=START + 10_000)) == []
        since = list(reader.newest(since=START + 4))
        assert since and all(r["time"] >= START + 4 for r in since)

    def test_so_many_lines_at_most(self, reader: LogReader) -> None:
        assert len(list(reader.newest(lines=3))) < len(list(reader.newest()))

    @pytest.mark.parametrize("block", [1, 7, 100, 65536])
    def test_lines_are_whole_wherever_a_block_ends(
        self, reader: LogReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
    ) -> None:
        monkeypatch.setattr("gateway.audit.reader._BLOCK", block)
        path = tmp_path / "log"
        for text in (b"", b"a", b"\n", b"one\n", b"one\ntwo", b"one\n\ntwo two\nthree\npart", b"x" * 300 + b"\ny\n"):
            path.write_bytes(text)
            whole = [line for line in text.split(b"\n")[:-1] if line]
            assert list(_lines_backwards(path)) == whole[::-1], text
