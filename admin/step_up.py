"""Step-up (RFC 9470): administrators' actions that need a fresh or a strong login, by permission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.admin_scopes import covers
from gateway.core.errors import PermissionDenied
from gateway.core.specs import StepUpSpec
from gateway.core.types import Principal

CODE: Final = "insufficient_user_authentication"


def check(rules: Sequence[StepUpSpec], principal: Principal, permission: str, now: float) -> None:
    """Raises PermissionDenied, saying what kind of login is needed, when a rule covers the permission and the caller's login does not meet
    it. Who did not log in as a person (an API key) meets none but a rule that exempts the key. now: seconds since the epoch."""
    for rule in rules:
        if not any(covers(pattern, permission) for pattern in rule.permissions) or _exempt(rule, principal):
            continue
        login = principal.login
        at = None if login is None else login.auth_time
        fresh = rule.max_age is None or (at is not None and now - at <= rule.max_age)
        context = not rule.acr or (login is not None and login.acr in rule.acr)
        methods = not rule.amr or (login is not None and any(method in rule.amr for method in login.amr))
        if not (fresh and context and methods):
            raise _needed(rule, permission)


def _exempt(rule: StepUpSpec, principal: Principal) -> bool:
    return principal.kind == "api_key" and f"key/{principal.id}" in rule.exempt


def _needed(rule: StepUpSpec, permission: str) -> PermissionDenied:
    parts = ['realm="gatehouse admin"', f'error="{CODE}"', 'error_description="A different login is needed"']
    wanted = []
    if rule.max_age is not None:
        parts.append(f'max_age="{int(rule.max_age)}"')
        wanted.append(f"not older than {rule.max_age:g} s")
    if rule.acr:
        parts.append(f'acr_values="{" ".join(rule.acr)}"')
        wanted.append(f"of the class {' or '.join(rule.acr)}")
    if rule.amr:
        wanted.append(f"by {' or '.join(rule.amr)}")
    return PermissionDenied(
        f"{permission} needs a login {', '.join(wanted)}: log in again and send the new token.",
        code=CODE,
        headers=(("www-authenticate", "Bearer " + ", ".join(parts)),),
    )
