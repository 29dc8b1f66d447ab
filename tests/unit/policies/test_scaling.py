"""How many replicas there should be: by load, without flapping, within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.scaling import Load, Scaler, ScaleRules, need_of

RULES = ScaleRules(min=1, max=8, target=0.8, stabilization=60.0)


def load(replicas: int = 1, **known: float) -> Load:
    return Load(**{"replicas": replicas, "ready": replicas, "slots": 10.0, **known})  # type: ignore[arg-type]


def run(scaler: Scaler, seconds: int, asked: float, start: float = 0.0, rules: ScaleRules = RULES, **known: float) -> list[int]:
    """A load that replicas follow at once, for so many seconds; the number advised after each."""
    advised = []
    for second in range(seconds):
        now = start + second
        advised.append(scaler.decide(now, load(scaler.desired, busy=asked, **known), rules).desired)
    return advised


def test_the_need_is_what_fills_the_slots_to_the_target() -> None:
    assert need_of(load(busy=8), RULES) == (1.0, "slots")
    assert need_of(load(busy=8, waiting=8), RULES) == (2.0, "slots")


def test_full_kv_memory_needs_more_whatever_the_slots_say() -> None:
    need, by = need_of(load(2, busy=1, kv=1.0), ScaleRules(target_kv=0.5))
    assert (need, by) == (4.0, "kv")


def test_load_that_lasts_starts_more_and_load_that_has_gone_stops_them_late() -> None:
    scaler = Scaler()
    assert run(scaler, 3, asked=1.0)[-1] == 1
    assert run(scaler, 3, asked=30.0, start=3)[-1] == 4
    advised = run(scaler, 70, asked=1.0, start=6)
    assert advised[50] == 4, "within the window nothing is taken away"
    assert advised[-1] == 1


def test_a_blip_starts_nothing_where_loading_is_dear() -> None:
    scaler = Scaler()
    run(scaler, 20, asked=1.0, load_seconds=100.0)
    assert max(run(scaler, 8, asked=50.0, start=20, load_seconds=100.0)) == 1
    assert max(run(scaler, 5, asked=1.0, start=28, load_seconds=100.0)) == 1


def test_what_is_dear_to_load_is_kept_for_longer() -> None:
    scaler = Scaler(3)
    run(scaler, 12, asked=23.0, load_seconds=100.0)
    assert scaler.desired == 3
    assert run(scaler, 190, asked=1.0, start=12, load_seconds=100.0)[-1] == 3, "longer than stabilization: twice the time of a load"
    assert run(scaler, 30, asked=1.0, start=202, load_seconds=100.0)[-1] == 1


def test_a_queue_that_stands_asks_for_one_more_and_not_for_another_while_that_one_starts() -> None:
    scaler = Scaler(1)
    for second in range(10):
        scaler.decide(second, load(1, busy=1, waiting=1, queued_for=float(second)), RULES)
    assert scaler.desired == 2, "the slots say one; the queue says otherwise"


def test_a_load_at_the_edge_of_a_number_does_not_move_it_back_and_forth() -> None:
    scaler = Scaler(2)
    seen = {scaler.decide(second, load(2, busy=7.9 + 0.2 * (second % 2)), RULES).desired for second in range(600)}
    assert seen == {2}


@given(st.lists(st.floats(0, 500), min_size=1, max_size=200), st.integers(1, 8), st.integers(0, 8), st.floats(0, 1))
def test_it_stays_within_its_bounds(asked: list[float], least: int, more: int, kv: float) -> None:
    rules = ScaleRules(min=least, max=least + more, stabilization=10.0)
    scaler = Scaler()
    for second, busy in enumerate(asked):
        known = load(scaler.desired, busy=busy, waiting=busy / 2, queued_for=float(second), kv=kv)
        assert least <= scaler.decide(second, known, rules).desired <= least + more


@given(st.floats(0, 100), st.integers(1, 8))
def test_a_steady_load_comes_to_rest(busy: float, begun: int) -> None:
    scaler = Scaler(begun)
    run(scaler, 130, asked=busy)
    advised = run(scaler, 130, asked=busy, start=130)
    assert len(set(advised)) == 1
    assert advised[0] >= min(busy / 8.0, 8) - 1e-6, "it carries the load, as far as max allows"


@given(st.lists(st.integers(1, 25), min_size=2, max_size=12), st.floats(0, 30), st.floats(30, 90))
def test_a_load_that_swings_faster_than_the_window_never_takes_one_away(gaps: list[int], low: float, high: float) -> None:
    scaler, now, advised = Scaler(), 0, []
    for gap in gaps:
        advised += run(scaler, 5, asked=high, start=now)
        advised += run(scaler, gap, asked=low, start=now + 5)
        now += 5 + gap
    assert advised == sorted(advised)
    assert len(set(advised)) <= 3


@given(st.lists(st.floats(0, 80), min_size=1, max_size=300))
def test_between_two_takings_away_there_is_the_window(asked: list[float]) -> None:
    rules = ScaleRules(min=1, max=20, stabilization=30.0)
    scaler, before, down, ups = Scaler(), 1, [], []
    for second, busy in enumerate(asked):
        after = scaler.decide(second, load(scaler.desired, busy=busy), rules).desired
        if after < before:
            down.append(second)
            assert all(second - up >= 30 - 2 for up in ups), "what was started is kept for the window"
        if after > before:
            ups = [second]
        before = after


@given(st.floats(0, 60), st.floats(0, 60))
def test_more_load_never_needs_fewer(one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert need_of(load(busy=small), RULES)[0] <= need_of(load(busy=large), RULES)[0]
