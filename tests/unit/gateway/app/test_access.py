"""From roles and bindings to an Authorizer."""

from __future__ import annotations

import pytest

from gateway.app.access import AccessBuilder, check, models_there
from gateway.core.errors import ConfigError
from gateway.core.slices import Steps, at_once
from gateway.core.specs import BindingSpec, ConfigSpec, ModelSpec, RoleSpec
from gateway.core.types import InferenceRequest, Peer, Principal
from gateway.core.wire import WireApi
from policies.rbac import ModelAccess

ROLES = {"r": RoleSpec(permissions=("infer:chat:model/m",)), "all": RoleSpec(permissions=("infer:*",))}
SMALL = "request.max_tokens < 10"


def spec(*bindings: BindingSpec, roles: dict[str, RoleSpec] = ROLES) -> ConfigSpec:
    return ConfigSpec(version=1, models=(ModelSpec(name="m", pool=("e",)),), roles=roles, bindings=bindings)


def built(steps: Steps[object]) -> tuple[object, int]:
    """What the steps return, and how many pauses they made."""
    pauses = 0
    while True:
        try:
            next(steps)
            pauses += 1
        except StopIteration as end:
            return end.value, pauses


def error(path: str, message: str) -> ConfigError:
    return ConfigError(message, path=path)


def test_without_roles_the_keys_alone_decide() -> None:
    access, _ = built(AccessBuilder().steps(spec(roles={})))
    assert isinstance(access, ModelAccess)


def test_many_bindings_are_built_with_pauses() -> None:
    many = [BindingSpec(role="r", subjects=(f"user/u{number}",), when=SMALL if number % 2 else None) for number in range(5000)]
    access, pauses = built(AccessBuilder().steps(spec(*many)))
    assert pauses >= 100
    for user, tokens, allowed in (("u4998", 99, True), ("u4999", 9, True), ("u4999", 10, False), ("u5000", 1, False)):
        request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, max_tokens=tokens)
        decision = access.decide(Principal(user, "t", "oidc", user=user), request, Peer("10.0.0.1"), 1)  # type: ignore[attr-defined]
        assert decision.allow is allowed, user


def test_a_condition_is_compiled_once_for_all_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = AccessBuilder()
    built(builder.steps(spec(BindingSpec(role="r", subjects=("user/a",), when=SMALL))))
    language = builder._conditions._language
    assert language is not None
    monkeypatch.setattr(type(language), "compile", None)
    built(builder.steps(spec(BindingSpec(role="all", subjects=("user/b",), when=SMALL), BindingSpec(role="r", subjects=("user/a",)))))


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        (spec(BindingSpec(role="al", subjects=("key/a",))), "bindings[0].role", "did you mean 'all'?"),
        (spec(BindingSpec(role="r", subjects=("key/a", "robot/x"))), "bindings[0].subjects[1]", "'robot/x' is not a subject"),
        (spec(BindingSpec(role="r", subjects=("key/",))), "bindings[0].subjects[0]", "is not a subject"),
        (spec(BindingSpec(role="r", subjects=("key/a",), when="1")), "bindings[0].when", "must be true or false"),
        (spec(roles={"admin": RoleSpec(permissions=("infer:*",))}), "roles.admin", "is a built-in role"),
        (spec(roles={"r": RoleSpec(permissions=("infer:*", "chat"))}), "roles.r.permissions[1]", "'chat' is not a permission"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(settings: ConfigSpec, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(settings, error, {"admin"})
    assert caught.value.path == path and message in caught.value.message


def test_a_permission_for_a_model_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    settings = spec(roles={"r": RoleSpec(permissions=("infer:*:model/x-*", "infer:chat:model/n@2"))})
    with pytest.raises(ConfigError) as caught:
        at_once(models_there(settings.roles, settings.models, strict=True))
    assert caught.value.path == "roles.r.permissions[1]" and "there is no model 'n'" in caught.value.message
    assert sum(1 for _ in models_there(settings.roles, settings.models, strict=False)) == len(settings.roles), "a role a step"
    assert "there is no model 'n'" in caplog.text
