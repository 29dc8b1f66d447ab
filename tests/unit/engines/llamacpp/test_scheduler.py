"""The scheduler's decisions on plain views."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llamacpp.scheduler import CROWD, EVEN, FIRST_CHUNK, FREE_STEP, MIN_CHUNK, StepCosts, TokenCost, Work, admit, share


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


def test_a_prompt_alone_fills_the_step_and_beside_streams_only_its_budget() -> None:
    reading = work(prompt=1000, done=100)
    assert share([reading], 512, 32).prefill == [(reading, 512)]
    stream = work(decoding=True)
    plan = share([stream, reading], 512, 32)
    assert plan.decode == [stream] and plan.prefill == [(reading, 32)]


def test_prompts_are_read_one_after_the_other_and_the_rest_goes_to_the_next() -> None:
    first, second, urgent = work(arrival=1, prompt=20), work(arrival=2, prompt=50), work(0, 3, prompt=5)
    assert share([second, first, urgent], 40, 40).prefill == [(urgent, 5), (first, 20), (second, 15)]


def test_a_paused_stream_keeps_its_place_and_generates_nothing() -> None:
    paused = work(decoding=True, paused=True)
    assert not share([paused], 64, 32)
    reading = work(prompt=100)
    assert share([paused, reading], 64, 32).prefill == [(reading, 64)]  # nobody is waiting for the step


works = st.builds(
    Work, priority=st.integers(0, 2), arrival=st.integers(0, 99), prompt=st.integers(1, 2000), decoding=st.booleans(), paused=st.booleans()
)


@given(st.lists(works, max_size=40), st.integers(1, 512), st.integers(MIN_CHUNK, 512))
def test_a_step_never_exceeds_its_bounds_and_always_moves(running: list[Work], capacity: int, budget: int) -> None:
    plan = share(running, capacity, budget)
    prompt_tokens = sum(count for _, count in plan.prefill)
    assert len(plan.decode) + prompt_tokens <= capacity
    assert all(0 < count <= item.prompt - item.done for item, count in plan.prefill)
    if plan.decode:
        assert prompt_tokens <= budget
    if any(not item.decoding for item in running) or any(item.decoding and not item.paused for item in running):
        assert plan


def measured(step: float, token: float, streams: int = 8, chunk: int = 200) -> StepCosts:
    costs = StepCosts(stall=2.5)
    costs.observe(decode=streams, prefill=0, seconds=step)
    costs.observe(decode=streams, prefill=chunk, seconds=step + chunk * token)
    return costs


def settled(cost: TokenCost, depth: float) -> float:
    value = cost.at(depth)
    assert value is not None
    return value


def test_the_budget_follows_from_what_steps_cost() -> None:
    assert StepCosts().budget(512) == FIRST_CHUNK
    costs = measured(0.050, 0.002)
    assert costs.budget(512, streams=8) == 36  # (2.5 - 1) * 50 ms at 2 ms a token are 37, made even with the streams
    assert costs.budget(20, streams=8) == 20
    costs.observe(decode=8, prefill=1, seconds=9.0)  # too short to learn a token's cost from
    assert costs.budget(512, streams=8) == 36


def test_a_step_has_an_even_number_of_tokens_wherever_that_can_be() -> None:
    for streams in range(1, 9):
        for cost in (0.0001, 0.001, 0.01, 1.0):
            budget = measured(0.050, cost, streams).budget(512, streams)
            assert (streams + budget) % EVEN == 0 and budget >= MIN_CHUNK


def test_the_least_chunk_is_a_setting() -> None:
    for least, budget in ((1, 1), (2, 3), (16, 17)):
        costs = StepCosts(least=least)
        costs.observe(decode=7, prefill=0, seconds=0.050)
        costs.observe(decode=7, prefill=200, seconds=200.0)
        assert costs.budget(512, streams=7) == budget


def test_a_chunk_is_not_much_larger_than_any_that_was_measured() -> None:
    costs = measured(0.050, 0.0001, chunk=40)
    assert costs.budget(512, streams=8) == 60
    costs.observe(decode=8, prefill=60, seconds=0.056)
    assert costs.budget(512, streams=8) == 90


def test_a_prompt_read_alone_is_a_first_guess_only() -> None:
    costs = StepCosts()
    costs.observe(decode=0, prefill=500, seconds=1.0)
    assert costs.token.at(0) == pytest.approx(0.002)
    costs.observe(decode=1, prefill=0, seconds=0.050)
    costs.observe(decode=1, prefill=20, seconds=0.130)
    beside = costs.token.at(0)
    costs.observe(decode=0, prefill=500, seconds=0.1)
    assert costs.token.at(0) == beside and beside > 0.002


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
    assert StepCosts().budget(512, streams=1, prompts=7) == 7 * CROWD * FIRST_CHUNK
    costs = measured(0.050, 0.002, streams=1)
    assert costs.budget(512, streams=1, prompts=4) == 299 and costs.budget(512, streams=7, prompts=1) == 37


def test_steps_so_short_that_nobody_notices_may_grow() -> None:
    assert measured(0.002, 0.0001).budget(512, streams=8) in (229, 230)  # 23 ms at 0.1 ms a token


def test_a_rise_is_believed_sooner_than_a_fall_and_one_outlier_only_so_far() -> None:
    cost = TokenCost()
    cost.learn(0, 0.001, 20)
    cost.learn(0, 0.002, 20)
    risen = settled(cost, 0)
    assert 0.0013 <= risen <= 0.0025
    cost.learn(0, 0.001, 20)
    assert settled(cost, 0) > (risen + 0.001) / 2
    calm = settled(cost, 0)
    cost.learn(0, 1.0, 20)  # another process had the machine for a second
    assert settled(cost, 0) < 3 * calm
    for _ in range(60):
        cost.learn(0, 0.001, 20)
    assert settled(cost, 0) == pytest.approx(0.001, rel=0.2)


def test_time_that_vanishes_does_not_make_tokens_free() -> None:
    costs = measured(0.050, 0.001)
    costs.observe(8, 100, 0.010)  # faster than without
    assert settled(costs.token, 0) > 0.0005


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
        chunk = min(costs.budget(512, streams, 1, done), 1500 - done)
        seconds = (usual + sum(token + slope * (done + n) for n in range(chunk))) * noise.uniform(0.95, 1.05)
        least = usual + (MIN_CHUNK + 1) * (token + slope * (done + MIN_CHUNK))
        assert seconds <= max(longest * 1.5, least * 1.1)
        costs.observe(streams, chunk, seconds, done + chunk / 2)
        done += chunk
