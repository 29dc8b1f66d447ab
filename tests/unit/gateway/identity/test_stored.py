"""The data plane's memory of the store's keys: what it asks, what it believes, what it forgets and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import FakeClock
from gateway.core.errors import Overloaded, StoreUnavailable
from gateway.core.storage import KeyRecord
from gateway.core.tasks import TaskOwner
from gateway.core.types import Peer, Principal
from gateway.core.waiting import Driver
from gateway.identity import keys
from gateway.identity.stored import GUESS_SECONDS, GUESSES, SLOW_SECONDS, StoredKeys

HERE = Peer("192.0.2.1")


def record(id: str = "k", **settings: Any) -> KeyRecord:
    fields: dict[str, Any] = {"models": ("*",), "tenant": "t", "prefix": "gh_", "version": 1, "created": 0.0, "updated": 0.0, "actor": "x"}
    return KeyRecord(id=id, **{**fields, **settings})


class Asked:
    """A store that answers when the test says so. `table`: key to record; `gate`: while it is set, answers come at once."""

    def __init__(self) -> None:
        self.table: dict[str, KeyRecord] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[str] = []
        self.error: Exception | None = None

    async def find(self, digest: bytes, key: str) -> KeyRecord | None:
        assert digest == keys.digest(key)
        self.asked.append(key)
        read = self.table.get(key)  # read now, answered later: as a slow database does
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return read


class Cache(StoredKeys):
    """With a short way to ask."""

    async def get(self, key: str, peer: Peer = HERE) -> Principal | None:
        answer = self.lookup(keys.digest(key), key, peer)
        return await answer if isinstance(answer, Awaitable) else answer

    def now(self, key: str, peer: Peer = HERE) -> Principal | None:
        """An answer that must not be waited for."""
        answer = self.lookup(keys.digest(key), key, peer)
        assert answer is None or isinstance(answer, Principal)
        return answer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store() -> Asked:
    return Asked()


@pytest.fixture
async def cache(store: Asked, clock: FakeClock) -> AsyncIterator[Cache]:
    tasks = TaskOwner("test")
    yield Cache(store.find, tasks, clock=clock, capacity=4)
    await tasks.aclose()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_known_key_is_asked_for_once_and_is_one_principal(store: Asked, cache: Cache, clock: FakeClock) -> None:
    made = record(roles=("r",), priority="batch", operations=("chat",), limits=("l",), expires=clock.wall() + 5)
    store.table["a"] = made
    principal = await cache.get("a")
    assert principal is not None
    assert (principal.id, principal.tenant, principal.kind, principal.models) == ("k", "t", "api_key", ("*",))
    assert (principal.roles, principal.priority, principal.operations, principal.limits) == (("r",), "batch", ("chat",), ("l",))
    assert principal.expires == made.expires
    assert cache.now("a") is principal and store.asked == ["a"]


async def test_an_unknown_key_is_remembered_for_seconds(store: Asked, cache: Cache, clock: FakeClock) -> None:
    assert await cache.get("a") is None
    assert cache.now("a") is None and store.asked == ["a"]
    clock.advance(5)
    store.table["a"] = record()
    assert await cache.get("a") is not None and store.asked == ["a", "a"]


async def test_many_that_ask_at_once_cost_one_question(store: Asked, cache: Cache) -> None:
    store.table["a"] = record()
    store.gate.clear()
    waiting = [asyncio.ensure_future(cache.get("a")) for _ in range(50)]
    await turns()
    waiting[7].cancel()  # one that leaves takes nobody with it
    await turns()
    store.gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers.pop(7), asyncio.CancelledError)
    assert len(set(map(id, answers))) == 1 and isinstance(answers[0], Principal)
    assert store.asked == ["a"]


async def test_what_is_waited_for_can_be_awaited_by_a_driver(store: Asked, cache: Cache) -> None:
    """The pipeline steps its coroutines without a task."""
    store.table["a"] = record()
    ended: list[BaseException | None] = []
    found: list[Principal | None] = []

    async def exchange(key: str) -> None:
        found.append(await cache.get(key))

    store.gate.clear()
    first, second = Driver(exchange("a"), ended.append), Driver(exchange("a"), ended.append)
    first.start()
    second.start()
    await turns()
    first.cancel(ValueError("gone"))
    store.gate.set()
    await turns(10)
    assert isinstance(ended[0], ValueError) and ended[1:] == [None]
    assert len(found) == 1 and found[0] is not None


@pytest.mark.parametrize("action", ["updated", "rotated", "revoked", "deleted"])
async def test_a_change_drops_the_key_at_once(store: Asked, cache: Cache, clock: FakeClock, action: str) -> None:
    store.table["a"], store.table["b"] = record("a"), record("b")
    first, other = await cache.get("a"), await cache.get("b")
    store.table["a"] = record("a", revoked=clock.wall())
    cache.changed("a", action)
    assert await cache.get("a") is None and store.asked == ["a", "b", "a"]
    assert first is not None and cache.now("b") is other
    assert cache.now("a") is None and store.asked == ["a", "b", "a"]  # a revoked key is remembered as such


async def test_an_answer_that_was_overtaken_by_a_change_is_not_believed(store: Asked, cache: Cache, clock: FakeClock) -> None:
    """The database was read before the revocation, the answer arrives after the news of it."""
    store.table["a"] = record("a")
    store.gate.clear()
    waiting = asyncio.ensure_future(cache.get("a"))
    await turns()
    store.table["a"] = record("a", revoked=clock.wall())
    cache.changed("a", "revoked")
    store.gate.set()
    assert await waiting is None and store.asked == ["a", "a"]
    assert cache.now("a") is None


async def test_a_key_made_while_it_is_looked_up_is_found(store: Asked, cache: Cache) -> None:
    store.gate.clear()
    waiting = asyncio.ensure_future(cache.get("a"))
    await turns()
    store.table["a"] = record("a")
    cache.changed("a", "created")
    store.gate.set()
    assert await waiting is not None


async def test_making_a_key_forgets_what_was_unknown(store: Asked, cache: Cache) -> None:
    assert await cache.get("a") is None
    store.table["a"] = record("a")
    cache.changed("a", "created")
    assert await cache.get("a") is not None


async def test_after_missed_changes_nothing_is_trusted(store: Asked, cache: Cache, clock: FakeClock) -> None:
    store.table["a"], store.table["b"] = record("a"), record("b")
    await cache.get("a")
    store.gate.clear()
    waiting = asyncio.ensure_future(cache.get("b"))
    await turns()
    store.table = {name: msgspec.structs.replace(r, revoked=clock.wall()) for name, r in store.table.items()}
    cache.clear()
    store.gate.set()
    assert await waiting is None and await cache.get("a") is None
    assert store.asked == ["a", "b", "b", "a"]


async def test_a_key_that_never_stops_changing_is_refused_and_not_asked_for_for_ever(store: Asked, cache: Cache) -> None:
    store.table["a"] = record("a")
    find = store.find

    async def restless(digest: bytes, key: str) -> KeyRecord | None:
        found = await find(digest, key)
        cache.changed("a", "updated")
        return found

    cache._find = restless
    with pytest.raises(StoreUnavailable):
        await cache.get("a")
    assert len(store.asked) == 5


async def test_a_change_drops_every_secret_of_a_key(store: Asked, cache: Cache, clock: FakeClock) -> None:
    """After a rotation two secrets of one key are remembered."""
    store.table["new"], store.table["old"] = record("k"), record("k", expires=clock.wall() + 60)
    assert await cache.get("new") is not None and await cache.get("old") is not None
    for secret in store.table:
        store.table[secret] = record("k", revoked=clock.wall())
    cache.changed("k", "revoked")
    assert await cache.get("new") is None and await cache.get("old") is None


async def test_a_former_secret_that_makes_room_leaves_the_present_one(store: Asked, clock: FakeClock) -> None:
    cache = Cache(store.find, TaskOwner("test"), clock=clock, capacity=2)
    store.table.update(old=record("k"), new=record("k"), other=record("o"))
    for secret in ("old", "new", "other"):
        await cache.get(secret)
    store.table["new"] = record("k", revoked=clock.wall())
    cache.changed("k", "revoked")
    assert await cache.get("new") is None and len(cache) == 1


async def test_a_rotation_forgets_what_was_unknown(store: Asked, cache: Cache) -> None:
    """The new secret may come here before the news of it."""
    assert await cache.get("new") is None
    store.table["new"] = record("k")
    cache.changed("k", "rotated")
    assert await cache.get("new") is not None


async def test_a_key_that_gets_more_time_after_its_end_works_at_once(store: Asked, cache: Cache, clock: FakeClock) -> None:
    store.table["e"] = record("e", expires=clock.wall() - 1)
    assert await cache.get("e") is None
    store.table["e"] = record("e", expires=clock.wall() + 60)
    cache.changed("e", "updated")
    assert await cache.get("e") is not None


async def test_a_key_ends_by_itself(store: Asked, cache: Cache, clock: FakeClock) -> None:
    store.table["e"] = record("e", expires=clock.wall() + 10)
    store.table["o"] = record("o", expires=clock.wall() + 100, rotated_to="n", overlap_until=clock.wall() + 10)
    assert await cache.get("e") is not None and await cache.get("o") is not None
    clock.advance(9.9)
    assert cache.now("e") is not None and cache.now("o") is not None
    clock.advance(0.1)
    assert cache.now("e") is None and cache.now("o") is None
    assert store.asked == ["e", "o"]


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.0.0.1", False),
        ("2001:db8::1", True),
        ("2001:db8::1%eth0", True),
        ("2001:db9::1", False),
        ("", False),
        ("unix", False),
    ],
)
async def test_networks(store: Asked, cache: Cache, address: str, inside: bool) -> None:
    store.table["a"] = record("a", cidrs=("10.0.0.0/8", "2001:db8::/32"))
    assert (await cache.get("a", Peer(address)) is not None) is inside
    assert (cache.now("a", Peer(address)) is not None) is inside
    assert cache.now("a", Peer("10.0.0.1")) is not None


async def test_memory_is_bounded_and_the_oldest_goes_first(store: Asked, cache: Cache) -> None:
    for number in range(10):
        store.table[f"a{number}"] = record(f"a{number}")
        await cache.get(f"a{number}")
        assert await cache.get("a0") is not None  # in use: stays
        await cache.get(f"unknown{number}", Peer(f"192.0.2.{number}"))
    assert len(cache) == 4 and len(cache._digests) == 4 and len(cache._unknown) <= 4
    before = len(store.asked)
    assert cache.now("a0") is not None and cache.now("a9") is not None
    await cache.get("a1")
    assert len(store.asked) == before + 1


@pytest.mark.parametrize("end", ["revoked", "expires", "overlap_until"])
async def test_keys_that_have_ended_do_not_pile_up(store: Asked, clock: FakeClock, end: str) -> None:
    """Keys that come and go, each used once more after its end: as a client does that has not heard of it."""
    tasks = TaskOwner("test")
    cache = Cache(store.find, tasks, clock=clock)
    for number in range(10_000):
        name = f"k{number}"
        store.table[name] = record(name)
        cache.changed(name, "created")
        assert await cache.get(name) is not None
        store.table[name] = record(name, **{end: clock.wall(), **({"rotated_to": "n"} if end == "overlap_until" else {})})
        cache.changed(name, "updated")
        assert await cache.get(name) is None and cache.now(name) is None
    assert (len(cache), len(cache._digests), len(cache._unknown)) == (0, 0, 1)
    assert len(store.asked) == 20_000, "it is remembered that a key has ended"
    clock.advance(6.0)
    assert await cache.get(name) is None and len(store.asked) == 20_001
    await tasks.aclose()


async def test_an_evicted_key_that_changes_is_no_trouble(store: Asked, cache: Cache) -> None:
    for number in range(6):
        store.table[f"a{number}"] = record(f"a{number}")
        await cache.get(f"a{number}")
    cache.changed("a0", "revoked")
    assert len(cache) == 4


async def test_a_store_that_is_away_is_no_invalid_key(store: Asked, cache: Cache) -> None:
    store.table["known"] = store.table["a"] = record("a")
    await cache.get("known")
    store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await cache.get("a")
    assert cache.now("known") is not None
    store.error = ZeroDivisionError("a bug")
    with pytest.raises(StoreUnavailable, match="could not be looked up"):
        await cache.get("a")
    store.error = None
    assert await cache.get("a") is not None


async def test_closing_ends_whoever_waits(store: Asked, clock: FakeClock) -> None:
    tasks = TaskOwner("test")
    cache = Cache(store.find, tasks, clock=clock)
    store.gate.clear()
    waiting = asyncio.ensure_future(cache.get("a"))
    await turns()
    await tasks.aclose()
    with pytest.raises(StoreUnavailable):
        await waiting


@pytest.fixture
async def slept(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The wait of those who guess is over once this is set."""
    over, sleep = asyncio.Event(), asyncio.sleep

    async def waiting(seconds: float) -> None:
        await (over.wait() if seconds == SLOW_SECONDS else sleep(seconds))

    monkeypatch.setattr(asyncio, "sleep", waiting)
    return over


