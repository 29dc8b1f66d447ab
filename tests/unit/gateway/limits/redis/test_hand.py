"""What is in hand of a bucket: covers, comes back, and never more than Redis knows of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.redis.hand import FIRST_BATCH, KEPT, LIFE, LONG, MOST_BATCH, SHORT, Hand


def hand(*amounts: int, until: int = LIFE) -> Hand:
    made = Hand(len(amounts))
    made.given(until, 1, list(amounts))
    return made


def test_it_covers_all_amounts_or_none_and_only_until_its_moment() -> None:
    made = hand(10, 5)
    assert made.covers(0, [10, 5]) and not made.covers(0, [10, 6]) and not made.covers(LIFE, [1, 1])
    assert not made.use([4, 1]) and made.amounts == [6, 4]
    assert made.use([2, 0]), "less than half is left"


def test_what_comes_back_is_never_more_than_was_used_since_redis_was_told() -> None:
    made = hand(100)
    made.use([80])
    assert made.correct(0, [-30]) == [0] and made.amounts == [50]
    made.told()
    assert made.correct(0, [-20]) == [-20], "Redis knows of 50 only"
    made.use([10])
    assert made.correct(0, [-20]) == [-10] and made.amounts == [50]
    assert made.correct(0, [60]) == [10] and made.amounts == [0], "what is not in hand is for Redis"
    assert made.correct(LIFE, [-5]) == [-5]


@given(st.lists(st.tuples(st.sampled_from(["use", "correct", "told", "given"]), st.integers(-50, 50)), max_size=60))
def test_there_is_never_more_than_redis_believes(steps: list[tuple[str, int]]) -> None:
    made, believed = hand(100), 100
    for step, amount in steps:
        if step == "use" and made.covers(0, [abs(amount)]):
            made.use([abs(amount)])
        elif step == "correct":
            made.correct(0, [amount])
        elif step == "told":
            made.told()
            believed = made.amounts[0]
        elif step == "given":
            made.given(LIFE, 2, [abs(amount)])
            believed += abs(amount)
        assert 0 <= made.amounts[0] <= believed


def test_shares_grow_while_they_are_used_up_soon_and_end_where_requests_are_rare() -> None:
    made, now = Hand(1), 10 * LONG
    made.pace(now)
    assert made.batch == 0, "the first request in a long time"
    for _ in range(20):
        now += SHORT - 1
        made.pace(now)
    assert made.batch == MOST_BATCH
    now += 2 * LONG
    made.pace(now)
    assert made.batch == MOST_BATCH // 2
    made.pace(now + 5 * LONG)
    assert made.batch == 0
    made.pace(now + 5 * LONG + SHORT)
    assert made.batch == FIRST_BATCH
    made.use([3])
    made.use([4])
    made.pace(now + 6 * LONG)
    assert made.mean == [4], "of what requests cost, rounded up"


def test_redis_counts_it_as_out_for_longer_than_it_may_be_used() -> None:
    assert KEPT >= 1.5 * LIFE
