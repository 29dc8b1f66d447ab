"""Who gets in: throttling of failures, roles of credentials and bindings, authenticators that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from admin.auth import BURST, MAX_PEERS, Bindings, Gate, LoginFailed, Throttle, headers_of, settled
from admin.permissions import Grant
from gateway.core.clock import FakeClock
from gateway.core.errors import AuthenticationError, LimitExceeded, RequestError, StoreUnavailable
from gateway.core.storage import Page, Resource, StoreChange
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Signal

WHO = Principal("k", "acme", "api_key", roles=("viewer", "gone"))


def scope(peer: str = "10.0.0.1", *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"client": (peer, 1), "headers": list(headers)}


def test_failures_are_throttled_by_peer_and_the_pause_ends() -> None:
    clock = FakeClock()
    throttle = Throttle(clock)
    recorded = [throttle.failed("a") for _ in range(int(BURST))]
    assert recorded[0] and sum(recorded) <= 3
    with pytest.raises(LimitExceeded) as caught:
        throttle.check("a")
    assert caught.value.retry_after is not None and 0 < caught.value.retry_after <= 1.0
    throttle.check("b")
    clock.advance(1.0)
    throttle.check("a")


def test_the_table_of_peers_is_bounded() -> None:
    throttle = Throttle(FakeClock())
    for number in range(MAX_PEERS + 100):
        throttle.failed(str(number))
    assert len(throttle._tokens) == MAX_PEERS


class Fixed:
    """An authenticator that answers as told."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def authenticate(self, headers: Headers, peer: Peer) -> Any:
        return self.answer()


def reject(code: str = "invalid_api_key") -> Any:
    raise AuthenticationError(f"because {code}", code=code)


async def test_roles_of_the_credential_count_and_unknown_ones_do_not() -> None:
    access = await Gate(Fixed(lambda: WHO), None, FakeClock()).enter(scope())
    assert access.grants == (Grant("viewer"),) and access.actor == "acme/k"


async def test_rejections_are_uniform_whatever_the_reason() -> None:
    texts = set()
    for code in ("invalid_api_key", "expired_token", "invalid_credentials"):
        with pytest.raises(LoginFailed) as caught:
            await Gate(Fixed(lambda code=code: reject(code)), None, FakeClock()).enter(scope())
        texts.add((caught.value.message, caught.value.code, caught.value.status))
    assert texts == {("The credential is not valid.", "invalid_credentials", 401)}


async def test_nobody_is_nobody() -> None:
    with pytest.raises(LoginFailed) as caught:
        await Gate(Fixed(lambda: None), None, FakeClock()).enter(scope())
    assert caught.value.code == "missing_credentials" and caught.value.first


async def test_a_throttled_peer_is_not_even_asked() -> None:
    asked = []

    def answer() -> Any:
        asked.append(1)
        return reject()

    gate = Gate(Fixed(answer), None, FakeClock())
    for _ in range(int(BURST)):
        with pytest.raises(LoginFailed):
            await gate.enter(scope())
    with pytest.raises(LimitExceeded):
        await gate.enter(scope())
    assert len(asked) == BURST


class Keys:
    """An authenticator that knows some keys."""

    def __init__(self, *good: bytes) -> None:
        self.good = set(good)

    def authenticate(self, headers: Headers, peer: Peer) -> Any:
        return WHO if headers.get(b"authorization") in self.good else reject()


def key(text: bytes) -> tuple[bytes, bytes]:
    return (b"authorization", text)


async def test_a_stale_client_does_not_lock_out_others_behind_its_address() -> None:
    gate = Gate(Keys(b"good", b"other"), None, FakeClock())
    for _ in range(int(BURST)):
        with pytest.raises(LoginFailed):
            await gate.enter(scope("10.0.0.1", key(b"stale")))
    with pytest.raises(LimitExceeded):
        await gate.enter(scope("10.0.0.1", key(b"stale")))
    assert (await gate.enter(scope("10.0.0.1", key(b"good")))).principal is WHO


async def test_an_address_that_guesses_is_throttled_but_not_who_got_in_before() -> None:
    keys = Keys(b"good", b"new")
    gate = Gate(keys, None, FakeClock())
    await gate.enter(scope("10.0.0.1", key(b"good")))
    for number in range(int(BURST)):
        with pytest.raises(LoginFailed):
            await gate.enter(scope("10.0.0.1", key(b"guess%d" % number)))
    for guess in (b"guess99", b"new"):
        with pytest.raises(LimitExceeded):
            await gate.enter(scope("10.0.0.1", key(guess)))
    await gate.enter(scope("10.0.0.1", key(b"good")))
    await gate.enter(scope("10.0.0.2", key(b"new")))
    keys.good.clear()
    with pytest.raises(LoginFailed):
        await gate.enter(scope("10.0.0.1", key(b"good")))
    with pytest.raises(LimitExceeded):
        await gate.enter(scope("10.0.0.1", key(b"good")))


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


class FewBindings:
    """The part of a store that bindings are read from."""

    def __init__(self) -> None:
        self.items: list[Resource] = []
        self.reads = 0
        self.away = False
        self.callback: Callable[[StoreChange], None] = lambda change: None

    def subscribe(self, callback: Callable[[StoreChange], None]) -> Callable[[], None]:
        self.callback = callback
        return lambda: None

    async def list(self, kind: str, *, limit: int, cursor: str | None) -> Page[Resource]:
        self.reads += 1
        if self.away:
            raise StoreUnavailable("away")
        return Page(tuple(self.items))


def binding(role: str, tenant: str = "acme", principal: str = "k") -> Resource:
    return Resource("bindings", f"{tenant}.{role}", tenant, 1, {"principal": principal, "role": role}, 0.0, 0.0, "x")


async def test_bindings_are_remembered_for_a_second_dropped_by_a_change_and_kept_while_the_store_is_away() -> None:
    store, clock = FewBindings(), FakeClock()
    store.items = [binding("admin"), binding("tenant-admin"), binding("admin", "globex")]
    bindings = Bindings(store, clock)  # type: ignore[arg-type]
    assert await bindings.of(WHO) == (Grant("admin"), Grant("tenant-admin", "acme"))
    assert await bindings.of(Principal("other", "acme", "api_key")) == () and store.reads == 1
    store.items = []
    store.callback(StoreChange(1, "bindings", "x", "deleted", 0.0))
    assert await bindings.of(WHO) == ()
    store.items = [binding("viewer")]
    clock.advance(1.0)
    assert await bindings.of(WHO) == (Grant("viewer"),)
    store.away = True
    clock.advance(60.0)
    assert await bindings.of(WHO) == (Grant("viewer"),)
