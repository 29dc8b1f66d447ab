"""Whose requests something concerns: patterns of tenants and roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.types import Principal
from policies.patterns import matches


def concerning(tenants: Sequence[str], roles: Sequence[str]) -> Callable[[Principal], bool] | None:
    """Whether a caller's tenant fits one of the patterns, and one of its roles. None: everybody is meant. A caller without a role fits
    only `*`."""
    if "*" in tenants and "*" in roles:
        return None

    def concerns(principal: Principal) -> bool:
        if not any(matches(pattern, principal.tenant) for pattern in tenants):
            return False
        return "*" in roles or any(matches(pattern, role) for pattern in roles for role in principal.roles)

    return concerns
