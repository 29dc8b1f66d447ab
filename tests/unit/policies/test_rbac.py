"""Who may use which model."""

from __future__ import annotations

from inspect import isdatadescriptor
from typing import Any

import pytest

from gateway.core.specs import ModelSpec
from gateway.core.types import InferenceRequest, Principal, Scope
from gateway.core.wire import WireApi
from policies.rbac import ModelAccess

MODELS = (
    ModelSpec(name="demo-chat", pool=("a",), aliases=("gpt-small",)),
    ModelSpec(name="demo-embed", pool=("a",)),
    ModelSpec(name="secret", pool=("a",)),
)


def request(model: str, operation: str = "chat") -> InferenceRequest:
    return InferenceRequest(WireApi(operation), b"/", model, {}, None)


def versioned(model: str, version: str) -> InferenceRequest:
    return InferenceRequest(WireApi("infer"), b"/", model, {}, None, version=version)


def principal(*models: str) -> Principal:
    return Principal("p", "t", "api_key", models)


@pytest.mark.parametrize(
    ("patterns", "model", "allowed", "rule"),
    [
        ((), "demo-chat", False, "default-deny"),
        (("demo-*",), "demo-chat", True, "models:demo-*"),
        (("demo-*",), "secret", False, "default-deny"),
        (("x", "secret", "*"), "secret", True, "models:secret"),
        (("*",), "demo-embed", True, "models:*"),
        (("*",), "unknown", False, "unknown-model"),
        (("demo-chat",), "gpt-small", True, "models:demo-chat"),
        (("gpt-*",), "gpt-small", True, "models:gpt-*"),
        (("gpt-*",), "demo-chat", False, "default-deny"),
        (("DEMO-CHAT",), "demo-chat", False, "default-deny"),
    ],
)
def test_decisions(patterns: tuple[str, ...], model: str, allowed: bool, rule: str) -> None:
    access = ModelAccess(MODELS)
    caller = principal(*patterns)
    for _ in range(2):
        decision = access.decide(caller, request(model))
        assert (decision.allow, decision.rule) == (allowed, rule)
        assert access.may_see(caller, model) is allowed
        assert rule.partition(":")[2] == "" or rule.partition(":")[2] not in decision.reason


def test_a_denial_says_nothing_of_the_policy() -> None:
    reason = ModelAccess(MODELS).decide(principal("other-*"), request("secret")).reason
    assert reason == "This credential may not use the requested model."


def test_decisions_are_remembered_per_principal_object() -> None:
    access = ModelAccess(MODELS)
    before, after = principal("demo-*"), principal("secret")
    assert access.decide(before, request("secret")).allow is False
    assert access.decide(after, request("secret")).allow is True
    assert access.decide(before, request("secret")) is access.decide(before, request("secret"))


def test_names_that_callers_make_up_are_not_remembered_and_the_memo_is_bounded() -> None:
    access = ModelAccess(MODELS, memo_size=5)
    caller = principal("*")
    for number in range(100):
        access.decide(caller, request(f"made-up-{number}"))
    assert access._memo == {}
    for number in range(100):
        assert access.decide(caller, request("secret", f"operation-{number}")).allow
    assert len(access._memo) == 5


def test_what_is_remembered_is_bounded_in_bytes() -> None:
    """A caller may write 15 KB into the path for a version: 16,384 of them took 250 MB."""
    access, caller = ModelAccess(MODELS), principal("*", "secret@1*")
    for number in range(100):
        assert access.decide(caller, versioned("secret", "1" * 15_000 + str(number))).allow
        assert access.decide(caller, versioned("secret", str(number))).allow
    assert len(access._memo) == 100
    assert max(len(text) for _, model, text in access._memo) < 100


@pytest.mark.parametrize(
    ("pattern", "model", "version", "allowed"),
    [
        ("secret", "secret", "1", True),
        ("secret", "secret", "2", True),
        ("secret@1", "secret", "1", True),
        ("secret@1", "secret", "2", False),
        ("secret@1", "secret", "", False),
        ("demo-*@1", "demo-embed", "1", True),
        ("demo-*@1", "secret", "1", False),
        ("*@1*", "secret", "12", True),
        ("gpt-small@1", "gpt-small", "1", True),
        ("demo-chat@1", "gpt-small", "1", True),
        ("*-embed", "secret", "x-embed", False),
        ("*-embed", "secret", "@x-embed", False),
        ("secret@*", "secret", "", False),
    ],
)
def test_a_version_can_be_allowed_alone(pattern: str, model: str, version: str, allowed: bool) -> None:
    access, caller = ModelAccess(MODELS), principal(pattern)
    for _ in range(2):
        assert access.decide(caller, versioned(model, version)).allow is allowed
    assert access.may_see(caller, model, version) is allowed
    assert access.may_see(caller, model) is ("@" not in pattern and access.may_see(caller, model, version))


