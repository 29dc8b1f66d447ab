"""What a machine runs: tickets of its gateways, for it and this process of it, with their own body, in time and once."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.app.joined.ticket_check import MOST_USED, Checker
from gateway.core.errors import GatehouseError
from gateway.core.tickets import SKEW, TICKET, Ticket, sealed
from tests.unit.gateway.core.test_tickets import ticket

KEY = Ed25519PrivateKey.generate()
PUBLIC = b64encode(KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
BODY = b'{"model":"m"}'
PATH = "/v1/chat/completions"


class Wall:
    def __init__(self) -> None:
        self.now = 110.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def checker() -> tuple[Checker, Wall]:
    clock = Wall()
    return Checker("gpu-1", ("chat",), lambda: ["bm8=", PUBLIC], clock), clock


def made(check: Checker, key: Ed25519PrivateKey = KEY, **fields: object) -> str:
    own = {"boot": check.boot, "sha256": hashlib.sha256(BODY).hexdigest(), "size": len(BODY), **fields}
    return sealed(TICKET, ticket(**own), key.sign)


def refused(check: Checker, text: str, path: str = PATH, body: bytes = BODY) -> str:
    """The code; "" where it is taken."""
    try:
        check.use(check.ticket(text), path, body)
    except GatehouseError as error:
        return error.code
    return ""


def test_a_ticket_is_good_once() -> None:
    check, _ = checker()
    text = made(check)
    assert [refused(check, text), refused(check, text)] == ["", "used_ticket"]
    assert refused(check, made(check, id="1" * 32)) == ""


def resealed(text: str, tag: str = TICKET, **fields: object) -> str:
    """With other fields under the signature that there is."""
    payload, _, signature = text[len(TICKET) :].partition(".")
    content = {**json.loads(urlsafe_b64decode(payload + "==")), **fields}
    return f"{tag}{urlsafe_b64encode(json.dumps(content, separators=(',', ':')).encode()).decode().rstrip('=')}.{signature}"


@pytest.mark.parametrize("field", Ticket.__struct_fields__)
def test_each_field_is_signed(field: str) -> None:
    check, _ = checker()
    text = made(check)
    assert resealed(text) == text
    was = json.loads(urlsafe_b64decode(text[len(TICKET) :].partition(".")[0] + "=="))[field]
    other = not was if isinstance(was, bool) else was + 1 if isinstance(was, int | float) else f"{was}0"
    assert refused(check, resealed(text, **{field: other})) == "invalid_ticket"
    assert refused(check, text) == "", "what was given is still good"


@pytest.mark.parametrize("said", [{"alg": "none"}, {"alg": "HS256", "kid": PUBLIC}, {"kid": "bm8="}, {"jwk": {"x": PUBLIC}}])
def test_a_ticket_does_not_say_how_or_by_whom_it_is_to_be_verified(said: dict[str, object]) -> None:
    """There is one algorithm, and the keys are those of the gateways: what a ticket says of either is other bytes, or nobody's."""
    check, _ = checker()
    text = made(check)
    assert refused(check, resealed(text, **said)) == "invalid_ticket"
    payload, tag = resealed(text, **said)[len(TICKET) :].partition(".")[0], b"gatehouse ticket 1\n"
    signed = tag + urlsafe_b64decode(payload + "==")
    for secret in (PUBLIC.encode(), b64decode(PUBLIC), b""):
        for signature in (hmac.digest(secret, signed, "sha512"), hmac.digest(secret, signed, "sha256") * 2, bytes(64)):
            forged = f"{TICKET}{payload}.{urlsafe_b64encode(signature).decode().rstrip('=')}"
            assert refused(check, forged) == "invalid_ticket"
    assert refused(check, resealed(text, "ghr_")) == "invalid_ticket", "nor is it what it says it is"
    assert refused(check, text) == ""


def test_what_does_not_fit_uses_nothing_up() -> None:
    check, _ = checker()
    text = made(check)
    assert refused(check, text, path="/v1/completions") == "ticket_mismatch"
    assert refused(check, text, body=BODY + b" ") == "ticket_mismatch"
    assert refused(check, text, body=BODY.replace(b"m", b"n")) == "ticket_mismatch"
    assert refused(check, text) == ""


@pytest.mark.parametrize("fields", [{"machine": "gpu-2"}, {"boot": "c" * 32}, {"engine": "other"}, {"issued": 999.0, "expires": 1999.0}])
def test_a_ticket_for_somebody_else_is_refused(fields: dict[str, object]) -> None:
    check, _ = checker()
    assert refused(check, made(check, **fields)) == "invalid_ticket"


def test_a_ticket_of_nobody_who_is_heard_is_refused() -> None:
    check, clock = checker()
    assert refused(check, made(check, Ed25519PrivateKey.generate())) == "invalid_ticket"
    assert refused(Checker("gpu-1", ("chat",), tuple, clock), made(check)) == "invalid_ticket"
    assert refused(check, "ght_nothing") == "invalid_ticket"


def test_a_ticket_ends_and_what_was_used_is_remembered_for_longer() -> None:
    check, clock = checker()
    text, late = made(check), made(check, id="2" * 32)
    assert refused(check, text) == ""
    clock.now = 130.0 + SKEW
    assert refused(check, text) == "used_ticket"
    clock.now += 0.1
    assert [refused(check, text), refused(check, late)] == ["expired_ticket", "expired_ticket"]
    clock.now += 60.0
    check.use(check.ticket(made(check, id="3" * 32, expires=1000.0)), PATH, BODY)
    assert list(check._used) == ["3" * 32]


def test_a_ticket_that_ends_while_its_body_comes_is_refused() -> None:
    check, clock = checker()
    found = check.ticket(made(check))
    clock.now = 200.0
    with pytest.raises(GatehouseError, match="expired"):
        check.use(found, PATH, BODY)


def test_a_withdrawn_ticket_is_refused() -> None:
    check, clock = checker()
    check.withdraw([ticket().id], 60.0)
    assert refused(check, made(check)) == "used_ticket"
    clock.now += 61.0
    assert refused(check, made(check, expires=1000.0)) == ""


def test_nothing_is_taken_that_could_not_be_remembered() -> None:
    check, _ = checker()
    check._used = {str(number): 1e9 for number in range(MOST_USED)}
    assert refused(check, made(check)) == "overloaded"


def test_each_process_has_a_name_of_its_own() -> None:
    assert checker()[0].boot != checker()[0].boot


def test_no_ticket_is_good_again_because_the_clock_was_set_back() -> None:
    check, clock = checker()
    text, began = made(check), clock.now
    assert refused(check, text) == ""
    clock.now += 3600.0
    assert refused(check, made(check, id="b" * 32, issued=clock.now, expires=clock.now + 30.0)) == "", "the first is forgotten"
    clock.now = began
    assert refused(check, text) == "expired_ticket"
    assert refused(check, made(check, id="c" * 32, expires=ticket().expires + 10.0)) == "", "later ones are not"
