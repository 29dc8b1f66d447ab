"""Which kept connections are used and closed, on plain values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.assignment import Kept, assign

NOW = 100.0
SINCE = 50.0


def idle(*times: float, generation: int = 1) -> list[Kept]:
    return [Kept(generation, at) for at in times]


def test_a_request_takes_the_latest_connection() -> None:
    assert assign(idle(60, 70, 80), True, 1, SINCE, 8) == (0, 0, True)


def test_a_request_without_an_idle_connection_opens_one() -> None:
    assert assign([], True, 1, SINCE, 8) == (0, 0, False)


def test_connections_that_are_idle_for_too_long_are_closed_and_not_used() -> None:
    assert assign(idle(10, 20, 80), True, 1, SINCE, 8) == (2, 0, True)
    assert assign(idle(10, 20), True, 1, SINCE, 8) == (2, 0, False)


def test_the_longest_idle_ones_give_way_when_there_are_too_many() -> None:
    assert assign(idle(60, 70, 80), False, 1, SINCE, 2) == (1, 0, False)


def test_a_new_address_closes_every_connection_to_the_old_one() -> None:
    assert assign(idle(60, 70, 80), True, 2, SINCE, 8) == (0, 3, False)


def test_a_connection_released_after_the_address_changed_is_closed() -> None:
    kept = [*idle(60, 70, generation=2), Kept(1, 80)]
    assert assign(kept, True, 2, SINCE, 8) == (0, 1, True)


def test_without_room_all_are_closed() -> None:
    assert assign(idle(60, 70, 80), False, 1, SINCE, 0) == (3, 0, False)


@given(
    old=st.integers(0, 4),
    times=st.lists(st.floats(0, NOW), max_size=12),
    released=st.integers(0, 2),
    asked=st.booleans(),
    room=st.integers(0, 12),
)
def test_what_stays_may_stay_and_nothing_is_closed_without_a_reason(
    old: int, times: list[float], released: int, asked: bool, room: int
) -> None:
    """old: to an earlier address, idle; released: the same, but they were busy when it changed."""
    kept = [*idle(*(0.0,) * old, generation=1), *idle(*sorted(times), generation=2), *idle(*(NOW,) * released, generation=1)]
    longest, latest, use = assign(kept, asked, 2, SINCE, room)
    stay = kept[longest : len(kept) - latest]
    assert all(k.generation == 2 and k.idle_since >= SINCE for k in stay) and len(stay) <= room
    good = [k for k in kept if k.generation == 2 and k.idle_since >= SINCE]
    assert stay == good[max(0, len(good) - room) :]
    assert use == (asked and bool(stay))
