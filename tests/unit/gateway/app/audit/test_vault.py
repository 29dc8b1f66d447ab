"""Data keys over replicas: made once, refused with a wrong master, rotated, wrapped anew, destroyed for good."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app.audit.vault import TOMBSTONES, Tombstones, Vault
from gateway.audit.keyring import DataKey, envelope_of
from gateway.core.clock import FakeClock
from gateway.core.errors import AlreadyExists, ConfigError, MasterUnavailable, NotFound, PermissionDenied, Shredded, VersionMismatch
from gateway.core.specs.audit import EncryptionSpec, MasterSpec
from gateway.core.storage import StoreChange
from gateway.core.tasks import TaskOwner
from gateway.core.waiting import Signal, as_future
from gateway.identity import keys
from gateway.store.feed import CHANGE
from gateway.store.store import Store
from tests.stores import migrated
from tests.waiting import reached


class Bench:
    """One database and several replicas on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory, self.owner, self.clock = tmp_path, TaskOwner("test"), FakeClock()
        self.events: list[tuple[str, str, dict[str, Any], str]] = []
        self.stores: list[Store] = []
        self.write_master("master.key", os.urandom(32))

    def write_master(self, name: str, key: bytes) -> None:
        (self.directory / name).write_bytes(key)
        os.chmod(self.directory / name, 0o600)

    def record(self, event: str, target: str, detail: dict[str, Any], *, actor: str = "gatehouse", outcome: str = "ok") -> None:
        self.events.append((event, target, detail, outcome))

    async def vault(self, replica: str = "a", master: str = "master.key", former: str | None = None) -> Vault:
        """A replica with a state directory of its own."""
        store = Store("sqlite", migrated(self.directory), keys, given_pepper="p" * 32, deadline=60.0)
        await store.start()
        self.stores.append(store)
        spec = EncryptionSpec(master=MasterSpec(file=master), former=() if former is None else (MasterSpec(file=former),), cache=100.0)
        state = self.directory / replica
        made = Vault(spec, store.data_keys, state, self.directory, {}, self.record, self.owner, self.clock)
        await made.start()
        return made


@pytest.fixture
async def bench(tmp_path: Path) -> Any:
    made = Bench(tmp_path)
    yield made
    await made.owner.aclose()
    for store in made.stores:
        await store.aclose()


async def current(vault: Vault, tenant: str = "acme") -> DataKey:
    found = vault.ring.current(tenant)
    return await as_future(found) if isinstance(found, Signal) else found


def envelope(key: DataKey, text: bytes = b"text") -> Any:
    return envelope_of(msgspec.json.decode(key.seal(text, b"here")))


async def test_two_replicas_that_make_a_key_at_once_end_with_one(bench: Bench) -> None:
    one, other = await bench.vault("a"), await bench.vault("b")
    found = await asyncio.gather(*(current(vault) for vault in (one, other)))
    assert found[0].id == found[1].id and len(await one.views(None)) == 1
    row, key = await other.key(found[0].id)
    assert key.open(envelope(found[0]), b"here") == b"text" and row.tenant == "acme"
    given = await other.give("acme")
    assert given.id == row.id and given.key.reveal() == key.revealed() and 0 < given.seconds <= 100


async def test_tenants_have_keys_of_their_own(bench: Bench) -> None:
    vault = await bench.vault()
    mine, other = await current(vault), await current(vault, "globex")
    assert mine.revealed() != other.revealed()
    with pytest.raises(ValueError, match="not encrypted with this key"):
        other.open(envelope(mine), b"here")


async def test_the_start_is_refused_without_the_master_or_with_another(bench: Bench) -> None:
    await current(await bench.vault())
    bench.write_master("other.key", bytes(32))
    with pytest.raises(ConfigError, match=r"1 data keys of the store are wrapped by local-\w+, and this master key is local-"):
        await bench.vault(master="other.key")
    with pytest.raises(ConfigError, match=r"the master key cannot be used: .*No such file"):
        await bench.vault(master="missing.key")


async def test_a_row_that_was_moved_in_the_database_does_not_open(bench: Bench) -> None:
    vault = await bench.vault()
    mine, other = await current(vault), await current(vault, "globex")
    rows = {row.id: row for row in await vault.views(None)}
    kept = bench.stores[0].data_keys
    assert await kept.rewrap(mine.id, rows[mine.id].wrapped, rows[other.id].wrapped, rows[other.id].master)
    with pytest.raises(ConfigError, match="belongs to another tenant or version"):
        await vault.key(mine.id)


