"""Revocations over a real store: in force at once, on the other replica once it hears, bounded, cleared away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app.identity.revocations import KIND, RevocationBook
from gateway.app.replicas.membership import Clocks
from gateway.core.clock import FakeClock
from gateway.core.errors import NotFound, RequestError
from gateway.core.specs import IdentitySpec, OidcSpec
from gateway.core.storage import Resource, StoreChange
from gateway.core.tasks import TaskOwner
from gateway.identity import keys as key_texts
from gateway.identity.revocations import Revocations
from gateway.store.feed import CHANGE, RESYNC
from gateway.store.store import Store
from tests.stores import migrated
from tests.waiting import reached

IDENTITY = IdentitySpec(oidc=(OidcSpec(name="corp", issuer="https://idp.example", audiences=("x",), max_lifetime=2 * 86400.0),))


class Replica:
    def __init__(self, store: Store, clock: FakeClock, clocks: Clocks = Clocks()) -> None:  # noqa: B008 - immutable
        self.known = Revocations()
        self.book = RevocationBook(store, self.known, lambda: IDENTITY, TaskOwner("test"), clock, lambda: clocks)

    async def revoke(self, kind: str, issuer: str = "", value: str = "", before: float | None = None, dry_run: bool = False) -> Resource:
        return await self.book.revoke(kind, issuer, value, before, None, "why", "root", dry_run=dry_run)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), key_texts, deadline=60.0)
    await made.start()
    yield made
    await made.aclose()


async def test_it_is_in_force_when_the_write_returns_and_elsewhere_when_it_is_heard(store: Store) -> None:
    clock = FakeClock()
    one, other = Replica(store, clock), Replica(store, clock)
    for replica in (one, other):
        await replica.book.start()
    store.subscribe(lambda change: other.book.heard((1, CHANGE, change)))
    made = await one.revoke("token", "idp", "t1")
    assert one.known.refuses("idp", "t1", "alice", 1.0)
    await reached(lambda: other.known.refuses("idp", "t1", "alice", 1.0))
    await one.book.lift(made.name, "root", dry_run=False)
    assert not one.known.active
    await reached(lambda: not other.known.active)


async def test_a_start_and_a_gap_read_all(store: Store) -> None:
    clock = FakeClock()
    one, other = Replica(store, clock), Replica(store, clock)
    await one.book.start()
    await one.revoke("issuer", "idp")
    await other.book.start()
    assert other.known.rows() == one.known.rows()
    await one.revoke("all")
    other.book.heard((2, RESYNC, None))
    await reached(lambda: len(other.known) == 2)


async def test_revoking_again_moves_the_moment_and_never_back(store: Store) -> None:
    clock = FakeClock()
    one = Replica(store, clock)
    await one.book.start()
    first = await one.revoke("subject", "idp", "alice")
    clock.advance(10)
    again = await one.revoke("subject", "idp", "alice")
    assert again.name == first.name and again.body["before"] == clock.wall()
    earlier = await one.revoke("subject", "idp", "alice", before=1.0)
    assert earlier.body["before"] == clock.wall() and len(one.known) == 1


async def test_a_dry_run_changes_nothing(store: Store) -> None:
    one = Replica(store, FakeClock())
    await one.book.start()
    await one.revoke("all", dry_run=True)
    assert not one.known.active and not (await store.list(KIND)).items


async def test_what_is_over_is_cleared_away(store: Store) -> None:
    clock = FakeClock()
    one = Replica(store, clock)
    await one.book.start()
    store.subscribe(lambda change: one.book.heard((1, CHANGE, change)))
    made = await one.revoke("token", "idp", "t1")
    assert made.body["expires"] >= clock.wall() + 2 * 86400, "no token of the issuer can be valid for longer"
    await one.book.clear()
    assert one.known.active
    clock.advance(3 * 86400)
    await one.book.clear()
    await reached(lambda: not one.known.active)
    with pytest.raises(NotFound):
        await one.book.get(made.name)


async def test_what_was_revoked_anew_elsewhere_is_not_cleared_away(store: Store) -> None:
    clock = FakeClock()
    one, other = Replica(store, clock), Replica(store, clock)
    made = await one.revoke("token", "idp", "t1")
    clock.advance(3 * 86400)
    await other.revoke("token", "idp", "t1")  # and the first has not heard of it
    await one.book.clear()
    assert (await one.book.get(made.name)).body["expires"] > clock.wall()


async def test_of_two_moments_at_once_the_later_one_counts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    one, other = Replica(store, clock), Replica(store, clock)
    made, get = await one.revoke("subject", "idp", "alice"), store.get
    later = clock.wall() + 100.0

    async def read(kind: str, name: str) -> Resource:
        found = await get(kind, name)
        monkeypatch.setattr(store, "get", get)
        await other.revoke("subject", "idp", "alice", later)
        return found

    monkeypatch.setattr(store, "get", read)
    await one.revoke("subject", "idp", "alice", clock.wall() + 50.0)
    assert (await one.book.get(made.name)).body["before"] == later


@pytest.mark.parametrize("own", [0.0, -20.0, 25.0])
async def test_until_now_is_now_by_the_clock_that_is_furthest_ahead(store: Store, own: float) -> None:
    now, clock = FakeClock().wall(), FakeClock()
    clock.step(own)
    one = Replica(store, clock, Clocks(own, -20.0, 25.0))
    await one.book.start()
    made = await one.revoke("subject", "gw", "alice")
    assert made.body["before"] == pytest.approx(now + 25.0)
    assert one.known.refuses("gw", "t1", "alice", now + 25.0), "the replica that is ahead has just issued it"
    assert not one.known.refuses("gw", "t1", "alice", now + 26.0)


@pytest.mark.parametrize("own", [0.0, -600.0, 600.0])
async def test_a_revocation_is_over_by_the_clock_that_is_furthest_behind(store: Store, own: float) -> None:
    clock, now = FakeClock(), FakeClock().wall()
    clock.step(own)
    one = Replica(store, clock, Clocks(own, -600.0, 600.0))
    await one.book.start()
    store.subscribe(lambda change: one.book.heard((1, CHANGE, change)))
    await one.book.revoke("token", "idp", "t1", None, now + 100.0, "why", "root", dry_run=False)
    clock.advance(100.0 + 600.0 + 59.0)
    await one.book.clear()
    assert one.known.active, "the replica that is ten minutes behind has accepted the token until a minute ago"
    clock.advance(2.0)
    await one.book.clear()
    await reached(lambda: not one.known.active)


async def test_the_number_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.identity.revocations.MAX", 3)
    one = Replica(store, FakeClock())
    await one.book.start()
    for number in range(3):
        await one.revoke("token", "idp", f"t{number}")
    with pytest.raises(RequestError) as caught:
        await one.revoke("token", "idp", "t9")
    assert caught.value.code == "too_many"
    await one.revoke("token", "idp", "t1")


def test_changes_of_other_kinds_are_nothing(tmp_path: Path) -> None:
    book = RevocationBook(None, Revocations(), lambda: IDENTITY, TaskOwner("test"))  # type: ignore[arg-type]
    book.heard((1, CHANGE, StoreChange(1, "keys", "k", "revoked", 1.0)))
    book.heard((2, "event", {}))
