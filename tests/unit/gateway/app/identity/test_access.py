"""From roles and bindings to an Authorizer."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


NAMES = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "0", "2", "5"]))
BOUND = st.builds(
    BindingSpec,
    name=NAMES,
    role=st.sampled_from(["r0", "r1", "r2", "admin"]),
    subjects=st.lists(st.sampled_from(["user/u1", "user/u2", "user/*", "group/g", "user/u*"]), min_size=1, max_size=3).map(tuple),
    effect=st.sampled_from(["allow", "allow", "deny"]),
    when=st.sampled_from([None, None, SMALL, "request.max_tokens > 20"]),
)
PERMITTED = st.sampled_from([("infer:chat:model/m",), ("infer:*",), ("infer:chat:model/x",), ("admin:keys:read",)])
CHANGE = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 12), BOUND),
    st.tuples(st.just("insert"), st.integers(0, 12), BOUND),
    st.tuples(st.just("move"), st.integers(0, 12), st.integers(0, 12)),
    st.tuples(st.just("delete"), st.integers(0, 12), st.none()),
    st.tuples(st.just("role"), st.sampled_from(["r0", "r1", "r2"]), PERMITTED),
    st.tuples(st.just("no role"), st.sampled_from(["r0", "r1", "r2"]), st.none()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(BOUND, max_size=10), st.lists(st.lists(CHANGE, min_size=1, max_size=3), max_size=8), st.integers(1, 3))
def test_whatever_has_changed_an_index_decides_and_explains_as_one_that_is_new(
    bindings: list[BindingSpec], rounds: list[list[tuple[str, Any, Any]]], copies: int
) -> None:
    builder, roles = AccessBuilder(), {f"r{n}": RoleSpec(permissions=("infer:chat:model/m",)) for n in range(3)}
    former: list[tuple[object, list[object]]] = []
    for changes in [[], *rounds]:
        for what, place, value in changes:
            match what:
                case "put" if place < len(bindings):
                    bindings[place] = value
                case "insert" | "put":
                    bindings.insert(place, value)
                case "move" if place < len(bindings):
                    bindings.insert(value, bindings.pop(place))
                case "delete":
                    del bindings[place : place + copies]
                case "role":
                    roles = {**roles, place: RoleSpec(permissions=value)}
                case "no role":
                    roles = {name: role for name, role in roles.items() if name != place}
        wanted = spec(*bindings, roles=roles)
        access, fresh = at_once(builder.steps(wanted)), at_once(AccessBuilder().steps(wanted))
        assert explained(access) == explained(fresh)
        former.append((access, explained(access)))
    assert all(explained(access) == before for access, before in former), "what is in force meanwhile stays as it is"


def explained(access: Any) -> list[object]:
    found: list[object] = []
    for user, groups in (("u1", ()), ("u2", ("g",)), ("v", ())):
        who = Principal(user, "t", "oidc", user=user, groups=groups)
        for tokens in (1, 99):
            request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, max_tokens=tokens)
            found += [access.decide(who, request, Peer("10.0.0.1"), 1), access.explain(who, request, Peer("10.0.0.1"), 1)]
        found.append(access.may_see(who, "m"))
    return found


@pytest.mark.parametrize("what", ["binding", "role", "gone", "new", "first"])
def test_of_many_bindings_one_that_changes_is_exchanged(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, roles = AccessBuilder(), {f"r{n}": ROLES["r"] for n in range(3000)}
    bindings = [BindingSpec(name=f"b{n}", role=f"r{n}", subjects=(f"user/u{n}", "group/all")) for n in range(3000)]
    built(builder.steps(spec(*bindings, roles=roles)))
    monkeypatch.setattr(builder, "_indexed", None)
    roles = {**roles, "r9": ROLES["all"]}
    built(builder.steps(spec(*bindings, roles=roles)))
    match what:
        case "binding":
            bindings[7] = msgspec.structs.replace(bindings[7], effect="deny")
        case "role":
            roles = {**roles, "r7": RoleSpec(permissions=("admin:keys:read",))}
        case "gone":
            del bindings[7]
        case _:
            bindings.insert(0 if what == "first" else 3000, BindingSpec(name="new", role="r7", subjects=("user/u7",), effect="deny"))
    access, pauses = built(builder.steps(spec(*bindings, roles=roles)))
    request = InferenceRequest(WireApi("chat"), b"/", "m", {}, None, max_tokens=1)
    for user, allowed in (("u7", False), ("u8", True)):
        decision = access.decide(Principal(user, "t", "oidc", user=user), request, Peer("10.0.0.1"), 1)  # type: ignore[attr-defined]
        assert decision.allow is allowed
    assert pauses < 60


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
    steps = sum(1 for _ in models_there(settings.roles, settings.models, strict=False))
    assert steps == 1 + len(settings.roles), "one for the models, and one for each role"
    assert "there is no model 'n'" in caplog.text
