"""The scheduler's decisions on plain views."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llamacpp.scheduler import FIRST_CHUNK, MIN_CHUNK, MIXED_FACTOR, StepCosts, Work, admit, share


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


def measured(step: float, token: float) -> StepCosts:
    costs = StepCosts(stall=2.5)
    costs.observe(decode=8, prefill=0, seconds=step)
    costs.observe(decode=0, prefill=500, seconds=token / MIXED_FACTOR * 500)
    return costs


def test_the_budget_follows_from_what_steps_cost() -> None:
    assert StepCosts().budget(512) == FIRST_CHUNK
    costs = measured(0.050, 0.002)
    assert costs.budget(512) == 37  # (2.5 - 1) * 50 ms at 2 ms a token
    assert costs.budget(20) == 20
    costs.observe(decode=0, prefill=1, seconds=9.0)  # too short to learn a token's cost from
    assert costs.budget(512) == 37


def test_a_step_that_was_delayed_does_not_count_as_usual() -> None:
    costs = measured(0.050, 0.002)
    costs.observe(8, 0, 1.0)
    assert costs.step is not None and costs.step < 0.1
    costs.observe(8, 0, 0.040)
    costs.observe(8, 0, 0.040)
    assert costs.step < 0.070


def test_few_streams_wait_longer_where_many_prompts_are_read() -> None:
    assert StepCosts().budget(512, streams=1, prompts=7) == 7 * FIRST_CHUNK
    costs = measured(0.050, 0.002)
    assert costs.budget(512, streams=1, prompts=4) == 150 and costs.budget(512, streams=7, prompts=1) == 37


def test_steps_so_short_that_nobody_notices_may_grow() -> None:
    assert measured(0.002, 0.0001).budget(512) in (229, 230)  # 23 ms at 0.1 ms a token


def test_a_mixed_step_teaches_the_cost_of_its_prompt_tokens_sooner_when_it_rises() -> None:
    costs = measured(0.050, 0.001)
    costs.observe(8, 100, 0.250)
    assert costs.token == pytest.approx(0.0015)
    costs.observe(8, 100, 0.100)
    assert costs.token == pytest.approx(0.0014)
    costs.observe(8, 100, 0.010)  # faster than without: noise must not make tokens free
    assert costs.token is not None and 0.001 < costs.token < 0.0014
    fresh = StepCosts()
    fresh.observe(8, 0, 0.050)
    fresh.observe(8, 100, 0.150)
    assert fresh.token == pytest.approx(0.001)
