"""Large pieces of prompts beside streams, and tokens that are handed out at an even pace: policy on a virtual clock."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llamacpp.pacing import FEW, FULL_MARGIN, HOLD, MARGIN, STARVED, Pacer
from engines.llamacpp.scheduler import FREE_STEP, TILE, Plan, StepCosts, Work

USUAL, STALL = 0.030, 2.0


def work(arrival: int = 0, prompt: int = 10, **more: object) -> Work:
    return Work(1, arrival, prompt, **more)  # type: ignore[arg-type]


def streams(count: int, due: float = 0.0) -> list[Work]:
    return [work(prompt=8, done=8, decoding=True, due=due) for _ in range(count)]


def pacer(token: float, hold: float = HOLD, least: int = 2, count: int = 4, tiled: float | None = None) -> Pacer:
    """One that knows what a step costs, and a prompt's token, among few and in a tile: the same everywhere, unless `tiled` is given."""
    costs = StepCosts(STALL, least)
    costs.observe(count, 0, USUAL)
    costs.observe(count, 32, USUAL + 32 * token)
    costs.observe(count, TILE - count, USUAL + (TILE - count) * (token if tiled is None else tiled))
    return Pacer(costs, hold)


def read(plan: Plan[Work]) -> list[int]:
    return [count for _work, count in plan.prefill]


def test_where_much_fits_into_a_step_prompts_are_read_in_every_step() -> None:
    assert read(pacer(0.001).plan([*streams(4), work(prompt=2500)], 512, 100.0)) == [30]


def test_where_little_fits_the_prompt_waits_until_the_streams_are_far_enough_ahead_for_a_whole_tile() -> None:
    paced, long, piece = pacer(0.008, tiled=0.004), work(prompt=2500), TILE - 4
    assert read(paced.plan([*streams(4, due=100.0), long], 512, 100.0)) == []  # three tokens in a step of 60 ms
    needed = (piece * 0.004 - USUAL * (STALL - 1)) / (1 - MARGIN)
    assert needed < HOLD - STALL * USUAL
    assert read(paced.plan([*streams(4, due=100.0 + needed - 0.01), long], 512, 100.0)) == []
    plan = paced.plan([*streams(4, due=100.0 + needed + 0.002), long], 512, 100.0)
    assert read(plan) == [piece] and len(plan.decode) + piece == TILE


def test_the_stream_that_is_least_ahead_decides() -> None:
    running = [*streams(3, due=101.0), *streams(1, due=100.0), work(prompt=2500)]
    assert read(pacer(0.004).plan(running, 512, 100.0)) == []


def test_a_short_prompt_beside_a_long_one_is_read_in_the_same_piece() -> None:
    long, short = work(arrival=1, prompt=2500), work(arrival=2, prompt=20)
    plan = pacer(0.004).plan([*streams(4, due=100.7), long, short], 512, 100.0)
    assert plan.prefill == [(short, 20), (long, 40)]


def test_what_ends_a_prompt_is_read_at_once_however_small() -> None:
    long, short = work(arrival=1, prompt=2500), work(arrival=2, prompt=5)
    plan = pacer(0.004).plan([*streams(4), long, short], 512, 100.0)
    assert plan.prefill == [(short, 5)] and len(plan.decode) == 4  # a bit of the long one beside it would be dear


