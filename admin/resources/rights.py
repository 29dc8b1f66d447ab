"""Nobody takes over, changes or ends what has more rights than they have themselves."""

from __future__ import annotations

from admin.operation import Call
from gateway.core.types import Principal


async def require_rights_of(call: Call, who: Principal, without: Principal | None = None) -> None:
    """Raises PermissionDenied unless the caller holds all that `who` could hold on this listener by roles and bindings. without: the same
    before (or after) a change, so that only the difference counts; then what is denied counts, too."""
    roles = call.ports.roles
    grants = set(await roles.possible(who, denials=without is not None))
    if without is not None:
        grants -= set(await roles.possible(without, denials=True))
    for grant in sorted(grants, key=lambda grant: grant.role):
        if grant.permissions is None:
            call.access.require_grant(grant.role, who.tenant)
        else:
            call.access.require_all(grant.role, grant.permissions, grant.tenant)
