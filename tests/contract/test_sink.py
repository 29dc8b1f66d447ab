"""What every audit sink keeps to: gateway.audit.sinks.contract.Sink."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.app.plugins import OURS
from gateway.audit.sinks.contract import Sink
from gateway.core.plugins import SinkContext, built
from gateway.core.specs import AuditSpec, SinkSpec

BATCHES = [b'{"a":1}\n', b'{"b":2}\n{"c":3}\n', b'{"d":"' + b"x" * 100_000 + b'"}\n']


@dataclass
class Opened:
    """A sink that can be written to, and where its lines are."""

    sink: Sink
    directory: Path

    def lines(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.directory.rglob("*.jsonl")))


def open_file(sink: Any) -> None:
    """The local log is opened and begun by the chain's writer."""
    sink.open()
    sink.begin(1)


IMPLEMENTATIONS = {"file": open_file}
"""By type: what its owner does before it writes. To add a sink, add one; its lines are somewhere below the state directory."""


@pytest.fixture(params=IMPLEMENTATIONS)
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    row = OURS.sinks[request.param]
    context = SinkContext(name=row.name, audit=AuditSpec(), sink=SinkSpec(type=row.name), state_dir=tmp_path, writer="0")
    sink = built(row.build, row.settings, {}, context)
    IMPLEMENTATIONS[row.name](sink)
    yield Opened(sink, tmp_path)
    await sink.aclose()


def test_every_type_is_held_to_this_contract() -> None:
    assert set(IMPLEMENTATIONS) == {row.name for row in OURS.sinks}


def test_what_is_written_is_there_whole_and_in_order(opened: Opened) -> None:
    for batch in BATCHES:
        opened.sink.write(batch)
    assert opened.lines() == b"".join(BATCHES)


def test_a_probe_writes_nothing(opened: Opened) -> None:
    opened.sink.write(BATCHES[0])
    opened.sink.probe()
    assert opened.lines() == BATCHES[0]


async def test_nothing_can_be_written_once_it_is_closed(opened: Opened) -> None:
    await opened.sink.aclose()
    await opened.sink.aclose()
    with pytest.raises(OSError):
        opened.sink.write(BATCHES[0])
