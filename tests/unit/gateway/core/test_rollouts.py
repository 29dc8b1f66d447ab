"""Figures of candidates: classes of durations, quantiles, sums over processes."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.rollouts import CLASSES, RolloutsTold, ShadowFigures, class_of, no_durations, quantile, summed


@given(st.lists(st.floats(0.001, 3000), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_is_at_most_a_fifth_too_high(durations: list[float], share: float) -> None:
    counts = no_durations()
    for duration in durations:
        counts[class_of(duration)] += 1
    true = sorted(durations)[max(0, math.ceil(share * len(durations) - 1e-9) - 1)]
    found = quantile(counts, share)
    assert found is not None
    assert true * 0.999 <= found <= true * 1.2


def test_durations_beyond_the_classes_are_in_the_outermost() -> None:
    assert (class_of(0.0), class_of(1e9)) == (0, CLASSES - 1)
    assert quantile(no_durations(), 0.5) is None


def test_processes_are_summed_and_another_candidate_starts_anew() -> None:
    one, two, three = ShadowFigures("n", sampled=3), ShadowFigures("n", sampled=4), ShadowFigures("other", sampled=1)
    one.drop("late")
    two.drop("late")
    two.skip("stopped")
    one.alike(1.0)
    two.alike(0.25)
    two.model.latency[3] += 2
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(RolloutsTold({"m": each})), type=RolloutsTold) for each in (one, two)]
    found = summed(sent)["m"]
    assert (found.sampled, found.dropped, found.skipped, found.compared) == (7, {"late": 2}, {"stopped": 1}, 2)
    assert (found.likeness_sum, found.likeness[9], found.likeness[2], found.model.latency[3]) == (1.25, 1, 1, 2)
    assert summed([*sent, RolloutsTold({"m": three})])["m"].sampled == 1
    assert one.sampled == 3, "the sum is another object"
