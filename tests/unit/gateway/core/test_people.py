"""Full names of users and groups, and what a group's rules mean together."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.core.people import MAX_ID, OwnKeys, full_name, own_keys, parts, rules_of

TENANTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,20}", fullmatch=True)
STORED = re.compile(r"[A-Za-z0-9%][A-Za-z0-9._:/@%-]{0,254}")


@pytest.mark.parametrize(
    ("name", "tenant", "id"),
    [
        ("alice", "acme", "alice@acme"),
        ("Alice", "acme", "Alice@acme"),
        ("alice@example.com", "acme", "alice@example.com@acme"),
        ("Jürgen Groß", "acme", "J%C3%BCrgen%20Gro%C3%9F@acme"),
        ("_svc", "acme", "%5Fsvc@acme"),
        ("100%", "acme", "100%25@acme"),
        ("a\u0430", "t", "a%D0%B0@t"),
        ("", "acme", ""),
        ("alice", "", ""),
        ("alice", "a@b", ""),
        ("alice", "tenant with blanks", ""),
        ("a" * MAX_ID, "acme", ""),
    ],
)
def test_names(name: str, tenant: str, id: str) -> None:
    assert full_name(name, tenant) == id
    if id:
        assert parts(id) == (name, tenant)


@given(st.text(min_size=1, max_size=12), TENANTS)
def test_a_full_name_can_be_stored_and_says_who_it_is(name: str, tenant: str) -> None:
    id = full_name(name, tenant)
    assert STORED.fullmatch(id)
    if name.isprintable():
        assert parts(id) == (name, tenant)


@given(st.text(min_size=1, max_size=8), TENANTS, st.text(min_size=1, max_size=8), TENANTS)
def test_two_callers_never_share_a_name(name: str, tenant: str, other: str, elsewhere: str) -> None:
    assert ((name, tenant) == (other, elsewhere)) is (full_name(name, tenant) == full_name(other, elsewhere))


@pytest.mark.parametrize(
    "id", ["", "alice", "@acme", "alice@", "J\u00fcrgen@acme", "a%20b", "a%2@acme", "%61lice@acme", "a%C3@acme", "a%0Ab@acme"]
)
def test_other_texts_are_no_full_names(id: str) -> None:
    with pytest.raises(RequestError):
        parts(id)


def test_of_several_groups_the_most_generous_counts() -> None:
    assert own_keys([]) is None
    one, two = OwnKeys(count=1, life=100.0, login_within=5.0), OwnKeys(count=3, life=50.0, login_within=9.0)
    assert own_keys([one, two]) == OwnKeys(count=3, life=100.0, login_within=9.0)
    assert own_keys([one, OwnKeys(login_within=None)]) == OwnKeys(count=10, life=90 * 86400.0)


def test_the_rules_of_a_body() -> None:
    assert rules_of({}).own_keys is None
    rules = rules_of({"models": ["a"], "operations": ["chat"], "own_keys": {"count": 2}, "description": "x"})
    assert (rules.models, rules.operations, rules.own_keys) == (("a",), ("chat",), OwnKeys(count=2))
