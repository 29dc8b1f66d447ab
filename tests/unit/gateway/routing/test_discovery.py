"""Which addresses of a name are in use: new ones at once, old ones not at once gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.host_port import HostPort
from gateway.core.specs.fleet import DnsSpec
from gateway.routing.discovery import LINGER, MOST_KEPT, Addresses

DNS = DnsSpec(min_ttl=5.0, max_ttl=60.0, keep=300.0, max_addresses=4)
A, B, C = (HostPort(f"10.0.0.{n}", 80) for n in (1, 2, 3))


def test_new_addresses_are_in_use_at_once_and_the_ttl_is_bounded() -> None:
    addresses = Addresses(DNS)
    assert addresses.heard(0.0, (A,), 0.0) == 5.0
    assert addresses.heard(5.0, (A, B), 3600.0) == 60.0
    assert addresses.places == (A, B)
    assert addresses.heard(65.0, (A, B), 20.0) == 20.0


def test_one_odd_answer_changes_nothing_and_a_second_one_does() -> None:
    addresses = Addresses(DNS)
    addresses.heard(0.0, (A, B), 60.0)
    assert addresses.heard(60.0, (A,), 60.0) == LINGER, "asks again when it is due to go"
    assert addresses.places == (A, B)
    addresses.heard(70.0, (A,), 60.0)
    assert addresses.places == (A,)


def test_an_address_that_comes_back_stays() -> None:
    addresses = Addresses(DNS)
    for now, places in ((0.0, (A, B)), (60.0, (A,)), (65.0, (A, B)), (125.0, (A,)), (130.0, (A, B))):
        addresses.heard(now, places, 60.0)
        assert addresses.places == (A, B)


def test_an_emptied_name_keeps_its_addresses_for_a_while() -> None:
    addresses = Addresses(DNS)
    addresses.heard(0.0, (A, B), 60.0)
    for now in (60.0, 120.0, 359.0):
        addresses.heard(now, (), 60.0)
        assert addresses.places == (A, B)
    addresses.heard(360.0, (), 60.0)
    assert addresses.places == ()


def test_a_name_that_cannot_be_resolved_keeps_its_addresses_and_is_asked_ever_later() -> None:
    addresses = Addresses(DNS)
    addresses.heard(0.0, (A,), 60.0)
    assert [addresses.failed() for _ in range(6)] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert addresses.places == (A,)
    addresses.heard(1e6, (A,), 60.0)
    assert addresses.failed() == 5.0


def test_addresses_of_a_kind_that_could_not_be_asked_for_stay_as_long_as_that_lasts() -> None:
    six = HostPort("fd00::1", 80)
    addresses = Addresses(DNS)
    addresses.heard(0.0, (A, six), 60.0)
    for now in (60.0, 120.0, 1e6):
        addresses.heard(now, (B,), 60.0, frozenset((6,)))
        assert six in addresses.places
    assert list(addresses.places) == [B, six], "the other kind is as known as ever"
    addresses.heard(1e6 + 60, (B,), 60.0)
    assert six in addresses.places, "one odd answer changes nothing"
    addresses.heard(1e6 + 70, (B,), 60.0)
    assert list(addresses.places) == [B]


def test_a_port_or_weight_that_changes_replaces_the_place() -> None:
    addresses = Addresses(DNS)
    addresses.heard(0.0, (HostPort("10.0.0.1", 80, 1),), 60.0)
    addresses.heard(1.0, (HostPort("10.0.0.1", 80, 9),), 60.0)
    assert addresses.places == (HostPort("10.0.0.1", 80, 9),)


STEPS = st.lists(st.tuples(st.floats(0.1, 100), st.none() | st.sets(st.integers(1, 12), max_size=4)), max_size=40)


@given(STEPS)
def test_whatever_is_answered(steps: list[tuple[float, set[int] | None]]) -> None:
    addresses, now = Addresses(DNS), 0.0
    for pause, numbers in steps:
        now += pause
        before = addresses.places
        if numbers is None:
            wait = addresses.failed()
            assert addresses.places == before, "a failure takes nothing away"
        else:
            named = tuple(sorted(HostPort(f"10.0.0.{n}", 80) for n in numbers))
            wait = addresses.heard(now, named, 1.0)
            assert set(named) <= set(addresses.places), "what is named is in use"
            assert len(addresses.places) <= MOST_KEPT * DNS.max_addresses
            assert not before or named or addresses.places == before or addresses.places == ()
        assert DNS.min_ttl <= wait <= DNS.max_ttl
        assert list(addresses.places) == sorted(addresses.places)
