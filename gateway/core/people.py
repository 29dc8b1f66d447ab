"""Users and groups: their names in the store, and what the store says of one caller.

A user's full name is NAME@TENANT, a group's too. A tenant's name never has an `@`, so the last one divides them. Names come from identity
providers and may hold any character; in the store, in paths and in commands every other than A-Z a-z 0-9 . _ : / @ - is written as `%XX`
(RFC 3986, 2.1, in UTF-8), and so is a first one that is no letter or digit. Names are compared exactly: `Alice` and `alice` are two users,
and so are two spellings that look alike.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct

from gateway.core.errors import RequestError

MAX_ID: Final = 240
"""Characters of a full name as it is stored. A caller with a longer name has no record."""
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_IN_NAMES: Final = _PLAIN | frozenset("._:/@-")
_IN_TENANTS: Final = _PLAIN | frozenset("._:/-")
WITHHELD: Final = ("admin", "auditor", "operator", "tenant-admin", "viewer")
"""Roles of the admin API: a user's own key has one only if it was made with it."""


def full_name(name: str, tenant: str) -> str:
    """The id of a user or group in the store; "" when it cannot have one."""
    if not name or not tenant or tenant[0] not in _PLAIN or not _IN_TENANTS.issuperset(tenant):
        return ""
    found = f"{_quoted(name)}@{tenant}"
    return found if len(found) <= MAX_ID else ""


def parts(id: str) -> tuple[str, str]:
    """The name and the tenant of an id. Raises RequestError for a text that `full_name` does not make."""
    name, _, tenant = id.rpartition("@")
    try:
        bare = unquote(name, errors="strict")
    except UnicodeDecodeError:
        bare = ""
    if not bare.isprintable() or not id or full_name(bare, tenant) != id:
        raise RequestError("A full name is NAME@TENANT; characters other than A-Z a-z 0-9 . _ : / @ - are written as %XX.", param="name")
    return bare, tenant


def _quoted(text: str) -> str:
    if text[0] in _PLAIN and _IN_NAMES.issuperset(text):
        return text
    return "".join(
        character
        if character in (_IN_NAMES if number else _PLAIN)
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
        for number, character in enumerate(text)
    )


class OwnKeys(Struct, frozen=True, kw_only=True):
    """How members make keys of their own. count: active ones of one user. life: seconds after which a secret ends at the latest.
    login_within: seconds after a user's last login for which their keys are accepted; None: for as long as they live."""

    count: int = 10
    life: float = 90 * 86400.0
    login_within: float | None = None


class GroupRules(Struct, frozen=True, kw_only=True):
    """What a group decides for its members. models: patterns of those that they may use; without any, the group says nothing of models.
    operations: those that they may call on them; without any, all."""

    models: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    own_keys: OwnKeys | None = None


class PersonRecord(Struct, frozen=True, kw_only=True):
    """What the store says of one caller, or of a tenant's keys.

    models: the tenant's; None: the store has no such tenant. networks: where its credentials may be used. made: when the user's record was
    made; None: there is none. groups, roles: assigned in the store. login_groups, login_roles: what the last login said. rules: of the
    groups that were asked for, are assigned, or were said by the last login.
    """

    models: tuple[str, ...] | None = None
    networks: tuple[str, ...] = ()
    made: float | None = None
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    login_groups: tuple[str, ...] = ()
    login_roles: tuple[str, ...] = ()
    last_login: float | None = None
    rules: dict[str, GroupRules] = {}


class Seen(Struct, frozen=True, kw_only=True):
    """A login: of whom, how (the kind of login; the issuer or directory), when, and what it said."""

    tenant: str
    user: str
    method: str
    issuer: str = ""
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    time: float = 0.0


class LoginRecord(Struct, frozen=True, kw_only=True):
    """What the store knows of a user's logins. id: the user's full name."""

    id: str
    method: str
    issuer: str
    groups: tuple[str, ...]
    roles: tuple[str, ...]
    first: float
    last: float


def rules_of(body: dict[str, Any]) -> GroupRules:
    """The rules of a group's body in the store."""
    own = body.get("own_keys")
    return GroupRules(
        models=tuple(body.get("models", ())),
        operations=tuple(body.get("operations", ())),
        own_keys=None if own is None else OwnKeys(**{name: own[name] for name in OwnKeys.__struct_fields__ if name in own}),
    )


def own_keys(rules: list[OwnKeys]) -> OwnKeys | None:
    """What a member of several groups may: of each allowance the most generous."""
    if not rules:
        return None
    withins = [rule.login_within for rule in rules]
    return OwnKeys(
        count=max(rule.count for rule in rules),
        life=max(rule.life for rule in rules),
        login_within=None if None in withins else max(within for within in withins if within is not None),
    )
