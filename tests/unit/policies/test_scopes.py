"""Scopes only narrow: what a part of a scope is, and what a narrowed token may do."""

from __future__ import annotations

import pytest

from gateway.core.errors import RequestError
from gateway.core.specs import ModelSpec
from gateway.core.types import NARROWED, InferenceRequest, Peer, Principal
from gateway.core.wire import WireApi
from policies.permissions import parse
from policies.rbac import ModelAccess
from policies.roles import Grant as RoleGrant
from policies.roles import Grants, RoleAccess
from policies.scopes import MAX_SCOPES, contains, narrowed

OPERATIONS = ("chat", "completions", "embeddings", "infer")
MODELS = (ModelSpec(name="demo-chat", pool=("a",), aliases=("gpt",)), ModelSpec(name="secret", pool=("a",)))
PEER = Peer("192.0.2.1")


@pytest.mark.parametrize(
    ("outer", "inner", "whether"),
    [
        ("infer:*", "infer:chat:model/demo-*", True),
        ("infer:*", "infer:*", True),
        ("infer:chat", "infer:chat:model/x", True),
        ("infer:chat:model/demo-*", "infer:chat:model/demo-chat", True),
        ("infer:chat:model/demo-*", "infer:chat:model/demo-c*", True),
        ("infer:chat:model/demo-*", "infer:chat:model/demo-chat@1", True),
        ("infer:raw", "infer:completions", True),
        ("infer:chat:model/demo-*", "infer:chat:model/*", False),
        ("infer:chat:model/demo-*", "infer:chat:model/dem*", False),
        ("infer:chat:model/demo-chat@1", "infer:chat:model/demo-chat", False),
        ("infer:chat", "infer:*", False),
        ("infer:chat", "infer:c*", False),
        ("infer:*", "admin:*", False),
        ("admin:*", "infer:*", False),
        ("admin:*", "admin:keys:read", True),
        ("admin:*:*", "admin:*", True),
        ("admin:keys:*", "admin:keys:read", True),
        ("admin:keys:*", "admin:*", False),
        ("admin:keys:read", "admin:keys:*", False),
        ("admin:keys:read", "admin:keys:revoke", False),
        ("openid", "infer:chat", False),
    ],
)
def test_what_is_within_what(outer: str, inner: str, whether: bool) -> None:
    assert contains(outer, inner) is whether


def test_without_a_wish_everything_is_handed_on() -> None:
    assert narrowed(None, "", OPERATIONS) is None
    assert narrowed(("infer:chat",), " ", OPERATIONS) == ("infer:chat",)


def test_a_wish_may_be_for_a_part_only() -> None:
    assert narrowed(None, "infer:chat  infer:chat admin:keys:read", OPERATIONS) == ("infer:chat", "admin:keys:read")
    assert narrowed(("infer:chat", "admin:*"), "infer:chat:model/m admin:keys:read", OPERATIONS) == (
        "infer:chat:model/m",
        "admin:keys:read",
    )


@pytest.mark.parametrize(
    "wish",
    ["infer:chat infer:embeddings", "infer:*", "admin:keys:read", "infer:fly", "openid", "admin:", "admin:keys", "admin:keys:", "infer:",
     "infer:chat:models/x", "x" * 300, "infer:chät", " ".join(f"infer:chat:model/m{n}" for n in range(MAX_SCOPES + 1))],
)  # fmt: skip
def test_everything_else_is_refused(wish: str) -> None:
    with pytest.raises(RequestError) as caught:
        narrowed(("infer:chat",), wish, OPERATIONS)
    assert (caught.value.code, caught.value.status) == ("invalid_scope", 400)


def request(model: str, operation: str = "chat") -> InferenceRequest:
    return InferenceRequest(WireApi(operation), b"/", model, {}, None)


def holder(*reach: str) -> Principal:
    return Principal("alice", "acme", "gateway_token", user="alice", groups=("engineers",), reach=reach)


def roles() -> RoleAccess:
    grants = Grants()
    grants.add(["group/engineers"], RoleGrant("binding:0", [parse("infer:*:model/demo-*", OPERATIONS)]))
    return RoleAccess(MODELS, {}, grants)


def test_a_scope_bounds_what_roles_give() -> None:
    access = roles()
    assert access.decide(holder("infer:chat"), request("demo-chat"), PEER, 0).allow
    assert access.decide(holder("infer:chat:model/gpt"), request("gpt"), PEER, 0).allow
    assert access.decide(holder("infer:embeddings"), request("demo-chat"), PEER, 0) is NARROWED
    assert access.decide(holder("admin:*"), request("demo-chat"), PEER, 0) is NARROWED
    assert access.decide(holder(), request("demo-chat"), PEER, 0) is NARROWED, "no scope is not every scope"
    assert access.decide(holder("nonsense", "infer:fly"), request("demo-chat"), PEER, 0) is NARROWED


def test_a_scope_gives_nothing() -> None:
    access = roles()
    decision = access.decide(holder("infer:*"), request("secret"), PEER, 0)
    assert not decision.allow and decision is not NARROWED, "what roles do not give is hidden, not merely out of scope"
    assert not access.may_see(holder("infer:*"), "secret")


def test_models_out_of_scope_are_not_listed() -> None:
    access, caller = roles(), holder("infer:chat:model/demo-chat")
    assert access.may_see(caller, "demo-chat") and not access.may_see(holder("infer:chat:model/other"), "demo-chat")


def test_it_bounds_credentials_with_models_of_their_own_too() -> None:
    access = ModelAccess(MODELS)
    caller = Principal("p", "t", "mtls", ("*",), reach=("infer:chat:model/demo-chat",))
    assert access.decide(caller, request("demo-chat")).allow
    assert access.decide(caller, request("secret")) is NARROWED and not access.may_see(caller, "secret")
    assert access.decide(caller, request("demo-chat", "embeddings")) is NARROWED
