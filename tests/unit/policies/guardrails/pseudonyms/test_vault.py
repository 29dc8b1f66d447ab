"""The sealed map: whose sessions are whose, how long they last, and how much they may hold."""

from __future__ import annotations

import itertools

import pytest
from cryptography.exceptions import InvalidTag

from gateway.core.types import Principal
from policies.guardrails.pseudonyms.vault import HIGHEST, OVERHEAD, Seal, Session, Vault

SECRET = b"s" * 32


def caller(session: str = "s1", tenant: str = "acme", id: str = "alice", kind: str = "oidc") -> Principal:
    return Principal(id, tenant, kind, session=session)


def test_a_value_is_sealed_for_its_own_pseudonym() -> None:
    seal = Seal()
    sealed = seal.sealed("bob@example.com \ud800", "<EMAIL_1>")
    assert b"bob" not in sealed and seal.opened(sealed, "<EMAIL_1>") == "bob@example.com \ud800"
    assert seal.sealed("bob@example.com \ud800", "<EMAIL_1>") != sealed
    with pytest.raises(InvalidTag):
        seal.opened(sealed, "<EMAIL_2>")
    with pytest.raises(InvalidTag):
        Seal().opened(sealed, "<EMAIL_1>")


def test_no_value_lies_in_memory_as_it_is() -> None:
    vault = Vault(60, 10, 10, 1 << 20)
    value = "".join(["jane", "@", "hidden", ".example"])
    session = vault.session(caller(), SECRET, 0.0)
    vault.grown(session, "<EMAIL_1>", vault.seal.digest("email", value), vault.seal.sealed(value, "<EMAIL_1>"))
    assert session.labels and value not in repr((session.labels, session.digests))


def test_a_session_is_one_callers() -> None:
    vault = Vault(60, 100, 10, 1 << 20)
    callers = [caller(*given) for given in itertools.product(("s1", "s2"), ("acme", "other"), ("alice", "bob"), ("oidc", "api_key"))] + [
        caller("a:1", "t"),
        caller("a", "1:t"),
        caller("x\0y", "t", "z"),
        caller("y", "t\0x", "z"),
    ]
    for made in (100.0, 100.5):  # a key, and the next one of its id
        callers.append(caller(id="app", kind="api_key"))
        callers[-1].made = made
    sessions = [vault.session(one, SECRET, 0.0) for one in callers]
    assert len({id(one) for one in sessions}) == len({one.secret for one in sessions}) == len(callers)
    assert vault.session(caller("s1", "acme", "alice", "oidc"), SECRET, 1.0) is sessions[0]


def test_numbers_agree_in_every_process_and_tell_nothing() -> None:
    here, there, other = Session(b"k", 0.0), Session(b"k", 9.0), Session(b"l", 0.0)
    numbers = [here.number("email", f"{n}@example.com", 1) for n in range(50)]
    assert numbers == [there.number("email", f"{n}@example.com", 1) for n in range(50)]
    assert numbers != [other.number("email", f"{n}@example.com", 1) for n in range(50)]
    assert len(set(numbers)) > 45 and all(1 <= number <= HIGHEST for number in numbers)
    assert here.number("email", "a", 1) != here.number("email", "a", 2)


def test_sessions_end_when_they_were_not_used_for_long() -> None:
    vault = Vault(60, 10, 10, 1 << 20)
    first = vault.session(caller("a"), SECRET, 0.0)
    vault.session(caller("b"), SECRET, 30.0)
    assert vault.session(caller("a"), SECRET, 50.0) is first
    vault.sweep(90.0)
    assert len(vault) == 1 and first.alive
    vault.sweep(110.0)
    assert len(vault) == 0 and not first.alive and vault.size == 0


def filled(vault: Vault, session: Session, count: int, size: int = 100) -> None:
    for number in range(count):
        label = f"<EMAIL_{number + 1}>"
        vault.grown(session, label, vault.seal.digest("email", label), vault.seal.sealed("x" * size, label))


def test_all_that_is_kept_is_bounded() -> None:
    vault = Vault(60, 3, 10, 20 * (100 + OVERHEAD))
    sessions = [vault.session(caller(str(number)), SECRET, float(number)) for number in range(5)]
    assert len(vault) == 3 and [one.alive for one in sessions] == [False, False, True, True, True]
    filled(vault, sessions[4], 25)
    assert len(sessions[4].labels) == len(sessions[4].digests) == 10 and "<EMAIL_25>" in sessions[4].labels
    filled(vault, sessions[3], 10)
    assert vault.size <= 20 * (100 + OVERHEAD) and sessions[3].alive is not sessions[4].alive
    filled(vault, sessions[0], 5)  # was dropped: it is its request's alone
    assert vault.size == sum(one.size for one in sessions if one.alive)
    vault.clear()
    assert len(vault) == 0 and vault.size == 0
