"""What is seen of the engines of a pool of which one is on trial."""

from __future__ import annotations

import pytest

from gateway.core.errors import EngineError
from gateway.core.specs import ModelSpec
from gateway.core.specs.rollouts import CanarySpec, ShadowSpec
from gateway.core.types import ResponseHead
from gateway.pipeline.canaries import Canaries, Trials, stands_for
from gateway.pipeline.shadows import Shadows
from tests.unit.gateway.pipeline.world import BODY, DONE, SSE_HEAD, STREAM_BODY, USAGE, World, chunk


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the plane, which stands still where a test does not set it on."""
    now = [1000.0]
    monkeypatch.setattr("gateway.pipeline.plane.time.monotonic", lambda: now[0])
    return now


class Trying(World):
    """The endpoints of the model `m` are a, b, c ... in turn, of which `engine` is on trial."""

    def __init__(self, engine: str = "a") -> None:
        super().__init__()
        self.canaries = Canaries()
        self.entry.watch = self.canaries.of(ModelSpec(name="m", pool=("a", "b"), canary=CanarySpec(engine=engine)))

    @property
    def sides(self) -> list[tuple[int, int, int, int]]:
        figures = self.canaries.figures()["m"]
        return [(side.answers, side.errors, side.refusals, side.completion_tokens) for side in (figures.canary, figures.others)]


def test_answers_count_for_the_engine_that_gave_them() -> None:
    world = Trying()
    world.start()
    world.call.answer()
    world.start(STREAM_BODY)
    world.call.head(SSE_HEAD)
    for event in (chunk("hel"), chunk("lo"), chunk(finish="stop"), USAGE, DONE):
        world.call.body(event)
    world.call.end()
    assert world.sides == [(1, 0, 0, 3), (1, 0, 0, 3)]
    figures = world.canaries.figures()["m"]
    assert (sum(figures.canary.first), sum(figures.others.first)) == (0, 1)
    assert figures.others.seconds > 0


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        (lambda world, exchange: world.call.answer(b"{}", ResponseHead(500, [])), (1, 1, 0, 0)),
        (lambda world, exchange: world.call.answer(b"{}", ResponseHead(429, [])), (1, 1, 0, 0)),
        (lambda world, exchange: world.call.answer(b"{}", ResponseHead(400, [])), (1, 0, 1, 0)),
        (lambda world, exchange: world.call.fail(EngineError("The engine is gone.")), (1, 1, 0, 0)),
        (lambda world, exchange: exchange.client_gone(), (0, 0, 0, 0)),
        (lambda world, exchange: exchange.expired(exchange.until + 1), (1, 1, 0, 0)),
    ],
)
def test_failures_count_once_and_clients_that_leave_do_not(how: object, seen: tuple[int, ...]) -> None:
    world = Trying()
    exchange, _ = world.start(BODY)
    how(world, exchange)  # type: ignore[operator]
    assert world.sides[0] == seen


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        lambda world, exchange: world.call.answer(),
        lambda world, exchange: world.call.fail(EngineError("The engine is gone.")),
        lambda world, exchange: exchange.expired(exchange.until + 1),
    ],
)
def test_what_was_measured_across_a_pause_of_this_process_does_not_count(how: object, noticed: bool, clock: list[float]) -> None:
    """Whether the answer is read before the sweep that notices the pause, or after it."""
    world = Trying()
    exchange, _ = world.start(BODY)
    clock[0] += 13.0
    if noticed:
        world.plane.sweep()
    how(world, exchange)  # type: ignore[operator]
    assert world.sides[0] == (0, 0, 0, 0)
    world.plane.sweep()
    world.start()
    world.call.answer()
    assert world.sides[0][0] + world.sides[1][0] == 1


def test_copies_and_addresses_of_an_engine_are_that_engine() -> None:
    assert [stands_for(name, "chat") for name in ("chat", "chat~2", "chat@10.0.0.5:8000", "chatter", "other")] == [True] * 3 + [False] * 2


def test_figures_outlive_the_settings_and_a_shadow_may_watch_too() -> None:
    world = Trying()
    world.start()
    world.call.answer()
    trials = Trials(Shadows(world.plane, lambda entry, spare: True))
    trials.canaries = world.canaries
    model = ModelSpec(name="m", pool=("a", "b"), canary=CanarySpec(engine="a", window=60.0), shadow=ShadowSpec(model="n"))
    world.entry.watch = trials.of(model, None)
    world.start()
    world.call.answer()
    assert world.sides[0][0] + world.sides[1][0] == 2
    assert trials.told().canaries["m"].engine == "a"
    other = trials.of(ModelSpec(name="m", pool=("a", "b"), canary=CanarySpec(engine="b")), None)
    assert other is not None and world.sides == [(0, 0, 0, 0)] * 2
    assert trials.of(ModelSpec(name="m", pool=("a",)), None) is None
