"""The decisions of a rollout, under a clock that the test moves."""

from __future__ import annotations

import pytest

from engines.host.shift_plan import Observed, ShiftPlan
from gateway.core.specs import RolloutSpec

SPEC = RolloutSpec(steps=(0.1, 0.5), step_seconds=5.0, max_failures=2)


def begun(now: float = 0.0) -> ShiftPlan:
    plan = ShiftPlan(SPEC, now)
    assert plan.decide(Observed(now)) == "moved"
    return plan


def test_shares_grow_each_for_its_time_and_then_it_is_done() -> None:
    plan = ShiftPlan(SPEC, 100.0)
    seen = [(at, plan.decide(Observed(at)), plan.share, plan.step) for at in (100.0, 104.9, 105.0, 109.9, 110.0)]
    assert seen == [
        (100.0, "moved", 0.1, 1), (104.9, "stay", 0.1, 1), (105.0, "moved", 0.5, 2), (109.9, "stay", 0.5, 2), (110.0, "done", 0.5, 2),
    ]  # fmt: skip


def test_the_time_of_a_step_is_counted_from_when_it_began() -> None:
    plan = begun()
    assert plan.decide(Observed(7.0)) == "moved"
    assert plan.decide(Observed(11.9)) == "stay"
    assert plan.until == 12.0


@pytest.mark.parametrize("steps", [(), (0.5,)])
def test_without_further_steps_it_is_done(steps: tuple[float, ...]) -> None:
    plan = ShiftPlan(RolloutSpec(steps=steps, step_seconds=0.0), 0.0)
    assert [plan.decide(Observed(0.0)) for _ in range(len(steps) + 1)] == ["moved"] * len(steps) + ["done"]


@pytest.mark.parametrize(
    ("seen", "decision", "reason"),
    [
        (Observed(1.0, failures=2, requests=9), "stay", ""),
        (Observed(1.0, failures=3, requests=9), "back", "3 of 9 requests to its new process failed"),
        (Observed(9.0, failures=3, requests=9), "back", "3 of 9 requests to its new process failed"),
        (Observed(1.0, lost="killed"), "back", "its new process ended: killed"),
        (Observed(1.0, lost="killed", old_alive=False), "back", "its new process ended: killed"),
        (Observed(1.0, old_alive=False), "done", ""),
        (Observed(1.0, failures=3, old_alive=False), "back", "3 of 0 requests to its new process failed"),
        (Observed(1.0), "stay", ""),
        (Observed(5.0), "moved", ""),
    ],
)
def test_what_is_seen_decides(seen: Observed, decision: str, reason: str) -> None:
    plan = begun()
    assert (plan.decide(seen), plan.reason) == (decision, reason)
    if decision == "back":
        assert plan.share == 0.0