async def test_a_peer_that_guesses_waits_for_each_further_key_and_is_not_turned_away(
    store: Asked, cache: Cache, clock: FakeClock, slept: asyncio.Event
) -> None:
    store.table["good"], store.table["late"], store.table["known"] = record("good"), record("late"), record("known")
    await cache.get("known")
    for number in range(GUESSES):
        assert await cache.get(f"guess{number}") is None
    before = len(store.asked)
    slow = [asyncio.ensure_future(cache.get(name)) for name in ("guess", "late")]
    await turns()
    assert len(store.asked) == before
    assert cache.now("known") is not None  # a key that is known goes on, from there too
    elsewhere = asyncio.ensure_future(cache.get("good", Peer("192.0.2.2")))
    await turns()
    assert elsewhere.done() and not slow[0].done()
    slept.set()
    guess, late = await asyncio.gather(*slow)
    assert guess is None and late is not None
    clock.advance(GUESSES * GUESS_SECONDS)
    again = asyncio.ensure_future(cache.get("another guess"))
    await turns()
    assert again.done()


async def test_good_keys_are_no_guesses(store: Asked, cache: Cache) -> None:
    for number in range(GUESSES * 3):
        store.table[f"a{number}"] = record(f"a{number}")
        assert await cache.get(f"a{number}") is not None