def test_a_piece_that_the_longest_hold_does_not_bring_is_read_as_large_as_it_becomes() -> None:
    paced = pacer(0.020)
    most = int((USUAL + HOLD * (1 - FULL_MARGIN)) / 0.020)
    assert most < TILE - 4
    assert read(paced.plan([*streams(4, due=100.0 + HOLD), work(prompt=2500)], 512, 100.0)) == [most // 2 * 2]


@pytest.mark.parametrize(("old", "patience"), [(HOLD, HOLD), (0.0, STARVED * HOLD)])
def test_no_prompt_starves_where_streams_that_begin_are_never_ahead(old: float, patience: float) -> None:
    """Where others are ahead it waits for `hold`, and else longer, until even the shortest way to be ahead has failed."""
    paced, long, step, counts = pacer(0.004), work(prompt=2500), 0.07, list[int]()
    steps = int(patience / step) + 1
    for number in range(2 * steps + 1):
        now = 100.0 + number * step
        counts.append(sum(read(paced.plan([*streams(3), *streams(1, due=now + old), long], 512, now))))
    assert counts == [*[0] * steps, TILE - 4, *[0] * (steps - 1), TILE - 4]


def test_where_a_tile_takes_longer_than_tokens_may_be_held_a_prompt_that_starves_gets_a_small_piece() -> None:
    paced, long = pacer(0.040), work(prompt=2500)
    assert read(paced.plan([*streams(4), long], 512, 100.0)) == []
    assert read(paced.plan([*streams(4), long], 512, 100.01 + STARVED * HOLD)) == [2]


def test_steps_without_streams_and_those_of_which_nothing_is_known_are_as_ever() -> None:
    assert read(pacer(0.004).plan([work(prompt=2500)], 512, 100.0)) == [2 * TILE]  # half a second's worth
    assert read(Pacer(StepCosts(STALL)).plan([*streams(4), work(prompt=2500)], 512, 100.0)) == [16]


@pytest.mark.parametrize("options", [{"hold": 0.0}, {"least": FEW}])
def test_without_holding_or_with_a_least_chunk_that_is_no_small_one_every_step_reads(options: dict[str, float]) -> None:
    paced = pacer(0.004, **options)  # type: ignore[arg-type]
    stream = streams(4, due=100.0)
    assert 6 <= sum(read(paced.plan([*stream, work(prompt=2500)], 512, 100.0))) <= FEW
    assert paced.due(stream[0], 100.01) == 100.01


def test_tokens_are_due_at_the_pace_and_never_later_than_the_hold() -> None:
    paced, stream = pacer(0.004), streams(4, due=100.0)
    paced.plan([*stream, work(prompt=2500)], 512, 100.0)
    assert paced.due(stream[0], 100.03) == pytest.approx(100.06)
    assert paced.due(stream[0], 100.20) == 100.20  # late already: at once
    assert [paced.due(stream[1], 100.03) for _ in range(30)][-1] == 100.03 + HOLD
    assert paced.due(work(decoding=True), 100.03) == 100.03  # a stream's first
    paced.plan(stream, 512, 100.1)  # no prompt is left
    assert paced.due(stream[0], 100.11) == 100.11


def test_on_a_fast_device_whole_prompts_fit_and_the_pace_is_that_of_a_step_nobody_notices() -> None:
    costs = StepCosts(STALL)
    costs.observe(4, 0, 0.004)
    costs.observe(4, 500, 0.014)
    paced, stream = Pacer(costs), streams(4, due=100.0)
    assert read(paced.plan([*stream, work(prompt=400)], 512, 100.0)) == [400]
    assert read(paced.plan([*stream, work(prompt=2000)], 512, 100.0)) == [508]
    assert paced.due(stream[0], 100.014) == pytest.approx(100.0 + FREE_STEP)


def test_a_paused_stream_holds_nobody_back() -> None:
    paused = work(prompt=8, done=8, decoding=True, paused=True, due=1.0)
    running = [*streams(4, due=100.7), paused, work(prompt=2500)]
    assert read(pacer(0.004).plan(running, 512, 100.0)) == [TILE - 4]


@pytest.mark.parametrize("usual", [0.012, 0.030, 0.060])
@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize(("token", "deep"), [(0.0012, 2.5e-6), (0.002, 3e-6), (0.0025, 1e-6)])
def test_readers_see_even_gaps_and_a_long_prompt_is_read_sooner(usual: float, count: int, token: float, deep: float) -> None:
    """A model of a processor: tokens are dearer the deeper they are, those in a tile by a quarter as much; steps vary by a tenth."""
    took: dict[float, float] = {}
    for hold in (0.0, HOLD):
        noise = random.Random(1)
        costs = StepCosts(STALL)
        costs.observe(count, 0, usual)
        costs.observe(count, 16, usual + 16 * token)
        paced, running, now = Pacer(costs, hold), streams(count), 1000.0
        handed: list[float] = []
        for stream in running:
            paced.due(stream, now)
        long = work(arrival=1, prompt=2000)
        while long.done < long.prompt:
            plan = paced.plan([*running, long], 512, now)
            assert len(plan.decode) == count
            size = sum(read(plan))
            depth = long.done + size / 2
            rows = size + count
            steep = deep if rows < TILE else deep / 4 * -(-rows // TILE) * TILE / rows
            seconds = (usual + size * (token + depth * steep)) * noise.uniform(0.95, 1.05)
            now += seconds
            costs.observe(count, size, seconds, depth)
            long.done += size
            dues = [paced.due(stream, now) for stream in running]
            assert all(now <= due <= now + HOLD for due in dues)
            handed.append(dues[0])
        took[hold] = now
        gaps = [b - a for a, b in itertools.pairwise(handed)]
        least = usual + 4 * (token + deep * 2000)  # what a step with the least chunk takes
        assert all(gap > -1e-9 for gap in gaps)
        assert sorted(gaps)[int(len(gaps) * 0.95)] <= max(STALL * usual * 1.35, least * 1.1, FREE_STEP * 1.35)
    assert took[HOLD] <= took[0.0] + 1.0


@given(
    st.lists(
        st.builds(
            Work, priority=st.integers(0, 2), arrival=st.integers(0, 99), prompt=st.integers(1, 2000), decoding=st.booleans(),
            paused=st.booleans(), due=st.floats(99, 101), largest_chunk=st.sampled_from([4, 32, 2**31]),
        ),
        max_size=20,
    ),
    st.floats(1e-5, 0.05),
)  # fmt: skip
def test_every_step_moves_and_stays_in_its_bounds(running: list[Work], token: float) -> None:
    paced = pacer(token)
    for item in running:
        item.done = item.prompt if item.decoding else 0
    plan = paced.plan(running, 64, 100.0)
    assert len(plan.decode) + sum(read(plan)) <= 64
    assert all(0 < count <= min(item.prompt, item.largest_chunk) for item, count in plan.prefill)
    if any(not item.decoding or not item.paused for item in running):
        assert plan
