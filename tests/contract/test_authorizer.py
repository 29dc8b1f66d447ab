"""What every Authorizer keeps to: gateway.core.ports.Authorizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.ports import Authorizer
from gateway.core.specs import ModelSpec
from gateway.core.types import InferenceRequest, Principal
from gateway.core.wire import WireApi
from policies.rbac import ModelAccess

MODELS = (ModelSpec(name="demo-chat", pool=("a",)), ModelSpec(name="other", pool=("a",)))
IMPLEMENTATIONS: dict[str, Callable[[], Authorizer]] = {"model access": lambda: ModelAccess(MODELS)}


@pytest.fixture(params=IMPLEMENTATIONS)
def authorizer(request: pytest.FixtureRequest) -> Authorizer:
    return IMPLEMENTATIONS[request.param]()


def ask(model: str) -> InferenceRequest:
    return InferenceRequest(WireApi("chat"), b"/v1/chat/completions", model, {}, None)


def test_default_deny(authorizer: Authorizer) -> None:
    nobody = Principal("p", "t", "api_key")
    for model in ("demo-chat", "other", "unknown", "", "*", "\x00"):
        decision = authorizer.decide(nobody, ask(model))
        assert not decision.allow and decision.reason and decision.rule
        assert not authorizer.may_see(nobody, model)


def test_what_is_granted_is_allowed_and_seen_and_nothing_else(authorizer: Authorizer) -> None:
    caller = Principal("p", "t", "api_key", ("demo-*",))
    assert authorizer.decide(caller, ask("demo-chat")).allow and authorizer.may_see(caller, "demo-chat")
    for model in ("other", "demo-unknown", "demo-*"):
        assert not authorizer.decide(caller, ask(model)).allow and not authorizer.may_see(caller, model)


def test_a_decision_belongs_to_the_principal_object(authorizer: Authorizer) -> None:
    """The same name with other rights is another principal: nothing that was remembered for the one counts for the other."""
    assert authorizer.decide(Principal("p", "t", "api_key", ("*",)), ask("other")).allow
    assert not authorizer.decide(Principal("p", "t", "api_key", ("demo-*",)), ask("other")).allow


def test_the_reason_does_not_show_the_policy(authorizer: Authorizer) -> None:
    decision = authorizer.decide(Principal("p", "t", "api_key", ("very-special-*",)), ask("other"))
    assert "very-special" not in decision.reason
