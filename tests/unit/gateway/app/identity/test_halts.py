"""The file of halts: what counts of it while it is written, when it is damaged, and what is written into it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.app.identity.halts import Halt, HaltFile, Halts, name_of, parse
from gateway.core.errors import AlreadyExists, ConfigError, NotFound, StoreUnavailable
from gateway.core.standing import Standing
from gateway.core.storage import Page, Resource, StoreChange
from gateway.core.tasks import TaskOwner
from gateway.store.feed import CHANGE, RESYNC
from tests.waiting import reached


class MemoryStore:
    """Halts of a store; `away`: it does not answer."""

    def __init__(self) -> None:
        self.away = False
        self.kept: dict[str, Resource] = {}

    async def list(self, kind: str, **_: Any) -> Page[Resource]:
        self._reached()
        return Page(tuple(self.kept.values()))

    async def create(self, kind: str, name: str, body: dict[str, Any], *, actor: str, dry_run: bool) -> Resource:
        self._reached()
        if name in self.kept:
            raise AlreadyExists(name)
        made = Resource(kind, name, "", 1, body, 1.0, 1.0, actor)
        if not dry_run:
            self.kept[name] = made
        return made

    async def get(self, kind: str, name: str) -> Resource:
        self._reached()
        if name not in self.kept:
            raise NotFound(name)
        return self.kept[name]

    async def delete(self, kind: str, name: str, *, actor: str, dry_run: bool) -> Resource:
        found = await self.get(kind, name)
        if not dry_run:
            del self.kept[name]
        return found

    def _reached(self) -> None:
        if self.away:
            raise StoreUnavailable("away")


class Around:
    """Halts with what they act on."""

    def __init__(self, directory: Path) -> None:
        self.store, self.standing, self.records = MemoryStore(), Standing(), list[tuple[str, str]]()
        self.file = directory / "halts"
        self.owner = TaskOwner("test")
        self.halts = Halts(
            self.store, self.standing, directory, lambda event, target, *_, **__: self.records.append((event, target)), self.owner
        )  # type: ignore[arg-type]

    async def look(self, times: int = 2) -> list[str]:
        for _ in range(times):
            await self.halts.look()
        return self.stopped()

    def stopped(self) -> list[str]:
        return sorted({row[0] for rows in self.standing.sources().values() for row in rows})


@pytest.fixture
def around(tmp_path: Path) -> Around:
    return Around(tmp_path)


def test_lines() -> None:
    found, faults = parse("# leaked\n\nkey/ci  found on a public page\nagent/a%20b\nkeys/x\nall\n")
    assert {target: one.reason for target, one in found.items()} == {"key/ci": "found on a public page", "agent/a b": "", "all": ""}
    assert [line for line, _ in faults] == [5]


async def test_what_the_file_names_is_stopped_at_once_and_goes_on_when_it_is_gone_for_two_looks(around: Around) -> None:
    around.file.write_text("key/ci why\nmodel/m\n")
    assert await around.look(1) == ["key/ci", "model/m"]
    around.file.write_text("")  # an editor truncates before it writes
    assert await around.look(1) == ["key/ci", "model/m"]
    around.file.write_text("key/ci why\n")
    assert await around.look(1) == ["key/ci", "model/m"]
    assert await around.look(1) == ["key/ci"]
    around.file.unlink()
    assert await around.look() == []
    assert set(around.records) == {("halted", "key/ci"), ("halted", "model/m"), ("unhalted", "model/m"), ("unhalted", "key/ci")}


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"key/ci\nnonsense\n", b"x" * (1 << 20) + b"xx", None])
async def test_a_damaged_file_lets_nothing_go_on(around: Around, damage: bytes | None) -> None:
    around.file.write_text("key/a\nkey/b\n")
    await around.look()
    around.file.unlink()
    if damage is None:
        around.file.mkdir()
    else:
        around.file.write_bytes(damage)
    assert {"key/a", "key/b"} <= set(await around.look(3))
    assert around.records.count(("halts_file", "halts")) == 1, "said once"


async def test_a_halt_is_kept_in_the_store(around: Around) -> None:
    made = await around.halts.halt("key/ci", "leaked", "acme/root")
    assert (made.source, made.reason, around.stopped()) == ("store", "leaked", ["key/ci"])
    assert (await around.halts.halt("key/ci", "again", "acme/other")).reason == "leaked"
    assert await around.halts.unhalt("key/ci", "acme/root") == [made]
    assert around.stopped() == [] and not around.store.kept
    with pytest.raises(NotFound):
        await around.halts.unhalt("key/ci", "acme/root")


async def test_of_what_another_replica_has_changed_only_that_is_read(around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = "user/Ann Other"
    for target in ("key/ci", odd):
        around.store.kept[name_of(target)] = Resource("halts", name_of(target), "", 1, {"target": target}, 1.0, 1.0, "other")
    await around.halts.start()
    assert around.stopped() == ["key/ci", odd]
    monkeypatch.setattr(around.store, "list", None)
    around.store.kept["key/new"] = Resource("halts", "key/new", "", 1, {"target": "key/new"}, 1.0, 1.0, "other")
    del around.store.kept[name_of(odd)]
    for name in ("key/new", name_of(odd)):
        around.halts.heard((1, CHANGE, StoreChange(1, "halts", name, "updated", 1.0)))
    await reached(lambda: around.stopped() == ["key/ci", "key/new"])
    assert [one.target for one in around.halts.views()] == ["key/ci", "key/new"]


async def test_what_another_replica_has_just_taken_back_or_made_is_not_what_is_known_here(around: Around, tmp_path: Path) -> None:
    """Its change has not been heard of yet."""
    await around.halts.halt("key/ci", "leaked", "acme/root")
    around.store.kept.clear()
    assert (await around.halts.halt("key/ci", "again", "acme/other")).reason == "again"
    assert "key/ci" in around.store.kept and around.stopped() == ["key/ci"]
    around.store.kept["all"] = Resource("halts", "all", "", 1, {"target": "all", "reason": "fire"}, 1.0, 1.0, "other")
    assert [one.reason for one in await around.halts.unhalt("all", "acme/root", dry_run=True)] == ["fire"]
    assert [one.reason for one in await around.halts.unhalt("all", "acme/root")] == ["fire"] and "all" not in around.store.kept
    around.store.away = True
    assert (await around.halts.halt("key/ci", "again", "acme/other")).source == "store" and not around.file.exists()


async def test_without_the_store_a_halt_is_kept_in_the_file(around: Around, tmp_path: Path) -> None:
    around.store.away = True
    made = await around.halts.halt("agent/a b", "runs\nwild", "acme/root")
    assert made.source == "file" and around.stopped() == ["agent/a b"]
    assert await around.look(3) == ["agent/a b"]
    again = Around(tmp_path)
    assert await again.look() == ["agent/a b"] and again.halts.views()[0].reason == "runs wild"
    assert around.file.stat().st_mode & 0o777 == 0o600
    await around.halts.unhalt("agent/a b", "acme/root")
    assert around.stopped() == [] and await around.look() == [] and around.file.read_text() == ""


async def test_a_halt_does_not_wait_for_a_reading_of_the_store_that_hangs(around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.identity.halts.STORE_SECONDS", 0.05)

    async def hangs(kind: str, **_: Any) -> Page[Resource]:
        await asyncio.Event().wait()
        raise AssertionError

    around.store.list = hangs  # type: ignore[method-assign]
    around.halts.heard((1, RESYNC, None))
    await asyncio.sleep(0)
    made = await around.halts.halt("all", "fire", "acme/root")
    assert made.source == "file" and around.stopped() == ["all"]
    await around.owner.aclose()


async def test_what_only_the_store_holds_cannot_be_taken_back_without_it(around: Around) -> None:
    await around.halts.halt("all", "fire", "acme/root")
    around.store.away = True
    with pytest.raises(StoreUnavailable):
        await around.halts.unhalt("all", "acme/root")
    assert around.stopped() == ["all"]


async def test_a_dry_run_stops_nothing(around: Around) -> None:
    await around.halts.halt("all", "fire", "acme/root", dry_run=True)
    around.store.away = True
    await around.halts.halt("all", "fire", "acme/root", dry_run=True)
    assert around.stopped() == [] and not around.file.exists()


async def test_what_is_no_target_is_refused(around: Around) -> None:
    with pytest.raises(ConfigError):
        await around.halts.halt("keys/ci", "", "acme/root")


def test_the_file_keeps_its_comments(tmp_path: Path) -> None:
    file = HaltFile(tmp_path / "halts")
    file.path.write_text("# why\nkey/a")
    file.add(Halt("key/b", "because"))
    file.remove("key/a")
    assert file.path.read_text() == "# why\nkey/b because\n"


def test_a_target_that_cannot_be_a_name_of_the_store_has_one() -> None:
    assert name_of("key/ci") == "key/ci" and name_of("agent/a b") != name_of("agent/a c")
    assert name_of("agent/a b").startswith("sha256:")
