"""Endpoints without room: each is avoided for a while as long as another is open, and requests that met one go elsewhere."""

from __future__ import annotations

import pytest

from gateway.core.specs import RetrySpec, RoutingSpec
from gateway.core.types import Principal
from gateway.routing.full import MOST_REST, REST, Rests, avoided, note, over
from tests.unit.gateway.routing.fleet import NEUTRAL, SUCCESS, Fleet, chat

NO_LABELS: frozenset[str] = frozenset()


def move(fleet: Fleet, endpoint: str, retry_after: float | None = None, made: int = 1) -> bool:
    """A request finds no room at an endpoint; whether it may go to another one."""
    fleet.route.full(endpoint, retry_after, NO_LABELS)
    return fleet.route.may_move(made, NO_LABELS)


@pytest.mark.parametrize(("said", "rest"), [(None, REST), (0.0, REST), (3.0, 3.0), (3600.0, MOST_REST)])
def test_an_endpoint_is_avoided_for_as_long_as_it_says_within_bounds(said: float | None, rest: float) -> None:
    full: Rests = {}
    note(full, "a", said, 100.0)
    assert not over(full, 100.0 + rest - 0.01) and avoided(full, ()) == ("a",)
    assert over(full, 100.0 + rest) and avoided(full, ()) == () and full == {}


def test_a_shorter_rest_does_not_end_a_longer_one_and_no_endpoint_is_named_twice() -> None:
    full: Rests = {}
    note(full, "a", 5.0, 100.0)
    note(full, "a", None, 101.0)
    note(full, "b", None, 101.0)
    assert avoided(full, ("b",)) == ("b", "a")
    assert over(full, 104.9) and avoided(full, ()) == ("a",)


def test_new_requests_go_elsewhere_until_its_rest_is_over() -> None:
    fleet = Fleet(2, engine={"slots": 100})
    assert move(fleet, "a", 2.0)
    held = [fleet.attempt(str(n)) for n in range(20)]
    assert {attempt.endpoint_name for attempt in held} == {"b"}
    fleet.advance(2.1)
    assert "a" in {fleet.attempt(str(n)).endpoint_name for n in range(20)}


def test_where_all_have_no_room_none_is_avoided_and_nothing_moves() -> None:
    fleet = Fleet(2, engine={"slots": 100})
    assert move(fleet, "a")
    assert not move(fleet, "b"), "each request is refused once, not by every engine"
    assert {fleet.attempt(str(n)).endpoint_name for n in range(20)} == {"a", "b"}
    assert not move(Fleet(1), "a")


def test_attempts_are_bounded_and_a_move_is_outside_the_budget_of_retries() -> None:
    fleet = Fleet(3, engine={"slots": 100}, routing=RoutingSpec(retry=RetrySpec(attempts=2)))
    route = fleet.route
    assert move(fleet, "a")
    again = fleet.attempt(tried=("a",))
    assert again.endpoint_name != "a" and route.budget.running == 0
    again.close(NEUTRAL)
    assert not move(fleet, again.endpoint_name, made=2)


def test_who_avoids_an_endpoint_without_room_waits_for_the_others_in_turn() -> None:
    fleet = Fleet(2, engine={"slots": 1})
    first = fleet.attempt()
    other = "b" if first.endpoint_name == "a" else "a"
    move(fleet, other, 9.0)
    early, late = fleet.wait(), fleet.wait()
    first.close(NEUTRAL)
    fleet.scheduler.run()
    assert early.value is not None and early.value.endpoint_name == first.endpoint_name
    assert not late.done


@pytest.mark.parametrize("moved", [False, True])
def test_those_who_wait_may_use_an_endpoint_again_once_its_rest_is_over(moved: bool) -> None:
    fleet = Fleet(2, engine={"slots": 1})
    first = fleet.attempt()
    other = "b" if first.endpoint_name == "a" else "a"
    assert move(fleet, other)
    early = fleet.wait(tried=(other,) if moved else ())
    late = fleet.wait()
    fleet.advance(REST - 0.1)
    assert not early.done and not late.done
    fleet.advance(0.2)
    assert early.value is not None and early.value.endpoint_name == other
    early.value.close(SUCCESS)
    fleet.scheduler.run()
    assert late.value is not None and late.value.endpoint_name == other, "and in turn"


@pytest.mark.parametrize("how", ["answered", "all", "down"])
def test_those_who_wait_need_not_wait_for_the_end_of_a_rest_that_no_longer_counts(how: str) -> None:
    fleet = Fleet(2, engine={"slots": 2})
    assert move(fleet, "a", 9.0)
    fleet.advance(0.1)
    early = fleet.attempt(tried=("b",))
    held = [fleet.attempt(), fleet.attempt()]
    assert [attempt.endpoint_name for attempt in (early, *held)] == ["a", "b", "b"]
    waiting = fleet.wait()
    if how == "answered":
        early.answering()
    elif how == "all":
        assert not move(fleet, "b", 9.0)
    else:
        fleet.registry.force("b", "open")
    fleet.advance(0.1)
    assert waiting.value is not None and waiting.value.endpoint_name == "a"


def test_a_retry_goes_rather_to_an_endpoint_without_room_than_to_the_one_that_failed_it() -> None:
    fleet = Fleet(2)
    move(fleet, "a", 9.0)
    assert fleet.attempt(tried=("b",)).endpoint_name == "a"


def test_no_second_attempt_goes_to_an_endpoint_without_room() -> None:
    fleet = Fleet(2, engine={"slots": 100})
    first = fleet.attempt(tried=("b",))
    principal = Principal("k", "t", "api_key")
    move(fleet, "b", 2.0)
    assert fleet.route.second(chat(), principal, None, "a", 0, 1.0) is None
    fleet.advance(2.1)
    second = fleet.route.second(chat(), principal, None, "a", 0, 1.0)
    assert first.endpoint_name == "a" and second is not None and second.endpoint_name == "b"


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_to_a_later_request_ends_the_rest_and_one_to_an_earlier_request_does_not(streams: bool) -> None:
    fleet = Fleet(2, engine={"slots": 100})
    early = fleet.attempt()
    name, other = early.endpoint_name, "b" if early.endpoint_name == "a" else "a"
    fleet.advance(0.1)
    move(fleet, name, 9.0)
    move(fleet, other, 9.0)
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
