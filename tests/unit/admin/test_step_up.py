"""Administrators' actions that need a fresh or a strong login."""

from __future__ import annotations

import pytest

from admin.permissions import Access, Grant
from admin.step_up import CODE, check
from gateway.core.errors import PermissionDenied
from gateway.core.specs import StepUpSpec
from gateway.core.types import Login, Principal

NOW = 1000.0
RULES = (
    StepUpSpec(permissions=("keys:*", "config:apply"), max_age=300.0, exempt=("key/break-glass",)),
    StepUpSpec(permissions=("tenants:delete",), acr=("high", "higher"), amr=("mfa", "hwk")),
)


def person(**login: object) -> Principal:
    return Principal("alice", "acme", "oidc", login=Login("token", **login))  # type: ignore[arg-type]


def refusal(caller: Principal, permission: str) -> str:
    with pytest.raises(PermissionDenied) as caught:
        check(RULES, caller, permission, NOW)
    assert (caught.value.status, caught.value.code) == (403, CODE)
    return dict(caught.value.headers)["www-authenticate"]


def test_a_login_must_be_fresh_where_a_rule_says_so() -> None:
    check(RULES, person(auth_time=NOW - 300), "keys:create", NOW)
    challenge = refusal(person(auth_time=NOW - 301), "keys:create")
    assert f'error="{CODE}"' in challenge and 'max_age="300"' in challenge
    refusal(person(), "config:apply")
    check(RULES, person(), "config:read", NOW)


def test_a_login_must_be_of_a_kind_where_a_rule_says_so() -> None:
    check(RULES, person(acr="higher", amr=("pwd", "hwk")), "tenants:delete", NOW)
    assert 'acr_values="high higher"' in refusal(person(acr="high", amr=("pwd",)), "tenants:delete")
    refusal(person(acr="low", amr=("mfa",)), "tenants:delete")


def test_keys_are_no_login_unless_a_rule_exempts_them() -> None:
    refusal(Principal("ci", "acme", "api_key"), "keys:create")
    check(RULES, Principal("break-glass", "acme", "api_key"), "keys:create", NOW)
    refusal(Principal("break-glass", "acme", "oidc"), "keys:create")
    refusal(Principal("break-glass", "acme", "api_key"), "tenants:delete")


def test_it_holds_wherever_a_permission_is_required() -> None:
    access = Access(person(), (Grant("admin"),), lambda caller, permission: check(RULES, caller, permission, NOW))
    access.require("config:read")
    for permission in ("keys:roles", "config:apply"):
        with pytest.raises(PermissionDenied):
            access.require(permission)


def test_a_narrowed_token_has_fewer_permissions() -> None:
    caller = Principal("alice", "acme", "gateway_token", reach=("admin:keys:read", "infer:*", "admin:engines:*"))
    access = Access(caller, (Grant("admin"),))
    assert access.may("keys:read") and access.may("engines:drain") and not access.may("keys:create") and not access.may("config:read")
    assert not Access(Principal("a", "t", "gateway_token", reach=("infer:*",)), (Grant("admin"),)).may("keys:read")
    with pytest.raises(PermissionDenied):
        access.require_grant("operator", "acme")
