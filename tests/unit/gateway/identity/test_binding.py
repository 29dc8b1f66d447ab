"""Bound tokens (RFC 8705, RFC 9449): only together with their certificate or key, at the first request and at every other."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

import pytest

from gateway.core.clock import SystemClock
from gateway.core.errors import AuthenticationError
from gateway.core.proofs import PROVED
from gateway.core.specs import ClaimSpec, ClaimsSpec, OidcSpec
from gateway.core.specs.identity import Binding
from gateway.core.types import Peer, Principal
from gateway.identity.binding import bound_to, confirmation, satisfies
from gateway.identity.jose import Malformed
from gateway.identity.jwks import keys_of
from gateway.identity.oidc import OidcAuthenticator
from tests.unit.gateway.identity import issuing

DER = b"a certificate"
HASH = urlsafe_b64encode(sha256(DER).digest()).rstrip(b"=").decode()
HOLDER = Peer("192.0.2.1", certificate=DER)


def claims(**more: Any) -> dict[str, Any]:
    return {"sub": "ci", "iat": time.time() - 10, "exp": time.time() + 3600, **more}


def authenticator() -> OidcAuthenticator:
    spec = OidcSpec(name="corp", issuer=issuing.ISSUER, audiences=("gatehouse",), claims=ClaimsSpec(tenant=ClaimSpec(value="t")))
    made = OidcAuthenticator(spec, SystemClock())
    made._issuer.keys._take(keys_of(issuing.jwks(issuing.jwk(issuing.RSA, "RS256"))))
    return made


def ask(made: OidcAuthenticator, token: bytes, peer: Peer) -> Any:
    return made.authenticate({b"authorization": b"Bearer " + token}, peer)


def test_a_bound_token_needs_its_certificate() -> None:
    made, token = authenticator(), issuing.token(claims(cnf={"x5t#S256": HASH}))
    for _ in range(2):  # the second time it is remembered
        for peer in (Peer("192.0.2.1"), Peer("192.0.2.1", certificate=b"another")):
            with pytest.raises(AuthenticationError) as caught:
                ask(made, token, peer)
            assert caught.value.code == "invalid_credentials"
        found = ask(made, token, HOLDER)
        assert isinstance(found, Principal) and found.login is not None
        assert found.login.certificate == sha256(DER).hexdigest()
    assert ask(made, issuing.token(claims()), HOLDER).id == "ci", "others are not bound"
    assert ask(made, issuing.token(claims()), Peer("192.0.2.1")).id == "ci"


def test_a_token_bound_to_a_key_needs_its_proof() -> None:
    made, token = authenticator(), issuing.token(claims(cnf={"jkt": HASH}))
    for _ in range(2):
        with pytest.raises(AuthenticationError) as caught:
            ask(made, token, HOLDER)
        assert caught.value.code == "invalid_credentials"
        for scheme in (b"Bearer ", b"DPoP "):
            with pytest.raises(AuthenticationError):
                made.authenticate({b"authorization": scheme + token, PROVED: b"x" * 43}, HOLDER)
            found = made.authenticate({b"authorization": scheme + token, PROVED: HASH.encode()}, HOLDER)
            assert isinstance(found, Principal) and found.login is not None and found.login.key == HASH
    assert made.authenticate({b"authorization": b"DPoP " + token}, HOLDER) is None, "a scheme that nobody knows without a proof"


@pytest.mark.parametrize(
    ("wanted", "counts"),
    [("optional", "ncd"), ("dpop", "d"), ("certificate", "c"), ("either", "cd")],
)
def test_an_issuers_tokens_must_be_bound_as_it_is_set(wanted: Binding, counts: str) -> None:
    each = {"n": {}, "c": {"cnf": {"x5t#S256": HASH}}, "d": {"cnf": {"jkt": HASH}}}
    for name, said in each.items():
        if name in counts:
            assert satisfies(bound_to(said, wanted), wanted)
        else:
            with pytest.raises(Malformed):
                bound_to(said, wanted)
    assert [confirmation(bound_to(said)) for said in each.values()] == [said.get("cnf") for said in each.values()]


@pytest.mark.parametrize(
    "cnf",
    [
        {},
        None,
        [],
        "x",
        {"jkt": HASH[:-1]},
        {"jkt": HASH[:-1] + "\u00e9"},
        {"jkt": HASH[:-1] + ("l" if HASH[-1] != "l" else "m")},
        {"jwk": {"kty": "EC"}},
        {"x5t#S256": HASH, "jkt": HASH},
        {"x5t#S256": ""},
        {"x5t#S256": HASH[:-1]},
        {"x5t#S256": HASH + "="},
        {"x5t#S256": HASH[:-1] + "*"},
        {"x5t#S256": "\u00e9" * 43},
        {"x5t#S256": 5},
        {"x5t#s256": HASH},
    ],
)
def test_a_token_bound_to_something_else_never_counts(cnf: Any) -> None:
    with pytest.raises(Malformed):
        bound_to({"cnf": cnf})
    if cnf is None:  # the maker of tokens leaves such claims out
        return
    with pytest.raises(AuthenticationError):
        ask(authenticator(), issuing.token(claims(cnf=cnf)), HOLDER)
