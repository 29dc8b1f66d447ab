"""Patterns of tenants and roles that say whose requests something applies to."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.types import Principal
from policies.patterns import matches


class Concern:
    """Call it: whether a caller's tenant fits one of the patterns, and one of its roles. A caller without a role fits only `*`.

    literals: the tenants, if no pattern has a `*`."""

    def __init__(self, tenants: Sequence[str], roles: Sequence[str]) -> None:
        self._tenants, self._roles = tuple(tenants), tuple(roles)
        self.literals = None if any("*" in pattern for pattern in tenants) else self._tenants

    def __call__(self, principal: Principal) -> bool:
        if not any(matches(pattern, principal.tenant) for pattern in self._tenants):
            return False
        return "*" in self._roles or any(matches(pattern, role) for pattern in self._roles for role in principal.roles)


def concerning(tenants: Sequence[str], roles: Sequence[str]) -> Concern | None:
    """None: everybody is meant."""
    return None if "*" in tenants and "*" in roles else Concern(tenants, roles)
