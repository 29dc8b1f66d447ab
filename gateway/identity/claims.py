"""From the claims of a verified token to a Principal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.core.specs import ClaimSpec, ClaimsSpec
from gateway.core.types import Principal
from gateway.identity.jose import Malformed

MAX_TEXT: Final = 256
MAX_ITEMS: Final = 1000
"""Groups, roles or scopes of one token."""


def principal_of(claims: Mapping[str, Any], wanted: ClaimsSpec, kind: str, expires: float) -> Principal:
    """The caller that the claims describe. Raises Malformed when a claim that is needed is absent or not what it must be."""
    subject, tenant = _text(claims, wanted.subject), _text(claims, wanted.tenant)
    if not subject or not tenant:
        raise Malformed("no subject or no tenant")
    return Principal(
        subject,
        tenant,
        kind,
        roles=_texts(claims, wanted.roles),
        expires=expires,
        user=_text(claims, wanted.user) or subject,
        groups=_texts(claims, wanted.groups),
        scopes=_texts(claims, wanted.scopes, separated=True),
        agent=_text(claims, wanted.agent),
        session=_text(claims, wanted.session),
    )


def meets(claims: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    """Whether every required claim has its value; one that is a list must hold it."""
    for path, value in required.items():
        found = lookup(claims, path)
        if isinstance(found, list) and not isinstance(value, list):
            if not any(_same(item, value) for item in found):
                return False
        elif not _same(found, value):
            return False
    return True


def lookup(claims: Mapping[str, Any], path: str) -> Any:
    """What stands at a path: a claim of exactly this name (`https://example.com/tenant`), else members joined by dots. None if absent."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def _same(found: object, wanted: object) -> bool:
    return type(found) is type(wanted) and found == wanted


def _text(claims: Mapping[str, Any], wanted: str | ClaimSpec | None) -> str:
    """ "" when absent. Raises Malformed for anything but a text."""
    if wanted is None:
        return ""
    if isinstance(wanted, ClaimSpec) and wanted.value is not None:
        return wanted.value
    path, prefix = (wanted, "") if isinstance(wanted, str) else (wanted.path, wanted.prefix)
    found = lookup(claims, path or "")
    if found is None or found == "":
        return ""
    return prefix + _checked(found)


def _texts(claims: Mapping[str, Any], wanted: str | ClaimSpec | None, *, separated: bool = False) -> tuple[str, ...]:
    """() when absent. separated: one text holds several, separated by blanks (RFC 6749, 3.3)."""
    if wanted is None:
        return ()
    if isinstance(wanted, ClaimSpec) and wanted.value is not None:
        return (wanted.value,)
    path, prefix = (wanted, "") if isinstance(wanted, str) else (wanted.path, wanted.prefix)
    found = lookup(claims, path or "")
    if found is None:
        return ()
    if isinstance(found, str):
        found = found.split() if separated else [found]
    if not isinstance(found, list) or len(found) > MAX_ITEMS:
        raise Malformed("not a list of texts")
    return tuple(prefix + _checked(item) for item in found)


def _checked(found: object) -> str:
    if not isinstance(found, str) or not 0 < len(found) <= MAX_TEXT or not found.isprintable():
        raise Malformed("a claim is not a text")
    return found
