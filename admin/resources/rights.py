"""Nobody takes over, changes or ends what has more rights than they have themselves, nor gives or takes what they lack."""

from __future__ import annotations

from collections.abc import Iterable

from admin.operation import Call
from admin.permissions import Grant
from gateway.core.types import Principal


async def require_rights_of(call: Call, who: Principal) -> None:
    """Raises PermissionDenied unless the caller holds all that `who` could hold on this listener by roles and bindings."""
    _require(call, await call.ports.roles.possible(who), who.tenant)


async def require_rights_between(call: Call, one: Principal, other: Principal, *, inference: bool = False) -> None:
    """Raises PermissionDenied unless the caller holds all in which two callers of a tenant differ, such as one before and after a change:
    what either could hold, and what either could be denied. inference: also what may be inferred."""
    found = await call.ports.roles.differing(one, other)
    _require(call, found, one.tenant)
    if inference:
        for grant in found:
            if grant.infers:
                call.access.require_inference(
                    f"This gives or takes what the role {grant.role!r} permits to infer; that", one.tenant, "groups"
                )


def _require(call: Call, grants: Iterable[Grant], tenant: str) -> None:
    for grant in sorted(set(grants), key=lambda grant: grant.role):
        if grant.permissions is None:
            call.access.require_grant(grant.role, tenant)
        else:
            call.access.require_all(grant.role, grant.permissions, grant.tenant)