async def test_a_rotation_makes_new_keys_and_the_former_go_on_to_open(bench: Bench) -> None:
    vault = await bench.vault()
    before = await current(vault)
    text = envelope(before)
    assert [row.id for row in await vault.rotate("acme", "ops", dry_run=True)] == [before.id]
    made = await vault.rotate(None, "ops")
    assert [(row.version, row.state) for row in made] == [(2, "active")]
    vault.heard((1, CHANGE, StoreChange(1, "audit-keys", "acme", "rotated", 0.0)))
    assert (await current(vault)).id == made[0].id != before.id
    assert (await vault.key(before.id))[1].open(text, b"here") == b"text"
    with pytest.raises(NotFound):
        await vault.rotate("nobody", "ops")
    assert bench.events[-1][:2] == ("audit.keys_rotated", "*")


async def test_a_new_master_wraps_what_the_former_one_did_and_then_the_old_one_is_not_needed(bench: Bench) -> None:
    first = await current(await bench.vault())
    text = envelope(first)
    bench.write_master("new.key", os.urandom(32))
    vault = await bench.vault(master="new.key", former="master.key")
    assert (await vault.key(first.id))[1].open(text, b"here") == b"text"
    assert len(await vault.rewrap("ops", dry_run=True)) == 1 and len(await vault.rewrap("ops")) == 1
    assert await vault.rewrap("ops") == []
    (bench.directory / "master.key").unlink()
    assert (await (await bench.vault(master="new.key")).key(first.id))[1].open(text, b"here") == b"text"


async def test_a_master_that_goes_away_later_fails_closed_after_a_while_and_comes_back(bench: Bench) -> None:
    vault = await bench.vault()
    key = await current(vault)
    hidden = bench.directory / "hidden"
    (bench.directory / "master.key").rename(hidden)
    bench.clock.advance(49)
    assert await current(vault) is key
    with pytest.raises(MasterUnavailable):
        await vault.key(key.id)
    bench.clock.advance(52)
    with pytest.raises(MasterUnavailable):
        await current(vault)
    hidden.rename(bench.directory / "master.key")
    bench.clock.advance(2)
    assert (await current(vault)).id == key.id


async def shredded(vault: Vault, tenant: str = "acme") -> tuple[str, ...]:
    plan = await vault.plan(tenant)
    return (await vault.shred(tenant, "asked for", plan.digest, "ops")).keys


async def test_what_was_shredded_opens_nowhere_and_new_texts_get_a_new_key(bench: Bench) -> None:
    one, other = await bench.vault("a"), await bench.vault("b")
    told: list[str | None] = []
    other.dropped.append(told.append)
    mine, its = await current(one), await current(other)
    await one.rotate("acme", "ops")
    stays = await current(one, "globex")
    gone = await shredded(one)
    assert len(gone) == 2 and mine.gone and not stays.gone
    assert bench.events[-1][0] == "audit.shred" and bench.events[-1][2]["keys"] == list(gone)
    assert not its.gone
    other.heard((1, CHANGE, StoreChange(1, "audit-keys", "acme", "shredded", 0.0)))
    assert its.gone and told == ["acme"]
    for vault in (one, other):
        with pytest.raises(Shredded):
            await vault.key(mine.id)
    assert (await current(other)).id not in gone
    noted = bench.directory / "b" / "keys" / TOMBSTONES
    await reached(lambda: noted.exists() and set(gone) <= set(noted.read_text().split()), what="the other replica's note")
    with pytest.raises(NotFound):
        await one.plan("nobody")


async def test_what_was_confirmed_is_what_is_destroyed(bench: Bench) -> None:
    vault = await bench.vault()
    await current(vault)
    plan = await vault.plan("acme")
    await vault.rotate("acme", "ops")
    with pytest.raises(AlreadyExists) as caught:
        await vault.shred("acme", "why", plan.digest, "ops")
    assert caught.value.code == "plan_changed" and all(row.state != "shredded" for row in await vault.views(None))


