"""Answers on disk: what outlives a process, what is bounded, and what a hostile or damaged file can do."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.caches.behind import CacheUnavailable, Held, Stored
from gateway.caches.disk import FILE, DiskAnswers
from gateway.caches.memory import Eviction
from gateway.caches.place import Place
from gateway.core.clock import SystemEntropy
from tests.waiting import SECONDS

MOST = 4 * 1024 * 1024


def place(number: int, model: str = "m", tenant: str = "acme") -> Place:
    return Place(number.to_bytes(32, "big"), model, tenant)


class Disk:
    """A disk whose callbacks are awaited."""

    def __init__(self, folder: Path, policy: Eviction = "lru", entries: int = 100, most: int = MOST) -> None:
        self.made = DiskAnswers(folder, policy, entries, most, SystemEntropy())

    async def find(self, where: Place) -> tuple[bytes, bytes | None]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.made.find(where, answer.set_result)
        found = await answer
        assert isinstance(found, tuple), found
        return found[0], found[1]

    async def store(self, where: Place, value: bytes = b"value", marks: bytes | None = None, ttl: float = 3600.0) -> Stored | str:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if marks is None:
            marks = (await self.find(where))[0]
        self.made.store(where, value, marks, ttl, answer.set_result)
        found: Stored | str = await answer
        return found


def on_disk(folder: Path, work: Callable[[Disk], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        disk = Disk(folder, **settings)
        await disk.made.open(mend=True)
        try:
            await work(disk)
        finally:
            await disk.made.aclose()

    asyncio.run(run())


def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    async def keep(disk: Disk) -> None:
        assert await disk.store(place(1), b"one") == Stored(True)
        assert (await disk.find(place(1)))[1] == b"one"
        assert (await disk.find(place(2)))[1] is None

    async def find(disk: Disk) -> None:
        assert (await disk.find(place(1)))[1] == b"one"
        assert await disk.made.held() == Held(1, 3 + 512)

    on_disk(tmp_path / "caches", keep)
    on_disk(tmp_path / "caches", find)
    assert (tmp_path / "caches").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("policy", "gone"), [("lru", 1), ("lfu", 2), ("fifo", 0)])
def test_the_policy_says_which_goes(tmp_path: Path, policy: Eviction, gone: int) -> None:
    async def work(disk: Disk) -> None:
        for number in range(3):
            await disk.store(place(number))
            await asyncio.sleep(0.002)  # ranks are milliseconds
        for number in (1, 0, 0, 1, 2, 0):
            await disk.find(place(number))
            if policy == "lru" and number == 1:
                await disk.store(place(9))  # notes the uses so far
        if policy == "lru":
            await disk.find(place(0))
            await disk.find(place(2))
        await disk.store(place(3))
        there = [number for number in (0, 1, 2) if (await disk.find(place(number)))[1] is not None]
        assert gone not in there

    on_disk(tmp_path / "caches", work, policy=policy, entries=4 if policy == "lru" else 3)


def test_bytes_are_bounded_and_what_expired_goes_first(tmp_path: Path) -> None:
    async def work(disk: Disk) -> None:
        await disk.store(place(99), bytes(1000), ttl=-1.0)
        for number in range(100):
            await disk.store(place(number), os.urandom(100_000))
        held = await disk.made.held()
        assert held.bytes <= MOST
        assert held.entries == MOST // (100_000 + 512)
        assert isinstance(await disk.store(place(1), bytes(MOST)), Stored)
        assert (await disk.find(place(99)))[1] is not None
        assert (tmp_path / "caches" / FILE).stat().st_size < 2 * MOST

    on_disk(tmp_path / "caches", work, entries=1000)


def test_a_purge_forgets_what_matches_and_what_was_asked_before_is_not_kept(tmp_path: Path) -> None:
    async def work(disk: Disk) -> None:
        for number, (model, tenant) in enumerate([("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]):
            for copy in range(600 if number == 0 else 1):
                await disk.store(place(1000 * number + copy, model, tenant))
        before = {where: (await disk.find(where))[0] for where in (place(7777, "a", "x"), place(7778, "b", "y"))}
        assert await disk.made.purge("a", "x", None, dry_run=True) == 600
        assert await disk.made.purge("a", "x", None, dry_run=False) == 600
        after = {where: (await disk.find(where))[0] for where in before}
        assert [before[where][:32] == after[where][:32] for where in before] == [False, True]
        assert [await disk.store(where, marks=marks) for where, marks in before.items()] == [Stored(False), Stored(False)]
        assert await disk.made.purge(None, None, place(1000, "a", "y").key, dry_run=False) == 1
        assert await disk.made.purge(None, "x", None, dry_run=False) == 1
        assert await disk.made.purge(None, None, None, dry_run=False) == 1
        assert await disk.made.held() == Held(0, 0)

    on_disk(tmp_path / "caches", work, entries=10_000)


def test_two_processes_share_it_and_a_killed_one_leaves_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child writes until it is killed, three times, while this process writes, too."""
    monkeypatch.setattr("gateway.caches.disk.BUSY_SECONDS", SECONDS)  # it may stand still in the middle of a transaction
    folder = tmp_path / "caches"
    child = (
        "import asyncio, sys; from pathlib import Path; from tests.unit.gateway.caches.test_disk import Disk, place\n"
        "async def run():\n"
        "    disk = Disk(Path(sys.argv[1]), entries=100_000, most=1 << 26); await disk.made.open(mend=False)\n"
        "    for number in range(10_000_000):\n"
        "        await disk.store(place(number % 500), number.to_bytes(8, 'big') * 2000)\n"
        "        if number == 20: print('going', flush=True)\n"
        "asyncio.run(run())"
    )

    async def work(disk: Disk) -> None:
        for _ in range(3):
            with subprocess.Popen([sys.executable, "-c", child, str(folder)], stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == b"going\n"
                for number in range(20):
                    assert await disk.store(place(10_000 + number)) == Stored(True)
                process.send_signal(signal.SIGKILL)
        found = 0
        for number in range(500):
            value = (await disk.find(place(number)))[1]
            if value is not None:
                assert value == value[:8] * 2000
                found += 1
        assert found >= 20
        assert await disk.made.held() == Held(found + 20, found * 16_512 + 20 * 517)

    on_disk(folder, work, entries=100_000, most=1 << 26)


@pytest.mark.parametrize("which", ["folder", FILE, FILE + "-wal", FILE + "-shm"])
def test_links_are_not_followed(tmp_path: Path, which: str) -> None:
    target, folder = tmp_path / "target", tmp_path / "caches"
    if which == "folder":
        target.mkdir()
        folder.symlink_to(target)
    else:
        folder.mkdir(0o700)
        (folder / which).symlink_to(target)

    async def work(disk: Disk) -> None:
        assert not disk.made.ready()
        assert "link" in disk.made.why
        with pytest.raises(CacheUnavailable):
            await disk.made.held()

    on_disk(folder, work)
    assert not target.exists() or not list(target.iterdir())


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    folder.mkdir()
    folder.chmod(0o777)

    async def work(disk: Disk) -> None:
        assert "chmod 700" in disk.made.why

    on_disk(folder, work)


def test_a_damaged_file_is_made_anew_by_the_first_process_alone(tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    folder.mkdir(0o700)
    (folder / FILE).write_bytes(b"no database at all, but long enough to be looked at" * 100)

    async def second() -> None:
        disk = Disk(folder)
        await disk.made.open(mend=False)
        assert disk.made.why
        await disk.made.aclose()

    async def work(disk: Disk) -> None:
        assert await disk.store(place(1)) == Stored(True)

    asyncio.run(second())
    on_disk(folder, work)


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE marks SET mark = 5000000000",  # bytes(5000000000) would take them
        "UPDATE answers SET value = 'text'",
        "UPDATE answers SET value = zeroblob(65 * 1024 * 1024) WHERE key = (SELECT min(key) FROM answers)",
        "CREATE TRIGGER harm BEFORE INSERT ON answers BEGIN SELECT raise(ABORT, 'no'); END",
        b"\xff",
    ],
)
@pytest.mark.parametrize("first", ["requests", "purge"])
def test_damage_that_the_start_does_not_see_is_found_once(tmp_path: Path, harm: str | bytes, first: str) -> None:
    """SQLite looks at a page when it needs it: the process that finds it uses the file no more, and the next start makes it anew."""
    folder = tmp_path / "caches"

    async def keep(disk: Disk) -> None:
        for number in range(20):
            assert await disk.store(place(number), os.urandom(2000)) == Stored(True)

    on_disk(folder, keep)
    if isinstance(harm, bytes):
        with closing(sqlite3.connect(folder / FILE)) as connection:  # two that close at once may each leave it to the other
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        file = bytearray((folder / FILE).read_bytes())
        for page in range(10 * 4096, len(file), 4096):
            file[page : page + 2048] = harm * 2048
        (folder / FILE).write_bytes(file)
    else:
        connection = sqlite3.connect(folder / FILE)
        connection.execute(harm)
        connection.commit()
        connection.close()

    async def harmed(disk: Disk) -> None:
        if first == "purge":
            with suppress(CacheUnavailable):
                await disk.made.purge(None, None, None, dry_run=False)
        said: list[Any] = []
        for number in range(20):
            with suppress(AssertionError):
                said.append(await disk.store(place(number), b"new"))
        assert disk.made.why.startswith("the file is damaged") or all(isinstance(one, Stored) for one in said)
        if first == "requests":
            assert disk.made.why and not disk.made.ready()

    async def mended(disk: Disk) -> None:
        assert await disk.store(place(1), b"after") == Stored(True)
        assert (await disk.find(place(1)))[1] == b"after"
        assert not list(folder.glob("*-damaged"))

    on_disk(folder, harmed)
    on_disk(folder, mended)


