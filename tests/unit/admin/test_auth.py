"""Who gets in: throttling of failures, roles of credentials and bindings, authenticators that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from admin.auth import BURST, MAX_PEERS, Gate, LoginFailed, headers_of, settled
from admin.permissions import Grant
from gateway.core.clock import FakeClock
from gateway.core.errors import AuthenticationError, LimitExceeded, RequestError, StoreUnavailable
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Signal

WHO = Principal("k", "acme", "api_key", roles=("viewer", "gone"))


class Roles:
    """A RoleBook of one role for everybody."""

    async def held(self, principal: Principal, peer: Peer) -> tuple[tuple[Grant, ...], frozenset[str]]:
        return (Grant("viewer"),), frozenset({f"denied:{peer.address}"})


ROLES: Any = Roles()


def scope(peer: str = "10.0.0.1", *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"client": (peer, 1), "headers": list(headers)}


class Fixed:
    """An authenticator that answers as told."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def authenticate(self, headers: Headers, peer: Peer) -> Any:
        return self.answer()


def reject(code: str = "invalid_api_key") -> Any:
    raise AuthenticationError(f"because {code}", code=code)


async def test_what_the_role_book_says_counts() -> None:
    access = await Gate(Fixed(lambda: WHO), ROLES, FakeClock()).enter(scope())
    assert access.grants == (Grant("viewer"),) and access.denied == {"denied:10.0.0.1"} and access.actor == "acme/k"


async def test_rejections_are_uniform_whatever_the_reason() -> None:
    texts = set()
    for code in ("invalid_api_key", "expired_token", "invalid_credentials"):
        with pytest.raises(LoginFailed) as caught:
            await Gate(Fixed(lambda code=code: reject(code)), ROLES, FakeClock()).enter(scope())
        texts.add((caught.value.message, caught.value.code, caught.value.status))
    assert texts == {("The credential is not valid.", "invalid_credentials", 401)}


async def test_nobody_is_nobody() -> None:
    with pytest.raises(LoginFailed) as caught:
        await Gate(Fixed(lambda: None), ROLES, FakeClock()).enter(scope())
    assert caught.value.code == "missing_credentials" and caught.value.first


async def test_failures_beyond_a_budget_are_told_so_and_the_pause_ends() -> None:
    clock = FakeClock()
    gate = Gate(Fixed(reject), ROLES, clock)
    recorded = []
    for _ in range(BURST):
        with pytest.raises(LoginFailed) as failed:
            await gate.enter(scope())
        recorded.append(failed.value.first)
    assert recorded[0] and sum(recorded) == 2
    with pytest.raises(LimitExceeded) as caught:
        await gate.enter(scope())
    assert caught.value.retry_after is not None and 0 < caught.value.retry_after <= 1.0
    clock.advance(1.0)
    with pytest.raises(LoginFailed):
        await gate.enter(scope())


async def test_what_is_remembered_of_failures_is_bounded() -> None:
    gate = Gate(Fixed(reject), ROLES, FakeClock())
    for number in range(MAX_PEERS + 100):
        with pytest.raises(LoginFailed):
            await gate.enter(scope(f"10.{number >> 8}.{number & 255}.1"))
    assert len(gate._by_address) == len(gate._by_credential) == MAX_PEERS


class Keys:
    """An authenticator that knows some keys."""

    def __init__(self, *good: bytes) -> None:
        self.good = set(good)

    def authenticate(self, headers: Headers, peer: Peer) -> Any:
        return WHO if headers.get(b"authorization") in self.good else reject()


def key(text: bytes) -> tuple[bytes, bytes]:
    return (b"authorization", text)


async def test_a_stale_client_does_not_lock_out_others_behind_its_address() -> None:
    gate = Gate(Keys(b"good", b"other"), ROLES, FakeClock())
    for _ in range(int(BURST)):
        with pytest.raises(LoginFailed):
            await gate.enter(scope("10.0.0.1", key(b"stale")))
    with pytest.raises(LimitExceeded):
        await gate.enter(scope("10.0.0.1", key(b"stale")))
    assert (await gate.enter(scope("10.0.0.1", key(b"good")))).principal is WHO


async def test_no_number_of_guesses_keeps_a_valid_credential_out() -> None:
    keys = Keys(b"good", b"new")
    gate = Gate(keys, ROLES, FakeClock())
    for number in range(BURST):
        with pytest.raises(LoginFailed):
            await gate.enter(scope("10.0.0.1", key(b"guess%d" % number)))
    for number in range(BURST):
        with pytest.raises(LimitExceeded):
            await gate.enter(scope("10.0.0.1", key(b"further%d" % number)))
        await gate.enter(scope("10.0.0.1", key(b"good")))
    await gate.enter(scope("10.0.0.1", key(b"new")))
    keys.good.clear()
    with pytest.raises(LimitExceeded):
        await gate.enter(scope("10.0.0.1", key(b"good")))


async def test_guesses_from_one_ipv6_network_count_together() -> None:
    gate = Gate(Keys(b"good"), ROLES, FakeClock())
    for number in range(BURST):
        with pytest.raises(LoginFailed):
            await gate.enter(scope(f"2001:db8::{number:x}", key(b"guess%d" % number)))
    with pytest.raises(LimitExceeded):
        await gate.enter(scope("2001:db8::ffff", key(b"another")))
    with pytest.raises(LoginFailed):
        await gate.enter(scope("2001:db8:0:1::1", key(b"another")))


def test_a_credential_that_stands_twice_is_refused() -> None:
    with pytest.raises(RequestError):
        headers_of(scope("a", (b"authorization", b"Bearer a"), (b"Authorization", b"Bearer b")))
    assert headers_of(scope("a", (b"Accept", b"x"), (b"accept", b"y"))) == {b"accept": b"x, y"}


async def test_answers_may_come_by_signal_future_or_coroutine() -> None:
    signal: Signal[Principal] = Signal()

    async def waits(inner: Awaitable[Principal]) -> Principal:
        return await inner

    asyncio.get_running_loop().call_soon(signal.set, WHO)
    assert await settled(waits(signal)) is WHO
    future: asyncio.Future[Principal] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, WHO)
    assert await settled(waits(future)) is WHO
    failing: Signal[Principal] = Signal()
    failing.fail(StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        await settled(waits(failing))
