# ruff: noqa: F811 - fixtures of pytest that are imported
"""Replicas whose registry is one directory, in one process over one database: turns, uses of others, graves, and what one leaves that is
killed in the middle of something."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engines.host.catalogue import graves, install, moves
from engines.host.catalogue.library import Library
from engines.host.catalogue.scan import Place
from engines.host.catalogue.trust import Untrusted
from gateway.app.shared_models import directory
from gateway.app.shared_models.directory import MARK, SharedDirectory
from gateway.app.shared_models.noting import Noting
from gateway.core.clock import SystemClock
from gateway.core.errors import AlreadyExists, ConfigError, GatehouseError, LeaseLost, NotFound, StoreUnavailable
from gateway.core.modelshare import NotedModel, SharedFile
from gateway.core.specs import UploadsSpec
from gateway.core.storage import Lease
from gateway.store.database import Database, make_engine
from gateway.store.directory_models import StoredDirectoryModels
from gateway.store.model_uses import StoredModelUses
from gateway.store.tables import metadata
from tests.unit.gateway.app.shared_models.test_sharing import DatabaseLeases, Replica, eventually, models  # noqa: F401 - a fixture
from tests.waiting import SECONDS


class Clock:
    """The database's."""

    ahead = 0.0

    def __call__(self, connection: Any) -> float:
        return time.time() + self.ahead


