"""Used DPoP proofs in a real Redis: each counts once over replicas and restarts, and what happens while Redis is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from itertools import count
from pathlib import Path

import pytest

from gateway.app.identity.shared_proofs import OnFailure, SharedProofs
from gateway.app.replicas.membership import Clocks
from gateway.core.clock import Clock, FakeClock, SystemClock
from gateway.core.errors import Overloaded
from gateway.core.proofs import ClaimProof
from gateway.core.secret import Secret
from gateway.core.specs.redis import RedisSpec
from gateway.core.tasks import TaskOwner
from gateway.identity.replays import Replays
from tests.cluster.redis_servers import tell
from tests.cluster.servers import RedisServer
from tests.fakes.ports import empty_port
from tests.waiting import reached

NUMBERS = count()


class Replica:
    def __init__(self, server: RedisServer, on_failure: OnFailure, timeout: float, clock: Clock, skew: float) -> None:
        self.owner, self.mode = TaskOwner("replica"), on_failure
        spec = RedisSpec(url=Secret(f"redis://127.0.0.1:{server.port}"), timeout=timeout)
        clocks = Clocks(skew, min(skew, 0.0), max(skew, 0.0))
        self.proofs = SharedProofs(Replays(clock), spec, lambda: self.mode, self.owner, lambda: clocks, clock)

    async def claim(self, proof: ClaimProof) -> bool | str:
        try:
            found = self.proofs.claim(proof)
            return await found if isinstance(found, Awaitable) else found
        except Overloaded as error:
            return error.code


class World:
    def __init__(self, server: RedisServer) -> None:
        self.server, self.replicas = server, list[Replica]()

    async def replica(
        self, on_failure: OnFailure = "closed", timeout: float = 30.0, clock: Clock | None = None, skew: float = 0.0, up: bool = True
    ) -> Replica:
        """up: it waits for Redis for longer than a start does."""
        made = Replica(self.server, on_failure, timeout, clock or SystemClock(), skew)
        self.replicas.append(made)
        await made.proofs.start()
        if up:
            await reached(lambda: made.proofs.up)
        return made


@pytest.fixture
async def world(short_path: Path) -> AsyncIterator[World]:
    with empty_port() as port:
        server = RedisServer(short_path, port=port)
        await asyncio.to_thread(server.start)
        made = World(server)
        yield made
        for replica in made.replicas:
            await replica.proofs.aclose()
            await replica.owner.aclose()
        await asyncio.to_thread(server.stop)


def proof(id: bytes | None = None, window: float = 70.0) -> ClaimProof:
    return ClaimProof(b"thumbprint", b"%032d" % next(NUMBERS) if id is None else id, SystemClock.wall(), window, 10.0)


async def test_a_proof_counts_once_over_all_replicas(world: World) -> None:
    replicas = [await world.replica() for _ in range(3)]
    for _ in range(20):
        one = proof()
        assert sorted(await asyncio.gather(*(replica.claim(one) for replica in replicas * 3))) == [False] * 8 + [True]
    restarted = await world.replica()
    assert await restarted.claim(one) is False, "and after a restart"


async def test_redis_forgets_it_when_it_counts_no_more(world: World) -> None:
    replica = await world.replica()
    assert await replica.claim(proof(window=70.0)) is True
    keys = tell(world.server.port, "KEYS", "*")
    assert b"gatehouse:{proofs}:" in keys and b"thumbprint" not in keys
    name = keys.decode().split("\r\n")[2]
    assert 80_000 < int(tell(world.server.port, "PTTL", name).strip(b":\r\n")) <= 90_000


@pytest.mark.parametrize("skew", [0.0, -600.0, 600.0])
async def test_a_proof_that_redis_has_forgotten_counts_nowhere(world: World, skew: float) -> None:
    """Also where a replica's own clock says that it still counts."""
    clock = FakeClock()
    now = clock.wall()
    clock.step(skew)
    replica = await world.replica(clock=clock, skew=skew)
    assert await replica.claim(ClaimProof(b"thumbprint", b"old".ljust(32), now - 71.0, 70.0, 10.0)) is False
    early = ClaimProof(b"thumbprint", b"early".ljust(32), now + 21.0, 70.0, 10.0)
    assert await replica.claim(early) is False
    clock.advance(2.0)
    assert await replica.claim(early) is True


