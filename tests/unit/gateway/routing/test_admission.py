"""The queue: classes first, tenants fairly by tokens, deadlines, and who gives way when it is full."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.types import Priority
from gateway.routing.admission import AdmissionQueue, Entry

AVOIDED = (("x",), ("y",), ("x", "y"))


def entry(
    tenant: str = "t", priority: Priority = "standard", cost: int = 10, deadline: float = 1000.0, avoids: tuple[str, ...] = ()
) -> Entry:
    return Entry(tenant, priority, cost, deadline, avoids)


def drain(queue: AdmissionQueue, count: int = 10_000) -> list[Entry]:
    found = []
    while len(found) < count and (item := queue.pop()) is not None:
        found.append(item)
    return found


def test_first_come_first_served_within_a_tenant():
    queue = AdmissionQueue(10, {})
    entries = [entry(cost=cost) for cost in (5, 500, 50)]
    for item in entries:
        assert queue.push(item) is None
    assert drain(queue) == entries


def test_retries_that_a_free_slot_serves_are_not_overtaken():
    queue = AdmissionQueue(10, {})
    entries = [entry(avoids=avoids) for avoids in ((), ("x",), (), ("y",), ("x",), ())]
    for item in entries:
        queue.push(item)
    assert drain(queue) == entries


def test_who_is_served_before_a_tenant() -> None:
    queue = AdmissionQueue(100, {})
    for item in (entry(priority="interactive"), entry("a"), entry("a"), entry("b"), entry("c", priority="batch")):
        queue.push(item)
    assert [queue.before(tenant, rank) for tenant, rank in (("a", 1), ("z", 1), ("z", 0), ("c", 2))] == [2, 3, 1, 4]


def test_better_classes_go_first():
    queue = AdmissionQueue(10, {})
    batch, standard, interactive = entry(priority="batch"), entry(priority="standard"), entry(priority="interactive")
    for item in (batch, standard, interactive):
        queue.push(item)
    assert queue.ahead(0) == 1
    assert queue.ahead(2) == 3
    assert drain(queue) == [interactive, standard, batch]


def test_a_greedy_tenant_gets_no_more_than_a_modest_one():
    queue = AdmissionQueue(1000, {})
    for _ in range(90):
        queue.push(entry("greedy"))
    for _ in range(10):
        queue.push(entry("modest"))
    assert Counter(item.tenant for item in drain(queue, 20)) == {"greedy": 10, "modest": 10}


def test_fairness_counts_tokens_not_requests():
    queue = AdmissionQueue(1000, {})
    for _ in range(100):
        queue.push(entry("long", cost=1000))
        queue.push(entry("short", cost=100))
    first = drain(queue, 55)
    tokens = Counter[str]()
    for item in first:
        tokens[item.tenant] += item.cost
    assert tokens["long"] == pytest.approx(tokens["short"], abs=1000)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2),
    st.lists(st.integers(1, 400), min_size=4, max_size=4),
    st.sets(st.sampled_from("abcd")),
)
def test_backlogged_tenants_get_their_weights(weights: dict[str, float], costs: list[int], held_up: set[str]):
    """Also those whose oldest requests are retries that no free slot serves."""
    queue = AdmissionQueue(10_000, weights)
    price = dict(zip("abcd", costs, strict=True))
    left = dict.fromkeys(weights, 60)
    for tenant in weights:
        if tenant in held_up:
            queue.push(entry(tenant, cost=7 * price[tenant], avoids=("x",)))
        for _ in range(left[tenant]):
            queue.push(entry(tenant, cost=price[tenant]))
    served = Counter[str]()
    while min(left.values()) > 0:
        item = queue.pop([("x",)])
        assert item is not None and not item.avoids
        left[item.tenant] -= 1
        served[item.tenant] += item.cost
    per_weight = [served[tenant] / weight for tenant, weight in weights.items()]
    assert max(per_weight) - min(per_weight) <= 2 * max(price[t] / w for t, w in weights.items())


def test_an_entry_that_cannot_use_the_free_slot_is_passed_over_and_keeps_its_place():
    queue = AdmissionQueue(10, {})
    retry, own, other, late = entry("one", avoids=("x",)), entry("one"), entry("two"), entry("one")
    for item in (retry, own, other, late):
        queue.push(item)
    assert queue.avoided == {("x",): 1}
    assert queue.pop([("x",)]) is own
    assert queue.pop([("x",)]) is other
    assert queue.pop() is retry
    assert not queue.avoided
    assert queue.pop([("x",)]) is late
    assert queue.pop() is None


def test_in_a_full_queue_the_newest_gives_way_even_if_it_is_a_retry():
    for order in (0, 1):
        queue = AdmissionQueue(2, {})
        greedy = [entry("greedy", avoids=("x",)), entry("greedy")][:: 1 - 2 * order]
        for item in greedy:
            queue.push(item)
        assert queue.push(entry("modest")) is greedy[1]


def test_thousands_of_barred_entries_do_not_slow_down_those_behind_them():
    """Counted, not timed: a pop looks at one entry of each part, however many wait there."""
    queue = AdmissionQueue(10_000, {})
    for _ in range(5000):
        queue.push(entry(avoids=("x",)))
    others = [entry() for _ in range(3)]
    for item in others:
        queue.push(item)
    looked = 0

    class Counted(list[tuple[str, ...]]):
        def __contains__(self, avoids: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(avoids)

    assert [queue.pop(Counted([("x",)])) for _ in others] == others
    assert looked <= 2 * len(others)


def test_in_a_full_queue_a_new_request_of_the_greediest_tenant_is_refused():
    queue = AdmissionQueue(3, {})
    for _ in range(3):
        queue.push(entry("greedy"))
    late = entry("greedy")
    assert queue.push(late) is late
    assert not late.queued
    assert len(queue) == 3


def test_in_a_full_queue_a_modest_tenant_displaces_the_newest_of_a_greedy_one():
    queue = AdmissionQueue(3, {})
    greedy = [entry("greedy") for _ in range(3)]
    for item in greedy:
        queue.push(item)
    modest = entry("modest")
    assert queue.push(modest) is greedy[-1]
    assert modest.queued
    assert [not item.queued for item in greedy] == [False, False, True]
    assert len(queue) == 3


def test_in_a_full_queue_a_better_class_displaces_a_lower_one_but_never_the_reverse():
    queue = AdmissionQueue(2, {})
    batch = [entry(priority="batch"), entry(priority="batch")]
    for item in batch:
        queue.push(item)
    urgent = [entry(priority="interactive") for _ in range(3)]
    assert [queue.push(item) for item in urgent] == [batch[1], batch[0], urgent[2]]
    more = entry(priority="batch")
    assert queue.push(more) is more


def test_a_queue_of_size_zero_refuses_everything():
    queue, item = AdmissionQueue(0, {}), entry()
    assert queue.push(item) is item


def test_deadlines():
    queue = AdmissionQueue(10, {})
    soon, late = entry(deadline=10.0), entry(deadline=20.0)
    queue.push(late)
    queue.push(soon)
    assert queue.expire(9.9) == []
    assert queue.expire(10.0) == [soon]
    assert drain(queue) == [late]
    assert queue.expire(30.0) == []


def test_an_entry_can_be_cancelled_once():
    queue, item = AdmissionQueue(10, {}), entry()
    queue.push(item)
    assert queue.cancel(item)
    assert not queue.cancel(item)
    assert queue.pop() is None


def test_a_cancelled_deadline_is_forgotten_in_time():
    queue = AdmissionQueue(10, {})
    for _ in range(10_000):
        item = entry(deadline=1e9)
        queue.push(item)
        queue.cancel(item)
    assert len(queue._deadlines) < 200


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pprcoobx"), st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 100)), max_size=120))
def test_every_entry_leaves_once_and_in_turn(steps: list[tuple[str, str, int, int]]):
    """p: push, r: push a retry, c: cancel, o: pop, b: pop but for some, x: expire."""
    queue, now = AdmissionQueue(5, {"a": 3.0}), 0.0
    priorities: tuple[Priority, ...] = ("interactive", "standard", "batch")
    inside, left, pushed = set[Entry](), list[Entry](), list[Entry]()
    for kind, tenant, rank, number in steps:
        match kind:
            case "p" | "r":
                item = entry(tenant, priorities[rank], number, now + number, AVOIDED[number % 3] if kind == "r" else ())
                inside.add(item)
                pushed.append(item)
                if (victim := queue.push(item)) is not None:
                    left.append(victim)
            case "c" if inside:
                item = sorted(inside, key=lambda e: e.deadline)[number % len(inside)]
                if queue.cancel(item):
                    left.append(item)
            case "o" | "b":
                barred = set(AVOIDED[: 1 + number % 3]) if kind == "b" else set()
                popped = queue.pop(barred)
                able = [item for item in inside if item.avoids not in barred]
                assert (popped is None) == (not able)
                if popped is not None:
                    left.append(popped)
                    assert popped.rank == min(item.rank for item in able)
                    line = [item for item in able if (item.rank, item.tenant) == (popped.rank, popped.tenant)]
                    assert popped is min(line, key=pushed.index)
            case "x":
                now += number / 4
                left.extend(queue.expire(now))
        inside -= set(left)
        assert len(queue) == len(inside) <= 5
        assert set(queue) == inside
        assert queue.avoided == Counter(item.avoids for item in inside if item.avoids)
        assert all(item.queued for item in inside)
        assert not any(item.queued for item in left)
        assert len(left) == len(set(left))
