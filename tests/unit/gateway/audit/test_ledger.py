"""Usage summed from the log: each line once, whatever happens to the reader, the writer or the file."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from gateway.audit.ledger import LedgerReader, bytes_behind, rows
from gateway.core.ledger import Position

DAY = 86400.0


def spend(make: Any, request_id: str = "r", **more: Any) -> Any:
    return make.outcome(request_id, **{"tenant": "acme", "principal": "ci", "model": "m", "operation": "chat", "attempts": 1, **more})


def read(reader: LedgerReader, position: Position, *, settled: bool = True) -> tuple[Position, Counter[Any]]:
    """Everything after a position."""
    found: Counter[Any] = Counter()
    segments = reader.writers().get(position.writer, [])
    mark = reader.look(position.writer, segments, settled=settled)
    position = reader.resume(position, segments)
    while mark is not None:
        part = reader.part(position, segments, mark)
        if part.after == position:
            break
        position = part.after
        for key, counts in part.sums.items():
            found[key] += counts[0]
    return position, found


@pytest.fixture
def reader(log_bench: Any) -> LedgerReader:
    return LedgerReader(log_bench.directory)


def test_outcomes_are_summed_by_day_caller_model_and_currency(log_bench: Any, make: Any, reader: LedgerReader) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write(
        [
            make.intent(),
            spend(make, prompt_tokens=10, completion_tokens=5, cached_tokens=2, reasoning_tokens=1, cost=40, currency="usd", user="ann"),
            spend(make, prompt_tokens=1, cost=2, currency="usd", user="ann"),
            spend(make, prompt_tokens=1),
            spend(make, attempts=0),  # denied: it used nothing
        ]
    )
    segments = reader.writers()["0"]
    mark = reader.look("0", segments, settled=True)
    assert mark is not None
    part = reader.part(Position("0"), segments, mark)
    priced, free = sorted(rows("0", part.sums), key=lambda row: -row.requests)
    assert (priced.day, priced.tenant, priced.key, priced.model, priced.user) == ("1970-01-01", "acme", "ci", "m", "ann")
    assert (priced.requests, priced.prompt_tokens, priced.completion_tokens, priced.cost, priced.currency) == (2, 11, 5, 42, "usd")
    assert (priced.cached_tokens, priced.reasoning_tokens, priced.unknown, priced.writer) == (2, 1, 0, "0")
    assert (free.requests, free.cost, free.currency, free.user) == (1, 0, "", "")
    assert bytes_behind(part.after, segments) == 0 and part.after.seq == writer.chain.seq
    assert reader.part(part.after, segments, mark).sums == {}
    writer.close()


def test_each_line_counts_once_however_it_is_read(log_bench: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.audit.ledger.PART", 3000)
    monkeypatch.setattr("gateway.audit.ledger.BLOCK", 1024)
    random, expected, total = Random(3), 0, 0
    writer = log_bench.writer(segment_bytes=5000)
    writer.open()
    position = Position("0")
    reader = LedgerReader(log_bench.directory)
    for _ in range(60):
        many = random.randrange(0, 12)
        writer.write([spend(make, f"r{n}") for n in range(many)] + [make.intent()])
        expected += many
        if random.random() < 0.2:
            reader = LedgerReader(log_bench.directory)  # the process was killed, and knows its position only
        if random.random() < 0.1:
            writer.abandon()
            writer = log_bench.writer(segment_bytes=5000)
            writer.open()
        position, found = read(reader, position, settled=False)
        total += sum(count for key, count in found.items() if key[3] == "m")
    position, found = read(reader, position)
    assert total + sum(count for key, count in found.items() if key[3] == "m") == expected
    assert writer.sink.segment > 3
    writer.close()


def test_lines_of_a_write_that_fails_half_way_are_never_counted(log_bench: Any, make: Any, reader: LedgerReader) -> None:
    writer = log_bench.writer()
    writer.open()
    position, _ = read(reader, Position("0"), settled=False)
    log_bench.disk.fill(after=400)
    log_bench.disk.cut_error = 5
    with pytest.raises(OSError):
        writer.write([spend(make, f"r{n}", model="gone") for n in range(9)])
    position, found = read(reader, position, settled=False)
    assert not found, "the end of the log is left for the next look"
    log_bench.disk.error = log_bench.disk.cut_error = None
    writer.write([spend(make, "other", model="kept")])
    for _ in range(2):
        position, more = read(reader, position, settled=False)
        found += more
    assert [key[3] for key in found] == ["kept"]
    writer.close()


def test_what_was_counted_before_the_log_was_is_passed_over(log_bench: Any, make: Any) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([spend(make), spend(make)])
    writer.close()
    assert sum(read(LedgerReader(log_bench.directory, 1000.5), Position("0"))[1].values()) == 2
    assert sum(read(LedgerReader(log_bench.directory, 1001.5), Position("0"))[1].values()) == 0


def test_a_log_that_was_replaced_is_counted_anew_and_one_with_missing_segments_goes_on(
    log_bench: Any, make: Any, reader: LedgerReader
) -> None:
    writer = log_bench.writer(segment_bytes=600)
    writer.open()
    for _ in range(8):
        writer.write([spend(make)])
    writer.close()
    position, found = read(reader, Position("0"))
    assert sum(found.values()) == 8
    early, _ = read(LedgerReader(log_bench.directory), Position("0"))
    segments = reader.writers()["0"]
    first = reader.part(Position("0"), segments[:1], reader.look("0", segments[:1], settled=True))  # type: ignore[arg-type]
    segments[0][1].unlink()
    segments[1][1].unlink()
    late, found = read(reader, first.after)
    assert late.seq == early.seq and 0 < sum(found.values()) < 8
    for path in log_bench.directory.iterdir():
        path.unlink()
    writer = log_bench.writer()
    writer.open()
    writer.write([spend(make), spend(make)])
    writer.close()
    assert sum(read(reader, position)[1].values()) == 2


def test_names_that_no_database_holds_are_cut(log_bench: Any, make: Any, reader: LedgerReader) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([spend(make, user="\0" + "u" * 900, model="\ud800")])
    segments = reader.writers()["0"]
    (row,) = rows("0", reader.part(Position("0"), segments, reader.look("0", segments, settled=True)).sums)  # type: ignore[arg-type]
    assert len(row.user) == 255 and "\0" not in row.user
    writer.close()