def test_versions_are_remembered_apart() -> None:
    access, caller = ModelAccess(MODELS), principal("secret@1")
    assert access.decide(caller, versioned("secret", "1")).allow
    assert not access.decide(caller, versioned("secret", "2")).allow
    assert not access.decide(caller, InferenceRequest(WireApi("infer"), b"/", "secret", {}, None)).allow


def test_a_principal_may_be_held_to_some_operations() -> None:
    access = ModelAccess(MODELS)
    caller = Principal("p", "t", "api_key", ("demo-*",), operations=("embeddings", "chat"))
    for _ in range(2):  # the second answer is a remembered one
        assert access.decide(caller, request("demo-embed", "embeddings")).allow
        refused = access.decide(caller, request("demo-embed", "completions"))
        assert (refused.allow, refused.rule) == (False, "operations")
        assert access.decide(caller, request("secret", "chat")).rule == "default-deny"
    assert access.decide(principal("demo-*"), request("demo-embed", "completions")).allow


def bounded(*bounds: tuple[Scope, ...], models: tuple[str, ...] = ("*",), **more: Any) -> Principal:
    return Principal("p", "t", "api_key", models, bounds=bounds, **more)


@pytest.mark.parametrize(
    ("bounds", "model", "operation", "rule"),
    [
        ([(Scope(("demo-*",)),)], "demo-chat", "chat", "models:*"),
        ([(Scope(("demo-*",)),)], "secret", "chat", "bounds"),
        ([(Scope(("demo-*",)),)], "gpt-small", "chat", "models:*"),
        ([(Scope(("demo-*",)),), (Scope(("*-embed",)),)], "demo-chat", "chat", "bounds"),
        ([(Scope(("demo-*",)),), (Scope(("*-embed",)),)], "demo-embed", "embeddings", "models:*"),
        ([(Scope(("demo-chat",), ("chat",)), Scope(("demo-embed",), ("embeddings",)))], "demo-embed", "embeddings", "models:*"),
        ([(Scope(("demo-chat",), ("chat",)), Scope(("demo-embed",), ("embeddings",)))], "demo-embed", "chat", "operations"),
        ([()], "demo-chat", "chat", "bounds"),
    ],
)
def test_each_bound_must_allow_it_by_one_of_its_scopes(bounds: list[tuple[Scope, ...]], model: str, operation: str, rule: str) -> None:
    access = ModelAccess(MODELS)
    decision = access.decide(bounded(*bounds), request(model, operation))
    assert decision.rule == rule and decision.allow is rule.startswith("models:")
    assert access.may_see(bounded(*bounds), model) is (rule != "bounds")
    listing = ModelAccess(MODELS, operations=("chat", "embeddings"))
    assert listing.may_see(bounded(*bounds), model) is (rule != "bounds")


def test_a_model_that_no_operation_may_use_is_hidden() -> None:
    access = ModelAccess(MODELS, operations=("chat", "embeddings"))
    chat, both = (Scope(("*",), ("chat",)),), (Scope(("*",), ("chat", "embeddings")),)
    for bounds, seen in (((both,), True), ((chat,), False), ((both, chat), False)):
        caller = bounded(*bounds, operations=("embeddings",))
        assert access.may_see(caller, "demo-chat") is seen and access.decide(caller, request("demo-chat", "embeddings")).allow is seen


def test_a_bound_gives_nothing_that_the_credential_lacks() -> None:
    access = ModelAccess(MODELS)
    assert access.decide(bounded((Scope(("*",)),), models=("demo-*",)), request("secret")).rule == "default-deny"


def test_an_entitled_principal_is_another_one_with_the_same_identity() -> None:
    before = Principal("p", "t", "oidc", user="alice", groups=("a",), roles=("r",), scopes=("s",), agent="bot", session="x", expires=1.0)
    before.made = 7.0
    after = before.entitled(("m",), ("a", "b"), (), ((Scope(("*",)),),))
    assert after is not before and (after.models, after.groups, after.roles) == (("m",), ("a", "b"), ())
    fields = {name for name, field in vars(Principal).items() if isdatadescriptor(field)}  # a compiled class has no __slots__
    assert fields > {"models", "groups", "roles", "bounds", "networks", "user", "login", "key_salt"}
    assert all(getattr(after, name) == getattr(before, name) for name in fields - {"models", "groups", "roles", "bounds"})
