"""Opaque tokens: what an issuer's answer is worth, how long, and what it costs the issuer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import Overloaded
from gateway.core.secret import Secret
from gateway.core.specs.identity import ClaimsSpec, IntrospectionSpec, OidcSpec
from gateway.core.types import Peer, Principal
from gateway.identity import introspection
from gateway.identity.introspection import IntrospectionAuthenticator

ISSUER = "https://idp.example"
PEER = Peer("192.0.2.1")


class Issuer:
    """An authenticator over an issuer in the test's hands."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.answer: dict[str, Any] = {"active": True, "sub": "ann", "tenant": "t", "aud": "gatehouse", "exp": self.clock.wall() + 600}
        self.away: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.asked: list[bytes] = []
        asking = IntrospectionSpec(url=f"{ISSUER}/introspect", client_id="gw", client_secret=Secret("s"), **settings)
        spec = OidcSpec(
            name="corp", issuer=ISSUER, audiences=("gatehouse",), claims=ClaimsSpec(), require={"vip": True} if "vip" in settings else {}
        )
        self.made = IntrospectionAuthenticator(spec, asking, self.clock)
        self.made._question = self._question  # type: ignore[method-assign]

    async def _question(self, value: bytes) -> dict[str, Any]:
        self.asked.append(value)
        if self.gate is not None:
            await self.gate.wait()
        if self.away is not None:
            raise self.away
        return self.answer

    async def who(self, token: bytes = b"opaque") -> Principal | None:
        found = self.made.authenticate({b"authorization": b"Bearer " + token}, PEER)
        return await found if isinstance(found, Awaitable) else found


async def test_what_is_believed_is_asked_again_in_time_and_stays_one_object() -> None:
    issuer = Issuer(cache=30.0)
    first = await issuer.who()
    assert first is not None and (first.id, first.tenant, first.kind) == ("ann", "t", "oidc")
    issuer.clock.advance(29)
    assert await issuer.who() is first and len(issuer.asked) == 1
    issuer.clock.advance(2)
    issuer.answer = {**issuer.answer, "exp": issuer.clock.wall() + 900}
    assert await issuer.who() is first and len(issuer.asked) == 2, "the same caller stays the same object"
    issuer.clock.advance(31)
    issuer.answer = {**issuer.answer, "groups": ["new"]}
    changed = await issuer.who()
    assert changed is not None and changed is not first and changed.groups == ("new",)
    issuer.clock.advance(31)
    issuer.answer = {"active": False}
    assert await issuer.who() is None


async def test_a_token_that_ends_earlier_is_not_believed_until_the_cache_ends() -> None:
    issuer = Issuer(cache=600.0)
    issuer.answer["exp"] = issuer.clock.wall() + 5
    assert await issuer.who() is not None
    issuer.clock.advance(6)
    issuer.answer = {"active": False}
    assert await issuer.who() is None and len(issuer.asked) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"active": False},
        {"aud": "other"},
        {"aud": None},
        {"aud": ["other", 7]},
        {"iss": "https://other.example"},
        {"exp": 1},
        {"exp": "soon"},
        {"nbf": 4e9},
        {"token_type": "DPoP"},
        {"cnf": {"jkt": "x"}},
        {"sub": 7},
        {"tenant": ""},
        {"tenant": "a\nb"},
    ],
)
async def test_answers_that_are_worth_nothing(more: dict[str, Any]) -> None:
    issuer = Issuer()
    issuer.answer |= more
    if more.get("aud", "") is None:
        del issuer.answer["aud"]
    assert await issuer.who() is None
    assert await issuer.who() is None and len(issuer.asked) == 1, "a refusal is remembered too"
    issuer.clock.advance(introspection.REFUSED_SECONDS + 1)
    await issuer.who()
    assert len(issuer.asked) == 2


async def test_an_answer_without_an_audience_counts_where_the_settings_say_so() -> None:
    issuer = Issuer(check_audience=False)
    del issuer.answer["aud"]
    assert await issuer.who() is not None
    other = Issuer(check_audience=False)
    other.answer["aud"] = "other"
    assert await other.who() is None, "one that names another audience never does"


@pytest.mark.parametrize("fault", [ValueError("status 500"), RecursionError("nested too deep")])
async def test_an_issuer_that_is_away_refuses_nobody_for_good(caplog: pytest.LogCaptureFixture, fault: Exception) -> None:
    issuer = Issuer()
    issuer.away = fault
    for _ in range(2):
        with pytest.raises(Overloaded) as caught:
            await issuer.who()
        assert (caught.value.status, caught.value.code) == (503, "issuer_unavailable")
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1 and "opaque" not in caplog.text
    issuer.away = None
    assert await issuer.who() is not None


async def test_one_question_at_a_time_about_a_token_and_a_bounded_number_in_all() -> None:
    issuer = Issuer()
    issuer.gate = asyncio.Event()
    same = [asyncio.ensure_future(issuer.who()) for _ in range(10)]
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(issuer.who(b"t%d" % number)) for number in range(introspection.FLIGHTS - 1)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await issuer.who(b"one-too-many")
    issuer.gate.set()
    found = await asyncio.gather(*same)
    assert found[0] is not None and all(one is found[0] for one in found)
    await asyncio.gather(*others)
    assert len(issuer.asked) == introspection.FLIGHTS


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introspection, "REMEMBERED", 3)
    issuer = Issuer()
    for number in range(5):
        await issuer.who(b"t%d" % number)
    assert len(issuer.made._known) == 3


@pytest.mark.parametrize("token", [b"eyJhbGciOiJub25lIn0.eyJ.x", b"a b", b"\xff", b"x" * 20_000, b"a\x00b", "ü".encode()])
async def test_what_cannot_be_such_a_token_is_never_sent(token: bytes) -> None:
    issuer = Issuer()
    assert await issuer.who(token) is None and issuer.asked == []
