"""Engines on trial: when they are withdrawn, where that is kept, who takes it back."""

from __future__ import annotations

from time import monotonic
from typing import Any

import msgspec
import pytest

from gateway.app.engines.canary_book import CanaryBook, Window
from gateway.core.errors import NotFound, StoreUnavailable
from gateway.core.rollouts import CanaryFigures, Side
from gateway.core.specs import ConfigSpec, ModelSpec, PoolMemberSpec
from gateway.core.specs.rollouts import CanarySpec
from gateway.core.storage import Resource
from gateway.core.tasks import TaskOwner

MODEL = ModelSpec(
    name="m", pool=(PoolMemberSpec(engine="a", weight=90), PoolMemberSpec(engine="b", weight=10)), canary=CanarySpec(engine="b")
)


class Store:
    """Resources in memory. away: it does not answer."""

    def __init__(self) -> None:
        self.kept: dict[str, Resource] = {}
        self.away = False

    async def create(self, kind: str, name: str, body: dict[str, Any], *, actor: str) -> Resource:
        if self.away:
            raise StoreUnavailable("away")
        made = self.kept[name] = Resource(kind, name, "", 1, body, 5.0, 5.0, actor)
        return made

    async def delete(self, kind: str, name: str, *, actor: str, dry_run: bool) -> None:
        if not dry_run:
            del self.kept[name]


class Trial:
    def __init__(self, store: Store, spec: ConfigSpec | None = None) -> None:
        self.spec = spec or ConfigSpec(version=1, models=(MODEL,))
        self.refreshed = 0
        self.events: list[tuple[Any, ...]] = []
        self.book = CanaryBook(store, lambda: self.spec, self._refresh, self._record, TaskOwner("test"))  # type: ignore[arg-type]
        self.book._take(list(store.kept.values()))
        self.book.begin()
        self.figures = CanaryFigures("b")

    def _refresh(self) -> None:
        self.refreshed += 1

    def _record(self, *event: Any, outcome: str = "ok") -> None:
        self.events.append(event)

    async def served(self, canary: int, errors: int = 0, others: int = 100) -> None:
        self.figures.canary.add(Side(canary, errors))
        self.figures.others.add(Side(others))
        await self.book.look({"w1": {"m": self.figures}})

    @property
    def weights(self) -> list[float]:
        return [member.weight for member in self.book.applied(self.spec).models[0].pool]  # type: ignore[union-attr]


async def test_an_engine_that_burns_is_withdrawn_at_once_kept_and_told_of_once() -> None:
    store = Store()
    trial = Trial(store)
    await trial.served(40, 40)
    assert (trial.weights, trial.events) == ([90, 10], [])
    await trial.served(20, 20)
    assert (trial.weights, trial.refreshed) == ([90, 0], 1)
    ((event, target, detail),) = trial.events
    assert (event, target, detail["engine"], detail["requests"]) == ("canary_withdrawn", "m", "b", 60)
    assert "100.0% of 60 requests failed" in detail["reason"]
    await trial.served(100, 0)
    assert (trial.weights, len(trial.events), trial.refreshed) == ([90, 0], 1, 1), "it does not come back by itself"
    again = Trial(store)
    assert again.weights == [90, 0], "after a restart, and on another replica"
    with pytest.raises(NotFound):
        await again.book.resume("other", "ann")
    assert (await again.book.resume("m", "ann", dry_run=True))["engine"] == "b"
    assert again.weights == [90, 0]
    assert "failed" in (await again.book.resume("m", "ann"))["reason"]
    assert (again.weights, store.kept, again.refreshed) == ([90, 10], {}, 1)


async def test_what_was_held_against_it_is_forgotten_when_another_replica_puts_it_back() -> None:
    store = Store()
    trial = Trial(store)
    await trial.served(60, 60)
    trial.book._take([])
    assert (trial.weights, trial.refreshed) == ([90, 10], 2)
    await trial.served(10, 0)
    assert trial.weights == [90, 10]


async def test_what_a_worker_tells_after_it_was_put_back_of_the_time_before_is_not_held_against_it() -> None:
    trial = Trial(Store())
    await trial.served(60, 60)
    await trial.book.resume("m", "ann")
    await trial.served(60, 60)
    assert trial.weights == [90, 10]
    await trial.served(60, 60)
    assert trial.weights == [90, 0]


