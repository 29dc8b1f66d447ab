"""The keys of an issuer, and how rarely they are fetched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.identity import jwks
from gateway.identity.jose import Malformed
from gateway.identity.jwks import COOLDOWN, MAX_KEYS, MAX_STALE, KeyRing
from tests.unit.gateway.identity.issuing import EC, ED, OTHER_RSA, RSA, jwk
from tests.unit.gateway.identity.issuing import jwks as document
from tests.waiting import reached


class Provider:
    """Answers with what it is told to; counts. hold: answers only once it is set."""

    def __init__(self) -> None:
        self.answer: bytes | Exception = document(jwk(RSA, "RS256"))
        self.calls = 0
        self.hold: asyncio.Event | None = None

    async def fetch(self) -> bytes:
        self.calls += 1
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
async def ring(provider: Provider, clock: Time) -> AsyncIterator[KeyRing]:
    changes: list[int] = []
    made = KeyRing("corp", provider.fetch, clock, lambda: changes.append(1))
    made.changes = changes  # type: ignore[attr-defined]
    await made.start()
    await reached(lambda: made.fetches == 1 and made._flight is None)
    yield made
    await made.aclose()


async def test_keys_are_there_before_the_first_token(ring: KeyRing) -> None:
    assert ring.known("k1", "RS256") is not None and ring.known("k1", "RS256") is ring.known("k1", "RS256")
    assert ring.known("k2", "RS256") is None
    with pytest.raises(Malformed):
        ring.known("k1", "ES256")


async def test_ten_thousand_unknown_keys_cost_one_fetch(ring: KeyRing, provider: Provider, clock: Time) -> None:
    provider.hold = asyncio.Event()
    waiting = [ring.fetched() for _ in range(10_000)]
    assert all(one is not None for one in waiting)
    provider.hold.set()
    await asyncio.gather(*(one for one in waiting if one is not None))
    assert provider.calls == 2 and ring.fetched() is None
    clock.now += COOLDOWN - 1
    assert ring.fetched() is None
    clock.now += 1
    fetch = ring.fetched()
    assert fetch is not None
    await fetch
    assert provider.calls == 3


async def test_a_rotated_key_is_found_by_the_first_token_that_names_it(ring: KeyRing, provider: Provider) -> None:
    provider.answer = document(jwk(RSA, "RS256"), jwk(EC, "ES256", "k2"))
    fetch = ring.fetched()
    assert fetch is not None
    await fetch
    assert ring.known("k2", "ES256") is not None and ring.changes == []  # type: ignore[attr-defined]


async def test_a_withdrawn_key_is_told(ring: KeyRing, provider: Provider) -> None:
    provider.answer = document(jwk(OTHER_RSA, "RS256"))
    before = ring.known("k1", "RS256")
    fetch = ring.fetched()
    assert fetch is not None
    await fetch
    assert ring.changes == [1] and ring.known("k1", "RS256") is not before  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [
        ConnectionError("refused"),
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        document(jwk(RSA, "RS256", use="enc")),
        document({"kty": "oct", "k": "c2VjcmV0", "kid": "k1"}),
        document(jwk(RSA, "RS256", key_ops=["encrypt"])),
        document(*(jwk(RSA, "RS256", f"k{number}") for number in range(MAX_KEYS + 1))),
    ],
)
async def test_an_answer_that_cannot_be_used_leaves_the_keys_as_they_are(
    ring: KeyRing, provider: Provider, clock: Time, answer: bytes | Exception
) -> None:
    provider.answer = answer
    fetch = ring.fetched()
    assert fetch is not None
    await fetch
    assert ring.known("k1", "RS256") is not None
    clock.now += MAX_STALE + 1
    assert ring.known("k1", "RS256") is None


async def test_an_issuer_that_hangs_holds_nobody_beyond_the_deadline(
    ring: KeyRing, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "FETCH_SECONDS", 0.01)
    provider.hold = asyncio.Event()
    fetch = ring.fetched()
    assert fetch is not None
    async with asyncio.timeout(60):
        await fetch
    assert ring.known("k1", "RS256") is not None


async def test_a_token_without_a_key_name_means_the_only_key_of_its_kind(ring: KeyRing, provider: Provider) -> None:
    assert ring.known(None, "RS256") is not None
    provider.answer = document(jwk(RSA, "RS256"), jwk(OTHER_RSA, "RS256", "k2"), jwk(ED, "EdDSA", None))
    fetch = ring.fetched()
    assert fetch is not None
    await fetch
    assert ring.known(None, "RS256") is None and ring.known(None, "EdDSA") is not None


async def test_a_key_that_is_published_twice_is_one_key(ring: KeyRing, provider: Provider) -> None:
    provider.answer = document(jwk(ED, "EdDSA", "k2"), jwk(RSA, "RS256"), jwk(RSA, "RS256"), {**jwk(EC, "ES256", "k3"), "alg": ["ES256"]})
    fetch = ring.fetched()
    assert fetch is not None
    await fetch
    assert ring.known("k1", "RS256") is not None and ring.known(None, "RS256") is not None
    with pytest.raises(Malformed):
        ring.known("k3", "ES256")
    provider.answer = document(jwk(RSA, "RS256"), jwk(OTHER_RSA, "RS256"), jwk(EC, "ES256"))
    await ring._refresh()
    with pytest.raises(Malformed):
        ring.known("k1", "RS256")
    assert ring.known("k1", "ES256") is not None, "another kind of key may have the name too (RFC 7517, 4.5)"
