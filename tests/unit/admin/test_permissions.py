"""The table of roles and permissions: default deny, confined grants, nobody grants what they lack."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.permissions import ALL, FIELDS, ROLES, SHARED, TENANTED, VERBS, Access, Grant, RoleName
from admin.resources import table
from gateway.core.errors import PermissionDenied
from gateway.core.types import Principal

TENANTS = ("acme", "globex")
GRANTS = st.builds(Grant.of, st.sampled_from(sorted(ROLES)), st.sampled_from(TENANTS))


def access(*grants: Grant) -> Access:
    return Access(Principal("k", "acme", "api_key"), grants)


def test_the_vocabulary_is_closed() -> None:
    assert set(get_args(RoleName)) == set(ROLES)
    assert all(role.permissions <= ALL for role in ROLES.values())
    assert set(FIELDS.values()) | SHARED <= ALL and set(VERBS) >= TENANTED
    assert {operation.permission for operation in table.operations()} <= ALL


def test_every_permission_is_asked_for_somewhere() -> None:
    asked = {operation.permission for operation in table.operations()} | set(FIELDS.values())
    assert asked == ALL


@pytest.mark.parametrize("permission", sorted(ALL))
def test_nothing_is_allowed_without_a_grant(permission: str) -> None:
    assert not access().may(permission) and not access().may(permission, "acme")
    assert not access(Grant("unknown-role")).may(permission, "acme")


@pytest.mark.parametrize("permission", sorted(ALL))
def test_a_confined_role_reaches_its_tenant_only(permission: str) -> None:
    confined = access(Grant.of("tenant-admin", "acme"))
    assert not confined.may(permission, "globex") or permission in SHARED
    assert not confined.may(permission) or permission in SHARED
    assert not confined.may(permission, "") or permission in SHARED
    assert access(Grant("admin")).may(permission, "globex")


READING = ("read", "verify", "export", "search", "report", "test", "replay", "address")


def test_who_reads_cannot_write() -> None:
    writes = {f"{r}:{v}" for r, verbs in VERBS.items() for v in verbs if v not in READING}
    for role in ("auditor", "viewer"):
        assert not ROLES[role].permissions & writes
    assert not ROLES["viewer"].permissions & {"keys:read", "config:read", "audit:read", "bindings:read", "events:read"}
    assert (
        not {"audit:read", "policies:replay", "config:apply", "keys:create", "bindings:create", "guardrails:create"}
        & ROLES["operator"].permissions
    )


@given(st.lists(GRANTS, max_size=3), st.sampled_from(sorted(ROLES)), st.sampled_from(TENANTS))
def test_what_is_granted_was_held(held: list[Grant], role: str, tenant: str) -> None:
    giver, receiver = access(*held), access(Grant.of(role, tenant))
    try:
        giver.require_grant(role, tenant)
    except PermissionDenied:
        return
    for permission in ALL:
        for where in (*TENANTS, None):
            assert giver.may(permission, where) or not receiver.may(permission, where), (permission, where)
