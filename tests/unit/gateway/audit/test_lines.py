"""Single lines by their places: of several files, compressed ones, sealed ones, and of what is gone."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

from gateway.audit import lines
from gateway.audit.closing import compress_segment, seal_of
from gateway.audit.lines import LinesAt, lines_at
from tests.unit.gateway.audit.keys import Vault


async def test_lines_come_from_where_they_are_and_what_is_gone_is_left_out(bench: Any, make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(lines, "FILES", 2)
    vault = Vault()
    await vault.sealer.begin()

    def write() -> None:
        writer = bench.writer(segment_bytes=1)  # a segment for each batch
        writer.cover, writer.opener = vault.sealer, vault.opener
        writer.open()
        for number in range(4):
            writer.write([make.intent(f"r{number}")])
        writer.close()
        first, second = bench.segment(2), bench.segment(3)
        compress_segment(first, seal_of("0", 2, first, second, bench.signer.verifier, 0.0, lambda: None), lambda: None)

    await asyncio.to_thread(write)
    places = []
    for segment in (3, 4, 5):
        offset = 0
        for line in bench.lines(segment):
            if b'"kind":"intent"' in line:
                places.append((segment, offset))
            offset += len(line)
    header = (2, 0)

    def read() -> None:
        found = lines_at(bench.directory, "0", [*places, header, (99, 0)], vault.opener)
        assert [one["request_id"] for one in found if one["kind"] == "intent"] == ["r1", "r2", "r3"]
        assert found[-1]["kind"] == "segment" and found[0]["principal"] == "ci"
        assert lines_at(bench.directory, "another", places) == [] and lines_at(bench.directory, "0", [(3, 1)]) == []
        with closing(LinesAt(bench.directory)) as at:
            again = [json.loads(line) for _ in range(3) for line in at("0", places)]
        assert len(again) == 9 and all(one["unopened"] for one in again), "without keys, and from files that were closed between"

    await asyncio.to_thread(read)
