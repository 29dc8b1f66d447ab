"""Who may do what on the admin listener: one table. Default deny; callers cannot grant permissions they lack.

A permission is `resource:verb`, written `admin:resource:verb` in a role of the configuration or the store. A role is a set of them; a grant
is a role everywhere or in one tenant; a permission that a binding denies is lost, whatever else gives it. Single fields that need more
than their resource's verb are listed in FIELDS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from gateway.core import admin_scopes
from gateway.core.errors import PermissionDenied
from gateway.core.types import Principal

CRUD: Final = ("read", "create", "update", "delete")
VERBS: Final = MappingProxyType(
    {
        "status": ("read",),
        "replicas": ("read",),
        "workers": ("read", "replace"),
        "logs": ("read", "update"),
        "caches": ("read", "purge"),
        "rollouts": ("read", "resume"),
        "tenants": (*CRUD, "models", "suspend"),
        "users": (*CRUD, "roles", "suspend"),
        "groups": (*CRUD, "members"),
        "keys": (*CRUD, "rotate", "revoke", "suspend", "roles", "priority"),
        "roles": CRUD,
        "own-keys": ("read", "create", "rotate", "revoke"),
        "bindings": CRUD,
        "models": (*CRUD, "load", "unload", "reload", "abort"),
        "files": ("read", "write"),
        "engines": (*CRUD, "drain", "resume", "breaker", "upstream", "log"),
        "endpoints": ("read", "address"),
        "machines": ("read", "drain", "resume", "delete"),
        "join-tokens": ("read", "create", "delete"),
        "limits": CRUD,
        "guardrails": (*CRUD, "evaluate"),
        "prices": CRUD,
        "webhooks": ("read", "test"),
        "halts": ("read", "create", "delete"),
        "approvals": ("read", "decide"),
        "batches": ("read", "cancel"),
        "client-files": ("read", "delete"),
        "jobs": ("read", "write"),
        "policies": ("test", "replay"),
        "token-keys": ("read", "rotate", "withdraw"),
        "revocations": ("read", "create", "delete"),
        "resources": ("apply", "dump", "sync"),
        "config": ("read", "apply", "reload"),
        "upgrade": ("read", "begin"),
        "usage": ("read",),
        "audit": ("read", "verify", "export", "rotate", "hold", "reveal", "approve", "capture", "keys", "shred"),
        "records": ("search", "report"),
        "events": ("read",),
    }
)
"""Every resource with its verbs: all permissions there are."""
ALL: Final = frozenset(f"{resource}:{verb}" for resource, verbs in VERBS.items() for verb in verbs)
_READS: Final = frozenset(name for name in ALL if name.endswith(":read"))

TENANTED: Final = frozenset(
    {
        *("tenants", "users", "groups", "keys", "bindings", "limits", "usage", "policies", "resources", "approvals", "records"),
        *("batches", "client-files", "jobs"),
    }
)
"""Resources that belong to a tenant. A grant in one tenant covers only these..."""
TENANTED_VERBS: Final = frozenset({"audit:reveal", "audit:approve", "audit:capture", "audit:shred"})
"""Permissions about what belongs to a tenant, of a resource that does not."""
SHARED: Final = frozenset({"models:read", "roles:read"})
"""...and these, which reveal nothing about other tenants."""

FIELDS: Final = MappingProxyType(
    {
        ("keys", "roles"): "keys:roles",
        ("keys", "priority"): "keys:priority",
        ("users", "roles"): "users:roles",
        ("tenants", "models"): "tenants:models",
        ("tenants", "networks"): "tenants:models",
        ("endpoints", "address"): "endpoints:address",
        ("engines", "url"): "engines:upstream",
        ("engines", "api_key"): "engines:upstream",
        ("engines", "headers"): "engines:upstream",
        ("engines", "tls"): "engines:upstream",
        ("engines", "dns"): "engines:upstream",
        ("engines", "joined"): "engines:upstream",
    }
)
"""Fields that need a permission of their own: to be set to anything but the default, or to be read if the permission is a reading one."""


OWN: Final = "own-keys:"
"""Whoever has logged in has these permissions, for keys of their own."""


@dataclass(frozen=True, slots=True)
class Role:
    """A built-in role. `confined`: it counts only in its holder's tenant."""

    name: str
    description: str
    permissions: frozenset[str]
    confined: bool = False


