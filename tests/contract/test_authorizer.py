"""What every Authorizer keeps to: gateway.core.ports.Authorizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.ports import Authorizer
from gateway.core.specs import ModelSpec
from gateway.core.types import InferenceRequest, Peer, Principal
from gateway.core.wire import WireApi
from policies.permissions import Permission
from policies.rbac import ModelAccess
from policies.roles import Grant, Grants, RoleAccess

MODELS = (ModelSpec(name="demo-chat", pool=("a",)), ModelSpec(name="other", pool=("a",)))


def roles() -> Authorizer:
    grants = Grants()
    grants.add(["group/nobody"], Grant("binding:0", [Permission("infer:*")]))
    return RoleAccess(MODELS, {}, grants)


IMPLEMENTATIONS: dict[str, Callable[[], Authorizer]] = {"model access": lambda: ModelAccess(MODELS), "roles": roles}


@pytest.fixture(params=IMPLEMENTATIONS)
def authorizer(request: pytest.FixtureRequest) -> Authorizer:
    return IMPLEMENTATIONS[request.param]()


def ask(model: str) -> InferenceRequest:
    return InferenceRequest(WireApi("chat"), b"/v1/chat/completions", model, {}, None)


def test_default_deny(authorizer: Authorizer) -> None:
    nobody = Principal("p", "t", "api_key")
    for model in ("demo-chat", "other", "unknown", "", "*", "\x00"):
        decision = authorizer.decide(nobody, ask(model), Peer("10.0.0.1"), 0)
        assert not decision.allow and decision.reason and decision.rule
        assert not authorizer.may_see(nobody, model)


def test_what_is_granted_is_allowed_and_seen_and_nothing_else(authorizer: Authorizer) -> None:
    caller = Principal("p", "t", "api_key", ("demo-*",))
    assert authorizer.decide(caller, ask("demo-chat"), Peer("10.0.0.1"), 0).allow and authorizer.may_see(caller, "demo-chat")
    for model in ("other", "demo-unknown", "demo-*"):
        assert not authorizer.decide(caller, ask(model), Peer("10.0.0.1"), 0).allow and not authorizer.may_see(caller, model)


def test_a_decision_belongs_to_the_principal_object(authorizer: Authorizer) -> None:
    """The same name with other rights is another principal: nothing that was remembered for the one counts for the other."""
    assert authorizer.decide(Principal("p", "t", "api_key", ("*",)), ask("other"), Peer("10.0.0.1"), 0).allow
    assert not authorizer.decide(Principal("p", "t", "api_key", ("demo-*",)), ask("other"), Peer("10.0.0.1"), 0).allow


def test_the_reason_does_not_show_the_policy(authorizer: Authorizer) -> None:
    decision = authorizer.decide(Principal("p", "t", "api_key", ("very-special-*",)), ask("other"), Peer("10.0.0.1"), 0)
    assert "very-special" not in decision.reason
