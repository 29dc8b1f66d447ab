"""Who may do what on the admin listener: one table. Default deny; callers cannot grant permissions they lack.

A permission is `resource:verb`. A role is a set of them; a grant is a role everywhere or in one tenant. Single fields that need
more than their resource's verb are listed in FIELDS. A finer policy engine can replace `Access` without a change elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from gateway.core.errors import PermissionDenied
from gateway.core.types import Principal

CRUD: Final = ("read", "create", "update", "delete")
VERBS: Final = MappingProxyType(
    {
        "status": ("read",),
        "replicas": ("read",),
        "workers": ("read", "replace"),
        "tenants": (*CRUD, "models"),
        "keys": (*CRUD, "rotate", "revoke", "roles", "priority"),
        "roles": ("read",),
        "bindings": CRUD,
        "models": (*CRUD, "load", "unload", "reload", "abort"),
        "files": ("read", "write"),
        "engines": (*CRUD, "drain", "resume", "breaker", "upstream"),
        "endpoints": ("read", "address"),
        "limits": CRUD,
        "guardrails": CRUD,
        "policies": ("test",),
        "resources": ("apply",),
        "config": ("read", "apply", "reload"),
        "upgrade": ("read", "begin"),
        "usage": ("read",),
        "audit": ("read", "verify", "export"),
        "events": ("read",),
    }
)
"""Every resource with its verbs: all permissions there are."""
ALL: Final = frozenset(f"{resource}:{verb}" for resource, verbs in VERBS.items() for verb in verbs)
_READS: Final = frozenset(name for name in ALL if name.endswith(":read"))

TENANTED: Final = frozenset({"tenants", "keys", "bindings", "limits", "usage", "policies", "resources"})
"""Resources that belong to a tenant. A grant in one tenant covers only these..."""
SHARED: Final = frozenset({"models:read", "roles:read"})
"""...and these, which reveal nothing about other tenants."""

FIELDS: Final = MappingProxyType(
    {
        ("keys", "roles"): "keys:roles",
        ("keys", "priority"): "keys:priority",
        ("tenants", "models"): "tenants:models",
        ("endpoints", "address"): "endpoints:address",
        ("engines", "url"): "engines:upstream",
        ("engines", "api_key"): "engines:upstream",
        ("engines", "headers"): "engines:upstream",
        ("engines", "tls"): "engines:upstream",
    }
)
"""Fields that need a permission of their own: to be set to anything but the default, or to be read if the permission is a reading one."""


@dataclass(frozen=True, slots=True)
class Role:
    """A built-in role. `confined`: it counts only in its holder's tenant."""

    name: str
    description: str
    permissions: frozenset[str]
    confined: bool = False


def _every(*resources: str) -> frozenset[str]:
    return frozenset(name for name in ALL if name.partition(":")[0] in resources)


ROLES: Final = MappingProxyType(
    {
        role.name: role
        for role in (
            Role("admin", "Everything.", ALL),
            Role(
                "operator",
                "Runs the fleet: engines, models with their files, and limits; reads everything but the audit log.",
                (
                    _READS - {"audit:read"}
                    | _every("models", "files", "engines", "endpoints", "limits", "policies", "resources", "workers")
                    | {"config:reload", "upgrade:begin"}
                )
                - {"engines:upstream"},
            ),
            Role(
                "tenant-admin",
                "Manages the keys and bindings of one tenant and reads its usage.",
                (_every("keys", "bindings", "resources") - {"keys:priority"})
                | {"tenants:read", "limits:read", "usage:read", "models:read", "roles:read", "policies:test"},
                confined=True,
            ),
            Role("auditor", "Reads everything, verifies and exports the audit log; changes nothing.", _READS | _every("audit", "policies")),
            Role(
                "viewer",
                "Sees the fleet, the models, limits and usage; no keys, no configuration, no audit log.",
                _READS - {"keys:read", "bindings:read", "config:read", "audit:read", "events:read"},
            ),
        )
    }
)


RoleName = Literal["admin", "auditor", "operator", "tenant-admin", "viewer"]
"""The names in ROLES, for schemas."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, everywhere (`tenant` is None) or in one tenant."""

    role: str
    tenant: str | None = None

    @classmethod
    def of(cls, role: str, tenant: str) -> Grant:
        """The grant that a role gives to a member of a tenant."""
        known = ROLES.get(role)
        return cls(role, tenant if known is None or known.confined else None)

    def reaches(self, permission: str) -> bool:
        role = ROLES.get(self.role)
        if role is None or permission not in role.permissions:
            return False
        return self.tenant is None or permission in SHARED or permission.partition(":")[0] in TENANTED


class Access:
    """What one caller may do, for one request."""

    def __init__(self, principal: Principal, grants: Iterable[Grant]) -> None:
        self.principal = principal
        self.grants = tuple(grants)

    @property
    def actor(self) -> str:
        """The caller's name in records: tenant and credential."""
        return f"{self.principal.tenant}/{self.principal.id}"

    def tenants(self, permission: str) -> frozenset[str] | None:
        """The tenants in which the permission is held; None: all of them; empty: none."""
        reaching = [grant.tenant for grant in self.grants if grant.reaches(permission)]
        return None if None in reaching else frozenset(tenant for tenant in reaching if tenant is not None)

    def may(self, permission: str, tenant: str | None = None) -> bool:
        """Whether the permission is held for a resource of this tenant; None or "": for one of the whole installation."""
        held = self.tenants(permission)
        return held is None or (bool(held) and permission in SHARED) or (bool(tenant) and tenant in held)

    def require(self, permission: str, tenant: str | None = None) -> None:
        """Raises PermissionDenied."""
        if not self.may(permission, tenant):
            raise denied(permission)

    def require_grant(self, role: str, tenant: str) -> None:
        """Checks that the caller holds every permission of the role wherever the grant would apply. Raises PermissionDenied."""
        grant = Grant.of(role, tenant)
        for permission in sorted(ROLES[role].permissions):
            if grant.reaches(permission) and not self.may(permission, grant.tenant):
                raise PermissionDenied(f"The role {role!r} has the permission {permission}, which you lack there.", param="roles")


def denied(permission: str) -> PermissionDenied:
    return PermissionDenied(f"This needs the permission {permission}, which none of your roles gives you here.")
