"""Roles and bindings: who may do what."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.specs import BindingSpec, ConfigSpec, ModelSpec, RoleSpec
from gateway.core.types import InferenceRequest, Peer, Principal, Scope
from gateway.core.wire import WireApi
from policies.conditions import Language
from policies.permissions import parse
from policies.roles import Grant, Grants, RoleAccess

MODELS = (ModelSpec(name="demo-chat", pool=("a",), aliases=("gpt-small",)), ModelSpec(name="secret", pool=("a",)))
OPERATIONS = ("chat", "completions", "embeddings", "infer")
LANGUAGE = Language()
PEER = Peer("10.0.0.1")


def access(roles: dict[str, list[str]], *bindings: dict[str, Any]) -> RoleAccess:
    compiled = {name: tuple(parse(text, OPERATIONS) for text in texts) for name, texts in roles.items()}
    grants = Grants()
    for number, binding in enumerate(bindings):
        when = binding.get("when")
        grants.add(
            binding["subjects"],
            Grant(
                f"binding:{number}",
                compiled[binding["role"]],
                binding.get("effect") == "deny",
                None if when is None else LANGUAGE.compile(when),
                binding.get("tenant", "*"),
            ),
        )
    return RoleAccess(MODELS, compiled, grants, wall=lambda: 0.0, operations=OPERATIONS)


def ask(model: str = "demo-chat", operation: str = "chat", max_tokens: int = 10, version: str = "") -> InferenceRequest:
    return InferenceRequest(WireApi(operation), b"/", model, {}, None, max_tokens=max_tokens, version=version)


def key(*models: str, id: str = "ci", **more: Any) -> Principal:
    return Principal(id, more.pop("tenant", "acme"), "api_key", models, **more)


def person(user: str = "alice", **more: Any) -> Principal:
    return Principal(user, more.pop("tenant", "acme"), "oidc", user=user, **more)


CHATTER = {"chatter": ["infer:chat:model/demo-*"], "all": ["infer:*"]}


def rule(of: RoleAccess, caller: Principal, request: InferenceRequest | None = None, peer: Peer = PEER) -> tuple[bool, str]:
    decision = of.decide(caller, request or ask(), peer, 100)
    again = of.decide(caller, request or ask(), peer, 100)
    assert decision == again
    return decision.allow, decision.rule


class TestCallersWithoutRoles:
    def test_a_key_keeps_what_it_says(self) -> None:
        policy = access(CHATTER, {"role": "chatter", "subjects": ["group/engineers"]})
        assert rule(policy, key("*")) == (True, "models:*")
        assert rule(policy, key("secret")) == (False, "default-deny")
        assert policy.may_see(key("*"), "secret") and not policy.may_see(key("demo-*"), "secret")

    def test_a_person_may_do_nothing(self) -> None:
        policy = access(CHATTER, {"role": "chatter", "subjects": ["group/engineers"]})
        assert rule(policy, person()) == (False, "default-deny")
        assert not policy.may_see(person(), "demo-chat")


class TestOwnKeys:
    """Keys that users make for themselves."""

    @pytest.mark.parametrize("subject", ["key/k1", "key/*", "principal/k1", "principal/k*"])
    def test_one_is_given_nothing_by_itself_and_can_be_denied(self, subject: str) -> None:
        own = key(id="k1", user="alice", groups=("staff",), personal=True)
        policy = access(CHATTER, {"role": "all", "subjects": [subject]})
        assert rule(policy, own) == (False, "default-deny") and not policy.may_see(own, "secret")
        assert rule(policy, key(id="k1", user="alice")) == (False, "default-deny"), "one of the tenant's, without models"
        both = access(CHATTER, {"role": "chatter", "subjects": ["group/staff"]}, {"role": "all", "subjects": [subject], "effect": "deny"})
        assert rule(both, own) == (False, "binding:1") and rule(both, person(groups=("staff",)))[0]

    @pytest.mark.parametrize("subject", ["user/alice", "group/staff", "tenant/acme"])
    def test_it_has_what_its_user_has(self, subject: str) -> None:
        policy = access(CHATTER, {"role": "chatter", "subjects": [subject]})
        assert rule(policy, key(id="k1", user="alice", groups=("staff",), personal=True)) == (True, "binding:0")


class TestRoles:
    @pytest.mark.parametrize(
        ("subject", "caller", "allowed"),
        [
            ("user/alice", person(), True),
            ("user/bob", person(), False),
            ("group/engineers", person(groups=("staff", "engineers")), True),
            ("group/engineers", person(groups=("staff",)), False),
            ("group/eng*", person(groups=("engineers",)), True),
            ("tenant/acme", person(), True),
            ("tenant/other", person(), False),
            ("agent/*", person(agent="coder"), True),
            ("agent/*", person(), False),
            ("user/*", person(), True),
            ("key/alice", person(), False),
        ],
    )
    def test_subjects(self, subject: str, caller: Principal, allowed: bool) -> None:
        policy = access(CHATTER, {"role": "chatter", "subjects": [subject]})
        assert rule(policy, caller)[0] is allowed
        assert policy.may_see(caller, "demo-chat") is allowed
        assert not policy.may_see(caller, "secret")

    def test_a_role_of_the_credential_itself(self) -> None:
        assert rule(access(CHATTER), person(roles=("chatter",))) == (True, "role:chatter")
        assert rule(access(CHATTER), person(roles=("admin",))) == (False, "default-deny")

    def test_a_role_never_grants_more_than_the_key_says(self) -> None:
        policy = access(CHATTER, {"role": "all", "subjects": ["key/ci"]})
        assert rule(policy, key("demo-*")) == (True, "binding:0")
        assert rule(policy, key("demo-*"), ask("secret")) == (False, "default-deny")
        assert rule(policy, key("*", operations=("embeddings",))) == (False, "operations")
        assert rule(policy, key()) == (False, "default-deny")

    def test_a_key_with_a_role_needs_the_role(self) -> None:
        policy = access(CHATTER, {"role": "chatter", "subjects": ["key/ci"]})
        assert rule(policy, key("*"), ask("secret")) == (False, "default-deny")
        assert rule(policy, key("*"), ask(operation="embeddings")) == (False, "default-deny")
        assert not policy.may_see(key("*"), "secret")

    def test_a_binding_for_one_tenant(self) -> None:
        policy = access(CHATTER, {"role": "chatter", "subjects": ["user/alice"], "tenant": "acme"})
        assert rule(policy, person())[0] and not rule(policy, person(tenant="other"))[0]

    def test_an_alias_needs_the_right_to_its_model(self) -> None:
        policy = access({"r": ["infer:chat:model/demo-chat"]}, {"role": "r", "subjects": ["user/*"]})
        assert rule(policy, person(), ask("gpt-small"))[0] and policy.may_see(person(), "gpt-small")

    def test_versions(self) -> None:
        policy = access({"r": ["infer:infer:model/secret@2"]}, {"role": "r", "subjects": ["user/*"]})
        assert rule(policy, person(), ask("secret", "infer", version="2"))[0]
        assert not rule(policy, person(), ask("secret", "infer", version="3"))[0]
        assert not rule(policy, person(), ask("secret", "infer"))[0]

    def test_unknown_models_are_not_remembered(self) -> None:
        policy = access(CHATTER)
        for number in range(100):
            assert rule(policy, key("*"), ask(f"m{number}")) == (False, "unknown-model")
        assert not policy._memo


class TestDeny:
    def test_deny_wins(self) -> None:
        policy = access(
            CHATTER, {"role": "all", "subjects": ["user/alice"]}, {"role": "chatter", "subjects": ["agent/*"], "effect": "deny"}
        )
        assert rule(policy, person())[0]
        assert rule(policy, person(agent="coder")) == (False, "binding:1")
        assert rule(policy, person(agent="coder"), ask("secret"))[0]

    def test_deny_counts_for_a_key_without_roles_too(self) -> None:
        policy = access(CHATTER, {"role": "chatter", "subjects": ["tenant/acme"], "effect": "deny"})
        assert rule(policy, key("*")) == (False, "binding:0")
        assert policy.may_see(key("*"), "demo-chat")  # other operations are left

    def test_a_model_of_which_every_operation_is_denied_is_hidden(self) -> None:
        roles = {
            "all": ["infer:*"],
            "some": ["infer:chat", "infer:completions"],
            "rest": ["infer:embeddings", "infer:infer:model/demo-chat"],
        }
        deny = [{"role": role, "subjects": ["tenant/acme"], "effect": "deny"} for role in ("some", "rest")]
        assert [access(roles, *deny).may_see(key("*"), name) for name in ("demo-chat", "secret")] == [False, True]
        assert access(roles, deny[0]).may_see(key("*"), "demo-chat")
        assert access(roles, deny[0], {**deny[1], "when": "request.max_tokens > 5"}).may_see(key("*"), "demo-chat")

    @given(
        st.lists(st.tuples(st.sampled_from(["*", *OPERATIONS]), st.sampled_from(["*", "demo-*", "secret"]), st.booleans()), max_size=5),
        st.lists(st.sampled_from(OPERATIONS), max_size=2, unique=True).map(tuple),
        st.none() | st.lists(st.sampled_from(["infer:*", "infer:chat", "infer:embeddings:model/demo-*"]), max_size=2),
        st.lists(st.lists(st.builds(Scope, st.just(("demo-*",)), st.sampled_from([(), ("chat",), ("infer",)])), max_size=2), max_size=2),
        st.booleans(),
    )
    def test_a_model_is_seen_by_who_may_use_it_with_any_operation(
        self, bindings: list[tuple[str, str, bool]], operations: tuple[str, ...], reach: Any, bounds: Any, keyed: bool
    ) -> None:
        roles = {f"r{number}": [f"infer:{operation}:model/{model}"] for number, (operation, model, _) in enumerate(bindings)}
        effects = [{"effect": "deny"} if deny else {} for _, _, deny in bindings]
        policy = access(roles, *[{"role": f"r{number}", "subjects": ["tenant/acme"], **effect} for number, effect in enumerate(effects)])
        more = {"reach": None if reach is None else tuple(reach), "bounds": tuple(map(tuple, bounds))}
        caller = key("demo-*", operations=operations, **more) if keyed else person(**more)
        for name in ("demo-chat", "secret"):
            usable = any(policy.decide(caller, ask(name, operation), PEER, 1).allow for operation in OPERATIONS)
            assert policy.may_see(caller, name) is usable

    def test_a_model_that_is_denied_altogether_is_hidden(self) -> None:
        policy = access({"r": ["infer:*:model/secret"]}, {"role": "r", "subjects": ["tenant/*"], "effect": "deny"})
        assert not policy.may_see(key("*"), "secret") and policy.may_see(key("*"), "demo-chat")

    def test_a_reason_says_nothing_of_the_policy(self) -> None:
        policy = access(CHATTER, {"role": "chatter", "subjects": ["tenant/acme"], "effect": "deny", "when": "request.max_tokens > 5"})
        assert policy.decide(key("*"), ask(), PEER, 0).reason == "A policy denies this request."


class TestConditions:
    SMALL: ClassVar[dict[str, Any]] = {"role": "chatter", "subjects": ["user/*"], "when": "request.max_tokens <= 100"}

    def test_each_request_is_decided_by_its_own_facts(self) -> None:
        policy = access(CHATTER, self.SMALL)
        assert rule(policy, person()) == (True, "binding:0")
        assert rule(policy, person(), ask(max_tokens=101)) == (False, "binding:0")
        assert policy.may_see(person(), "demo-chat")

    def test_a_request_without_a_bound_is_not_a_small_one(self) -> None:
        policy = access(CHATTER, self.SMALL)
        for tokens, generates, allowed in ((0, True, False), (-1, True, False), (100, True, True), (0, False, True)):
            request = InferenceRequest(WireApi("chat", generates=generates), b"/", "demo-chat", {}, None, max_tokens=tokens)
            assert policy.decide(person(), request, PEER, 100).allow is allowed, (tokens, generates)

    def test_any_true_condition_allows(self) -> None:
        near = {"role": "chatter", "subjects": ["user/*"], "when": 'cidr("10.0.0.0/8").containsIP(source.address)'}
        policy = access(CHATTER, self.SMALL, near)
        assert rule(policy, person(), ask(max_tokens=101)) == (True, "binding:1")
        assert rule(policy, person(), ask(max_tokens=101), Peer("192.0.2.1"))[0] is False

    def test_a_condition_that_fails_denies_either_way(self) -> None:
        broken = "1 / request.bytes == 1 || 1 / (request.max_tokens - 10) == 1"
        allow, deny = {**self.SMALL, "when": broken}, {**self.SMALL, "subjects": ["key/*"], "when": broken, "effect": "deny"}
        assert rule(access(CHATTER, allow), person())[0] is False
        assert rule(access(CHATTER, deny), key("*")) == (False, "binding:0")

    def test_a_conditional_deny_leaves_the_rest(self) -> None:
        policy = access(CHATTER, {**self.SMALL, "subjects": ["tenant/acme"], "effect": "deny", "when": "request.max_tokens > 100"})
        assert rule(policy, key("*")) == (True, "models:*")
        assert rule(policy, key("*"), ask(max_tokens=101)) == (False, "binding:0")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["chatter", "all"]), st.sampled_from(["true", "false", None])), max_size=6))
def test_deny_wins_in_whatever_order(rules: list[tuple[bool, str, str | None]]) -> None:
    """Against the rules read one by one."""
    bindings = [
        {"role": role, "subjects": ["user/alice"], "effect": "deny" if deny else "allow", "when": when} for deny, role, when in rules
    ]
    got = access(CHATTER, *bindings).decide(person(), ask(), PEER, 0).allow
    holding = [deny for deny, _, when in rules if when != "false"]
    assert got is (bool(holding) and not any(holding))


def test_the_settings() -> None:
    spec = ConfigSpec(version=1, roles={"r": RoleSpec(permissions=("infer:*",))}, bindings=(BindingSpec(role="r", subjects=("key/a",)),))
    assert spec.bindings[0].effect == "allow" and spec.bindings[0].when is None


class TestBounds:
    """What the tenant, the groups and the user of a key allow bounds what roles give."""

    NARROW: ClassVar = {"bounds": ((Scope(("demo-*",)),),)}

    def test_a_role_gives_nothing_beyond_a_bound(self) -> None:
        rules = access(CHATTER, {"role": "all", "subjects": ["user/*"]})
        assert rule(rules, person()) == (True, "binding:0")
        assert rule(rules, person(**self.NARROW)) == (True, "binding:0")
        assert rule(rules, person(**self.NARROW), ask("secret")) == (False, "bounds")
        assert not rules.may_see(person(**self.NARROW), "secret") and rules.may_see(person(**self.NARROW), "demo-chat")

    def test_a_bound_alone_gives_nothing(self) -> None:
        assert rule(access(CHATTER), person(**self.NARROW))[0] is False
        assert not access(CHATTER).may_see(person(**self.NARROW), "demo-chat")

    def test_a_personal_key_without_a_role_may_do_nothing(self) -> None:
        mine = key(user="alice", personal=True, **self.NARROW)
        assert rule(access(CHATTER), mine)[0] is False and not access(CHATTER).may_see(mine, "demo-chat")

    def test_a_personal_key_may_do_what_its_user_may_within_its_own_bounds(self) -> None:
        rules = access(CHATTER, {"role": "all", "subjects": ["user/alice"]})
        mine = key(user="alice", personal=True, **self.NARROW)
        assert rule(rules, mine) == (True, "binding:0") and rule(rules, mine, ask("secret")) == (False, "bounds")
        assert rule(rules, key(user="bob", personal=True, **self.NARROW))[0] is False

    def test_the_bound_is_explained(self) -> None:
        rules = access(CHATTER, {"role": "all", "subjects": ["user/*"]})
        shown = rules.explain(person(**self.NARROW), ask("secret"), PEER, 1)
        assert shown[0] == {"rule": "bounds", "effect": "deny", "when": None, "holds": True}
