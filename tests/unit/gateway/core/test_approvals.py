"""Which request is the same, and which callers may be one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.approvals import Requester, identities, named, request_hash, requester_of, shared
from gateway.core.types import Login, Principal

PATH = b"/v1/chat/completions"
VALUES = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
FIELDS = st.dictionaries(st.sampled_from(["model", "messages", "temperature", "stream", "stream_options", "tools"]), VALUES, max_size=6)


@given(FIELDS, FIELDS, st.randoms(use_true_random=False))
def test_a_request_is_the_same_but_for_how_it_is_answered_and_the_order_of_its_fields(one: Any, other: Any, chance: Any) -> None:
    free = {"stream", "stream_options"}
    pairs = list(one.items())
    chance.shuffle(pairs)
    assert request_hash(PATH, json.dumps(dict(pairs)).encode()) == request_hash(PATH, json.dumps(one).encode())
    alike = {k: v for k, v in one.items() if k not in free} == {k: v for k, v in other.items() if k not in free}
    same_types = all(type(one.get(k)) is type(other.get(k)) for k in {*one, *other} - free)
    hashes = [request_hash(PATH, json.dumps(body).encode()) for body in (one, other)]
    assert (hashes[0] == hashes[1]) == (alike and same_types)
    assert request_hash(b"/v1/completions", json.dumps(one).encode()) != hashes[0]


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"inputs":[]}\x00\xff', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_counts_byte_for_byte(body: bytes) -> None:
    assert request_hash(PATH, body) == request_hash(PATH, body) != request_hash(PATH, body + b" ")
    assert request_hash(PATH, body) != request_hash(PATH, b"{}")


def key(id: str = "k", tenant: str = "acme", user: str = "", agent: str = "") -> Principal:
    return Principal(id, tenant, "api_key", user=user, agent=agent)


def person(id: str, tenant: str = "acme", agent: str = "", issuer: str = "https://idp", actors: tuple[str, ...] = ()) -> Principal:
    return Principal(id, tenant, "oidc", user=id, agent=agent, login=Login("token", issuer=issuer, actors=actors))


@pytest.mark.parametrize(
    ("requester", "operator", "one"),
    [
        (key(), key(), True),
        (key("a"), key("b"), True),  # of the tenant: whether that counts is a setting
        (key("a", user="ann"), key("b"), True),  # Ann may hold both
        (person("ann"), key("b"), True),
        (person("ann"), key("b", tenant="ops"), False),
        (key("a"), key("b", user="ann"), False),  # a robot's request needs somebody
        (key("a", user="ann"), key("b", user="ann"), True),
        (key("a", user="Ann@acme"), person("ann"), True),
        (key("a", user="ann"), person("bob"), False),
        (person("ann", agent="bot"), person("bot"), True),
        (person("ann", actors=("bot", "helper")), person("helper"), True),
        (person("ann"), person("ann", agent="bot"), True),
        (person("x", agent="bot"), person("y", agent="bot"), True),
        (key(tenant="acme"), key(tenant="ops"), False),
        (person("ann", "acme"), person("ann", "ops"), True),  # one subject of one issuer
        (person("ann", "acme"), person("ann", "ops", issuer="https://other"), False),
        (person("ann"), person("bob"), False),
    ],
)
def test_who_may_be_the_requester(requester: Principal, operator: Principal, one: bool) -> None:
    assert bool(shared(requester_of(requester), identities(operator))) is one


def test_a_token_that_comes_from_another_has_the_identities_of_both() -> None:
    source = Login("password", issuer="ldap", actors=("first",))
    token = Principal("ann", "acme", "gateway_token", user="ann", login=Login("token", issuer="https://gw", source=source))
    found = identities(token)
    assert {"subject ldap ann", "subject https://gw ann", named("acme", "First"), named("acme", "ann@acme")} <= set(found)


def test_only_the_same_caller_may_take() -> None:
    base = requester_of(key(user="ann", agent="bot"))
    assert base.hashed == requester_of(key(user="ann", agent="bot")).hashed
    others = [key(), key("x", user="ann", agent="bot"), key(user="ann"), key(tenant="t", user="ann", agent="bot")]
    assert base.hashed not in {requester_of(one).hashed for one in others}
    assert Requester(tenant="a", id="b", kind="c").hashed != Requester(tenant="a", id="", kind="bc").hashed