def test_a_full_disk_costs_answers_and_no_error(tmp_path: Path) -> None:
    async def work(disk: Disk) -> None:
        await disk.store(place(1))
        # the file system of a test cannot be filled: SQLite says the same at its own bound
        await disk.made._write(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchall())
        assert "full" in str(await disk.store(place(2), os.urandom(1_000_000)))
        assert (await disk.find(place(1)))[1] == b"value"
        await disk.made._write(lambda connection: connection.execute("PRAGMA max_page_count = 100000").fetchall())
        assert await disk.store(place(2)) == Stored(True)

    on_disk(tmp_path / "caches", work)


def test_a_file_that_was_taken_away_is_used_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.caches.disk.LOOK_SECONDS", 0.0)

    async def work(disk: Disk) -> None:
        await disk.store(place(1))
        (tmp_path / "caches" / FILE).rename(tmp_path / "elsewhere")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        disk.made.find(place(1), answer.set_result)
        assert "taken away" in await answer
        assert not disk.made.ready()

    on_disk(tmp_path / "caches", work)


def test_what_others_purged_is_remembered(tmp_path: Path) -> None:
    async def first(disk: Disk) -> None:
        assert await disk.made.unheard(["1", "2"]) == ["1", "2"]
        await disk.made.note(["1", "2"])

    async def second(disk: Disk) -> None:
        assert await disk.made.unheard(["2", "3"]) == ["3"]

    on_disk(tmp_path / "caches", first)
    on_disk(tmp_path / "caches", second)


def test_a_row_that_somebody_else_wrote_is_only_bytes(tmp_path: Path) -> None:
    """Another program may write whatever it likes: it comes back as it is, and is for the sealer to judge."""

    async def work(disk: Disk) -> None:
        marks, _ = await disk.find(place(1))
        other = sqlite3.connect(tmp_path / "caches" / FILE)
        other.execute("INSERT INTO answers VALUES (?, 'm', 'acme', 9e18, 0, 10, 'text')", (place(1).key,))
        other.commit()
        other.close()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        disk.made.find(place(1), answer.set_result)
        assert isinstance(await answer, str)
        assert await disk.store(place(1), marks=marks) == Stored(True)

    on_disk(tmp_path / "caches", work)
