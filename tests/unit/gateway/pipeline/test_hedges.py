"""Second attempts at requests that take long: who wins, what becomes of the other, what the record says."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from gateway.core.errors import EngineError
from gateway.core.snapshot import ModelEntry
from gateway.core.specs import ModelSpec
from gateway.core.specs.hedging import HedgeSpec
from gateway.core.specs.rollouts import ShadowSpec
from gateway.core.types import ResponseHead
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.hedges import LEAST, MOST, Hedges, Learned
from gateway.pipeline.shadows import ROOM, Shadows
from tests.unit.gateway.pipeline.world import (
    ANSWER,
    BODY,
    DONE,
    SSE_HEAD,
    STREAM_BODY,
    USAGE,
    Attempt,
    Call,
    Client,
    EngineClient,
    Route,
    World,
    chunk,
)

SECOND_NAME = "theirs"


class Hedging(World):
    """The endpoints of the model `m` are a, b, c ... in turn; of a second attempt z."""

    def __init__(self, after: Any = 3600.0, operations: tuple[Any, ...] = ("chat",), **settings: Any) -> None:
        super().__init__(**settings)
        self.hedges = Hedges()
        spec = ModelSpec(name="m", pool=("a", "b"), hedge=HedgeSpec(after=after, operations=operations))
        self.entry.watch = self.hedges.of(spec, None)
        self.there = EngineClient()
        self.second: Attempt | None = Attempt("z", self.there, SECOND_NAME)
        self.asked: list[tuple[str, int, float]] = []
        self.route.second = self._second  # type: ignore[attr-defined]

    def _second(self, request: Any, principal: Any, session: Any, endpoint: str, running: int, budget: float) -> Attempt | None:
        self.asked.append((endpoint, running, budget))
        return self.second

    def raced(self, body: bytes = BODY) -> tuple[Exchange, Client, Call]:
        """A request whose first attempt takes long: the call of the second one."""
        exchange, client = self.start(body)
        exchange.attempt._hedged()  # type: ignore[union-attr]
        return exchange, client, self.there.calls[-1]

    @property
    def state(self) -> Any:
        return self.hedges.figures()["m"]

    @property
    def results(self) -> dict[str, int]:
        return {result: count for result, count in self.state.results.items() if count}

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = self.outcome.detail["hedge"]  # type: ignore[index]
        return found


def closed(world: Hedging) -> tuple[list[str], list[str]]:
    assert world.second is not None
    return world.route.attempts[0].results, world.second.results


async def test_the_second_one_answers_first() -> None:
    world = Hedging()
    _, client, there = world.raced()
    assert b'"model":"theirs"' in there.request_body and b"authorization: Bearer engine-key" in there.request_head
    there.answer()
    assert client.status == 200 and client.body == ANSWER
    assert client.headers["x-gatehouse-endpoint"] == "z"
    assert world.call.cancelled and closed(world) == (["neutral"], ["success"])
    assert (world.told["first"], world.told["second"], world.told["result"]) == ("a", "z", "won")
    outcome = world.outcome
    assert (outcome.endpoint, outcome.attempts, outcome.route, outcome.completion_tokens) == ("z", 2, "hedged", 3)
    (reservation,) = world.limiter.reservations
    assert [usage.completion_tokens for usage in reservation.settled if usage is not None] == [3], "charged once"
    assert (world.results, world.state.running) == ({"won": 1}, 0) and world.state.wasted > 0


async def test_the_first_one_answers_first_after_all() -> None:
    world = Hedging()
    _, client, there = world.raced()
    world.call.answer()
    assert client.status == 200 and client.headers["x-gatehouse-endpoint"] == "a"
    assert there.cancelled and closed(world) == (["success"], ["neutral"])
    assert (world.results, world.state.running, world.told["result"]) == ({"lost": 1}, 0, "lost")
    assert world.asked == [("a", 0, 0.05)]


async def test_a_stream_is_won_by_its_first_byte_and_not_by_its_head() -> None:
    world = Hedging()
    exchange, client, there = world.raced(STREAM_BODY)
    world.call.head(SSE_HEAD)
    there.head(SSE_HEAD).body(chunk("hel"))
    assert world.call.cancelled and client.headers["x-gatehouse-endpoint"] == "z"
    exchange.attempt._hedged()  # type: ignore[union-attr]
    assert len(world.there.calls) == 1, "no more of them once it has begun"
    for event in (chunk("lo", finish="stop"), USAGE, DONE):
        there.body(event)
    there.end()
    assert client.complete and client.body.count(b"data: ") == 3
    assert closed(world) == (["neutral"], ["success"])


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_a_side_that_cannot_leaves_the_race_to_the_other(status: int) -> None:
    world = Hedging()
    _, client, there = world.raced()
    there.answer(b"{}", ResponseHead(status, []))
    assert not client.ends
    world.call.answer()
    assert client.status == 200 and client.headers["x-gatehouse-endpoint"] == "a"
    assert closed(world) == (["success"], ["failure" if status in (401, 500) else "neutral"])
    assert world.route.refused == ([("z", None)] if status in (429, 503) else []), "an engine without room is avoided"


@pytest.mark.parametrize("first", [True, False])
async def test_the_side_that_cannot_is_not_mirrored_and_keeps_no_room(first: bool) -> None:
    """Shadow traffic sees one attempt: the winner's, or the last one's."""
    world = Hedging()
    world.snapshot.models["n"] = ModelEntry(ModelSpec(name="n", pool=("b",)), Route(EngineClient()), world.metrics.meter("n"))
    shadows = Shadows(world.plane, lambda entry, spare: False)
    spec = ModelSpec(name="m", pool=("a",), hedge=HedgeSpec(after=3600.0, operations=("chat",)), shadow=ShadowSpec(model="n", share=1.0))
    world.entry.watch = world.hedges.of(spec, shadows.of(spec, None))
    _, client, there = world.raced()
    (world.call if first else there).answer(b"busy" * 99, ResponseHead(500, []))
    figures = shadows.figures()["m"]
    assert not client.ends and (figures.sampled, shadows.room.left) == (0, ROOM)
    (there if first else world.call).answer()
    assert client.status == 200
    figures = shadows.figures()["m"]
    assert (figures.sampled, figures.waiting, figures.skipped, shadows.room.left) == (1, 1, {}, ROOM - len(ANSWER))


async def test_an_answer_about_the_request_ends_the_race() -> None:
    world = Hedging()
    _, client, there = world.raced()
    there.answer(b'{"error":{"message":"no","code":"x"}}', ResponseHead(400, []))
    assert client.status == 400 and world.call.cancelled and world.results == {"won": 1}


@pytest.mark.parametrize("first", [True, False])
async def test_the_one_that_is_left_answers(first: bool) -> None:
    world = Hedging()
    _, client, there = world.raced()
    (world.call if first else there).fail(EngineError("The engine is gone."))
    assert not client.ends
    (there if first else world.call).answer()
    assert client.status == 200 and client.headers["x-gatehouse-endpoint"] == ("z" if first else "a")
    assert closed(world) == ((["failure"], ["success"]) if first else (["success"], ["failure"]))
    assert len(world.audit.outcomes) == 1


async def test_both_fail_and_the_request_is_tried_again_without_a_second() -> None:
    world = Hedging()
    world.route.retries = [0.0]
    error = EngineError("The engine is gone.")
    error.safe = True
    _, client, there = world.raced()
    first = world.call
    there.fail(EngineError("That one, too."))
    first.fail(error)
    assert len(world.engine.calls) == 2 and world.route.tried[-1] == ("z", "a"), "neither gets it again"
    world.call.answer()
    assert client.status == 200 and client.headers["x-gatehouse-endpoint"] == "b"
    assert closed(world) == (["failure"], ["failure"]) and world.results == {"failed": 1}
    assert world.outcome.attempts == 3 and world.state.running == 0


def gone(*, lost: bool) -> EngineError:
    error = EngineError("The engine is gone.")
    error.safe, error.lost = True, lost
    return error


@pytest.mark.parametrize("first", [True, False])
async def test_engines_that_are_lost_on_both_sides_are_two_of_two(first: bool) -> None:
    """A request that engines may die of gets two of them, whether one after the other or at once."""
    world = Hedging()
    world.route.retries = [0.0]
    exchange, client, there = world.raced()
    for call in (world.call, there) if first else (there, world.call):
        call.fail(gone(lost=True))
    assert client.status == 502 and len(world.engine.calls) == 1, "no third one gets it"
    assert exchange.lost == 2 and closed(world) == (["failure"], ["failure"])


async def test_what_an_engine_was_lost_with_is_not_hedged_elsewhere() -> None:
    world = Hedging()
    exchange, _ = world.start()
    exchange.lost = 1
    assert world.entry.watch is not None and world.second is not None
    assert world.entry.watch.watched(exchange, world.second) is world.second


async def test_attempts_of_a_race_count_as_two() -> None:
    world = Hedging()
    world.route.retries = [0.0]
    exchange, _, there = world.raced()
    there.fail(gone(lost=False))
    counted = [exchange.tried]
    world.call.fail(gone(lost=False))
    assert [*counted, exchange.tried] == [1, 2]


async def test_both_fail_for_good() -> None:
    world = Hedging()
    _, client, there = world.raced()
    world.call.fail(EngineError("The engine is gone."))
    there.fail(EngineError("That one, too."))
    assert client.status == 502 and closed(world) == (["failure"], ["failure"])
    assert (world.results, world.state.running, world.outcome.endpoint) == ({"failed": 1}, 0, "z")


async def test_both_say_that_they_cannot() -> None:
    world = Hedging()
    _, client, there = world.raced()
    there.answer(b"{}", ResponseHead(429, []))
    world.call.answer(b"{}", ResponseHead(500, []))
    assert client.status == 502 and closed(world) == (["failure"], ["neutral"])
    assert (world.results, world.state.running, world.told["result"]) == ({"failed": 1}, 0, "failed")


async def test_the_client_leaves_while_both_run() -> None:
    world = Hedging()
    exchange, _, there = world.raced()
    exchange.client_gone()
    assert world.call.cancelled and there.cancelled
    assert closed(world) == (["neutral"], ["neutral"]) and world.outcome.outcome == "cancelled"
    assert (world.results, world.state.running, world.told["result"]) == ({"cancelled": 1}, 0, "cancelled")


async def test_the_time_is_up_while_both_run() -> None:
    world = Hedging()
    exchange, client, there = world.raced()
    exchange.expired(exchange.until + 1)
    assert client.status == 504 and world.call.cancelled and there.cancelled
    assert closed(world) == (["failure"], ["neutral"]) and world.state.running == 0


async def test_a_client_that_pauses_pauses_both() -> None:
    world = Hedging()
    exchange, _, there = world.raced(STREAM_BODY)
    exchange.pause()
    assert world.call.paused and there.paused
    exchange.resume()
    assert not world.call.paused and not there.paused


async def test_a_second_call_that_fails_at_once() -> None:
    world = Hedging()
    world.there.failing = [EngineError("The engine refuses.")]
    _, client, _ = world.raced()
    world.call.answer()
    assert client.status == 200 and closed(world) == (["success"], ["failure"]) and world.state.running == 0


async def test_no_second_one() -> None:
    """Where the pool says no; of other operations; once the first attempt has failed; while the process leaves."""
    world = Hedging()
    world.second = None
    exchange, client = world.start()
    exchange.attempt._hedged()  # type: ignore[union-attr]
    world.call.answer()
    assert client.status == 200 and world.results == {"busy": 1} and world.outcome.detail is None
    other = Hedging(operations=("embeddings",))
    exchange, _ = other.start()
    assert isinstance(exchange.attempt, Attempt)
    leaving = Hedging()
    leaving.plane.closing = True
    exchange, _ = leaving.start()
    exchange.attempt._hedged()  # type: ignore[union-attr]
    assert leaving.asked == []


async def test_the_timer_starts_it_and_ends_with_the_race() -> None:
    world = Hedging(after=0.001)
    exchange, _ = world.start()
    timer = exchange.attempt._timer  # type: ignore[union-attr]
    world.call.answer()
    assert timer.cancelled() and world.asked == []


async def test_the_delay_is_learned() -> None:
    world = Hedging(after="p95")
    for number in range(LEAST):
        assert (exchange := world.start()[0]).attempt._timer is None, number  # type: ignore[union-attr]
        world.call.answer()
        assert exchange.settled
        world.route.attempts.clear()
    exchange, _ = world.start()
    assert exchange.attempt._timer is not None  # type: ignore[union-attr]
    world.call.answer()


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_nothing_is_learned_of_a_refusal(status: int) -> None:
    """It comes at once: else requests were hedged at once, too, when the engines answer again."""
    world = Hedging(after="p95")
    for _ in range(LEAST):
        world.start()
        world.call.answer(b"{}", ResponseHead(status, []))
        world.route.attempts.clear()
    assert world.state.learned == {}


@pytest.mark.parametrize("second", [False, True])
async def test_nothing_is_left_for_the_garbage_collector(second: bool) -> None:
    """An exchange whose race pointed back at it would stay in memory, with its bodies, until the collector came."""
    world, count = Hedging(), 20

    def one() -> None:
        if second:
            exchange, _ = world.start()
            exchange.attempt._timer.cancel()  # type: ignore[union-attr]
            exchange.attempt._hedged()  # type: ignore[union-attr]
        else:
            world.start()
        world.call.answer()
        for kept in (world.engine.calls, world.there.calls, world.route.attempts, world.audit.outcomes, world.limiter.reservations):
            kept.clear()

    one()
    gc.collect()
    gc.disable()
    try:
        for _ in range(count):
            one()
        assert gc.collect() < count
    finally:
        gc.enable()


def test_what_is_learned_is_a_quantile_that_forgets() -> None:
    learned = Learned()
    for number in range(MOST):
        learned.add(1.0 if number % 10 == 9 else 0.01)
    assert learned.delay is not None and 1.0 <= learned.delay < 1.2
    for _ in range(3 * MOST):
        learned.add(0.01)
    assert learned.delay is not None and learned.delay < 0.013


def test_figures_outlive_the_settings() -> None:
    world = Hedging()
    world.state.results["won"] = 3
    world.entry.watch = world.hedges.of(ModelSpec(name="m", pool=("a",), hedge=HedgeSpec(after=1.0)), None)
    assert world.results == {"won": 3}
    assert world.hedges.of(ModelSpec(name="m", pool=("a",)), None) is None
