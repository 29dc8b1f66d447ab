"""A required sink that is too far behind stops the log, and the log goes on when it has caught up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.audit.broker import AuditBroker
from gateway.audit.sink_positions import SinkPositions, SinkPositionsFile
from gateway.audit.spool import Required, SpoolWatch
from gateway.core.errors import AuditUnavailable
from gateway.core.ledger import Position
from gateway.core.specs import AuditSpec
from gateway.core.waiting import as_future
from tests.waiting import reached


@pytest.fixture
def positions(tmp_path: Path) -> SinkPositionsFile:
    return SinkPositionsFile(tmp_path, "siem")


def test_it_stops_at_the_bound_and_goes_on_well_below_it(log_bench: Any, make: Any, positions: SinkPositionsFile) -> None:
    watch = SpoolWatch(log_bench.directory, "0", [Required("siem", positions, 10_000)])
    assert "is not there" in str(watch())
    positions.write(SinkPositions())
    assert watch() is None, "a process without a log is not behind"
    writer = log_bench.writer()
    writer.open()
    while (size := writer.sink.size) <= 10_000:
        assert watch() is None
        writer.write([make.intent()])
    said = watch()
    assert said is not None and f"siem is {size} bytes behind" in said
    positions.write(SinkPositions({"0": Position("0", 1, size - 9_500, 1, "x")}))
    assert watch() is not None, "not in turns at the bound"
    positions.write(SinkPositions({"0": Position("0", 1, size - 8_900, 1, "x")}))
    assert watch() is None
    writer.close()


async def test_the_log_refuses_and_goes_on(log_bench: Any, make: Any) -> None:
    behind = ["siem is behind"]
    made = AuditBroker(AuditSpec(timeout=60.0), str(log_bench.state_dir), sink=log_bench.sink(), tick=0.01)
    log_bench.brokers.append(made)
    made.obey(lambda: behind[0] if behind else None)
    await made.start()
    with pytest.raises(AuditUnavailable, match=r"takes no records\.$"):
        made.intent(make.intent())
    assert made.fault == "siem is behind"
    made.outcome(make.outcome("kept"))
    behind.clear()
    await reached(lambda: made.accepting)
    await as_future(made.intent(make.intent("r2")))
    behind.append("siem is behind again")
    await reached(lambda: not made.accepting)
    await made.aclose()
    text = b"".join(path.read_bytes() for path in log_bench.directory.glob("audit-0-0*.jsonl"))
    assert b'"kept"' in text and b'"r2"' in text and b'"audit.recovered"' in text
