"""Endpoints without room: each is avoided for a while as long as another is open, and requests that met one go elsewhere."""

from __future__ import annotations

import pytest

from gateway.core.specs import RetrySpec, RoutingSpec
from gateway.routing.full import MOST_REST, REST, Rests, avoided, note
from tests.unit.gateway.routing.fleet import NEUTRAL, SUCCESS, Fleet

NO_LABELS: frozenset[str] = frozenset()


@pytest.mark.parametrize(("said", "rest"), [(None, REST), (0.0, REST), (3.0, 3.0), (3600.0, MOST_REST)])
def test_an_endpoint_is_avoided_for_as_long_as_it_says_within_bounds(said: float | None, rest: float) -> None:
    full: Rests = {}
    note(full, "a", said, 100.0)
    assert avoided(full, (), 100.0 + rest - 0.01) == ("a",)
    assert avoided(full, (), 100.0 + rest) == () and full == {}


def test_a_shorter_rest_does_not_end_a_longer_one_and_no_endpoint_is_named_twice() -> None:
    full: Rests = {}
    note(full, "a", 5.0, 100.0)
    note(full, "a", None, 101.0)
    note(full, "b", None, 101.0)
    assert avoided(full, ("b",), 101.5) == ("b", "a")
    assert avoided(full, (), 104.9) == ("a",)


def test_new_requests_go_elsewhere_until_its_rest_is_over() -> None:
    fleet = Fleet(2, engine={"slots": 100})
    assert fleet.route.full("a", 1, 2.0, NO_LABELS)
    held = [fleet.attempt(str(n)) for n in range(20)]
    assert {attempt.endpoint_name for attempt in held} == {"b"}
    fleet.advance(2.1)
    assert "a" in {fleet.attempt(str(n)).endpoint_name for n in range(20)}


def test_where_all_have_no_room_none_is_avoided_and_nothing_moves() -> None:
    fleet = Fleet(2, engine={"slots": 100})
    assert fleet.route.full("a", 1, None, NO_LABELS)
    assert not fleet.route.full("b", 1, None, NO_LABELS), "each request is refused once, not by every engine"
    assert {fleet.attempt(str(n)).endpoint_name for n in range(20)} == {"a", "b"}
    assert not Fleet(1).route.full("a", 1, None, NO_LABELS)


def test_attempts_are_bounded_and_a_move_is_outside_the_budget_of_retries() -> None:
    fleet = Fleet(3, engine={"slots": 100}, routing=RoutingSpec(retry=RetrySpec(attempts=2)))
    route = fleet.route
    assert route.full("a", 1, None, NO_LABELS)
    again = fleet.attempt(tried=("a",))
    assert again.endpoint_name != "a" and route.budget.running == 0
    again.close(NEUTRAL)
    assert not route.full(again.endpoint_name, 2, None, NO_LABELS)


def test_who_avoids_an_endpoint_without_room_waits_for_the_others_in_turn() -> None:
    fleet = Fleet(2, engine={"slots": 1})
    first = fleet.attempt()
    other = "b" if first.endpoint_name == "a" else "a"
    fleet.route.full(other, 1, 9.0, NO_LABELS)
    early, late = fleet.wait(), fleet.wait()
    first.close(NEUTRAL)
    fleet.scheduler.run()
    assert early.value is not None and early.value.endpoint_name == first.endpoint_name
    assert not late.done


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_to_a_later_request_ends_the_rest_and_one_to_an_earlier_request_does_not(streams: bool) -> None:
    fleet = Fleet(2, engine={"slots": 100})
    early = fleet.attempt()
    name, other = early.endpoint_name, "b" if early.endpoint_name == "a" else "a"
    fleet.advance(0.1)
    fleet.route.full(name, 1, 9.0, NO_LABELS)
    fleet.route.full(other, 1, 9.0, NO_LABELS)
    fleet.advance(0.1)
    early.close(SUCCESS)
    assert set(fleet.route.rests) == {"a", "b"}
    late = fleet.attempt()
    if streams:
        late.answering()
    else:
        late.close(SUCCESS)
    assert set(fleet.route.rests) == {other}
    assert {fleet.attempt(str(n)).endpoint_name for n in range(20)} == {name}
