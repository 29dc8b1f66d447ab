"""Legal holds outlive the process, and a tenant's records are found whatever its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.audit import holds as holding
from gateway.audit.holds import FILE, Holds, concerns
from gateway.core.clock import FakeClock


def test_a_hold_lasts_until_it_is_released(tmp_path: Path) -> None:
    clock = FakeClock()
    holds = Holds(tmp_path, clock)
    assert holds.list() == [] and holds.release("acme") is None
    first = holds.add("acme", "case 7", "counsel")
    clock.advance(60)
    assert holds.add("acme", "case 8", "somebody") == first and holds.add("beta", "case 9", "counsel").since == clock.wall()
    assert [hold.tenant for hold in Holds(tmp_path, clock).list()] == ["acme", "beta"]
    assert holds.release("acme") == first and [hold.tenant for hold in Holds(tmp_path, clock).list()] == ["beta"]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_understood_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[{}]")
    holds = Holds(tmp_path, FakeClock())
    for call in (holds.list, lambda: holds.add("a", "b", "c"), lambda: holds.release("a")):
        with pytest.raises(OSError, match="cannot be understood"):
            call()


@pytest.mark.parametrize("tenant", ["acme", "größe", 'with "quotes"', "a\\b"])
def test_a_tenants_records_are_found_at_every_place(log_bench: Any, make: Any, monkeypatch: pytest.MonkeyPatch, tenant: str) -> None:
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("a", tenant="other"), make.intent("b", tenant=tenant), make.intent("c", tenant="other")])
    writer.close()
    for block in (1, 7, 64, 1 << 20):
        monkeypatch.setattr(holding, "_BLOCK", block)
        assert concerns(log_bench.segment(), frozenset({tenant}))
        assert not concerns(log_bench.segment(), frozenset({"nobody", "acm"})) and not concerns(log_bench.segment(), frozenset())
