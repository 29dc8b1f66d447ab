"""The feed inside one process: numbered, in order, synchronous."""

from __future__ import annotations

import pytest

from gateway.core.feed import LocalFeed
from gateway.core.ports import Change


def test_every_subscriber_hears_every_change_in_order() -> None:
    feed = LocalFeed()
    one: list[Change] = []
    two: list[Change] = []
    feed.subscribe(one.append)
    assert feed.publish("a", 1) == 1
    feed.subscribe(two.append)
    assert feed.publish("b", {"x": 2}) == 2
    assert one == [(1, "a", 1), (2, "b", {"x": 2})]
    assert two == [(2, "b", {"x": 2})]
    assert feed.sequence == 2


def test_one_that_unsubscribes_hears_nothing_more() -> None:
    feed = LocalFeed()
    heard: list[Change] = []
    leave = feed.subscribe(heard.append)
    feed.publish("a", 1)
    leave()
    feed.publish("b", 2)
    assert heard == [(1, "a", 1)]


def test_one_may_unsubscribe_while_it_is_called() -> None:
    feed = LocalFeed()
    heard: list[str] = []

    def once(change: Change) -> None:
        heard.append("once")
        leave()

    leave = feed.subscribe(once)
    feed.subscribe(lambda change: heard.append("always"))
    feed.publish("a", 1)
    feed.publish("b", 2)
    assert heard == ["once", "always", "always"]


def test_numbers_rise_without_a_gap_even_without_subscribers() -> None:
    feed = LocalFeed()
    assert [feed.publish("k", None) for _ in range(3)] == [1, 2, 3]


def test_one_that_fails_keeps_it_from_nobody_and_is_not_hidden() -> None:
    feed = LocalFeed()
    heard: list[Change] = []

    def fails(change: Change) -> None:
        raise RuntimeError(change[1])

    feed.subscribe(fails)
    feed.subscribe(heard.append)
    with pytest.raises(RuntimeError, match="a"):
        feed.publish("a", 1)
    assert heard == [(1, "a", 1)] and feed.sequence == 1
