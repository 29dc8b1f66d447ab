"""Strict reading and verification of signed tokens."""

from __future__ import annotations

import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.jose import Malformed, public_key, read, verify
from tests.unit.gateway.identity.issuing import CLAIMS, EC, ED, OTHER_RSA, RSA, WEAK_RSA, b64, jwk, signed, token

GOOD = token()
KEY = public_key(jwk(RSA, "RS256"), "RS256")


@pytest.mark.parametrize(("key", "alg"), [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "EdDSA"), (ED, "Ed25519")])
def test_a_signature_is_verified(key: Any, alg: str) -> None:
    found = read(token(key=key, alg=alg))
    assert (found.algorithm, found.kid, found.type, found.claims["sub"]) == (alg, "k1", "at+jwt", "alice")
    verify(found, public_key(jwk(key, alg), alg))
    with pytest.raises(Malformed):
        verify(read(token({"sub": "eve"}, key=key, alg=alg)[: -len(found.signature)] + b"AAAA"), public_key(jwk(key, alg), alg))


def test_both_names_of_ed25519_mean_it() -> None:
    for declared, alg in (("EdDSA", "Ed25519"), ("Ed25519", "EdDSA")):
        verify(read(token(key=ED, alg=alg)), public_key(jwk(ED, "EdDSA", alg=declared), alg))


def test_another_key_is_another_key() -> None:
    with pytest.raises(Malformed, match="the signature is wrong"):
        verify(read(token(key=OTHER_RSA)), KEY)


HEAD = b'{"alg":"RS256","kid":"k1"}'
PAYLOAD = json.dumps(CLAIMS).encode()


def confused() -> bytes:
    """Signed by HMAC with the public key as the secret (CVE-2015-9235 and its kind)."""
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    message = b64(b'{"alg":"HS256","kid":"k1"}') + b"." + b64(PAYLOAD)
    return message + b"." + b64(hmac.digest(public, message, "sha256"))


HOSTILE: dict[str, bytes] = {
    "none": b64(b'{"alg":"none"}') + b"." + b64(PAYLOAD) + b".",
    "none with a signature": b64(b'{"alg":"none"}') + b"." + b64(PAYLOAD) + b".AAAA",
    "NONE": b64(b'{"alg":"NonE"}') + b"." + b64(PAYLOAD) + b".AAAA",
    "symmetric": confused(),
    "no algorithm": signed(b'{"kid":"k1"}', PAYLOAD, RSA, "RS256"),
    "an algorithm that is a list": signed(b'{"alg":["RS256"],"kid":"k1"}', PAYLOAD, RSA, "RS256"),
    "crit": signed(b'{"alg":"RS256","crit":["exp"],"kid":"k1"}', PAYLOAD, RSA, "RS256"),
    "an empty crit": signed(b'{"alg":"RS256","crit":[],"kid":"k1"}', PAYLOAD, RSA, "RS256"),
    "b64": signed(b'{"alg":"RS256","b64":false,"kid":"k1"}', PAYLOAD, RSA, "RS256"),
    "compressed": signed(b'{"alg":"RS256","zip":"DEF","kid":"k1"}', PAYLOAD, RSA, "RS256"),
    "a key name that is a number": signed(b'{"alg":"RS256","kid":1}', PAYLOAD, RSA, "RS256"),
    "a long key name": signed(b'{"alg":"RS256","kid":"%b"}' % (b"k" * 300), PAYLOAD, RSA, "RS256"),
    "a duplicate header": signed(b'{"alg":"RS256","alg":"RS256","kid":"k1"}', PAYLOAD, RSA, "RS256"),
    "a duplicate claim": signed(HEAD, b'{"sub":"alice","sub":"root"}', RSA, "RS256"),
    "a nested duplicate": signed(HEAD, b'{"a":{"b":1,"b":2}}', RSA, "RS256"),
    "not a number": signed(HEAD, b'{"exp":NaN}', RSA, "RS256"),
    "infinity": signed(HEAD, b'{"exp":Infinity}', RSA, "RS256"),
    "claims that are a list": signed(HEAD, b"[1]", RSA, "RS256"),
    "deep claims": signed(HEAD, b"[" * 6000 + b"]" * 6000, RSA, "RS256"),
    "not UTF-8": signed(HEAD, b'{"sub":"\xff"}', RSA, "RS256"),
    "padding": GOOD + b"==",
    "another spelling of the signature": GOOD[:-1] + bytes([GOOD[-1] + 1 if GOOD[-1:] in b"AQgw" else GOOD[-1] ^ 1]),
    "four parts": GOOD + b".AAAA",
    "five parts (encrypted)": b"eyJ.a.b.c.d",
    "white space": b" " + GOOD,
    "a line break": GOOD[:50] + b"\n" + GOOD[50:],
    "the other alphabet": GOOD.replace(b"_", b"/").replace(b"-", b"+") + b"/",
    "huge": token({"x": "y" * 20_000}),
    "empty": b"",
    "dots": b"..",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tokens_are_refused_before_a_key_is_looked_for(case: str) -> None:
    with pytest.raises(Malformed):
        verify(read(HOSTILE[case]), KEY)


@pytest.mark.parametrize("header", ["jwk", "jku", "x5u", "x5c"])
def test_a_token_does_not_bring_its_own_key(header: str) -> None:
    value = jwk(OTHER_RSA, "RS256") if header == "jwk" else ["http://attacker.example/keys"]
    with pytest.raises(Malformed):
        verify(read(token(key=OTHER_RSA, **{header: value})), KEY)
    verify(read(token(**{header: value})), KEY)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (jwk(RSA, "RS256", alg="PS256"), "RS256"),
        (jwk(RSA, "RS256"), "ES256"),
        (jwk(EC, "ES256"), "ES384"),
        (jwk(EC, "ES256"), "RS256"),
        (jwk(WEAK_RSA, "RS256"), "RS256"),
        ({"kty": "oct", "k": "c2VjcmV0"}, "RS256"),
        ({**jwk(RSA, "RS256"), "d": "AQAB"}, "RS256"),
        ({"kty": "RSA", "n": "AQAB"}, "RS256"),
        ({"kty": "RSA", "n": "!", "e": "AQAB"}, "RS256"),
        ({}, "EdDSA"),
    ],
)
def test_a_key_is_only_for_its_algorithm(key: dict[str, Any], algorithm: str) -> None:
    with pytest.raises(Malformed):
        public_key(key, algorithm)


@given(st.binary(max_size=300))
def test_whatever_comes_is_refused_without_a_failure(data: bytes) -> None:
    for value in (
        data,
        b"eyJ." + b64(data) + b".AAAA",
        b64(data) + b"." + b64(PAYLOAD) + b".AAAA",
        b64(HEAD) + b"." + b64(data) + b".AAAA",
    ):
        with pytest.raises(Malformed):
            verify(read(value), KEY)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_no_changed_byte_is_accepted(position: int, difference: int) -> None:
    changed = bytearray(GOOD)
    changed[position] ^= difference
    with pytest.raises(Malformed):
        verify(read(bytes(changed)), KEY)
