"""Which tokens count, with an issuer that answers from memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import AuthenticationError, Overloaded
from gateway.core.specs import ClaimsSpec, OidcSpec
from gateway.core.types import Peer, Principal
from gateway.identity.jwks import COOLDOWN, DOUBT, MAX_STALE
from gateway.identity.oidc import OidcAuthenticator
from tests.unit.gateway.identity.issuing import ED, ISSUER, NOW, OTHER_RSA, RSA, jwk, jwks, token
from tests.waiting import reached

PEER = Peer("192.0.2.1")


class Time:
    def __init__(self) -> None:
        self.now = NOW

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class World:
    """An authenticator over one issuer whose answer is `keys`."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Time()
        spec = OidcSpec(name="corp", issuer=ISSUER, audiences=("gatehouse",), claims=ClaimsSpec(), **settings)
        self.oidc = OidcAuthenticator(spec, self.clock)
        self.ring = self.oidc._issuer.keys
        self.keys = jwks(jwk(RSA, "RS256"))
        self.ring._fetch = self._fetch

        self.down = False
        self.hold: asyncio.Event | None = None

    async def _fetch(self) -> bytes:
        if self.down:
            raise ConnectionError("refused")
        answer = self.keys
        if self.hold is not None:
            await self.hold.wait()
        return answer

    async def __aenter__(self) -> World:
        await self.oidc.start()
        await reached(lambda: self.ring.fetches == 1 and self.ring._flight is None)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.oidc.aclose()

    async def login(self, value: bytes) -> Principal | None:
        found = self.oidc.authenticate({b"authorization": b"Bearer " + value}, PEER)
        return found if found is None or isinstance(found, Principal) else await found

    async def refused(self, value: bytes) -> str:
        with pytest.raises(AuthenticationError) as caught:
            await self.login(value)
        assert caught.value.status == 401 and "www-authenticate" in dict(caught.value.headers)
        return caught.value.code


async def test_a_good_token() -> None:
    async with World() as world:
        caller = await world.login(token())
        assert caller is not None and (caller.id, caller.tenant, caller.groups, caller.kind) == ("alice", "acme", ("engineers",), "oidc")
        assert await world.login(token()) is caller, "verified once"
        assert await world.login(token({"jti": "2"})) is not caller


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "other"},
        {"aud": None},
        {"aud": ["other", 5]},
        {"aud": {"gatehouse": 1}},
        {"exp": None},
        {"exp": "never"},
        {"exp": True},
        {"exp": 1e300},
        {"exp": NOW + 10 * 365 * 86400},
        {"exp": -5},
        {"nbf": NOW + 31},
        {"nbf": "soon"},
        {"iat": NOW + 31},
        {"iat": {}},
        {"tenant": None},
        {"sub": None},
        {"nonce": "n"},
        {"at_hash": "h"},
        {"typ": "ID"},
        {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}},
    ],
)
async def test_tokens_that_do_not_count(claims: dict[str, Any]) -> None:
    async with World() as world:
        assert await world.refused(token(claims)) == "invalid_credentials"


@pytest.mark.parametrize(("kind", "claims", "counts"), [
    ("at+jwt", {"scope": None}, True),
    ("application/AT+JWT", {}, True),
    ("JWT", {}, True),
    (None, {}, True),
    ("JWT", {"scope": None}, False),
    ("JWT", {"scope": None, "client_id": "web"}, True),
    ("logout+jwt", {}, False),
    ("dpop+jwt", {}, False),
    ("id_token+jwt", {}, False),
])  # fmt: skip
async def test_only_access_tokens_are_access_tokens(kind: str | None, claims: dict[str, Any], counts: bool) -> None:
    async with World() as world:
        value = token(claims, typ=kind)
        if counts:
            assert await world.login(value) is not None
        else:
            assert await world.refused(value) == "invalid_credentials"


async def test_an_expired_token_is_told_so_and_only_a_genuine_one() -> None:
    async with World() as world:
        assert await world.login(token()) is not None
        world.clock.now += 700
        assert await world.refused(token()) == "expired_token"
        assert await world.refused(token(key=OTHER_RSA)) == "invalid_credentials"
        assert await world.refused(token({"aud": "other"})) == "invalid_credentials"


async def test_leeway_is_for_the_clocks() -> None:
    async with World() as world:
        assert await world.login(token({"nbf": NOW + 29, "exp": NOW - 29})) is not None
        assert await world.refused(token({"exp": NOW - 31})) == "expired_token"


