"""Answers on disk and in a real Redis: what replicas share, what nobody can put into their hands, and what an outage costs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app.caches.tiers import CacheTiers
from gateway.caches.registry import AnswerCaches, ModelCache
from gateway.caches.sealing import TenantKey
from gateway.core.caching import Answer
from gateway.core.secret import Secret
from gateway.core.specs import ConfigSpec, ModelSpec
from gateway.core.specs.caches import CacheSpec, CachesSpec, DiskCacheSpec, RedisCacheSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.waiting import as_future
from tests.cluster.redis_servers import tell
from tests.cluster.servers import RedisServer
from tests.fakes.ports import empty_port
from tests.unit.gateway.caches.test_registry import CALLER, chat
from tests.waiting import reached

NUMBERS = count()
TENANTS = ("acme", "beta", "acme m")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with empty_port() as port:
        made = RedisServer(Path(tmp_path_factory.mktemp("r")), port=port)
        made.start()
        yield made
        made.stop()


class Replica:
    """A process with its caches. It has a Redis prefix, and a directory, that others may share."""

    def __init__(self, spec: ConfigSpec, also_in: str, keys: TenantKey | None = None) -> None:
        self.caches, self.tiers = AnswerCaches(time.monotonic), CacheTiers(spec, None, lambda: b"s" * 32)
        if keys is not None:
            for one in self.tiers.behind.values():
                one._sealers._keys = keys
        self.caches.behind = self.tiers.behind
        self.behind = self.tiers.behind[also_in]
        self.also_in = also_in

    def cache(self, model: str = "m", version: bytes = b"1", **settings: Any) -> ModelCache:
        spec = CacheSpec(also_in=self.also_in, **settings)  # type: ignore[arg-type]
        found = self.caches.of(ModelSpec(name=model, pool=("a",), cache=spec), version, b"k" * 32)
        assert found is not None
        return found

    async def look(self, key: bytes, tenant: str = "acme", cache: ModelCache | None = None) -> tuple[str, bytes]:
        """What a request finds behind the memory ("" for nothing), and the marks."""
        cache = cache or self.cache()
        found = cache.look(key, tenant)
        if found is None:
            return "", b""
        looked = await as_future(found)
        if looked is None:
            return "", b""
        answer = cache.taken(key, tenant, looked, cache.epoch)
        return ("" if answer is None else answer.parts[0].decode()), looked.marks

    async def keep(self, key: bytes, text: str, tenant: str = "acme", cache: ModelCache | None = None) -> None:
        """As a request does that asks an engine."""
        cache = cache or self.cache()
        counted = self.behind.counted
        epoch, (_, marks) = cache.epoch, await self.look(key, tenant, cache)
        before = counted.stored + counted.refused + counted.dropped
        cache.store(key, Answer([], False, [text.encode()]), tenant, epoch, marks)
        await reached(lambda: counted.stored + counted.refused + counted.dropped > before or not marks)


class World:
    def __init__(self, server: RedisServer, also_in: str, folder: Path) -> None:
        redis = RedisSpec(url=Secret(f"redis://127.0.0.1:{server.port}"), prefix=f"test{next(NUMBERS)}")
        self.spec = ConfigSpec(version=1, state_dir=str(folder), redis=redis)
        self.server, self.also_in, self.replicas = server, also_in, list[Replica]()

    async def replica(self, keys: TenantKey | None = None, timeout: float = 30.0, **bounds: Any) -> Replica:
        caches = CachesSpec(disk=DiskCacheSpec(timeout=timeout, **bounds), redis=RedisCacheSpec(timeout=timeout, **bounds))
        made = Replica(msgspec.structs.replace(self.spec, caches=caches), self.also_in, keys)
        self.replicas.append(made)
        await made.tiers.start(first=len(self.replicas) == 1)
        await reached(lambda: made.behind.up)  # a start waits for Redis for a moment alone
        return made

    def redis(self, *words: str) -> bytes:
        return tell(self.server.port, *words)

    @property
    def base(self) -> str:
        assert self.spec.redis is not None
        return f"{self.spec.redis.prefix}:{{answers}}:"


@pytest.fixture
async def redis(server: RedisServer, tmp_path: Path) -> AsyncIterator[World]:
    async for made in _world(server, "redis", tmp_path):
        yield made


@pytest.fixture(params=["disk", "redis"])
async def world(server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async for made in _world(server, request.param, tmp_path):
        yield made


async def _world(server: RedisServer, also_in: str, folder: Path) -> AsyncIterator[World]:
    made = World(server, also_in, folder)
    yield made
    for replica in made.replicas:
        await replica.tiers.aclose()


def key(number: int) -> bytes:
    return random.Random(number).randbytes(32)


async def test_what_one_keeps_another_finds(world: World) -> None:
    one, two = await world.replica(), await world.replica()
    assert (await one.look(key(1)))[0] == ""
    await one.keep(key(1), "an answer " * 10_000)
    held = two.cache()
    assert (await two.look(key(1), cache=held))[0] == "an answer " * 10_000
    assert held.find(key(1)) is not None  # it is in memory from now on
    assert (await one.behind.backend.held()).entries == 1
    assert (await one.behind.backend.held()).bytes < 10_000  # compressed


async def test_nothing_crosses_tenants_models_or_keys(world: World) -> None:
    """What each of 60 places holds is found there and nowhere else, whatever was asked before."""
    replicas = [await world.replica() for _ in range(2)]
    chance, kept = random.Random(7), dict[tuple[str, str, bytes], str]()
    places = [(tenant, model, key(number)) for tenant in TENANTS for model in ("m", "n") for number in range(10)]
    for _ in range(400):
        replica, place = chance.choice(replicas), chance.choice(places)
        tenant, model, name = place
        # in truth the key of an answer differs by tenant and model, too: here it does not, and the binding alone keeps them apart
        found, _ = await replica.look(name, tenant, replica.cache(model))
        assert found in ("", kept.get(place))
        if chance.random() < 0.3:
            kept[place] = f"{tenant}/{model}/{name.hex()}/{chance.random()}"
            await replica.keep(name, kept[place], tenant, replica.cache(model))
    assert sum(one.behind.counted.foreign for one in replicas) > 0
    assert sum(one.behind.counted.hits for one in replicas) > 0


@pytest.mark.parametrize("purge", [("m", None), (None, "acme"), ("m", "acme"), (None, None)])
async def test_a_purge_counts_for_all_and_for_answers_under_way(world: World, purge: tuple[str | None, str | None]) -> None:
    one, two = await world.replica(), await world.replica()
    held, (_, marks) = one.cache(), await one.look(key(1))
    for number in range(1200):
        held.store(key(number), Answer([], False, [b"before"]), "acme", held.epoch, marks)
    await reached(lambda: one.behind.counted.stored == 1200)
    await one.keep(key(5000), "beta's", "beta", one.cache("n"))
    _, marks = await two.look(key(9000))
    assert await one.behind.backend.purge(*purge, None, dry_run=True) == 1200 + (purge == (None, None))
    gone = asyncio.ensure_future(one.behind.backend.purge(*purge, None, dry_run=False))
    await asyncio.sleep(0.0)
    while not gone.done():
        await two.look(key(5))
    assert await gone == 1200 + (purge == (None, None))
    assert (await two.look(key(1199)))[0] == ""
    assert (await two.look(key(5000), "beta", two.cache("n")))[0] == ("" if purge == (None, None) else "beta's")
    refused = two.behind.counted.refused
    two.cache().store(key(9000), Answer([], False, [b"from before"]), "acme", two.cache().epoch, marks)
    await reached(lambda: two.behind.counted.refused > refused)
    assert (await one.look(key(9000)))[0] == ""


async def test_a_purge_of_one_answer(world: World) -> None:
    one = await world.replica()
    await one.keep(key(1), "one")
    await one.keep(key(2), "two")
    assert await one.behind.backend.purge(None, "beta", key(1), dry_run=False) == 0
    assert await one.behind.backend.purge(None, None, key(1), dry_run=False) == 1
    assert [(await one.look(key(number)))[0] for number in (1, 2)] == ["", "two"]


async def test_bounds_hold_over_all_who_share_it(world: World) -> None:
    one, two = [await world.replica(max_entries=50, max_bytes=1024 * 1024) for _ in range(2)]
    for number in range(60):
        await (one, two)[number % 2].keep(key(number), str(number))
    assert (await one.behind.backend.held()).entries == 50
    assert (await two.look(key(0)))[0] == ""
    assert (await two.look(key(59)))[0] == "59"
    for number in range(100, 120):
        await one.keep(key(number), random.Random(number).randbytes(70_000).hex(), cache=one.cache(compress_above=0))
    held = await one.behind.backend.held()
    assert held.bytes <= 1024 * 1024
    assert held.entries <= 8
    assert one.behind.counted.evicted + two.behind.counted.evicted >= 60


async def test_a_shredded_tenant_s_answers_open_no_more(world: World) -> None:
    keys = {"acme": ("dk-1", b"1" * 32), "beta": ("dk-2", b"2" * 32)}
    one = await world.replica(keys.get)
    await one.keep(key(1), "acme's")
    await one.keep(key(2), "beta's", "beta")
    del keys["acme"]
    assert (await one.look(key(1)))[0] == ""
    keys["acme"] = ("dk-3", b"3" * 32)
    assert (await one.look(key(1)))[0] == ""
    assert (await one.look(key(2), "beta"))[0] == "beta's"
    other = await world.replica({"acme": ("dk-1", b"x" * 32)}.get)  # somebody who knows the id, but not the key
    assert (await other.look(key(1)))[0] == ""


async def test_another_version_of_model_or_guardrails_has_other_keys(world: World) -> None:
    """What is found is found by its key, and that has the version of the model and its guardrails."""
    one = await world.replica()
    before, after = one.cache(version=b"1"), one.cache(version=b"2")
    await one.keep(before.key(CALLER, chat()), "old", cache=before)
    assert (await one.look(before.key(CALLER, chat()), cache=before))[0] == "old"
    assert (await one.look(after.key(CALLER, chat()), cache=after))[0] == ""


async def test_what_others_write_into_redis_is_never_an_answer(redis: World) -> None:
    one = await redis.replica()
    await one.keep(key(1), "mine")
    await one.keep(key(2), "beta's", "beta")
    line = one.tiers._keeper._connection if one.tiers._keeper is not None else None
    assert line is not None
    entry = [redis.base.encode() + b"e:" + key(number) for number in (1, 2)]
    mine, other = await line.ask("GET", entry[0]), await line.ask("GET", entry[1])
    for forged in (other, mine[:-1], mine + b"x", b"", b"\x01", mine[:3] + b"\xff" + mine[4:], b"x" * 100_000):
        await line.ask("SET", entry[0], forged)
        assert (await one.look(key(1)))[0] == ""
    await line.ask("DEL", entry[0])
    for words in (("LPUSH", entry[0], "x"), ("SET", redis.base + "marks", "x")):  # of another type: an error, not an answer
        await line.ask(*words)
        one.behind._paused = 0.0
        assert (await one.look(key(1)))[0] == ""
        await line.ask("DEL", words[1])
    one.behind._paused = 0.0
    await line.ask("SET", entry[0], mine)  # put back, but Redis has lost the marks
    assert (await one.look(key(1)))[0] == ""


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1", b"\x91" * 50_000, msgspec.msgpack.encode("text")], ids=["empty", "no msgpack", "deep", "text"]
)
async def test_what_others_write_about_an_answer_holds_nothing_up(redis: World, garbage: bytes) -> None:
    one = await redis.replica(max_entries=2)
    failed = one.behind.counted.failed
    line = one.tiers._keeper._connection if one.tiers._keeper is not None else None
    assert line is not None
    for number in range(4):  # the third takes the place of the first
        await one.keep(key(number), str(number))
        assert (await one.look(key(number)))[0] == str(number)
        await line.ask("HSET", redis.base + "info", key(number), garbage)
    assert (await one.behind.backend.held()).entries == 2 and one.behind.counted.failed == failed
    assert await one.behind.backend.purge(None, None, None, dry_run=False) == 2
    assert (await one.behind.backend.held()).entries == 0


async def test_a_frozen_redis_costs_one_wait_and_then_nothing(redis: World) -> None:
    one, two = await redis.replica(), await redis.replica()
    await two.keep(key(1), "an answer")
    assert (await one.look(key(1)))[0] == "an answer"
    redis.server.freeze()
    one.behind._patience = 0.2
    try:
        assert await one.look(key(1)) == ("", b"")
        assert one.behind.counted.late == 1, "it was not waited for"
        assert not one.behind.up
        assert [one.cache().look(key(1), "acme") for _ in range(1000)] == [None] * 1000
    finally:
        one.behind._patience = 30.0
        redis.server.thaw()
    await reached(lambda: one.behind.up)
    await reached(lambda: one.cache().look(key(1), "acme"))
    assert (await two.look(key(1)))[0] == "an answer"


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
async def test_a_full_redis_gives_what_it_has_and_is_purged_like_any_other(redis: World, policy: str) -> None:
    one, two = [await redis.replica(policy=policy) for _ in range(2)]
    for number in range(3):
        await one.keep(key(number), str(number))
    try:
        redis.redis("CONFIG", "SET", "maxmemory", "1")
        assert [(await two.look(key(number)))[0] for number in range(3)] == ["0", "1", "2"]
        await one.keep(key(3), "no room")
        assert one.behind.counted.dropped + one.behind.counted.refused == 1
        assert await one.look(key(4), "beta") != ("", b"")  # a tenant without marks yet
        assert await one.behind.backend.purge(None, None, key(0), dry_run=False) == 1
        assert await one.behind.backend.purge(None, "acme", None, dry_run=False) == 2
        assert [(await two.look(key(number)))[0] for number in range(4)] == ["", "", "", ""]
    finally:
        redis.redis("CONFIG", "SET", "maxmemory", "0")
    one.behind._unwritable = 0.0
    await one.keep(key(1), "after")
    assert (await two.look(key(1)))[0] == "after"


async def test_a_redis_that_restarts_begins_empty_and_works_again(redis: World) -> None:
    one = await redis.replica()
    await one.keep(key(1), "before")
    assert b"OK" in redis.redis("SCRIPT", "FLUSH")
    assert await one.look(key(1)) == ("", b"")  # the script is sent again
    one.behind._paused = 0.0
    assert (await one.look(key(1)))[0] == "before"
    await asyncio.to_thread(redis.server.stop)
    await reached(lambda: not one.behind.up)
    assert one.cache().look(key(1), "acme") is None
    await asyncio.to_thread(redis.server.start)
    await reached(lambda: one.behind.up)
    assert (await one.look(key(1)))[0] == ""
    await one.keep(key(1), "after")
    assert (await one.look(key(1)))[0] == "after"
