"""Legal holds outlive the process, and a tenant's records are found whatever its name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import holds as holding
from gateway.audit.holds import FILE, Holds, concerns
from gateway.core.clock import FakeClock
from tests.unit.gateway.audit.keys import Vault


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


@pytest.mark.parametrize("tenant", ["acme", "größe", 'with "quotes"'])
async def test_a_tenants_records_are_found_without_keys_where_whole_records_are_encrypted(bench: Any, make: Any, tenant: str) -> None:
    """Also where the tenant's key could not be had, and in the outcome of a request that had no intent."""
    vault = Vault()
    vault.away = {"away"}
    await vault.sealer.begin()

    def write() -> None:
        writer = bench.writer()
        writer.cover, writer.opener = vault.sealer, vault.opener
        writer.open()
        writer.write([make.intent("a", tenant="other"), make.intent("b", tenant=tenant, user="lovelace")])
        writer.write([make.outcome("c", tenant="denied", peer="10.0.0.1"), make.intent("d", tenant="away")])
        writer.close()

    await asyncio.to_thread(write)
    data = bench.segment().read_bytes()
    assert b"lovelace" not in data and data.count(b',"sealed":{') == 4 and b'"withheld":true' in data
    for held in (tenant, "denied", "away"):
        assert concerns(bench.segment(), frozenset({held}))
    assert not concerns(bench.segment(), frozenset({"nobody"}))


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("tenant", ["acme", "größe", 'with "quotes", and ]'])
async def test_events_about_a_tenant_are_held_too(
    bench: Any, make: Any, monkeypatch: pytest.MonkeyPatch, tenant: str, sealed: bool
) -> None:
    vault = Vault()
    await vault.sealer.begin()

    def write(*events: Any) -> Path:
        writer = bench.writer()
        if sealed:
            writer.cover, writer.opener = vault.sealer, vault.opener
        writer.open()
        writer.write(list(events))
        writer.close()
        return Path(bench.segment())

    def check() -> None:
        path = write(make.event("admin.keys.create", tenants=("", 'o]"th,er', tenant)), make.event("admin.roles.create", detail={"x": "y"}))
        for block in (1, 64, 1 << 20):
            monkeypatch.setattr(holding, "_BLOCK", block)
            assert concerns(path, frozenset({"nobody", tenant})) and concerns(path, frozenset({'o]"th,er'}))
            assert not concerns(path, frozenset({"nobody", "er", "roles"}))
        assert concerns(write(make.event("audit.keys_rotated", tenants=("*",))), frozenset({"nobody"})), "about every tenant"

    await asyncio.to_thread(check)
