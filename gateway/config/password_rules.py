"""Checks where names and passwords are known: `identity.ldap`, `identity.local_users`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from gateway.config.convert import nearest, quoted
from gateway.config.faults import each, unique
from gateway.config.url_rules import is_local
from gateway.core.errors import ConfigError
from gateway.core.specs.identity import IdentitySpec, LdapSpec, LocalUserSpec

ErrorAt = Callable[[str, str], ConfigError]
RESERVED: Final = "local_users"
"""By which the logins of these users are counted and revoked, as those of a directory are by its name."""
_HASH: Final = re.compile(r"\$argon2id\$v=19\$m=(\d{1,7}),t=(\d{1,3}),p=(\d{1,2})\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{22,86}")
MIN_KIB, MAX_KIB, MAX_LANES = 7 * 1024, 256 * 1024, 8
MIN_WORK, MAX_WORK = 35_000, 1_048_576
"""Memory in KiB times passes: from the least that OWASP's Password Storage Cheat Sheet accepts to about 2 s of a processor."""


def check(identity: IdentitySpec, error: ErrorAt, roles: Collection[str] | None) -> None:
    """Raises ConfigError. roles: those that there are, or None to accept any."""
    unique((directory.name for directory in identity.ldap), "identity.ldap", "directory", error)
    each([partial(_directory, directory, f"identity.ldap[{index}]", error) for index, directory in enumerate(identity.ldap)])
    if identity.local_users is not None:
        users, base = identity.local_users.users, "identity.local_users.users"
        unique((user.name for user in users), base, "user", error)
        each([partial(_user, user, f"{base}[{index}]", error, roles) for index, user in enumerate(users)])


def _directory(directory: LdapSpec, path: str, error: ErrorAt) -> None:
    if directory.name == RESERVED:
        raise error(f"{path}.name", f"{quoted(RESERVED)} means the users of identity.local_users; choose another name")
    for place, url in enumerate(directory.servers):
        parts = urlsplit(url)
        if parts.scheme not in ("ldap", "ldaps") or not parts.hostname:
            raise error(f"{path}.servers[{place}]", f"{quoted(url)} is not a directory; write ldaps://HOST or ldap://HOST:PORT")
        if parts.scheme == "ldap" and not directory.starttls and not is_local(parts.hostname):
            raise error(f"{path}.servers[{place}]", "would get passwords in the clear; write ldaps://, or set starttls: true")
    users, tenant = directory.users, directory.tenant
    if (users.base is None) == (users.dn is None):
        raise error(f"{path}.users", "needs exactly one of 'base' (to search) and 'dn' (to bind directly)")
    if users.base is not None and directory.bind is None:
        raise error(f"{path}.bind", "is needed to search for users")
    template, what = (users.filter, "filter") if users.dn is None else (users.dn, "dn")
    if template.count("{username}") != 1 or template.count("{") != 1:
        raise error(f"{path}.users.{what}", "must hold {username} once, and no other {")
    if users.dn is not None and "=" not in users.dn.partition("{username}")[0]:
        raise error(
            f"{path}.users.dn",
            f"{quoted(users.dn)} is not the DN of an entry; for a name such as user@domain search with base and filter: "
            "'(userPrincipalName={username})'",
        )
    if directory.groups is not None and directory.groups.filter.count("{dn}") != 1:
        raise error(f"{path}.groups.filter", "must hold {dn} once")
    if (tenant.value is None) == (tenant.attribute is None):
        raise error(f"{path}.tenant", "needs exactly one of 'value' and 'attribute'")


def _user(user: LocalUserSpec, path: str, error: ErrorAt, roles: Collection[str] | None) -> None:
    if ":" in user.name:
        raise error(f"{path}.name", f"{quoted(user.name)} holds a colon, which ends the name in Basic credentials (RFC 7617)")
    if fault := _fault(user.password_hash.reveal()):
        raise error(f"{path}.password_hash", fault)
    for place, role in enumerate(user.roles):
        if roles is not None and role not in roles:
            raise error(f"{path}.roles[{place}]", f"there is no role {quoted(role)}; {nearest(role, roles)}")


def _fault(encoded: str) -> str:
    """What is wrong with a hash, without showing it; "" if nothing is."""
    found = _HASH.fullmatch(encoded)
    if found is None:
        return "is not a hash ($argon2id$v=19$m=...,t=...,p=...$SALT$HASH); `gatehouse users hash-password` prints one"
    kib, passes, lanes = (int(number) for number in found.groups())
    if not MIN_KIB <= kib <= MAX_KIB or not 1 <= lanes <= MAX_LANES or not MIN_WORK <= kib * passes <= MAX_WORK:
        return (
            f"needs m from {MIN_KIB} to {MAX_KIB}, m times t from {MIN_WORK} to {MAX_WORK}, and p from 1 to {MAX_LANES}; "
            "`gatehouse users hash-password` prints one that fits"
        )
    return ""
