"""Answers in Redis as operators run it: a Redis Cluster whose slots move and whose servers die, a failover by Sentinel, and servers that
refuse. And on a disk that is full."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway.core.secret import Secret
from gateway.core.specs import ConfigSpec
from gateway.core.specs.caches import CachesSpec, DiskCacheSpec, RedisCacheSpec
from gateway.core.specs.redis import RedisSpec
from tests.cluster.redis_servers import RedisCluster, Watched, free_port, said
from tests.cluster.servers import ROOT, RedisServer
from tests.integration.disk import disk_of
from tests.integration.test_cache_tiers import Replica, key
from tests.integration.test_redis_operated import ids_of, move
from tests.waiting import SECONDS, reached
from tests.waiting import until as wait

TAG = "test:{answers}:order"


@pytest.fixture
async def made() -> AsyncIterator[list[Replica]]:
    found: list[Replica] = []
    yield found
    for one in found:
        await one.tiers.aclose()


async def replica(made: list[Replica], url: str, folder: Path) -> Replica:
    caches = CachesSpec(redis=RedisCacheSpec(timeout=5.0))
    spec = ConfigSpec(version=1, state_dir=str(folder), redis=RedisSpec(url=Secret(url), prefix="test"), caches=caches)
    made.append(Replica(spec, "redis"))
    await made[-1].tiers.start(first=True)
    await reached(lambda: made[-1].behind.up)  # a start waits for Redis for a moment alone
    return made[-1]


async def until(what: str, done: Callable[[], Awaitable[bool]]) -> None:
    """Nothing that is away makes a look-up an error: it is a miss, until it is back."""
    async with asyncio.timeout(SECONDS):
        while not await done():
            await asyncio.sleep(0.02)
    assert what


def finds(one: Replica, number: int, text: str) -> Callable[[], Awaitable[bool]]:
    async def done() -> bool:
        found, _ = await one.look(key(number))
        assert found in ("", text)
        return found == text

    return done


def keeps(one: Replica, number: int, text: str) -> Callable[[], Awaitable[bool]]:
    async def done() -> bool:
        await one.keep(key(number), text)
        return (await one.look(key(number)))[0] == text

    return done


async def test_a_cluster_of_three_whose_keys_move_and_whose_server_dies(short_path: Path, made: list[Replica]) -> None:
    cluster = RedisCluster(short_path, 3)
    spare = RedisServer(short_path, *cluster_settings(), name="spare", port=free_port())
    try:
        await asyncio.to_thread(cluster.start)
        replicas = [await replica(made, f"redis://127.0.0.1:{server.port}", short_path) for server in cluster.servers]
        await until("an answer", keeps(replicas[0], 1, "one"))
        for one in replicas:  # whichever server they were told of
            await until("the answer of another", finds(one, 1, "one"))
        old = await asyncio.to_thread(holder, cluster)
        assert {port_of(one) for one in replicas} == {old.port}, "all answers are on one server"
        new = next(server for server in cluster.servers if server is not old)
        await asyncio.to_thread(move, cluster, TAG, old, new)
        for number, one in enumerate(replicas):
            await until("the answer at its new place", finds(one, 1, "one"))
            await until("a new answer", keeps(one, 10 + number, "more"))
        assert {port_of(one) for one in replicas} == {new.port}
        assert (await replicas[0].behind.backend.held()).entries == 4

        await asyncio.to_thread(follow, spare, new, cluster)
        await asyncio.to_thread(cluster.notice_soon)
        await asyncio.to_thread(new.stop, 9)
        others = [one for one, server in zip(replicas, cluster.servers, strict=True) if server is not new]  # their first server is there
        for one in others:
            await until("what the replica has", finds(one, 1, "one"))
            assert port_of(one) == spare.port
        assert await others[0].behind.backend.purge(None, "acme", None, dry_run=False) == 4
        assert (await others[1].look(key(1)))[0] == ""
    finally:
        for one in made:
            await one.tiers.aclose()
        made.clear()
        await asyncio.to_thread(spare.stop)
        await asyncio.to_thread(cluster.stop)


async def test_the_documented_user_may_do_everything_that_is_needed(short_path: Path, made: list[Replica]) -> None:
    server = RedisServer(short_path)
    await asyncio.to_thread(server.start)
    try:
        found = re.search(r"`(ACL SETUSER gatehouse-cache [^`]+)`", (ROOT / "docs" / "caches.md").read_text())
        assert found is not None
        assert server.command(*found[1].replace("~gatehouse:", "~test:").split()) == b"+OK"
        assert server.command("ACL", "SETUSER", "default", "off") == b"+OK"
        for number, policy in enumerate(("lru", "lfu", "fifo")):
            caches = CachesSpec(redis=RedisCacheSpec(timeout=5.0, policy=policy, max_entries=2))
            url = Secret(f"unix://gatehouse-cache:PASSWORD@{server.socket}?db={number}")
            made.append(
                Replica(ConfigSpec(version=1, state_dir=str(short_path), redis=RedisSpec(url=url, prefix="test"), caches=caches), "redis")
            )
            await made[-1].tiers.start(first=not number)
            await reached(lambda: made[-1].behind.up)
            failed = made[-1].behind.counted.failed
            for entry in range(4):
                await until("an answer", keeps(made[-1], entry, str(entry)))
            backend = made[-1].behind.backend
            assert (await backend.held()).entries == 2
            assert await backend.purge(None, None, key(3), dry_run=False) == 1
            assert await backend.purge("m", "acme", None, dry_run=True) + await backend.purge(None, None, None, dry_run=False) >= 1
            assert made[-1].behind.counted.failed == failed
    finally:
        for one in made:
            await one.tiers.aclose()
        made.clear()
        await asyncio.to_thread(server.stop)


def cluster_settings() -> tuple[str, ...]:
    return "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", str(free_port())


def holder(cluster: RedisCluster) -> RedisServer:
    return cluster.of(TAG)


def port_of(one: Replica) -> int:
    keeper = one.tiers._keeper
    assert keeper is not None
    return keeper.address.port if keeper.address is not None else 0


def follow(spare: RedisServer, master: RedisServer, cluster: RedisCluster) -> None:
    """Makes a server the replica of a master, and waits until it has everything."""
    spare.start()
    assert said(spare.port, "CLUSTER", "MEET", "127.0.0.1", str(master.port), master.settings[-1]) == b"OK"
    wait(lambda: said(spare.port, "CLUSTER", "REPLICATE", ids_of(cluster)[master.port]) == b"OK", what="the master to be known")
    wait(lambda: b"master_link_status:up" in bytes(str(said(spare.port, "INFO", "replication")), "utf-8"), what="the replica")
    mine = said(spare.port, "CLUSTER", "MYID")
    assert isinstance(mine, bytes)
    known = [server.port for server in cluster.servers]
    wait(lambda: all(mine.decode() in str(said(port, "CLUSTER", "NODES")) for port in known), what="all to know the replica")


async def test_a_failover_by_sentinel(short_path: Path, made: list[Replica]) -> None:
    watched = Watched(short_path)
    try:
        await asyncio.to_thread(watched.start)
        one = await replica(made, f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/main", short_path)
        await until("an answer", keeps(one, 1, "one"))
        await reached(lambda: said(watched.ports[1], "EXISTS", "test:{answers}:bytes") == 1)
        await asyncio.to_thread(watched.fail)
        await until("the answer at the new master", finds(one, 1, "one"))
        assert port_of(one) == watched.ports[1]
        await until("a new answer", keeps(one, 2, "two"))
        assert await one.behind.backend.purge(None, None, None, dry_run=False) == 2
    finally:
        for each in made:
            await each.tiers.aclose()
        made.clear()
        await asyncio.to_thread(watched.stop)


REFUSALS = {
    "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    "replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
}


@pytest.mark.parametrize(("before", "after"), REFUSALS.values(), ids=list(REFUSALS))
async def test_a_redis_that_takes_no_writes_is_told_of_once(
    short_path: Path, made: list[Replica], caplog: pytest.LogCaptureFixture, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """Not again with each look-up that works and each connection that comes about."""
    caplog.set_level(logging.INFO, "gatehouse.caches")
    server = RedisServer(short_path, port=free_port())
    await asyncio.to_thread(server.start)
    try:
        one = await replica(made, f"redis://127.0.0.1:{server.port}", short_path)
        await until("an answer", keeps(one, 1, "one"))
        caplog.clear()
        assert said(server.port, *before) == b"OK"
        for number in range(3):
            one.behind._unwritable = one.behind._paused = 0.0
            await until("an answer", finds(one, 1, "one"))
            failed = one.behind.counted.failed
            await one.keep(key(2 + number), "more")
            assert one.behind.counted.failed > failed
            await reached(one.behind.backend.ready)  # a new connection, where the server is a replica
        assert said(server.port, *after) == b"OK"
        one.behind._unwritable = one.behind._paused = 0.0
        await until("a new answer", keeps(one, 5, "new"))
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], caplog.text
    finally:
        await made.pop().tiers.aclose()
        await asyncio.to_thread(server.stop)


async def test_a_redis_that_loads_its_data_is_back_when_it_has(
    short_path: Path, made: list[Replica], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gatehouse.caches")
    server = RedisServer(short_path, "--enable-debug-command", "yes", "--rdbcompression", "no", port=free_port())
    await asyncio.to_thread(server.start)
    try:
        one = await replica(made, f"redis://127.0.0.1:{server.port}", short_path)
        await until("an answer", keeps(one, 1, "one"))
        caplog.clear()
        assert said(server.port, "DEBUG", "POPULATE", "2000", "k", "1100") == said(server.port, "SAVE") == b"OK"
        await asyncio.to_thread(server.stop)
        # Each key takes so many microseconds, and commands are read after each: it loads until it is told to hurry.
        server.settings = ("--key-load-delay", "50000", "--loading-process-events-interval-bytes", "1024")
        loading = asyncio.create_task(asyncio.to_thread(server.start))
        await reached(lambda: server.command("PING").startswith(b"-LOADING"))
        assert (await one.look(key(1)))[0] == ""
        await reached(one.behind.backend.ready)
        one.behind._paused = 0.0
        assert (await one.look(key(1)))[0] == ""
        assert [record.levelname for record in caplog.records] == ["WARNING"], caplog.text
        assert server.command("CONFIG", "SET", "key-load-delay", "0") == b"+OK"
        await loading
        await until("the answer again", finds(one, 1, "one"))
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], caplog.text
    finally:
        await made.pop().tiers.aclose()
        await asyncio.to_thread(server.stop)


async def test_a_disk_that_is_nearly_full_and_then_quite(tmp_path: Path) -> None:
    """Older answers go for newer ones, and the audit log's room is left to it. On a disk without a byte what is there is still given."""
    with disk_of(tmp_path / "disk", 48 * 1024 * 1024, 64 * 1024 * 1024) as (place, _):
        caches = CachesSpec(disk=DiskCacheSpec(timeout=30.0, max_bytes=1024 * 1024 * 1024))
        one = Replica(ConfigSpec(version=1, state_dir=str(place), caches=caches), "disk")
        await one.tiers.start(first=True)
        try:
            cache = one.cache(compress_above=0)
            for number in range(300):
                await one.keep(key(number), os.urandom(50_000).hex(), cache=cache)
            if not os.path.ismount(place):
                return  # there is a bound on the size of a file, and nobody can see it coming
            left = os.statvfs(place)
            assert left.f_bavail * left.f_frsize > 20 * 1024 * 1024
            assert one.behind.counted.evicted > 50 and one.behind.counted.stored == 300
            assert [bool((await one.look(key(number), cache=cache))[0]) for number in (0, 299)] == [False, True]
            with (place / "else").open("wb") as file:
                file.write(bytes(left.f_bavail * left.f_frsize))
            for number in range(300, 320):
                one.behind._unwritable = 0.0
                await one.keep(key(number), os.urandom(50_000).hex(), cache=cache)
            assert (await one.look(key(319), cache=cache))[0], "older answers make room in the file"
            assert await one.behind.backend.purge(None, "acme", None, dry_run=False) > 0
            assert (await one.look(key(319), cache=cache))[0] == ""
        finally:
            await one.tiers.aclose()
