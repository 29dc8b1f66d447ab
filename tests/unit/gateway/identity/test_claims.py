"""From claims to a Principal."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.specs import ClaimSpec, ClaimsSpec
from gateway.identity.claims import lookup, meets, principal_of
from gateway.identity.jose import Malformed

CLAIMS: dict[str, Any] = {
    "sub": "248289761001",
    "tenant": "acme",
    "preferred_username": "alice",
    "groups": ["engineers", "staff"],
    "realm_access": {"roles": ["chatter"]},
    "scope": "infer profile",
    "act": {"sub": "coder"},
    "sid": "s1",
    "https://example.com/org": "acme-gmbh",
    "email_verified": True,
    "a.b": "whole",
    "a": {"b": "inner"},
}


def test_everything_is_mapped() -> None:
    wanted = ClaimsSpec(
        user="preferred_username",
        tenant="https://example.com/org",
        groups=ClaimSpec(path="groups", prefix="corp-"),
        roles="realm_access.roles",
    )
    caller = principal_of(CLAIMS, wanted, "oidc", 5.0)
    assert (caller.id, caller.user, caller.tenant, caller.kind) == ("248289761001", "alice", "acme-gmbh", "oidc")
    assert (caller.groups, caller.roles, caller.scopes) == (("corp-engineers", "corp-staff"), ("chatter",), ("infer", "profile"))
    assert (caller.agent, caller.session, caller.expires, caller.models) == ("coder", "s1", 5.0, ())


def test_what_is_absent_is_empty() -> None:
    caller = principal_of({"sub": "s"}, ClaimsSpec(tenant=ClaimSpec(value="acme")), "oidc", 5.0)
    assert (caller.user, caller.tenant, caller.groups, caller.agent, caller.session) == ("s", "acme", (), "", "")


@pytest.mark.parametrize(
    "changed",
    [
        {"sub": None},
        {"sub": ""},
        {"sub": 5},
        {"sub": ["alice"]},
        {"sub": "a" * 257},
        {"sub": "a\nb"},
        {"sub": "a\x00"},
        {"tenant": None},
        {"tenant": {"a": 1}},
        {"groups": {"a": 1}},
        {"groups": ["a", 1]},
        {"groups": ["a", ""]},
        {"groups": ["g"] * 1001},
        {"act": {"sub": ["a"]}},
        {"sid": True},
    ],
)
def test_claims_that_are_not_what_they_must_be(changed: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        principal_of({**CLAIMS, **changed}, ClaimsSpec(), "oidc", 5.0)


@pytest.mark.parametrize(
    "said",
    [
        {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://graph.example/groups"}}},
        {"_claim_names": {"realm_access": "src1"}},
        {"_claim_names": {"realm_access.roles": "src1"}},
        {"hasgroups": True},
        {"hasgroups": "true"},
    ],
)
def test_groups_that_are_kept_elsewhere_are_not_none(said: dict[str, Any]) -> None:
    """A deny might name one of them."""
    wanted = ClaimsSpec(groups="groups", roles="realm_access.roles")
    bare = {"sub": "alice", "tenant": "acme", **said}
    with pytest.raises(Malformed, match="kept elsewhere"):
        principal_of(bare, wanted, "oidc", 5.0)
    here = {"groups": ["staff"], "realm_access": {"roles": ["chatter"]}}
    assert principal_of({**bare, **here}, wanted, "oidc", 5.0).groups == ("staff",), "they are here"
    assert principal_of(bare, ClaimsSpec(groups=None, roles=None), "oidc", 5.0).groups == (), "nobody asks for them"
    other = {"sub": "alice", "tenant": "acme", "_claim_names": {"address": "src1"}, "hasgroups": False}
    assert principal_of(other, wanted, "oidc", 5.0).groups == ()


def test_a_claim_of_the_whole_name_comes_first() -> None:
    assert lookup(CLAIMS, "a.b") == "whole" and lookup({"a": {"b": 1}}, "a.b") == 1
    assert lookup(CLAIMS, "sub.x") is None and lookup(CLAIMS, "nothing.there") is None


@pytest.mark.parametrize(
    ("required", "met"),
    [
        ({"email_verified": True}, True),
        ({"email_verified": "true"}, False),
        ({"email_verified": 1}, False),
        ({"groups": "staff"}, True),
        ({"groups": "admins"}, False),
        ({"groups": ["engineers", "staff"]}, True),
        ({"realm_access.roles": "chatter"}, True),
        ({"nothing": None}, True),
        ({"email_verified": True, "tenant": "other"}, False),
    ],
)
def test_required_values(required: dict[str, Any], met: bool) -> None:
    assert meets(CLAIMS, required) is met
