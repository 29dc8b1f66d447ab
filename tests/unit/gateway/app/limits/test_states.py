"""What operators see of limits: page by page, and whose it is however many callers a limit has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.limits.durable import DurableLimits
from gateway.app.limits.states import LimitStates
from gateway.core.errors import NotFound, RequestError
from gateway.core.specs import BudgetSpec, LimitSpec, RateSpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Signal, as_future
from gateway.core.wire import WireApi
from gateway.identity import keys
from gateway.limits.local import LocalLimiter
from gateway.limits.registry import BucketRegistry
from gateway.store.store import Store
from policies.limits import LimitRules, estimate
from tests.morning import TIMEZONE
from tests.stores import migrated

LIMITS = (
    LimitSpec(name="day", per="key", budget=BudgetSpec(amount=10, unit="requests", window="day", timezone=TIMEZONE), queued=3),
    LimitSpec(name="fast", per="key", requests=RateSpec(rate=10, per=60.0)),
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), keys, given_pepper="p" * 32, deadline=60.0)
    await made.start()
    yield made
    await made.aclose()


class World:
    """A gateway's limits. The first callers were here before it started: only the store knows them."""

    def __init__(self, store: Store) -> None:
        self.store, self.tasks = store, TaskOwner("test")
        self.start()

    def start(self) -> None:
        self.registry = BucketRegistry(durable=True)
        self.refills = DurableLimits(self.store, "a", lambda: 1, self.tasks).refills
        self.limiter = LocalLimiter(LimitRules(LIMITS), self.registry, estimate=estimate, restock=self.refills)
        plane: Any = SimpleNamespace(current=lambda: SimpleNamespace(spec=SimpleNamespace(limits=LIMITS)))
        self.states = LimitStates(plane, self.registry, self.store)

    async def ask(self, who: str) -> None:
        found = self.limiter.reserve(caller(who), InferenceRequest(WireApi("chat"), b"/", "m", {}, None))
        if isinstance(found, Signal):
            await as_future(found)

    async def walked(self, limit: str, most: int) -> list[str]:
        """The callers of a limit, by pages of so many."""
        scopes, after = [], None
        while True:
            found, after = await self.states.state(limit, most, after)
            assert len(found) <= most
            scopes += [one["scope"].rpartition("/")[2] for one in found]
            if after is None:
                return scopes


def caller(name: str) -> Principal:
    return Principal(name, "t", "api_key", ("*",))


@pytest.fixture
async def world(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("gateway.app.limits.states.PAGE", 4)
    made = World(store)
    for number in range(6):
        await made.ask(f"früh-{number}")
    made.start()
    for number in range(3):
        await made.ask(f"spät-{number}")
    yield made
    await made.tasks.aclose()


@pytest.mark.parametrize("most", [1, 2, 4, 5, 8, 9, 100])
async def test_each_bucket_is_on_one_page(world: World, most: int) -> None:
    assert await world.walked("day", most) == [*(f"früh-{n}" for n in range(6)), *(f"spät-{n}" for n in range(3))]
    assert await world.walked("fast", most) == [f"spät-{n}" for n in range(3)]


async def test_a_cursor_from_elsewhere_is_refused(world: World) -> None:
    for cursor in ("", "x\n", "0\n{", "0\n" + "[" * 1400, "9" * 5000, "\u0661\n", "+1"):
        with pytest.raises(RequestError):
            await world.states.state("day", 10, cursor)
    assert await world.states.state("day", 10, "7\n") == ([], None)


async def test_a_caller_is_found_among_more_than_are_read_at_once(world: World) -> None:
    (day, *_) = await world.states.applying(caller("früh-5"), "m", "chat")
    assert (day["limit"], day["amounts"][0]["used"]) == ("day", 1)
    assert await world.states.reset("day", "t/api_key/früh-5", dry_run=True) == 1
    assert await world.states.reset("day", "t/api_key/früh-5") == 1
    (day, *_) = await world.states.applying(caller("früh-5"), "m", "chat")
    assert day["amounts"][0]["used"] == 0
    with pytest.raises(NotFound):
        await world.states.reset("day", "t/api_key/nobody")
    assert await world.states.reset("day", None) == 9, "all of them, also those that are not in the first page"