READS_LOG: Final = frozenset({"audit:read", "audit:verify", "audit:export"})
"""What an auditor does with the log. Revealing texts and destroying their keys are rights of their own."""


def _every(*resources: str) -> frozenset[str]:
    return frozenset(name for name in ALL if name.partition(":")[0] in resources)


ROLES: Final = MappingProxyType(
    {
        role.name: role
        for role in (
            Role("admin", "Everything.", ALL),
            Role(
                "operator",
                "Runs the fleet: engines, models, files, limits, caches, halts, batches, jobs; reads all but audit log and approvals.",
                (
                    _READS - {"audit:read", "approvals:read"}
                    | _every(
                        "models",
                        "files",
                        "engines",
                        "endpoints",
                        "machines",
                        "limits",
                        "prices",
                        "policies",
                        "resources",
                        "workers",
                        "logs",
                        "caches",
                        "rollouts",
                        "halts",
                        "webhooks",
                        "batches",
                        "client-files",
                        "jobs",
                    )
                    | {"config:reload", "upgrade:begin", "guardrails:evaluate"}
                )
                - {"engines:upstream", "policies:replay"},
            ),
            Role(
                "tenant-admin",
                "Manages the users, groups, keys, bindings, batches and jobs of one tenant and reads its usage.",
                (_every("users", "groups", "keys", "bindings", "batches", "client-files", "jobs") - {"keys:priority"})
                | {
                    "resources:apply",
                    "tenants:read",
                    "limits:read",
                    "usage:read",
                    "models:read",
                    "roles:read",
                    "policies:test",
                    "policies:replay",
                },
                confined=True,
            ),
            Role(
                "auditor",
                "Reads everything, verifies and exports the audit log; changes nothing.",
                _READS | READS_LOG | _every("policies", "records"),
            ),
            Role(
                "viewer",
                "Sees the fleet, the models, limits and usage; no keys, no configuration, no approvals, no batches, no jobs, no audit log.",
                _READS
                - {
                    "keys:read",
                    "users:read",
                    "groups:read",
                    "bindings:read",
                    "approvals:read",
                    "batches:read",
                    "client-files:read",
                    "jobs:read",
                    "config:read",
                    "audit:read",
                    "events:read",
                    "revocations:read",
                },
            ),
        )
    }
)


INFERENCE: Final = "keys:create"
"""Who holds it can make keys that may infer, and so may grant inference."""

RoleName = Literal["admin", "auditor", "operator", "tenant-admin", "viewer"]
"""The names in ROLES, for schemas."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, everywhere (`tenant` is None) or in one tenant. permissions: of a role that is not built in; what of them belongs to no
    tenant is held everywhere. infers: whether it permits inference, too."""

    role: str
    tenant: str | None = None
    permissions: frozenset[str] | None = None
    infers: bool = False

    @classmethod
    def of(cls, role: str, tenant: str) -> Grant:
        """The grant that a role gives to a member of a tenant."""
        known = ROLES.get(role)
        return cls(role, tenant if known is None or known.confined else None)

    def reaches(self, permission: str) -> bool:
        if self.permissions is not None:
            return permission in self.permissions
        role = ROLES.get(self.role)
        if role is None or permission not in role.permissions:
            return False
        return self.tenant is None or permission in SHARED or tenanted(permission)

    def where(self, permission: str) -> str | None:
        """The tenant in which this grant gives the permission; None: in all."""
        return None if self.permissions is not None and not tenanted(permission) else self.tenant


def tenanted(permission: str) -> bool:
    """Whether it is about what belongs to a tenant."""
    return permission.partition(":")[0] in TENANTED or permission in TENANTED_VERBS


