"""What revocations refuse, and that changing them one by one is the same as saying all."""

from __future__ import annotations

import random

from gateway.core.types import Acting, Login, Principal
from gateway.identity.revocations import Revocations, Row, name_of

IDP = "https://idp.example"


def revoked(*rows: Row) -> Revocations:
    made = Revocations()
    made.replace(rows)
    return made


def test_without_any_nothing_is_refused_and_nothing_is_asked() -> None:
    made = Revocations()
    assert not made.active and not made.refuses(IDP, "t", "alice", 1.0)


def test_a_token_is_meant_with_its_issuer() -> None:
    made = revoked(("token", IDP, "t1", 0.0, 9.0))
    assert made.refuses(IDP, "t1", "alice", 100.0)
    assert not made.refuses("https://other.example", "t1", "alice", 100.0) and not made.refuses(IDP, "t2", "alice", 100.0)
    assert not made.refuses(IDP, "", "alice", None), "a token without an id is not every token"


def test_a_subject_and_an_issuer_until_a_moment() -> None:
    made = revoked(("subject", IDP, "alice", 50.0, 99.0))
    assert made.refuses(IDP, "t", "alice", 50.0) and made.refuses(IDP, "t", "alice", None)
    assert not made.refuses(IDP, "t", "alice", 50.1) and not made.refuses(IDP, "t", "bob", 1.0)
    made = revoked(("issuer", IDP, "", 50.0, 99.0))
    assert made.refuses(IDP, "t", "bob", 50.0) and not made.refuses("x", "t", "bob", 1.0) and not made.refuses(IDP, "t", "bob", 51.0)


def test_everything_until_a_moment() -> None:
    made = revoked(("all", "", "", 50.0, 99.0))
    assert made.refuses("x", "t", "bob", 50.0) and made.refuses("x", "", "bob", None) and not made.refuses("x", "t", "bob", 50.5)


def test_a_caller_is_refused_for_each_login_behind_it() -> None:
    source = Login(issuer=IDP, token_id="src", issued=10.0)
    caller = Principal("alice", "acme", "gateway_token", login=Login(issuer="gw", token_id="own", issued=20.0, source=source))
    assert revoked(("token", IDP, "src", 0.0, 9.0)).refuse(caller)
    assert revoked(("subject", IDP, "alice", 10.0, 9.0)).refuse(caller)
    assert revoked(("token", "gw", "own", 0.0, 9.0)).refuse(caller)
    assert not revoked(("subject", IDP, "alice", 9.0, 9.0)).refuse(caller)
    assert not revoked(("all", "", "", 100.0, 900.0)).refuse(Principal("k", "acme", "api_key")), "a key is no token"


def test_a_caller_is_refused_for_each_credential_by_which_somebody_acts_for_it() -> None:
    acting = (Acting("bot", "robot", "gw", "exchanged", 15.0), Acting("bot", "robot", IDP, "bots", 5.0))
    caller = Principal("alice", "acme", "gateway_token", login=Login(issuer="gw", token_id="own", issued=20.0, acting=acting))
    for row in (("token", IDP, "bots", 0.0, 9.0), ("token", "gw", "exchanged", 0.0, 9.0), ("subject", IDP, "bot", 5.0, 9.0)):
        assert revoked(row).refuse(caller), row
    for row in (("token", "other", "bots", 0.0, 9.0), ("subject", IDP, "bot", 4.0, 9.0), ("subject", IDP, "robot", 9.0, 9.0)):
        assert not revoked(row).refuse(caller), row


def test_changes_one_by_one_are_the_same_as_all_at_once() -> None:
    chance = random.Random(7)
    kinds = ("token", "subject", "issuer", "all")
    rows: list[Row] = [
        (
            kind,
            "" if kind == "all" else chance.choice("ab"),
            chance.choice("xyz") if kind in ("token", "subject") else "",
            float(when),
            99.0,
        )
        for kind in kinds
        for when in range(3)
    ]
    told: dict[str, Row] = {}
    step, other = Revocations(), Revocations()
    step.changed.append(lambda put, dropped: other.apply(put, dropped))
    for _ in range(400):
        row = chance.choice(rows)
        if chance.random() < 0.5:
            told[name_of(row)] = row
            step.apply({name_of(row): row}, ())
        else:
            told.pop(name_of(row), None)
            step.apply({}, (name_of(row),))
        whole = revoked(*told.values())
        for made in (step, other):
            assert made.rows() == whole.rows() and made.active == whole.active
            for issuer in "ab":
                for value in "xyz":
                    for when in (0.0, 1.0, 2.0, 3.0, None):
                        assert made.refuses(issuer, value, value, when) == whole.refuses(issuer, value, value, when)
