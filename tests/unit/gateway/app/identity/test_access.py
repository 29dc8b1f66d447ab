"""From roles and bindings to an Authorizer."""

from __future__ import annotations

import random

import msgspec
import pytest

from gateway.app.identity.access import AccessBuilder, check, models_there, unknown_role
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


def test_what_has_not_changed_is_kept_and_decides_as_if_all_were_new() -> None:
    """Of a hundred thousand bindings one changes. Neither that nor what follows changes what the Authorizer before it decides."""
    chance, builder = random.Random(21), AccessBuilder()
    roles = {f"r{n}": ROLES["r" if n % 2 else "all"] for n in range(8)} | {"no-chat": RoleSpec(permissions=("admin:keys:read",))}
    bindings = [BindingSpec(name=f"b{n}", role=f"r{n % 8}", subjects=(f"user/u{n % 12}", f"user/{n}*")) for n in range(40)]
    former: list[tuple[object, list[tuple[bool, str]]]] = []
    for _ in range(60):
        place = chance.randrange(len(bindings))
        match chance.randrange(5):
            case 0:
                added = BindingSpec(name=f"new{chance.random()}", role=chance.choice([*roles, "gone"]), subjects=("user/u3",))
                bindings.insert(place, added)
            case 1:
                del bindings[place]
            case 2:
                changed = {"effect": chance.choice(["allow", "deny"]), "when": chance.choice([None, SMALL]), "tenant": chance.choice("*t")}
                bindings[place] = msgspec.structs.replace(bindings[place], **changed)
            case 3:
                roles = {**roles, chance.choice([*roles]): RoleSpec(permissions=(chance.choice(["infer:chat", "infer:*:model/x"]),))}
            case _:
                gone = chance.choice([*roles])
                roles = {name: role for name, role in roles.items() if name != gone or name == "r0"}
        kept, wanted = dict(builder._last.made), spec(*bindings, roles=roles)
        access, fresh = built(builder.steps(wanted))[0], built(AccessBuilder().steps(wanted))[0]
        made = [one for name, one in builder._last.made.items() if kept.get(name) is not one]
        assert not kept or len(made) <= 12, "a role's bindings at most"
        assert decisions(access) == decisions(fresh)
        former.append((access, decisions(access)))
    assert all(decisions(access) == before for access, before in former)


def decisions(access: object) -> list[tuple[bool, str]]:
    found = []
    for user in (*(f"u{n}" for n in range(12)), "17", "3x"):
        for tokens in (1, 99):
            request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, max_tokens=tokens)
            who = Principal(user, "t", "oidc", user=user)
            decision = access.decide(who, request, Peer("10.0.0.1"), 1)  # type: ignore[attr-defined]
            found.append((decision.allow, decision.rule))
    return found


def test_of_very_many_names_none_is_said_to_be_near() -> None:
    assert unknown_role("r", [f"r{n}" for n in range(1000)]).startswith("there is no role 'r'; did you mean 'r")
    assert unknown_role("r", [f"r{n}" for n in range(1001)]) == "there is no role 'r'; there are 1001 others"


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