@dataclass(frozen=True, slots=True)
class Permitted:
    """What a role permits. infers: whether it permits inference, too. confined: what belongs to a tenant, in its holder's only."""

    role: str
    permissions: frozenset[str]
    infers: bool = False
    confined: bool = True


def no_step_up(principal: Principal, permission: str) -> None:
    """For a composition without such rules."""


class Access:
    """What one caller may do, for one request. denied: permissions that the caller lacks even if a grant gives them."""

    def __init__(
        self,
        principal: Principal,
        grants: Iterable[Grant],
        step_up: Callable[[Principal, str], None] = no_step_up,
        denied: frozenset[str] = frozenset(),
    ) -> None:
        """step_up: raises PermissionDenied where a permission needs another login (admin.step_up)."""
        self.principal = principal
        self.grants = tuple(grants)
        self.denied = denied
        self._step_up = step_up

    @property
    def actor(self) -> str:
        """The caller's name in records: tenant and credential."""
        return f"{self.principal.tenant}/{self.principal.id}"

    def tenants(self, permission: str) -> frozenset[str] | None:
        """The tenants in which the permission is held; None: all of them; empty: none."""
        reach = self.principal.reach
        if permission in self.denied or (reach is not None and not admin_scopes.reaches(reach, permission)):
            return frozenset()  # a binding denies it, or the token was narrowed
        reaching = [grant.where(permission) for grant in self.grants if grant.reaches(permission)]
        if permission.startswith(OWN) and self.principal.user and self.principal.kind != "api_key":
            reaching.append(self.principal.tenant)
        return None if None in reaching else frozenset(tenant for tenant in reaching if tenant is not None)

    def may(self, permission: str, tenant: str | None = None) -> bool:
        """Whether the permission is held for a resource of this tenant; None or "": for one of the whole installation."""
        held = self.tenants(permission)
        return held is None or (bool(held) and permission in SHARED) or (bool(tenant) and tenant in held)

    def require(self, permission: str, tenant: str | None = None) -> None:
        """Raises PermissionDenied."""
        if not self.may(permission, tenant):
            raise denied(permission)
        self.require_login(permission)

    def require_login(self, permission: str) -> None:
        """Checks that the caller has logged in as this permission needs it. Raises PermissionDenied."""
        self._step_up(self.principal, permission)

    def require_grant(self, role: str, tenant: str) -> None:
        """Checks that the caller holds every permission of the role wherever the grant would apply. Raises PermissionDenied."""
        grant = Grant.of(role, tenant)
        self.require_all(role, (one for one in ROLES[role].permissions if grant.reaches(one)), grant.tenant)

    def require_role(self, role: Permitted, tenant: str | None) -> None:
        """The same for any role that callers of a tenant (None: of any tenant) are to get, lose or be denied. Raises PermissionDenied.

        Inference is permitted by who may create keys there, and so could make one that may infer.
        """
        where = tenant if role.confined else None
        self.require_all(role.role, role.permissions, where)
        if role.infers:
            self.require_inference(f"The role {role.role!r} permits inference; to grant that", tenant, "role")

    def require_inference(self, what: str, tenant: str | None, param: str) -> None:
        """Checks that the caller may let callers of a tenant infer. what: what for; begins the message. Raises PermissionDenied."""
        if not self.may(INFERENCE, tenant):
            raise PermissionDenied(f"{what} needs {INFERENCE}, which you lack there.", param=param)

    def require_all(self, role: str, permissions: Iterable[str], tenant: str | None) -> None:
        """Checks that the caller holds a role's permissions: what belongs to a tenant in this one (None: in all of them), all else
        everywhere. Raises PermissionDenied."""
        for permission in sorted(permissions):
            if not self.may(permission, tenant if tenanted(permission) or permission in SHARED else None):
                raise PermissionDenied(f"The role {role!r} has the permission {permission}, which you lack there.", param="roles")


def denied(permission: str) -> PermissionDenied:
    return PermissionDenied(f"This needs the permission {permission}, which none of your roles gives you here.")