async def test_a_key_that_is_made_after_the_confirmation_prevents_all_of_it(bench: Bench) -> None:
    """Nor are the others destroyed later, as if they had come back."""
    vault, other = await bench.vault("a"), await bench.vault("b")
    first = await current(vault)
    plan = await vault.plan("acme")

    async def settle() -> None:
        await other.rotate("acme", "ops")

    vault.settle = settle
    with pytest.raises(VersionMismatch) as caught:
        await vault.shred("acme", "why", plan.digest, "ops")
    assert caught.value.code == "plan_changed"
    assert (await vault.key(first.id))[0].state == "retired"
    again = await bench.vault("a")
    assert [row.state for row in await again.views(["acme"])] == ["retired", "active"]


async def test_a_legal_hold_refuses_it(bench: Bench) -> None:
    vault = await bench.vault()
    key = await current(vault)
    vault.held = lambda tenant: "case 17" if tenant == "acme" else ""
    plan = await vault.plan("acme")
    assert plan.held == "case 17"
    with pytest.raises(PermissionDenied, match="case 17") as caught:
        await vault.shred("acme", "why", plan.digest, "ops")
    assert caught.value.code == "legal_hold" and not key.gone and bench.events[-1][3] == "denied"


async def test_an_older_store_does_not_bring_destroyed_keys_back(bench: Bench) -> None:
    vault = await bench.vault()
    key = await current(vault)
    await bench.stores[0].aclose()
    backup = bench.directory / "backup"
    backup.mkdir()
    for path in bench.directory.glob("*.db*"):
        shutil.copy(path, backup / path.name)
    gone = await shredded(await bench.vault())
    await bench.stores[-1].aclose()
    for path in bench.directory.glob("*.db*"):
        path.unlink()
    for path in backup.iterdir():
        shutil.copy(path, bench.directory / path.name)
    again = await bench.vault()
    assert bench.events[-2][0] == "audit.keys_returned" and bench.events[-2][2]["keys"] == [key.id]
    assert [row.state for row in await again.views(None)] == ["shredded"] and gone == (key.id,)
    with pytest.raises(Shredded):
        await again.key(key.id)


async def test_whoever_asks_while_keys_are_destroyed_gets_the_next_one_and_nothing_seems_to_have_returned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = await bench.vault()
    await current(vault)
    kept, asked = bench.stores[0].data_keys, list[asyncio.Future[Any]]()
    destroy = kept.shred

    async def shred(tenant: str, ids: Any, note: Any) -> Any:
        asked.append(asyncio.ensure_future(vault.give(tenant)))  # still whole in the store
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked[0].done() and (await vault.give("globex")).tenant == "globex", "others need not wait"
        return await destroy(tenant, ids, note)

    monkeypatch.setattr(kept, "shred", shred)
    gone = await shredded(vault)
    assert (await asyncio.wait_for(asked[0], 60)).id not in gone
    assert "audit.keys_returned" not in [event[0] for event in bench.events]


async def test_writers_that_race_with_a_shredding_write_what_nobody_can_read_or_use_the_new_key(bench: Bench) -> None:
    vault = await bench.vault()
    await current(vault)
    texts: list[Any] = []

    async def write() -> None:
        for _ in range(50):
            key = await current(vault)
            try:
                texts.append(envelope(key))
            except Shredded:
                pass
            await asyncio.sleep(0)

    writing = asyncio.ensure_future(write())
    await asyncio.sleep(0)
    gone = await shredded(vault)
    await writing
    for text in texts:
        if text.key in gone:
            with pytest.raises(Shredded):
                await vault.key(text.key)
        else:
            assert (await vault.key(text.key))[1].open(text, b"here") == b"text"


def test_the_names_of_destroyed_keys_are_whole_after_a_disk_that_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "gone", os.write
    ids = [f"{number:032x}" for number in range(4)]
    gone = Tombstones(path)
    gone.add(ids[:1])
    for takes in (7, 0):  # a part of what is asked for, then nothing
        with monkeypatch.context() as full:
            left = iter((takes,))

            def some(file: int, data: bytes, left: Iterator[int] = left) -> int:
                if (most := next(left, 0)) == 0:
                    raise OSError(errno.ENOSPC, "full")
                return write(file, data[:most])

            full.setattr(os, "write", some)
            with pytest.raises(OSError):
                gone.add([ids[1]])
        assert ids[1] not in gone
    gone.add(ids[2:])
    again = Tombstones(path)
    again.read()
    assert [id in again for id in ids] == [True, False, True, True]