class Neighbour(Replica):
    """A replica on the directory `root/shared`. engines: (name, model's name)."""

    def __init__(self, name: str, root: Path, stored: StoredModelUses, models: StoredDirectoryModels, held: DatabaseLeases) -> None:
        self.name, self.state, self.shared, self.uses, self.models, self.held = name, root / name, root / "shared", stored, models, held
        self.engines, self.serving, self.arrived = [], {"a", "b"}, 0

    async def start(self) -> Neighbour:
        uploads, places = UploadsSpec(reserve_bytes=0), (Place(self.shared, "registry"),)
        used = lambda: [(engine, str(self.shared / model)) for engine, model in self.engines]  # noqa: E731
        self.library = Library(self.state, lambda: places, lambda: uploads, used, SystemClock(), registry=self.shared)
        holder = f"{self.name}/{os.urandom(4).hex()}"
        noting = Noting(self.shared, self.models, self.name)
        parts = (self.shared, self.uses, noting, self.held, self.name, holder, used)
        self.directory = SharedDirectory(*parts, lambda: self.serving, self.came)
        self.library.neighbours, self.library.trust.notes = self.directory, noting
        await self.library.start()
        self.directory.start()
        return self

    async def end(self) -> None:
        await self.library.aclose()
        await self.directory.aclose()

    async def listed(self) -> dict[str, list[str]]:
        return {one["name"]: one["used_by"] for one in (await self.library.models())["items"]}

    async def delete(self, name: str) -> None:
        await self.library.remove(name, version=None, dry_run=False)

    def has(self, name: str) -> bytes | None:
        path = self.shared / name
        return path.read_bytes() if path.is_file() else None

    @property
    def graves(self) -> list[Path]:
        return list(graves._graves(self.shared))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str], Neighbour]]:
    """Makes replicas on one directory and one store; those that run are ended at the end."""
    monkeypatch.setattr(directory, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(directory, "AGAIN", 0.01)
    (tmp_path / "shared").mkdir(exist_ok=True)
    engine = make_engine("sqlite", tmp_path, 60.0)
    with engine.begin() as connection:
        metadata.create_all(connection)
    database = Database(engine, 60.0)
    uses, models, made = StoredModelUses(database, clock), StoredDirectoryModels(database, clock), []

    def make(name: str) -> Neighbour:
        made.append(Neighbour(name, tmp_path, uses, models, DatabaseLeases(database)))
        return made[-1]

    yield make
    for one in made:
        await one.end()
    await database.aclose()


@pytest.fixture
async def pair(make: Callable[[str], Neighbour]) -> tuple[Neighbour, Neighbour]:
    return await make("a").start(), await make("b").start()


def raises(code: str) -> Any:
    return pytest.raises(GatehouseError, check=lambda error: error.code == code)


async def turn_of_one_that_is_killed(one: Neighbour) -> Lease:
    """Held until it is renewed for no time: what is left half done before that, nobody sees sooner than the test has done it."""
    async with asyncio.timeout(SECONDS):
        while (lease := await one.held.take_lease(directory.LEASE, "killed", 600.0)) is None:
            await asyncio.sleep(0.01)  # another one looks whether something is half done
    return lease


async def test_what_one_adds_all_have_and_a_name_is_added_once(pair: tuple[Neighbour, Neighbour], models: list[bytes]) -> None:
    a, b = pair
    b.directory.lacked("m.gguf")
    done = await asyncio.gather(a.add("m.gguf", models[0]), b.add("m.gguf", models[1]), return_exceptions=True)
    first = [one for one in done if one is None]
    assert len(first) == 1 and any(isinstance(one, AlreadyExists) for one in done), done
    assert a.has("m.gguf") == models[done.index(None)]
    await eventually(lambda: b.arrived)
    a.library._shelf.forget()
    b.library._shelf.forget()
    assert await a.listed() == await b.listed() == {"m.gguf": []}
    assert not list(a.shared.glob(f"{install.INCOMING}*"))


async def test_what_an_engine_of_another_replica_uses_stays(pair: tuple[Neighbour, Neighbour], models: list[bytes]) -> None:
    a, b = pair
    await a.add("m.gguf", models[0])
    b.engines = [("chat", "m.gguf"), ("sub", "m.gguf/inside")]
    await eventually(lambda: b.directory._told == (("chat", "m.gguf"), ("sub", "m.gguf/inside")))
    with raises("in_use") as caught:
        await a.delete("m.gguf")
    assert "b/chat" in caught.value.message
    with raises("in_use"):
        await a.add("m.gguf", models[1], replace=True)
    assert await a.listed() == {"m.gguf": ["b/chat", "b/sub"]} and a.has("m.gguf") == models[0]
    a.engines = [("chat", "m.gguf")]
    assert (await a.listed())["m.gguf"] == ["b/sub", "chat"], "an engine of the store is both's"
    a.engines = b.engines = []
    await eventually(lambda: b.directory._told == ())
    await a.delete("m.gguf")
    assert b.has("m.gguf") is None and len(a.graves) == 1


async def test_a_replica_that_is_away_keeps_the_file_but_not_the_name(
    pair: tuple[Neighbour, Neighbour], models: list[bytes], clock: Clock
) -> None:
    a, b = pair
    await a.add("m.gguf", models[0])
    b.engines = [("chat", "m.gguf")]
    await eventually(lambda: b.directory._told == (("chat", "m.gguf"),))
    with (b.shared / "m.gguf").open("rb") as mapped:
        await b.directory._owner.aclose()  # it is cut off: its engine goes on
        clock.ahead += directory.AWAY_SECONDS + 1
        await a.add("m.gguf", models[1], replace=True)
        assert a.has("m.gguf") == models[1] and mapped.read() == models[0]
        inode = os.fstat(mapped.fileno()).st_ino
    clock.ahead += directory.GRACE + 1
    await a.directory._tell()
    await a.directory._tend(tidy=True)
    assert [(grave / "0").stat().st_ino for grave in a.graves] == [inode]
    clock.ahead += directory.KEPT_SECONDS
    await a.directory._tend(tidy=True)
    assert a.graves == [] and a.has("m.gguf") == models[1]


async def test_a_grave_is_kept_for_as_long_as_a_use_may_not_have_been_told(
    pair: tuple[Neighbour, Neighbour], models: list[bytes], clock: Clock
) -> None:
    a, b = pair
    await a.add("m.gguf", models[0], signature="{}")
    assert (a.shared / "m.gguf.sig").exists()
    await a.delete("m.gguf")
    b.engines = [("late", "m.gguf")]
    await eventually(lambda: b.directory._told)
    clock.ahead += directory.GRACE + 1
    await a.directory._tend(tidy=True)
    assert [sorted(path.name for path in grave.iterdir()) for grave in a.graves] == [["0", "1", graves.RECORD]]
    assert await a.listed() == {} and a.has("m.gguf.sig") is None
    await a.add("m.gguf", models[1])
    b.engines = []
    await eventually(lambda: b.directory._told == ())
    b.engines = [("new", "m.gguf")]
    await eventually(lambda: b.directory._told)
    await a.directory._tend(tidy=True)
    assert a.graves == [], "who uses the new one does not read the old one"


async def test_a_replacement_that_was_broken_off_is_undone_by_another_replica(pair: tuple[Neighbour, Neighbour]) -> None:
    """As after kill -9 between the two renames of a folder, once the lease of the one that was killed is over."""
    a, b = pair
    onnx = min(Path("engines/demo/artefacts").rglob("model.onnx")).parent
    shutil.copytree(onnx, a.shared / "emb")
    lease = await turn_of_one_that_is_killed(a)
    grave = graves._dig(a.shared, [a.shared / "emb"], time.time())
    (a.shared / "emb").rename(grave / "0")
    await a.held.renew_lease(lease, 0.0)
    await eventually((a.shared / "emb" / "model.onnx").exists)
    await eventually(lambda: graves.unfinished(a.shared) == [])
    a.library._shelf.forget()
    assert list(await a.listed()) == ["emb"]
    await b.delete("emb")
    await b.directory._tend(tidy=True)
    assert not (a.shared / "emb").exists(), "what was deleted is not put back"


async def test_a_replica_cleans_what_it_left_and_later_what_one_left_that_is_gone(
    make: Callable[[str], Neighbour], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make("a"), make("b")
    left = {name: a.shared / f"{install.INCOMING}{name}" for name in ("a.1", "b.2", "b.2.sig", "a-b.3", "4")}
    for path in left.values():
        path.mkdir() if path.name.endswith("3") else path.touch()
    await a.start()
    there = lambda: {name for name, path in left.items() if path.exists()}  # noqa: E731
    assert there() == {"b.2", "b.2.sig", "a-b.3", "4"}
    a.serving = {"a", "b"}
    monkeypatch.setattr(directory, "KEPT_SECONDS", -1.0)
    await a.directory._tend(tidy=True)
    assert there() == {"b.2", "b.2.sig", "4"}, "b serves; who left 4 nobody knows"
    await b.start()
    assert there() == {"4"}


async def test_a_turn_is_waited_for_and_one_that_took_too_long_moves_nothing(
    pair: tuple[Neighbour, Neighbour], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    monkeypatch.setattr(directory, "WAIT", 0.1)
    await a.add("m.gguf", models[0])
    async with b.directory._turn():
        with raises("overloaded"):
            await a.delete("m.gguf")
    async with a.directory.turn() as turn:
        turn.sure()
    monkeypatch.setattr(directory, "SURE", -1.0)
    async with a.directory._turn(check=False) as turn:
        with pytest.raises(LeaseLost):
            graves.bury(a.library._quarantine, a.shared, [a.shared / "m.gguf"], turn)
        with pytest.raises(LeaseLost):
            graves.swap(a.shared, a.shared / "m.gguf", a.shared / "m.gguf", turn)
    assert a.has("m.gguf") == models[0] and not list(a.shared.glob(f"{graves.FOLDER}/*/0"))


async def test_a_directory_that_is_not_mounted_is_refused_at_the_start_and_later(
    pair: tuple[Neighbour, Neighbour], make: Callable[[str], Neighbour], models: list[bytes]
) -> None:
    a, _ = pair
    await a.add("m.gguf", models[0])
    mark = (a.shared / MARK).read_bytes()
    (a.shared / MARK).unlink()
    with raises("storage_failed"):
        await a.delete("m.gguf")
    with raises("storage_failed"):
        await a.add("n.gguf", models[1])
    assert not list(a.shared.glob(".incoming-*"))
    for content, why in ((None, "no .gatehouse-models"), (b"f" * 32, "another .gatehouse-models")):
        if content is not None:
            (a.shared / MARK).write_bytes(content)
        with pytest.raises(ConfigError, match=why) as caught:
            await make("c").start()
        assert caught.value.path == "model_sharing.directory"
    (a.shared / MARK).write_bytes(mark)
    await a.delete("m.gguf")
    with pytest.raises(NotFound):
        await a.delete("m.gguf")


class Again:
    """A file system below `root` that loses the answers to what changes names: each request is made twice, and the second answer counts."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self.errors = str(root), 0
        for name in ("rename", "replace", "link", "mkdir", "unlink"):
            monkeypatch.setattr(os, name, self._twice(getattr(os, name)))

    def _twice(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def made(*paths: Any, **how: Any) -> Any:
            done = real(*paths, **how)
            if not str(paths[-1]).startswith(self._root):
                return done
            try:
                return real(*paths, **how)
            except OSError:
                self.errors += 1
                raise

        return made


async def test_a_file_system_that_loses_answers_loses_no_model(
    pair: tuple[Neighbour, Neighbour], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    again = Again(a.shared, monkeypatch)
    monkeypatch.setattr(install, "_other_device", lambda source, registry: True)
    await a.add("m.gguf", models[0], signature="{}")
    with (b.shared / "m.gguf").open("rb") as mapped:
        await b.add("m.gguf", models[1], replace=True)
        assert mapped.read() == models[0] and a.has("m.gguf") == models[1]
        assert [(grave / "0").stat().st_ino for grave in a.graves] == [os.fstat(mapped.fileno()).st_ino]
    with raises("already_exists"):
        await a.add("m.gguf", models[0])
    lease = await turn_of_one_that_is_killed(a)
    grave = graves._dig(a.shared, [a.shared / "n.gguf"], time.time())
    (grave / "0").write_bytes(models[0])
    await a.held.renew_lease(lease, 0.0)
    await eventually(lambda: a.has("n.gguf") == models[0] and graves.unfinished(a.shared) == [])
    for name in ("m.gguf", "n.gguf"):
        a.library._shelf.forget()
        await a.delete(name)
    assert await a.listed() == {} and graves.unfinished(a.shared) == [] and again.errors > 10
    assert not list(a.shared.glob(f"{install.INCOMING}*"))


async def test_what_a_machine_remembers_of_names_does_not_decide(
    pair: tuple[Neighbour, Neighbour], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica has added a model since this machine looked: for this one its name is free."""
    a, b = pair
    await a.add("m.gguf", models[0])
    real = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: Path(path) != a.shared / "m.gguf" and real(path))
    monkeypatch.setattr(b.library, "_refuse_conflicts", lambda settings: asyncio.sleep(0))
    with raises("already_exists"):
        await b.add("m.gguf", models[1])
    with (a.shared / "m.gguf").open("rb") as mapped:
        await b.add("m.gguf", models[1], replace=True)
        inode = os.fstat(mapped.fileno()).st_ino
    assert a.has("m.gguf") == models[1] and [(grave / "0").stat().st_ino for grave in a.graves] == [inode], "it can still be read"
    old = graves._dig(a.shared, [a.shared / "m.gguf"], time.time())
    (old / "0").write_bytes(models[0])
    assert graves.heal(a.shared) == [] and a.has("m.gguf") == models[1]


async def test_a_grave_that_cannot_be_read_is_left_alone(pair: tuple[Neighbour, Neighbour], models: list[bytes], clock: Clock) -> None:
    a, _ = pair
    await a.add("m.gguf", models[0])
    await a.delete("m.gguf")
    record = a.graves[0] / graves.RECORD
    content = record.read_bytes()
    record.unlink()
    record.mkdir()
    assert graves.clear(a.shared, lambda grave: True) == 0
    (a.graves[0] / graves.UNDERWAY).touch()
    with pytest.raises(IsADirectoryError):
        graves.heal(a.shared)
    record.rmdir()
    record.write_bytes(content)
    assert graves.heal(a.shared) == ["m.gguf"] and a.has("m.gguf") == models[0]


@pytest.mark.parametrize("links", [True, False])
def test_a_name_that_something_has_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def without(*paths: Any, **how: Any) -> None:
        raise OSError(errno.EPERM, "no links")

    if not links:
        monkeypatch.setattr(os, "link", without)
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        (tmp_path / f"{name}-folder").mkdir()
        (tmp_path / f"{name}-folder" / "file").write_text(name)
    moves.place(tmp_path / "one", tmp_path / "m")
    moves.place(tmp_path / "one-folder", tmp_path / "f")
    for source, target in (("two", "m"), ("two-folder", "f"), ("two", "f")):
        with pytest.raises(OSError, check=lambda error: error.errno in install._TAKEN):
            moves.place(tmp_path / source, tmp_path / target)
    assert (tmp_path / "m").read_text() == (tmp_path / "f" / "file").read_text() == "one"
    assert not moves.there(tmp_path / "one") and moves.there(tmp_path / "two")
    with pytest.raises(FileNotFoundError):
        moves.rename(tmp_path / "absent", tmp_path / "m")


async def loads(one: Neighbour, name: str) -> str:
    """What an engine of this replica is told that is about to load the model; "" if it may."""
    try:
        seal = await asyncio.to_thread(one.library.trust.loading, str(one.shared / name), {}, lambda: True)
    except Untrusted as error:
        return str(error)
    assert seal is not None and seal.whole()
    return ""


def altered(path: Path) -> None:
    """As somebody would who can write there and hides it: other bytes, with the same size and modification time."""
    data, status = bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


async def test_a_file_that_was_changed_behind_the_gateways_is_not_loaded(pair: tuple[Neighbour, Neighbour], models: list[bytes]) -> None:
    a, b = pair
    await a.add("m.gguf", models[0])
    assert [await loads(one, "m.gguf") for one in pair] == ["", ""]
    altered(a.shared / "m.gguf")
    for one in pair:
        assert "'m.gguf' is not what was added: 'm.gguf' has other bytes" in await loads(one, "m.gguf")
        with pytest.raises(GatehouseError, check=lambda error: error.status == 409):  # joined machines do not get it either
            await one.library.contents("m.gguf")
    await b.add("m.gguf", models[1], replace=True)
    assert [await loads(one, "m.gguf") for one in pair] == ["", ""]
    altered(a.shared / "m.gguf")
    b.library._shelf.forget()
    await b.delete("m.gguf")
    shutil.copy(min(Path("engines/demo/artefacts").glob("demo-chat.gguf")), a.shared / "m.gguf")
    assert await loads(a, "m.gguf") == "", "one that was put there by hand counts as it is when it is first loaded"
    await eventually(lambda: a.directory.noting._seen == {})
    altered(a.shared / "m.gguf")
    assert "is not what was added" in await loads(b, "m.gguf")


async def test_a_folder_is_loaded_with_what_was_added_and_nothing_else(pair: tuple[Neighbour, Neighbour], tmp_path: Path) -> None:
    a, b = pair
    source = min(Path("engines/demo/artefacts").rglob("model.onnx")).parent
    with tarfile.open(tmp_path / "emb.tar", "w") as tar:
        tar.add(source, "")
    await a.add("emb", (tmp_path / "emb.tar").read_bytes())
    assert await loads(b, "emb") == await loads(b, "emb/model.onnx") == ""
    (a.shared / "emb" / "more.json").write_text("{}")
    assert "'more.json' was put there" in await loads(b, "emb") and await loads(b, "emb/model.onnx")
    (a.shared / "emb" / "more.json").unlink()
    assert await loads(b, "emb") == ""
    (a.shared / "emb" / "model.onnx").rename(a.shared / "emb" / "moved.onnx")
    assert "'model.onnx' was taken away" in await loads(b, "emb")


async def test_both_versions_are_right_while_one_takes_the_place_of_the_other(
    pair: tuple[Neighbour, Neighbour], models: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    await a.add("m.gguf", models[0])
    stored = a.directory.noting._stored
    new = a.directory.describe("m.gguf", b.shared / "m.gguf", lambda: True)
    async with a.directory.adding(replaced(new)):
        assert await loads(b, "m.gguf") == ""
    assert "has other bytes" in await loads(b, "m.gguf")
    with pytest.raises(RuntimeError):
        async with a.directory.adding(new):
            raise RuntimeError
    assert (await stored.every())["m.gguf"] == replaced(new), "it did not come about"
    with pytest.raises(RuntimeError):
        async with a.directory.adding(replaced(new, "n.gguf")):
            raise RuntimeError
    assert set(await stored.every()) == {"m.gguf"}

    async def away(paths: Any = None) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(b.directory.noting._stored, "every", away)
    assert "has other bytes" in await loads(b, "m.gguf"), "what was known counts"


def replaced(model: NotedModel, path: str = "m.gguf") -> NotedModel:
    file = model.versions[0][0]
    return NotedModel(path=path, versions=((SharedFile(path=path, size=file.size, sha256="f" * 64),),))
