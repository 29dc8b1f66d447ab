"""The budget of bytes: nobody gets more than there is, and what is given back is there again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import LimitExceeded, Overloaded
from gateway.core.specs import ListenSpec
from gateway.pipeline.memory import MemoryBudget

MIB = 1024 * 1024
LIMITS = ListenSpec(memory_bytes=10 * MIB, memory_share=0.4)


def test_the_process_has_a_bound() -> None:
    budget = MemoryBudget()
    for owner in "abc":
        budget.take(owner, 3 * MIB, LIMITS)
    with pytest.raises(Overloaded) as refused:
        budget.take("d", 2 * MIB, LIMITS)
    assert (refused.value.status, refused.value.retry_after) == (503, 1.0)
    budget.give_back("a", 3 * MIB)
    budget.take("d", 2 * MIB, LIMITS)
    assert budget.held == 8 * MIB


def test_each_owner_has_a_share() -> None:
    budget = MemoryBudget()
    budget.take("a", 3 * MIB, LIMITS)
    with pytest.raises(LimitExceeded) as refused:
        budget.take("a", 2 * MIB, LIMITS)
    assert (refused.value.status, refused.value.code) == (429, "concurrency_exceeded")
    budget.take("b", 2 * MIB, LIMITS)
    assert (budget.share("a"), budget.share("b"), budget.share("c")) == (3 * MIB, 2 * MIB, 0)


def test_a_body_larger_than_a_share_is_admitted_alone() -> None:
    budget = MemoryBudget()
    budget.take("a", 6 * MIB, LIMITS)
    with pytest.raises(LimitExceeded):
        budget.take("a", 1, LIMITS)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6 * MIB)), max_size=40), st.data())
def test_what_is_held_is_what_was_taken_and_not_given_back(wanted: list[tuple[str, int]], data: st.DataObject) -> None:
    budget = MemoryBudget()
    taken: list[tuple[str, int]] = []
    for owner, amount in wanted:
        if taken and data.draw(st.booleans()):
            budget.give_back(*taken.pop(data.draw(st.integers(0, len(taken) - 1))))
        try:
            budget.take(owner, amount, LIMITS)
            taken.append((owner, amount))
        except (Overloaded, LimitExceeded):
            pass
        assert budget.held == sum(size for _, size in taken) <= LIMITS.memory_bytes
        for name in "abc":
            assert budget.share(name) == sum(size for whose, size in taken if whose == name)
    for owner, amount in taken:
        budget.give_back(owner, amount)
    assert budget.held == 0 and budget._shares == {}