@pytest.mark.parametrize(("mode", "wanted"), [("closed", "proofs_unavailable"), ("local", True)])
async def test_a_redis_that_is_gone(world: World, mode: OnFailure, wanted: object) -> None:
    replica = await world.replica(mode)
    await asyncio.to_thread(world.server.stop)
    await reached(lambda: not replica.proofs.up)
    one = proof()
    assert await replica.claim(one) == wanted
    assert await replica.claim(one) is False, "the own table knows it"
    await asyncio.to_thread(world.server.start)
    await reached(lambda: replica.proofs.up)
    assert await replica.claim(proof()) is True and replica.proofs.unshared == 1


@pytest.mark.parametrize(("mode", "wanted"), [("closed", "proofs_unavailable"), ("local", True)])
async def test_a_redis_that_hangs_costs_one_wait(world: World, mode: OnFailure, wanted: object) -> None:
    replica = await world.replica(mode, timeout=0.05)
    await reached(lambda: replica.proofs.up)
    world.server.freeze()
    try:
        assert await replica.claim(proof()) == wanted
        assert not replica.proofs.up
        try:
            assert not isinstance(replica.proofs.claim(proof()), Awaitable), "the next one does not wait"
        except Overloaded:
            assert mode == "closed"
    finally:
        world.server.thaw()
    await reached(lambda: replica.proofs.up)
    replica.mode = "closed"

    async def shared() -> bool:
        return await replica.claim(proof()) is True

    for _ in range(50):  # one that was slow once may be so again on a busy machine
        await reached(lambda: replica.proofs.up)
        if await shared():
            break
    else:
        raise AssertionError("Redis is not asked again")


async def test_an_answer_that_came_while_the_process_stood_still_counts(world: World) -> None:
    """It lies unread when its deadline passes. Were it overdue then, nothing would ever end that: no other answer comes."""
    replica = await world.replica(timeout=0.05)
    for wanted in (1, 2, 3):
        await reached(lambda: replica.proofs.up)
        claimed = asyncio.create_task(replica.claim(proof()))
        while tell(world.server.port, "DBSIZE") != b":%d\r\n" % wanted:
            await asyncio.sleep(0)
        time.sleep(0.2)
        assert await claimed is True
        assert replica.proofs.up and replica.proofs.unshared == 0


async def test_a_gateway_starts_without_redis(world: World) -> None:
    await asyncio.to_thread(world.server.stop)
    replica = await world.replica(up=False)
    assert await replica.claim(proof()) == "proofs_unavailable"
    await asyncio.to_thread(world.server.start)
    await reached(lambda: replica.proofs.up)
    assert await replica.claim(proof()) is True


async def test_a_redis_that_refuses(world: World) -> None:
    """A full one, or one that is a replica now, says so: that is not a proof that was used before."""
    replica = await world.replica()
    tell(world.server.port, "REPLICAOF", "127.0.0.1", "1")
    assert await replica.claim(proof()) == "proofs_unavailable"
    tell(world.server.port, "REPLICAOF", "NO", "ONE")
    await reached(lambda: replica.proofs.up)
    assert await replica.claim(proof()) is True


REFUSALS = {
    "replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    "no replicas": (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
}


@pytest.mark.parametrize(("before", "after"), REFUSALS.values(), ids=list(REFUSALS))
async def test_a_redis_that_refuses_is_away_until_it_takes_writes(
    world: World, caplog: pytest.LogCaptureFixture, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """And that is said once, however many proofs and connections come meanwhile."""
    caplog.set_level(logging.INFO, "gatehouse.identity")
    replica = await world.replica()
    caplog.clear()
    tell(world.server.port, *before)
    assert await replica.claim(proof()) == "proofs_unavailable"
    proofs = replica.proofs
    for _ in range(3):
        await reached(lambda: proofs._line is not None)  # a new one, where the server is a replica
        assert not proofs.up and await replica.claim(proof()) == "proofs_unavailable"
    tell(world.server.port, *after)
    await reached(lambda: proofs.up)  # by itself
    assert await replica.claim(proof()) is True
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], caplog.text