async def test_guesses_from_one_ipv6_network_count_together(store: Asked, cache: Cache, slept: asyncio.Event) -> None:
    for number in range(GUESSES):
        await cache.get(f"guess{number}", Peer(f"2001:db8::{number:x}:1"))
    before = len(store.asked)
    slow = asyncio.ensure_future(cache.get("one more", Peer("2001:db8::ffff")))
    other = asyncio.ensure_future(cache.get("another", Peer("2001:db8:0:1::1")))
    await turns()
    assert store.asked[before:] == ["another"] and other.done()
    slept.set()
    assert await slow is None


async def test_questions_under_way_are_bounded(store: Asked, clock: FakeClock) -> None:
    tasks = TaskOwner("test")
    cache = Cache(store.find, tasks, clock=clock, max_flights=3)
    store.gate.clear()
    waiting = [asyncio.ensure_future(cache.get(f"a{n}", Peer(f"192.0.2.{n}"))) for n in range(3)]
    await turns()
    with pytest.raises(Overloaded):
        cache.now("a9")
    store.gate.set()
    assert await asyncio.gather(*waiting) == [None] * 3
    await tasks.aclose()


async def test_used_keys_are_reported_once_a_minute(store: Asked, cache: Cache, clock: FakeClock) -> None:
    for name in ("a", "b"):
        store.table[name] = record(name)
    await cache.get("a")
    cache.now("a")
    await cache.get("unknown")
    assert cache.take_used() == {"a": clock.wall()} and cache.take_used() == {}
    cache.now("a")
    await cache.get("b")
    clock.advance(59)
    assert cache.take_used() == {"b": clock.wall()}  # the first use of a key is told at once
    clock.advance(1)
    assert cache.take_used() == {"a": clock.wall()}
    cache.now("a")
    assert cache.take_used() == {} and cache.take_used(0.0) == {"a": clock.wall()}


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "revoke", "make", "turn", "hold", "release", "miss"]), st.integers(0, 2)), min_size=1, max_size=40
)


