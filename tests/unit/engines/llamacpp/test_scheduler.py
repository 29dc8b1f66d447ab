"""The scheduler's decisions on plain views."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llamacpp.scheduler import (
    CROWD,
    EVEN,
    FIRST_CHUNK,
    FREE_STEP,
    MIN_CHUNK,
    OLDEST,
    PATIENCE,
    TILE,
    Allowance,
    StepCosts,
    TokenCost,
    Work,
    admit,
    share,
)  # fmt: skip


def work(priority: int = 1, arrival: int = 0, prompt: int = 10, **more: object) -> Work:
    return Work(priority, arrival, prompt, **more)  # type: ignore[arg-type]


def test_admission_goes_by_priority_then_arrival() -> None:
    batch, late, early, urgent = work(2, 1), work(1, 3), work(1, 2), work(0, 4)
    assert admit([batch, late, early, urgent], 3, now=0.0) == ([urgent, early, late], [])


def test_what_is_past_its_deadline_is_never_admitted_even_with_free_slots() -> None:
    expired, alive = work(deadline=5.0), work(deadline=5.1)
    assert admit([expired, alive], 8, now=5.0) == ([alive], [expired])
    assert admit([expired], 0, now=5.0) == ([], [expired])


def test_choices_wait_until_the_first_has_read_the_prompt_and_block_nobody_else() -> None:
    first = work(arrival=1)
    second, other = work(arrival=2, after=first), work(arrival=3)
    assert admit([second, other], 1, now=0.0)[0] == [other]
    first.decoding = True
    assert admit([second, other], 1, now=0.0)[0] == [second]
    first.decoding, first.ended = False, True
    assert admit([second], 1, now=0.0)[0] == [second]


def test_a_prompt_alone_fills_the_step_and_beside_streams_only_what_is_allowed() -> None:
    reading = work(prompt=1000, done=100)
    assert share([reading], 512, Allowance(512)).prefill == [(reading, 512)]
    stream = work(decoding=True)
    plan = share([stream, reading], 512, Allowance(33))
    assert plan.decode == [stream] and plan.prefill == [(reading, 33)]


def test_the_shortest_prompt_is_read_first_and_the_rest_goes_to_the_next() -> None:
    first, second, short = work(arrival=1, prompt=20), work(arrival=2, prompt=50), work(arrival=3, prompt=5)
    assert share([second, first, short], 40, Allowance(40)).prefill == [(short, 5), (first, 20), (second, 15)]


def test_a_short_prompt_is_read_in_the_step_after_it_came_however_much_of_a_long_one_is_left() -> None:
    long, short = work(arrival=1, prompt=2500, done=300), work(arrival=2, prompt=8)
    assert share([long, short], 512, Allowance(10)).prefill == [(short, 8), (long, 2)]


def test_what_is_left_of_a_prompt_counts_and_not_how_long_it_was() -> None:
    nearly, fresh = work(arrival=2, prompt=900, done=890), work(arrival=1, prompt=40)
    assert share([nearly, fresh], 64, Allowance(20)).prefill == [(nearly, 10), (fresh, 10)]


def test_the_oldest_prompt_gets_its_part_beside_any_number_of_shorter_and_more_urgent_ones() -> None:
    long = work(2, arrival=0, prompt=2000)
    for step in range(40):
        running = [long, *(work(0, arrival=1 + step * 8 + n, prompt=30) for n in range(7))]
        read = dict((item.arrival, count) for item, count in share(running, 512, Allowance(20)).prefill)
        assert read[0] == 20 * OLDEST
        long.done += read[0]
    assert share([long, work(0, 1, 30)], 512, Allowance(2)).prefill[1] == (long, 1)  # never rounded down to nothing


def test_time_is_shared_out_by_what_a_token_costs_where_it_stands() -> None:
    """0.1 s; a token costs 1 ms at the beginning of a prompt and 11 ms after a thousand."""
    allowance = Allowance(512, 0.100, lambda depth: 0.001 + depth / 100_000, least=2)
    deep, fresh = work(arrival=1, prompt=1400, done=1000), work(arrival=2, prompt=40)
    plan = share([deep, fresh, work(decoding=True)], 512, allowance)
    assert plan.prefill == [(fresh, 40), (deep, 3)]  # 48 ms for the short one; of the rest four tokens, and one less to be even
    assert share([work(decoding=True), deep], 512, Allowance(512, 0.001, allowance.at, least=2)).prefill == [(deep, 3)]


def test_a_step_has_an_even_number_of_tokens_wherever_that_delays_no_prompt() -> None:
    for streams in range(1, 9):
        for budget in range(MIN_CHUNK, 40):
            plan = share([*(work(decoding=True) for _ in range(streams)), work(prompt=500)], 512, Allowance(budget, least=MIN_CHUNK))
            count = plan.prefill[0][1]
            assert (streams + count) % EVEN == 0 and count >= MIN_CHUNK and abs(budget - count) <= 1
    assert share([work(decoding=True), last := work(prompt=8)], 512, Allowance(20)).prefill == [(last, 8)]


def test_a_bounded_chunk_leaves_the_rest_to_others() -> None:
    scored, other = work(arrival=1, prompt=100, largest_chunk=4), work(arrival=2, prompt=200)
    assert share([scored, other], 64, Allowance(64)).prefill == [(scored, 4), (other, 60)]


def test_a_paused_stream_keeps_its_place_and_generates_nothing() -> None:
    paused = work(decoding=True, paused=True)
    assert not share([paused], 64, Allowance(32))
    reading = work(prompt=100)
    assert share([paused, reading], 64, Allowance(64)).prefill == [(reading, 64)]


works = st.builds(
    Work, priority=st.integers(0, 2), arrival=st.integers(0, 99), prompt=st.integers(1, 2000), decoding=st.booleans(), paused=st.booleans()
)


@given(
    st.lists(works, max_size=40), st.integers(1, 512), st.integers(MIN_CHUNK, 512), st.floats(0, 1), st.floats(0, 0.01), st.floats(0, 1e-4)
)
def test_a_step_never_exceeds_its_bounds_and_always_moves(
    running: list[Work], capacity: int, tokens: int, seconds: float, token: float, slope: float
) -> None:
    allowance = Allowance(tokens, seconds, lambda depth: token + slope * depth, MIN_CHUNK)
    plan = share(running, capacity, allowance)
    prompt_tokens = sum(count for _, count in plan.prefill)
    assert len(plan.decode) + prompt_tokens <= capacity
    assert all(0 < count <= item.prompt - item.done for item, count in plan.prefill)
    assert len({id(item) for item, _count in plan.prefill}) == len(plan.prefill)
    assert prompt_tokens <= tokens + 1
    if prompt_tokens > MIN_CHUNK + 2:  # the least chunk, the oldest one's token, one to make it even
        assert sum(allowance.spent(item.done, count) for item, count in plan.prefill) <= seconds * 1.3 + 2 * (token + slope * 2000)
    if any(not item.decoding for item in running) or any(item.decoding and not item.paused for item in running):
        assert plan


@given(st.lists(st.integers(1, 300), min_size=2, max_size=8), st.integers(2, 64), st.integers(0, 7), st.randoms(use_true_random=False))
def test_no_prompt_starves_while_short_ones_keep_coming(sizes: list[int], budget: int, streams: int, chance: random.Random) -> None:
    """Every prompt that is there at the beginning is read in the steps that all of them take together, and five times as many."""
    first = [work(chance.randrange(3), number, size) for number, size in enumerate(sizes)]
    running = [*(work(decoding=True) for _ in range(streams)), *first]
    for step in range(5 * (sum(sizes) + len(sizes)) + 50):
        if not any(item.prompt > item.done for item in first):
            break
        running.append(work(0, 100 + step, chance.randint(1, 8)))
        for item, count in share(running, 512, Allowance(budget, least=MIN_CHUNK)).prefill:
            item.done += count
        running = [item for item in running if item.decoding or item.done < item.prompt]
    assert all(item.done == item.prompt for item in first)


def measured(step: float, token: float, streams: int = 8, chunk: int = 200) -> StepCosts:
    costs = StepCosts(stall=2.5)
    costs.observe(decode=streams, prefill=0, seconds=step)
    costs.observe(decode=streams, prefill=chunk, seconds=step + chunk * token)
    return costs


def settled(cost: TokenCost, depth: float) -> float:
    value = cost.at(depth)
    assert value is not None
    return value


def budget(costs: StepCosts, capacity: int, streams: int = 1, prompts: int = 1, done: int = 0) -> int:
    """Prompt tokens of the next step where one long prompt is read beside streams."""
    allowance = costs.allowance(capacity, streams, prompts)
    running = [*(work(decoding=True) for _ in range(streams)), work(prompt=10**6, done=done)]
    return sum(count for _item, count in share(running, capacity + streams, allowance).prefill)


def test_the_budget_follows_from_what_steps_cost() -> None:
    assert StepCosts().allowance(512, 1).tokens == FIRST_CHUNK
    costs = measured(0.050, 0.002)
    assert budget(costs, 512, streams=8) == 36  # (2.5 - 1) * 50 ms at 2 ms a token are 37, made even with the streams
    assert budget(costs, 20, streams=8) == 20
    costs.observe(decode=8, prefill=1, seconds=9.0)  # too short to learn a token's cost from
    assert budget(costs, 512, streams=8) == 36


def test_a_step_without_streams_is_bounded_too_because_a_short_prompt_may_come_meanwhile() -> None:
    costs = StepCosts()
    assert costs.allowance(512, 0).tokens == 512
    costs.observe(decode=0, prefill=512, seconds=4.0)
    assert costs.allowance(512, 0).tokens == int(PATIENCE / (4 / 512))
    costs.observe(decode=0, prefill=64, seconds=640.0)  # however slow, some progress in every step
    assert costs.allowance(512, 0).tokens == FIRST_CHUNK
    fast = StepCosts()
    fast.observe(decode=0, prefill=512, seconds=0.050)
    assert fast.allowance(512, 0).tokens == 512


def test_the_least_chunk_is_a_setting() -> None:
    for least, read in ((1, 1), (2, 3), (16, 17)):
        costs = StepCosts(least=least)
        costs.observe(decode=7, prefill=0, seconds=0.050)
        costs.observe(decode=7, prefill=200, seconds=200.0)
        assert budget(costs, 512, streams=7) == read


def test_a_chunk_is_not_much_larger_than_any_that_was_measured() -> None:
    costs = measured(0.050, 0.0001, chunk=40)
    assert budget(costs, 512, streams=8) == 56  # 1.5 times as many are 60: with the streams' tokens as many as a tile
    for tiles in (1, 2, 3):  # a tile more at a time, and from three on half as much again
        costs.observe(decode=8, prefill=TILE * tiles - 8, seconds=0.050 + 0.0001 * (TILE * tiles - 8))
        assert budget(costs, 512, streams=8) == TILE * (tiles + 1) - 8
    costs.observe(decode=8, prefill=248, seconds=0.075)
    assert budget(costs, 512, streams=8) == TILE * 6 - 8


def test_a_prompt_read_alone_is_a_first_guess_only() -> None:
    costs = StepCosts()
    costs.observe(decode=0, prefill=40, seconds=0.08)
    assert costs.token.at(0) == pytest.approx(0.002)
    costs.observe(decode=1, prefill=0, seconds=0.050)
    costs.observe(decode=1, prefill=20, seconds=0.130)
    beside = settled(costs.token, 0)
    costs.observe(decode=0, prefill=40, seconds=0.04)
    assert costs.token.at(0) == beside and beside > 0.002


def test_tokens_that_fill_tiles_have_a_cost_of_their_own() -> None:
    costs = StepCosts()
    costs.observe(decode=4, prefill=0, seconds=0.020)
    costs.observe(decode=4, prefill=16, seconds=0.100)
    assert costs.pieces(512, 4, 0, 0.29) == 0  # as long as nothing else is known, such a token costs as much: 5 ms
    costs.observe(decode=4, prefill=60, seconds=0.140)
    assert (costs.token.at(0), costs.tiled.at(0)) == pytest.approx((0.005, 0.002))
    assert costs.pieces(512, 4, 0, 0.119) == 0 and costs.pieces(512, 4, 0, 0.121) == 60
    assert costs.pieces(63, 4, 0, 9.0) == 0  # a step has no room for a tile
    costs.observe(decode=4, prefill=76, seconds=9.0)  # a quarter of a second tile tells nothing
    costs.observe(decode=0, prefill=40, seconds=9.0)
    assert costs.tiled.at(0) == pytest.approx(0.002)
    costs.observe(decode=0, prefill=512, seconds=0.005 + 512 * 0.004, depth=1000)  # one that is read alone does
    assert settled(costs.tiled, 1000) > 0.0021


@pytest.mark.parametrize(("streams", "tokens"), [(1, 63), (4, 60), (32, 32), (33, 95), (64, 64), (200, 56)])
def test_the_smallest_piece_fills_a_tile_with_the_streams_and_is_not_tiny(streams: int, tokens: int) -> None:
    assert StepCosts().piece(streams) == tokens


def test_what_slowed_the_machine_while_so_many_streams_ran_is_not_believed_of_them_for_good() -> None:
    costs = StepCosts()
    for count, usual in ((4, 0.020), (5, 0.022)):
        costs.observe(count, 0, usual)
    for _ in range(60):
        costs.observe(5, 0, 0.088)  # others have the machine
    assert settled_step(costs, 4) > 0.045
    for _ in range(60):
        costs.observe(4, 0, 0.020)
    assert settled_step(costs, 4) == pytest.approx(0.020, rel=0.05)
    assert settled_step(costs, 5) < 0.04  # without one step of five streams


def test_a_step_that_was_delayed_does_not_count_as_usual() -> None:
    costs = measured(0.050, 0.002)
    costs.observe(8, 0, 1.0)
    assert settled_step(costs, 8) < 0.1
    costs.observe(8, 0, 0.040)
    costs.observe(8, 0, 0.040)
    assert settled_step(costs, 8) < 0.070


def settled_step(costs: StepCosts, streams: int) -> float:
    value = costs.step(streams)
    assert value is not None
    return value


def test_each_number_of_streams_has_its_usual_step_and_an_unknown_one_is_not_overrated() -> None:
    costs = measured(0.080, 0.002)
    assert costs.step(8) == 0.080
    assert costs.step(4) == pytest.approx(0.040)  # at least its share
    assert costs.step(9) == 0.080
    costs.observe(2, 0, 0.030)
    assert costs.step(4) == 0.030 and costs.step(8) == 0.080


def test_few_streams_wait_longer_where_many_prompts_are_read() -> None:
    assert StepCosts().allowance(512, streams=1, prompts=7).tokens == 7 * CROWD * FIRST_CHUNK
    costs = measured(0.050, 0.002, streams=1)
    assert budget(costs, 512, streams=1, prompts=4) == 2 * TILE - 1  # time for 150
    assert budget(costs, 512, streams=7, prompts=1) == 37


def test_steps_so_short_that_nobody_notices_may_grow() -> None:
    assert budget(measured(0.002, 0.0001), 512, streams=8) == 3 * TILE - 8  # 23 ms at 0.1 ms a token are 230, filled tiles 184


def test_an_outlier_is_believed_only_so_far() -> None:
    cost = TokenCost()
    cost.learn(0, 0.001, 20)
    cost.learn(0, 0.002, 20)
    risen = settled(cost, 0)
    assert 0.0012 <= risen <= 0.0015
    cost.learn(0, 0.001, 20)
    calm = settled(cost, 0)
    cost.learn(0, 1.0, 20)  # another process had the machine for a second
    assert settled(cost, 0) < 1.5 * calm
    for _ in range(60):
        cost.learn(0, 0.001, 20)
    assert settled(cost, 0) == pytest.approx(0.001, rel=0.2)


def test_time_that_vanishes_does_not_make_tokens_free() -> None:
    costs = measured(0.050, 0.001)
    costs.observe(8, 100, 0.010)  # faster than without
    assert settled(costs.tiled, 0) > 0.0005


def test_what_deep_tokens_cost_is_known_before_the_first_of_a_prompt_is_read() -> None:
    cost = TokenCost()
    for depth in range(0, 1500, 10):
        cost.learn(depth, 0.006 + 0.00001 * depth, 10)
    assert settled(cost, 1500) == pytest.approx(0.021, rel=0.1)
    for _ in range(100):  # then many short prompts
        cost.learn(0, 0.006, 16)
    assert settled(cost, 0) == pytest.approx(0.006, rel=0.1)
    assert settled(cost, 1500) == pytest.approx(0.021, rel=0.15)


@given(st.floats(0.01, 0.2), st.floats(1e-5, 0.02), st.floats(0, 0.003), st.integers(1, 8), st.randoms(use_true_random=False))
def test_a_long_prompt_never_makes_steps_much_longer_than_it_may(
    usual: float, token: float, rise: float, streams: int, noise: random.Random
) -> None:
    """Steps of a machine that jitters by a tenth; a first prompt of 1,500 tokens, each dearer than the one before it."""
    slope = token * rise
    costs = StepCosts(stall=2.2)
    for _ in range(10):
        costs.observe(streams, 0, usual * noise.uniform(0.95, 1.05))
    costs.observe(streams, 16, usual + 16 * token)
    done = 0
    longest = max(2.2 * usual, FREE_STEP)
    while done < 1500:
        chunk = min(budget(costs, 512, streams, 1, done), 1500 - done)
        seconds = (usual + sum(token + slope * (done + n) for n in range(chunk))) * noise.uniform(0.95, 1.05)
        least = usual + (MIN_CHUNK + 1) * (token + slope * (done + MIN_CHUNK))
        assert seconds <= max(longest * 1.5, least * 1.1)
        costs.observe(streams, chunk, seconds, done + chunk / 2)
        done += chunk
