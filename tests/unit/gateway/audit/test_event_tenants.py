"""Whom an event is about is found in what it was given, its details and its target."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.event_tenants import MOST, with_tenants
from gateway.core.types import EventRecord


def named(detail: dict[str, Any] | None, target: str = "", given: tuple[str, ...] = ()) -> tuple[str, ...]:
    return with_tenants(EventRecord(1.0, "e", "actor", target, "ok", detail, given)).tenants


@pytest.mark.parametrize(
    ("detail", "target", "found"),
    [
        (None, "", ()),
        ({"tenant": "acme", "body": {"tenant": "beta", "tenants": ["gamma", 7]}}, "", ("acme", "beta", "gamma")),
        (
            {"diff": [{"path": "tenant", "from": None, "to": "acme"}, {"path": "keys.k1.tenant", "from": "beta", "to": None}]},
            "",
            ("acme", "beta"),
        ),
        ({"diff": [{"path": "name", "from": "acme", "to": "beta"}], "tenant": ""}, "keys/acme", ()),
        (None, "tenants/acme", ("acme",)),
        (None, "audit/holds/acme", ("acme",)),
        (None, "halts/tenant/acme", ("acme",)),
        ({"tenant": "*"}, "", ("*",)),
        ({"tenants": [f"t{number}" for number in range(MOST + 1)]}, "", ("*",)),
        ({"x": ["y"] * 5000, "tenant": "acme"}, "", ("*",)),
        ({"tenant": "x" * 129}, "", ()),
    ],
)
def test_what_names_a_tenant(detail: dict[str, Any] | None, target: str, found: tuple[str, ...]) -> None:
    assert named(detail, target) == found


def test_what_was_given_stays_and_nothing_is_copied_without_need() -> None:
    assert named({"tenant": "b"}, given=("c", "a")) == ("a", "b", "c")
    record = EventRecord(1.0, "e", detail={"x": 1})
    assert with_tenants(record) is record


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.dictionaries(st.text(), JSON), st.text(), st.tuples(st.text()))
def test_no_detail_defeats_it(detail: dict[str, Any], target: str, given: tuple[str, ...]) -> None:
    found = named(detail, target, given)
    assert all(found) and len(found) <= MOST and list(found) == sorted(set(found))