@given(STEPS)
def test_no_revoked_key_is_ever_accepted_after_its_news(steps: list[tuple[str, int]]) -> None:
    """Any order of questions, answers, revocations and their news: what was revoked before a question began is never let in."""

    async def run() -> None:
        clock, store, tasks = FakeClock(), Asked(), TaskOwner("test")
        cache = Cache(store.find, tasks, clock=clock, capacity=2)
        revoked: set[str] = set()
        waiting: list[tuple[bool, asyncio.Task[Principal | None]]] = []
        for action, number in steps:
            name = f"k{number}"
            if action == "ask":
                waiting.append((name in revoked, asyncio.ensure_future(cache.get(name))))
            elif action == "make" and name not in store.table:
                store.table[name] = record(name)
                cache.changed(name, "created")
            elif action == "revoke" and name in store.table:
                store.table[name] = record(name, revoked=clock.wall())
                revoked.add(name)
                cache.changed(name, "revoked")
            elif action == "miss":
                cache.clear()
            elif action == "hold":
                store.gate.clear()
            elif action == "release":
                store.gate.set()
            else:
                await turns(2)
        store.gate.set()
        for was_revoked, task in waiting:
            answer = await task
            assert not (was_revoked and answer is not None)
        for name in revoked:
            assert await cache.get(name) is None
        await tasks.aclose()

    asyncio.run(run())
