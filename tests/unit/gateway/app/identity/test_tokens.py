"""The keys of gateway tokens over a real store: made once, rotated with overlap, erased, withdrawn; what is signed is recorded first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.identity.revocations import RevocationBook
from gateway.app.identity.tokens import KIND, PUBLISH_SECONDS, SLACK_SECONDS, TokenService
from gateway.core.batches import Creator
from gateway.core.clock import FakeClock
from gateway.core.errors import AuditUnavailable, AuthenticationError, LimitExceeded, NotFound, RequestError
from gateway.core.specs import GatewayTokensSpec, IdentitySpec
from gateway.core.specs.identity import MAX_TOKEN_SECONDS
from gateway.core.tasks import TaskOwner
from gateway.core.tokens import Grant, Mint
from gateway.core.types import EventRecord, Peer, Principal
from gateway.core.waiting import Signal
from gateway.identity import keys as key_texts
from gateway.identity.gateway_tokens import GatewayTokenAuthenticator
from gateway.identity.revocations import Revocations
from gateway.identity.token_keys import TokenKeys
from gateway.store.store import Store
from tests.stores import migrated

SPEC = GatewayTokensSpec(issuer="https://gw.example", ttl=600.0, rotate=7 * 86400.0)


class Log:
    """An audit log that takes records, or does not."""

    def __init__(self) -> None:
        self.accepting, self.records = True, list[EventRecord]()

    def event(self, record: EventRecord) -> Signal[None]:
        self.records.append(record)
        done: Signal[None] = Signal()
        done.set(None)
        return done


class Replica:
    """One process on the store."""

    def __init__(self, store: Store, clock: FakeClock, spec: GatewayTokensSpec = SPEC, ahead: float | None = 0.0) -> None:
        self.ahead = ahead
        self.public, self.log = TokenKeys(), Log()
        self.spec, self.clock = spec, clock
        owner, self.revoked = TaskOwner("test"), Revocations()
        book = RevocationBook(store, self.revoked, IdentitySpec, owner, clock)
        self.service = TokenService(store, self.public, self.log, lambda: self.spec, owner, book, clock, ahead=lambda: self.ahead)  # type: ignore[arg-type]
        self.door = GatewayTokenAuthenticator(spec, clock, self.public, Revocations())

    async def mint(self, **grant: Any) -> str:
        wanted = Mint(grant=Grant(**{"subject": "alice", "tenant": "acme", **grant}), method="login", peer="192.0.2.1", request_id="r")
        return (await self.service.mint(wanted)).token.reveal()

    def knows(self, token: str) -> bool:
        try:
            found = self.door.authenticate({b"authorization": b"Bearer " + token.encode()}, Peer("192.0.2.1"))
        except AuthenticationError:
            return False
        return isinstance(found, Principal)

    def states(self) -> list[str]:
        return [view["state"] for view in self.service.views()]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), key_texts, deadline=60.0)
    await made.start()
    yield made
    await made.aclose()


async def two(store: Store) -> tuple[Replica, Replica, FakeClock]:
    clock = FakeClock()
    one, other = Replica(store, clock), Replica(store, clock)
    for replica in (one, other):
        await replica.service.start()
    return one, other, clock


async def test_replicas_that_start_together_share_the_first_key(store: Store) -> None:
    one, other, _ = await two(store)
    await asyncio.gather(one.service.look(), other.service.look())
    await one.service.start()
    await other.service.start()
    assert one.public.rows == other.public.rows and len(one.public.rows) in (1, 2)
    assert other.knows(await one.mint()) and one.knows(await other.mint())


async def test_the_private_part_is_sealed_in_the_store(store: Store) -> None:
    one, _, _ = await two(store)
    await one.service.look()
    page = await store.list(KIND)
    body = page.items[0].body
    assert str(body["sealed"]).startswith("sealed:1:") and set(body) == {"x", "sealed", "signs_from"}


async def test_a_rotation_leaves_every_valid_token_valid(store: Store) -> None:
    one, other, clock = await two(store)
    await one.service.look()
    await other.service.start()
    before = await one.mint()
    clock.advance(SPEC.rotate - PUBLISH_SECONDS + 1)
    await one.service.look()
    await other.service.start()
    assert one.states() == ["signing", "next"], "it is published before it signs"
    old = await one.mint()
    assert other.knows(old) and not other.knows(before), "that one has expired"
    clock.advance(PUBLISH_SECONDS)
    new = await other.mint()
    assert one.states() == ["former", "signing"]
    assert one.knows(new) and one.knows(old) and other.knows(old)


async def test_what_no_longer_signs_is_erased_and_later_forgotten(store: Store) -> None:
    one, _, clock = await two(store)
    await one.service.look()
    await one.service.rotate(0.0, "root")
    clock.advance(SLACK_SECONDS + 1)
    await one.service.look()
    assert [("sealed" in item.body) for item in (await store.list(KIND)).items] == [False, True]
    await one.service.start()
    clock.advance(MAX_TOKEN_SECONDS + 2 * SLACK_SECONDS)
    await one.service.look()
    assert len((await store.list(KIND)).items) == 1


async def test_a_withdrawn_key_ends_its_tokens_and_another_one_signs(store: Store) -> None:
    one, _, _ = await two(store)
    await one.service.look()
    token = await one.mint()
    assert one.knows(token)
    principal = one.door.authenticate({b"authorization": b"Bearer " + token.encode()}, Peer("192.0.2.1"))
    assert isinstance(principal, Principal)
    maker = Creator.of_batch(principal, Peer("192.0.2.1"), ())

    def ended() -> bool:
        return any(one.revoked.refuses(*each) for each in maker.tokens())

    assert not ended()
    await one.service.rotate(0.0, "root")
    assert not ended() and one.knows(token)
    await one.service.withdraw(principal.login.signer, "root", dry_run=True)  # type: ignore[union-attr]
    assert not ended()
    await one.service.withdraw(principal.login.signer, "root")  # type: ignore[union-attr]
    assert ended(), "what was made with its tokens and outlives them"
    assert not one.knows(token) and one.knows(await one.mint())
    with pytest.raises(NotFound):
        await one.service.withdraw("nonsense", "root")


async def test_nothing_is_signed_that_is_not_recorded(store: Store) -> None:
    one, _, _ = await two(store)
    token = await one.mint(scope=("infer:chat",), actors=("bot",))
    record = one.log.records[-1]
    assert (record.event, record.actor) == ("token_issued", "acme/alice") and record.detail is not None
    assert record.detail["scope"] == ["infer:chat"] and record.detail["actors"] == ["bot"]
    assert not any(part in str(record) for part in token.split("."))
    one.log.accepting = False
    with pytest.raises(AuditUnavailable):
        await one.mint()


async def test_one_subject_cannot_have_endless_tokens(store: Store) -> None:
    one, _, clock = await two(store)
    with pytest.raises(LimitExceeded):
        for _ in range(100):
            await one.mint()
    await one.mint(subject="bob")
    clock.advance(2)
    await one.mint()


async def test_a_life_that_is_over_is_refused(store: Store) -> None:
    one, _, clock = await two(store)
    with pytest.raises(RequestError):
        await one.mint(latest=clock.wall() + 0.2)


async def test_without_an_issuer_nothing_is_made(store: Store) -> None:
    clock = FakeClock()
    one = Replica(store, clock, GatewayTokensSpec())
    await one.service.start()
    await one.service.look()
    assert not one.service.views()
    with pytest.raises(NotFound):
        await one.mint()
    with pytest.raises(RequestError):
        await one.service.rotate(0.0, "root")


async def test_keys_come_and_go_by_the_clock_of_the_store(store: Store) -> None:
    """A replica whose own clock is two days ahead neither signs early nor erases what others sign and verify with."""
    a, _, clock = await two(store)
    await a.service.look()
    token = await a.mint()
    await a.service.rotate(0.0, "test")
    fast = FakeClock()
    b = Replica(store, fast, ahead=None)
    await b.service.start()
    fast.advance(2 * 86400.0)
    await b.service.look()
    assert b.states() == ["former", "signing"] and a.knows(token), "how far it is off is not known yet"
    b.ahead = 2 * 86400.0
    await b.service.rotate(PUBLISH_SECONDS, "test")
    await b.service.look()
    await a.service.start()
    assert a.states() == b.states() == ["former", "signing", "next"] and a.knows(token)
    clock.advance(PUBLISH_SECONDS)
    fast.advance(PUBLISH_SECONDS)
    assert a.states() == b.states() == ["former", "former", "signing"]
