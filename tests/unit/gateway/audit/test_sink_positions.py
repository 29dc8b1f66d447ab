"""Where a sink has come to survives everything but the loss of its file."""

from __future__ import annotations

from pathlib import Path

from gateway.audit.sink_positions import SinkPositions, SinkPositionsFile
from gateway.core.ledger import Position


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = SinkPositionsFile(tmp_path, "siem")
    assert file.read() is None
    positions = SinkPositions({"gw": Position("gw", 3, 4096, 17, "a" * 64), "gw-1": Position("gw-1")})
    file.write(positions)
    file.write(positions)
    assert SinkPositionsFile(tmp_path, "siem").read() == positions
    assert file.path.stat().st_mode & 0o777 == 0o600 and [path.name for path in file.path.parent.iterdir()] == ["siem.json"]


def test_a_file_that_cannot_be_understood_begins_anew(tmp_path: Path) -> None:
    file = SinkPositionsFile(tmp_path, "siem")
    file.write(SinkPositions())
    file.path.write_text('{"writers": {"gw": {"segment": "x"}}}')
    assert file.read() == SinkPositions()
