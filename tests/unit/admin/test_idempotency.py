"""Requests with an idempotency key that take longer than their hold of it, over a store whose clock the test moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from admin import idempotency
from admin.operation import Answer
from gateway.core.clock import FakeClock
from gateway.core.errors import GatehouseError, StoreUnavailable
from gateway.core.idempotency import HOLD_SECONDS
from gateway.identity import keys
from gateway.store.store import Store
from tests.stores import migrated
from tests.waiting import reached

KEY = ("once", "acme/root", "POST /admin/v1/keys")


class World:
    """Two replicas on one store would see what two requests here see. renewed: when the renewals began that succeeded."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.goes, self.runs = asyncio.Event(), 0
        self.renewed: list[float] = []
        self.away = 0
        self._renew = store.renew_idempotent
        store.renew_idempotent = self.renew  # type: ignore[method-assign,assignment]

    async def renew(self, *given: Any) -> bool:
        began = self.clock.wall()
        if self.away:
            self.away -= 1
            raise StoreUnavailable("The store does not answer.")
        found = await self._renew(*given)
        self.renewed.append(began)
        return found

    async def post(self, write: Callable[[], Awaitable[Answer]] | None = None) -> Answer:
        request = SimpleNamespace(scope={"path": "/admin/v1/keys", "query_string": b""})
        operation = SimpleNamespace(method="POST")
        call: Any = SimpleNamespace(operation=operation, request=request, raw=b"{}", store=self.store, actor="acme/root")
        return await idempotency.once(call, "once", write or self.write)

    async def write(self) -> Answer:
        self.runs += 1
        await self.goes.wait()
        return Answer({"run": self.runs}, 201)

    async def begun(self) -> asyncio.Future[Answer]:
        first = asyncio.ensure_future(self.post())
        await reached(lambda: self.runs == 1, what="the first request")
        return first

    async def passes(self, seconds: float) -> None:
        """Time, and then a renewal that begins after it."""
        self.clock.advance(seconds)
        await reached(lambda: self.renewed and self.renewed[-1] == self.clock.wall(), what="the renewal")


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(idempotency, "RENEW_SECONDS", 0.002)
    monkeypatch.setattr(idempotency, "AGAIN_SECONDS", 0.001)
    clock = FakeClock()
    made = Store("sqlite", migrated(tmp_path), keys, given_pepper="p" * 32, database_clock=lambda connection: clock.wall(), deadline=60.0)
    await made.start()
    yield World(made, clock)
    await made.aclose()


async def test_a_request_that_outlasts_its_hold_is_not_begun_again(world: World) -> None:
    first = await world.begun()
    for _ in range(3):
        await world.passes(HOLD_SECONDS - 1.0)
    with pytest.raises(GatehouseError) as refused:
        await world.post()
    assert (refused.value.status, refused.value.code) == (409, "request_in_progress")
    world.goes.set()
    assert (await first).value == {"run": 1}
    again = await world.post()
    assert again.response is not None and (again.response.status_code, again.response.body) == (201, b'{"run":1}')
    assert world.runs == 1


async def test_a_store_that_is_away_for_a_while_does_not_end_a_hold(world: World) -> None:
    first = await world.begun()
    world.away = 3
    await world.passes(HOLD_SECONDS - 1.0)
    await world.passes(HOLD_SECONDS - 1.0)
    with pytest.raises(GatehouseError, match="still under way"):
        await world.post()
    world.goes.set()
    assert (await first).status == 201


async def test_one_that_fails_after_long_leaves_its_key_free_and_nothing_is_renewed(world: World) -> None:
    async def fails() -> Answer:
        await world.passes(HOLD_SECONDS - 1.0)
        await world.passes(HOLD_SECONDS - 1.0)
        raise RuntimeError("it fails")

    with pytest.raises(RuntimeError, match="it fails"):
        await world.post(fails)
    world.goes.set()
    assert (await world.post()).value == {"run": 1}
    await reached(lambda: not [task for task in asyncio.all_tasks() if "renew" in task.get_name()], what="the end of the renewals")


async def test_one_whose_key_somebody_else_has_ends_and_keeps_no_answer(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world.away = 10**9  # this process stands still
    first = await world.begun()
    world.clock.advance(HOLD_SECONDS)
    assert await world.store.begin_idempotent(*KEY, "h", holder="other") is None
    world.away = 0
    await reached(lambda: "may be done a second time" in caplog.text, what="the warning")
    world.goes.set()
    assert (await first).status == 201
    assert "the answer is not kept" in caplog.text
    assert await world.store.finish_idempotent(*KEY, 201, "{}", holder="other")
