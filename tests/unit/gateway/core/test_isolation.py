"""Salts of isolation domains: equal within one, different between two, and nothing that a caller could compute."""

from __future__ import annotations

import pytest

from gateway.core.isolation import Salts, domain
from gateway.core.types import Principal

SALTS = Salts(b"s" * 32)


def caller(id: str = "k", tenant: str = "acme", kind: str = "api_key") -> Principal:
    return Principal(id, tenant, kind)  # type: ignore[arg-type]


def test_a_tenant_shares_one_salt_and_its_keys_do_not() -> None:
    one, other = caller("a"), caller("b")
    assert SALTS.salt(one, "tenant") == SALTS.salt(other, "tenant")
    assert SALTS.salt(one, "key") != SALTS.salt(other, "key")
    assert SALTS.salt(one, "key") != SALTS.salt(one, "tenant")
    assert SALTS.salt(one, "tenant") != SALTS.salt(caller("a", "other"), "tenant")
    assert SALTS.salt(one, "global") == b""


def test_salts_are_32_hexadecimal_digits_and_kept() -> None:
    principal = caller()
    salt = SALTS.salt(principal, "tenant")
    assert len(salt) == 32 and int(salt, 16) >= 0
    assert SALTS.salt(principal, "tenant") is salt


def test_another_secret_gives_another_salt() -> None:
    assert Salts(b"t" * 32).salt(caller(), "tenant") != SALTS.salt(caller(), "tenant")


@pytest.mark.parametrize(
    ("one", "other"), [(caller("b", "a"), caller("", "ab")), (caller("x", kind="ldap"), caller("x")), (caller("a"), caller("b"))]
)
def test_domains_of_two_callers_differ(one: Principal, other: Principal) -> None:
    assert domain(one, "key") != domain(other, "key")


def test_another_key_of_the_id_is_another_caller() -> None:
    first, again, later = caller(), caller(), caller()
    first.made = again.made = 1000.25
    later.made = 1003.5
    assert SALTS.salt(first, "key") == SALTS.salt(again, "key") != SALTS.salt(later, "key")
    assert domain(caller(), "key") not in (domain(first, "key"), domain(later, "key"))
    assert SALTS.salt(first, "tenant") == SALTS.salt(later, "tenant")