async def test_a_worker_that_says_nothing_for_a_while_is_counted_once() -> None:
    trial = Trial(Store())
    await trial.served(40, 4)
    await trial.book.look({}, ["w1"])
    await trial.served(0, 0, 0)
    canary, others = trial.book.views()["m"][2:]
    assert (canary.answers, canary.errors, others.answers) == (40, 4, 100)


async def test_what_a_worker_tells_late_of_the_time_before_it_was_put_back_is_not_held_against_it() -> None:
    trial = Trial(Store())
    await trial.served(60, 60)
    asked = monotonic()
    await trial.book.resume("m", "ann")
    trial.figures.canary.add(Side(60, 60))
    await trial.book.look({"w1": {"m": trial.figures}}, asked=asked)  # it was asked before
    await trial.book.look({}, ["w1"])
    await trial.served(60, 60)
    assert trial.weights == [90, 10]
    await trial.served(60, 60)
    assert trial.weights == [90, 0]


async def test_without_the_store_it_is_in_force_here_and_written_later(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    store.away = True
    trial = Trial(store)
    await trial.served(60, 60)
    assert (trial.weights, store.kept) == ([90, 0], {})
    await trial.served(0)
    await trial.served(0)
    assert caplog.text.count("is not in the store yet") == 1, "it is tried again and again, and said once"
    store.away = False
    await trial.served(0)
    assert len(store.kept) == 1
    assert trial.weights == [90, 0]


async def test_a_worker_that_starts_anew_is_counted_from_nothing() -> None:
    trial = Trial(Store())
    await trial.served(30, 3)
    trial.figures = CanaryFigures("b")
    await trial.served(10, 0)
    canary, others = trial.book.views()["m"][2:]
    assert (canary.answers, canary.errors, others.answers) == (40, 3, 200)


async def test_what_is_alone_in_its_pool_stays() -> None:
    store = Store()
    trial = Trial(store)
    await trial.served(60, 60)
    lonely = ModelSpec(name="m", pool=("b", PoolMemberSpec(engine="a", weight=0)), canary=CanarySpec(engine="b"))
    assert trial.book.applied(ConfigSpec(version=1, models=(lonely,))).models == (lonely,)


async def test_what_was_withdrawn_shows_when_nothing_is_on_trial_any_more_and_can_be_put_back() -> None:
    trial = Trial(Store())
    await trial.served(60, 60)
    trial.spec = ConfigSpec(version=1, models=(msgspec.structs.replace(MODEL, canary=None),))
    assert trial.weights == [90, 0]
    spec, gone, _, _ = trial.book.views()["m"]
    assert spec.engine == "b" and gone is not None and "failed" in gone["reason"]
    (family,) = trial.book.collect()
    assert [(sample.labels["engine"], sample.value) for sample in family.samples] == [("b", 1.0)]
    await trial.book.resume("m", "ann")
    assert (trial.weights, trial.book.views()) == ([90, 10], {})


async def test_the_engine_on_trial_is_put_back_before_one_of_an_earlier_trial() -> None:
    trial = Trial(Store())
    pool = (*MODEL.pool, PoolMemberSpec(engine="c", weight=10))
    for engine in ("b", "c"):
        trial.spec = ConfigSpec(version=1, models=(msgspec.structs.replace(MODEL, pool=pool, canary=CanarySpec(engine=engine)),))
        trial.figures = CanaryFigures(engine)
        await trial.served(60, 60)
    assert trial.weights == [90, 0, 0]
    (family,) = trial.book.collect()
    assert [(sample.labels["engine"], sample.value) for sample in family.samples] == [("b", 1.0), ("c", 1.0)]
    assert [(await trial.book.resume("m", "ann"))["engine"] for _ in range(2)] == ["c", "b"]
    assert trial.weights == [90, 10, 10]


def test_a_window_forgets_and_is_bounded() -> None:
    window = Window(100.0)
    for second in range(100_000):
        window.add(second / 100, Side(1), Side(2))
    assert len(window.parts) <= 520
    canary, others = window.sums()
    assert 9_900 <= canary.answers <= 10_100
    assert others.answers == 2 * canary.answers
    window.add(5000.0, Side(), Side())
    assert window.sums()[0].answers == 0
