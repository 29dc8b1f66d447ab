"""Denials counted per peer and second."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.identity.floods import OTHERS, Flood, FloodTable


def test_the_first_of_a_second_is_recorded_the_others_are_counted() -> None:
    table = FloodTable()
    assert [table.denied("a", "x", 10.0 + n / 10) for n in range(5)] == [True, False, False, False, False]
    assert table.denied("b", "x", 10.5)
    assert table.drain(10.9) == []
    assert table.drain(11.0) == [Flood("a", "x", 10, 4)]
    assert table.drain(11.5) == []
    assert table.denied("a", "x", 11.6)


def test_codes_are_counted_apart() -> None:
    table = FloodTable()
    assert table.denied("a", "missing", 1.0) and table.denied("a", "invalid", 1.0)
    assert not table.denied("a", "missing", 1.1)
    assert table.drain(2.0) == [Flood("a", "missing", 1, 1)]


def test_a_full_table_counts_the_rest_together() -> None:
    table = FloodTable(capacity=3)
    recorded = sum(table.denied(f"peer-{n}", "x", 5.0) for n in range(1000))
    assert recorded == 3
    assert table.drain(6.0) == [Flood(OTHERS, "x", 5, 997)]


def test_seconds_nobody_drained_are_summed() -> None:
    table = FloodTable(capacity=4)
    for second in range(100):
        for _ in range(3):
            table.denied("a", "x", float(second))
    floods = table.drain(1000.0)
    assert len(floods) <= 4
    assert sum(flood.count for flood in floods) == 200


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["x", "y"]), st.integers(0, 30)), max_size=200), st.integers(1, 6))
def test_nothing_is_lost_or_counted_twice(events: list[tuple[str, str, int]], capacity: int) -> None:
    table = FloodTable(capacity)
    now = 0.0
    recorded, counted = 0, 0
    for peer, code, step in events:
        now += step / 10
        recorded += table.denied(peer, code, now)
        if step % 7 == 0:
            counted += sum(flood.count for flood in table.drain(now))
    counted += sum(flood.count for flood in table.drain(now + 1))
    assert recorded + counted == len(events)
