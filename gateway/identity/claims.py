"""From the claims of a verified token to a Principal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.core.specs import ClaimSpec, ClaimsSpec
from gateway.core.tokens import MAX_ACTORS
from gateway.core.types import Login, Principal
from gateway.identity.jose import Malformed

MAX_TEXT: Final = 256
MAX_ITEMS: Final = 1000
"""The most groups, roles or scopes of one token."""
MAX_METHODS: Final = 16
"""How many values of `amr` are read."""


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


def actors_of(act: object) -> tuple[str, ...]:
    """The actors of an `act` claim, the present one first (RFC 8693, 4.1). Raises Malformed."""
    found: list[str] = []
    while act is not None:
        if not isinstance(act, dict) or len(found) >= MAX_ACTORS:
            raise Malformed("the actors cannot be read")
        subject = act.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= 256 or not subject.isprintable():
            raise Malformed("an actor has no name")
        found.append(subject)
        act = act.get("act")
    return tuple(found)


def login_of(claims: Mapping[str, Any], principal: Principal, issuer: str) -> Login:
    """How the caller logged in. Raises Malformed if it is not clear who acts for whom."""
    may_act = claims.get("may_act")
    if may_act is not None and not _names_somebody(may_act):
        raise Malformed("it cannot be read who may act")
    methods = claims.get("amr")
    amr = tuple(method for method in methods if isinstance(method, str))[:MAX_METHODS] if isinstance(methods, list) else ()
    token_id, acr = claims.get("jti"), claims.get("acr")
    actors = actors_of(claims.get("act"))
    return Login(
        "mfa" if "mfa" in amr else "token",
        issuer=issuer,
        token_id=token_id if isinstance(token_id, str) else "",
        issued=numeric_date(claims.get("iat")),
        auth_time=numeric_date(claims.get("auth_time")),
        acr=acr if isinstance(acr, str) and len(acr) <= MAX_TEXT else "",
        amr=amr,
        groups=principal.groups,
        roles=principal.roles,
        actors=actors or ((principal.agent,) if principal.agent else ()),
        may_act="" if may_act is None else may_act["sub"],
        may_act_issuer="" if may_act is None else may_act.get("iss", ""),
    )


def _names_somebody(may_act: object) -> bool:
    """Whether it has a subject and, if there is an issuer, one that is a text: together they say who may act (RFC 8693, 4.4)."""
    if not isinstance(may_act, dict):
        return False
    names = (may_act.get("sub"), may_act.get("iss", "any"))
    return all(isinstance(name, str) and name for name in names)


def numeric_date(value: object) -> float | None:
    """A NumericDate (RFC 7519, 2): a finite number that is not a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


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
    """The value at a path: a claim with exactly this name (`https://example.com/tenant`), else members joined by dots. None if absent."""
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
        if _elsewhere(claims, path or ""):
            raise Malformed("a claim that is needed is kept elsewhere")
        return ()
    if isinstance(found, str):
        found = found.split() if separated else [found]
    if not isinstance(found, list) or len(found) > MAX_ITEMS:
        raise Malformed("not a list of texts")
    return tuple(prefix + _checked(item) for item in found)


def _elsewhere(claims: Mapping[str, Any], path: str) -> bool:
    """Whether the issuer says that an absent claim has a value elsewhere (OpenID Connect Core 1.0, 5.6.2; Entra ID's `hasgroups`). Without
    its value the caller would seem to have fewer groups, and rules that deny a group would miss it."""
    named = claims.get("_claim_names")
    if isinstance(named, Mapping) and (path in named or path.partition(".")[0] in named):
        return True
    return path == "groups" and claims.get("hasgroups") in (True, "true")


def _checked(found: object) -> str:
    if not isinstance(found, str) or not 0 < len(found) <= MAX_TEXT or not found.isprintable():
        raise Malformed("a claim is not a text")
    return found
