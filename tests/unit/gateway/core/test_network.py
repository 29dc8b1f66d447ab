"""Lists of networks and countries: what an entry is, who is admitted."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.network import COUNTRIES, REMEMBERED, Networks, parse

HOME = {"192.0.2.1": "DE", "192.0.2.2": "FR", "2001:db8::1": "DE"}


def networks(known: bool = True) -> Networks:
    made = Networks()
    if known:
        made.use(lambda address: HOME.get(address, ""))
    return made


def admits(entries: list[str], address: str, known: bool = True) -> bool:
    rules = networks(known).rules(entries)
    assert rules is not None
    return rules.admits(address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("192.0.2.7", "192.0.2.7/32"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("deny:10.0.0.0/8", "deny:10.0.0.0/8"),
        ("country:DE", "country:DE"),
        ("deny:country:DE", "deny:country:DE"),
        ("deny: 10.0.0.0/8", "deny:10.0.0.0/8"),
    ],
)
def test_entries(text: str, expected: str) -> None:
    assert str(parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("10.1.2.3/8", "did you mean 10.0.0.0/8?"),
        ("deny:10.1.2.3/8", "did you mean 10.0.0.0/8?"),
        ("home", "write an address or a network"),
        ("", "write an address or a network"),
        ("country:", "write two capital letters"),
        ("country:de", "write two capital letters"),
        ("country:DEU", "write two capital letters"),
        ("country:ÄÖ", "write two capital letters"),
        ("deny:deny:10.0.0.0/8", "write an address"),
        ("x" * 10_000, "write an address"),
    ],
)
def test_what_is_no_entry(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=re.escape(what)) as caught:
        parse(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("entries", "address", "expected"),
    [
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "11.1.2.3", False),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", True),
        (["deny:10.0.0.0/8"], "::ffff:10.1.2.3", False),
        (["10.0.0.0/8"], "2001:db8::1", False),
        (["2001:db8::/32"], "2001:db8::1%eth0", True),
        (["deny:10.0.0.0/8"], "11.1.2.3", True),
        (["deny:10.0.0.0/8"], "10.1.2.3", False),
        (["10.0.0.0/8", "deny:10.1.0.0/16"], "10.1.2.3", False),
        (["deny:10.1.0.0/16", "10.0.0.0/8"], "10.1.2.3", False),
        (["deny:10.0.0.0/8", "10.1.2.3"], "10.1.2.3", False),
        (["deny:10.1.0.0/16", "10.0.0.0/8"], "10.2.2.3", True),
        (["deny:10.1.0.0/16", "10.0.0.0/8"], "192.0.2.1", False),
        (["country:DE"], "192.0.2.1", True),
        (["country:DE"], "192.0.2.2", False),
        (["country:DE"], "2001:db8::1", True),
        (["country:DE"], "198.51.100.1", False),
        (["deny:country:DE"], "192.0.2.1", False),
        (["deny:country:DE"], "::ffff:192.0.2.1", False),
        (["deny:country:DE"], "198.51.100.1", True),
        (["country:DE", "198.51.100.0/24"], "198.51.100.1", True),
        (["country:DE", "deny:192.0.2.1"], "192.0.2.1", False),
        (["10.0.0.0/8"], "local", False),
        (["deny:10.0.0.0/8"], "local", True),
    ],
)
def test_who_is_admitted(entries: list[str], address: str, expected: bool) -> None:
    assert admits(entries, address) is expected


@pytest.mark.parametrize("entries", [["country:DE"], ["deny:country:DE"], ["192.0.0.0/8", "deny:country:FR"]])
def test_where_nothing_knows_countries_a_rule_on_them_admits_nobody(entries: list[str]) -> None:
    assert not admits(entries, "192.0.2.1", known=False)


SOME = ["10.0.0.0/8", "deny:10.1.0.0/16", "deny:192.0.2.0/24", "2001:db8::/32", "country:DE", "deny:country:FR"]


@given(st.lists(st.sampled_from(SOME)), st.ip_addresses())
def test_deny_wins_in_whatever_order(entries: list[str], address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    shared = networks()
    first, second = shared.rules(entries), shared.rules(sorted(entries))
    if first is None or second is None:
        assert not entries
        return
    assert first.admits(str(address)) is second.admits(str(address))
    denied = any(parse(e).deny and parse(e).network is not None and address in parse(e).network for e in entries)  # type: ignore[operator]
    if denied:
        assert not first.admits(str(address))


def test_equal_lists_are_one_and_empty_ones_none() -> None:
    shared = networks()
    assert shared.rules(()) is None
    assert shared.rules(["10.0.0.0/8"]) is shared.rules(("10.0.0.0/8",))
    for number in range(REMEMBERED + 10):
        shared.rules([f"10.{number >> 8}.{number & 255}.0/24"])
    assert len(shared._rules) == REMEMBERED


def test_what_is_remembered_is_bounded_and_forgotten_with_the_countries() -> None:
    asked = []
    shared = Networks()
    shared.use(lambda address: asked.append(address) or "DE")  # type: ignore[func-returns-value]
    rules = shared.rules(["country:DE"])
    assert rules is not None
    for _ in range(100):
        assert rules.admits("192.0.2.1")
    assert asked == ["192.0.2.1"]
    for number in range(COUNTRIES + 100):
        assert rules.admits(str(ipaddress.IPv4Address(number)))
    assert len(rules._admitted) == REMEMBERED and len(shared._countries) == COUNTRIES
    shared.use(lambda address: "FR")
    assert not rules.admits("192.0.2.1")
    shared.use(None)
    assert not rules.admits("192.0.2.1") and shared.country("192.0.2.1") == ""