async def test_the_algorithm_is_the_settings_choice() -> None:
    async with World(algorithms=("ES256",)) as world:
        assert await world.refused(token()) == "invalid_credentials"


async def test_other_issuers_and_credentials_are_left_to_others() -> None:
    async with World() as world:
        assert await world.login(token({"iss": "https://other.example"})) is None
        assert await world.login(token({"iss": [ISSUER]})) is None
        assert await world.login(b"gh_" + b"x" * 39) is None
        assert world.oidc.authenticate({b"authorization": b"Basic eyJ.a.b"}, PEER) is None
        assert world.oidc.authenticate({}, PEER) is None


async def test_required_claims() -> None:
    async with World(require={"email_verified": True}) as world:
        assert await world.refused(token()) == "invalid_credentials"
        assert await world.login(token({"email_verified": True})) is not None


async def test_a_rotation_fails_no_request_and_a_withdrawn_key_stops_at_once() -> None:
    async with World() as world:
        old, new = token(), token(key=ED, alg="EdDSA", kid="k2")
        assert await world.login(old) is not None
        world.keys = jwks(jwk(RSA, "RS256"), jwk(ED, "EdDSA", "k2"))
        assert await world.login(new) is not None and await world.login(old) is not None
        world.keys = jwks(jwk(ED, "EdDSA", "k2"))
        world.clock.now += 31
        assert await world.refused(token(kid="k9")) == "invalid_credentials"
        assert await world.refused(old) == "invalid_credentials" and await world.login(new) is not None


async def test_a_new_key_with_the_name_of_an_old_one_counts_at_once() -> None:
    async with World() as world:
        old, new, forged = token(), token(key=OTHER_RSA), token(key=ED, alg="EdDSA")
        assert await world.login(old) is not None
        world.keys = jwks(jwk(OTHER_RSA, "RS256"))
        assert await world.login(new) is not None and await world.refused(old) == "invalid_credentials"
        assert await world.refused(forged) == "invalid_credentials" and world.ring.fetches == 2
        world.keys = jwks(jwk(OTHER_RSA, "RS256"), jwk(ED, "EdDSA", "k2"))
        assert await world.login(token(key=ED, alg="EdDSA", kid="k2")) is not None, "a wrong signature holds no rotation up"
        world.clock.now += DOUBT
        assert [await world.refused(old) for _ in range(3)] == ["invalid_credentials"] * 3 and world.ring.fetches == 4


async def test_tokens_that_wait_for_a_refresh_of_before_the_rotation_have_one_fetch_of_their_own() -> None:
    world = World()
    world.hold = asyncio.Event()
    await world.oidc.start()
    try:
        await reached(lambda: world.ring.fetches == 1)
        waiting = [asyncio.ensure_future(world.login(token({"jti": str(number)}, key=ED, alg="EdDSA", kid="k2"))) for number in range(50)]
        await reached(lambda: len(world.oidc._tasks) >= 50)
        world.keys = jwks(jwk(RSA, "RS256"), jwk(ED, "EdDSA", "k2"))
        world.hold.set()
        assert None not in await asyncio.gather(*waiting)
        assert world.ring.fetches == 2
        assert await world.refused(token(kid="k9")) == "invalid_credentials" and world.ring.fetches == 2
    finally:
        await world.oidc.aclose()


async def test_an_issuer_that_cannot_be_reached_makes_no_credential_wrong() -> None:
    async def unavailable(value: bytes) -> bool:
        with pytest.raises(Overloaded) as caught:
            await world.login(value)
        return (caught.value.status, caught.value.code) == (503, "issuer_unavailable")

    world = World()
    world.down = True
    async with world:
        assert await unavailable(token()) and await unavailable(token()), "with a fetch, and within the time without another"
        assert world.ring.fetches == 2
        world.down = False
        world.clock.now += COOLDOWN
        assert await world.login(token()) is not None
        world.down = True
        world.clock.now += COOLDOWN
        assert await unavailable(token(kid="k2")), "it may be one of today"
        assert await world.login(token()) is not None and await world.refused(token(key=OTHER_RSA)) == "invalid_credentials"
        world.clock.now += MAX_STALE + 1
        assert await unavailable(token({"exp": world.clock.now + 60}))


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.identity.oidc.REMEMBERED", 8)
    async with World() as world:
        for number in range(20):
            assert await world.login(token({"jti": str(number)})) is not None
        assert len(world.oidc._known) == 8
