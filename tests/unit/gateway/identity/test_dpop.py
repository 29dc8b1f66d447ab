"""DPoP proofs (RFC 9449, 4.3): each check of the list, and what is stricter here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import AuthenticationError
from gateway.core.proofs import METHOD, PATH, PROOF
from gateway.core.specs.identity import DpopSpec
from gateway.core.types import Headers
from gateway.identity.dpop import MAX_BYTES, Nonces, Proof, Reader, key_of
from gateway.identity.jose import Malformed
from tests.unit.gateway.identity import issuing, proving
from tests.unit.gateway.identity.proving import proof

NOW = issuing.NOW
TOKEN = b"eyJ.a.token"
CHAT = b"/v1/chat/completions"
OTHER = ec.generate_private_key(ec.SECP256R1())


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def reader(clock: Clock | None = None, **settings: Any) -> Reader:
    clock = clock or Clock()
    spec = DpopSpec(**{"urls": (proving.URL, "https://other.example:8443/llm"), **settings})
    return Reader(spec, clock, Nonces(b"s" * 32, clock))


def headers(value: bytes | None, path: bytes = CHAT, method: bytes = b"POST") -> Headers:
    found: Headers = {METHOD: method, PATH: path}
    return found if value is None else {**found, PROOF: value}


def refusal(value: bytes | None, token: bytes | None = TOKEN, **settings: Any) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as caught:
        reader(**settings).read(headers(value), token)
    return caught.value


def test_a_proof_counts_for_its_request() -> None:
    found = reader().read(headers(proof(TOKEN, NOW)), TOKEN)
    assert isinstance(found, Proof) and found.key.decode() == proving.thumbprint() and found.issued == NOW
    assert reader().read(headers(proof(None, NOW)), None).key == found.key
    ed = reader().read(headers(proof(TOKEN, NOW, key=issuing.ED, alg="EdDSA")), TOKEN)
    assert ed.key.decode() == proving.thumbprint(issuing.ED, "EdDSA")
    rsa_proof = proof(TOKEN, NOW, key=issuing.RSA, alg="PS256")
    assert reader(algorithms=("PS256",)).read(headers(rsa_proof), TOKEN).key.decode() == proving.thumbprint(issuing.RSA, "PS256")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"htm": "GET"}, "its htm"),
        ({"htm": "post"}, "its htm"),
        ({"htm": None}, "its htm"),
        ({"htu": proving.URL + "/v1/embeddings"}, "its htu"),
        ({"htu": "http://gateway.example/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example:444/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example.evil/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example@evil/v1/chat/completions"}, "its htu"),
        ({"htu": "https://x@gateway.example/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example/llm/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example/v1/chat/completions/"}, "its htu"),
        ({"htu": "https://gateway.example/v1//chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example/x/../v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example/v1/chat%2Fcompletions"}, "its htu"),
        ({"htu": "https://[::1/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example:port/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example:99999999/v1/chat/completions"}, "its htu"),
        ({"htu": "/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gateway.example\t/v1/chat/completions"}, "its htu"),
        ({"htu": "https://gatew\u00e4y.example/v1/chat/completions"}, "its htu"),
        ({"htu": proving.URL + "/v1/chat/completions?" + "x" * 2030}, "its htu"),
        ({"htu": ["https://gateway.example/v1/chat/completions"]}, "its htu"),
        ({"htu": None}, "its htu"),
        ({"iat": NOW - 61}, "its iat"),
        ({"iat": NOW + 11}, "its iat"),
        ({"iat": str(int(NOW))}, "its iat"),
        ({"iat": True}, "its iat"),
        ({"iat": None}, "its iat"),
        ({"ath": None}, "its ath"),
        ({"ath": proving.ath(b"another")}, "its ath"),
        ({"ath": proving.ath(TOKEN) + "="}, "its ath"),
        ({"ath": 5}, "its ath"),
        ({"jti": None}, "its jti"),
        ({"jti": ""}, "its jti"),
        ({"jti": "x" * 257}, "its jti"),
        ({"jti": 5}, "its jti"),
        ({"head": {"typ": "JWT"}}, "its typ"),
        ({"head": {"typ": None}}, "its typ"),
        ({"head": {"typ": "at+jwt"}}, "its typ"),
        ({"head": {"alg": "none"}}, "the algorithm"),
        ({"head": {"alg": "HS256"}}, "the algorithm"),
        ({"head": {"alg": "RS256"}}, "its alg must be one of ES256, EdDSA, Ed25519"),
        ({"head": {"alg": "EdDSA"}}, "does not fit"),
        ({"head": {"jwk": None}}, "no jwk"),
        ({"head": {"jwk": "x"}}, "no jwk"),
        ({"head": {"jwk": proving.public(OTHER)}}, "signature"),
        ({"head": {"crit": ["b64"], "b64": False}}, "critical"),
    ],
)
def test_what_is_wrong_with_a_proof_is_said(changed: dict[str, Any], reason: str) -> None:
    found = refusal(proof(TOKEN, NOW, **changed))
    assert (found.status, found.code) == (401, "invalid_dpop_proof") and reason in found.message, found.message
    (challenge,) = [value for name, value in found.headers if name == "www-authenticate"]
    assert challenge == 'DPoP realm="gatehouse", error="invalid_dpop_proof", algs="ES256 EdDSA Ed25519"'


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"x",
        b"a.b.c",
        proof(TOKEN, NOW) + b", " + proof(TOKEN, NOW),
        proof(TOKEN, NOW, more="x" * MAX_BYTES),
        proof(TOKEN, NOW)[:-4],
    ],
)
def test_what_is_not_one_proof_is_refused(value: bytes | None) -> None:
    assert refusal(value).code == "invalid_dpop_proof"


@pytest.mark.parametrize(
    "htu",
    [
        "HTTPS://GATEWAY.example/v1/chat/completions",
        "https://gateway.example:443/v1/chat/completions",
        "https://gateway.example/v1/chat/completions?a=b#c",
        "https://gateway.example/v1/ch%61t/completions",
        "https://other.example:8443/llm/v1/chat/completions",
    ],
)
def test_another_spelling_of_the_same_url_counts(htu: str) -> None:
    assert reader().read(headers(proof(TOKEN, NOW, htu=htu)), TOKEN)


def test_a_path_is_compared_as_it_was_sent() -> None:
    escaped = proof(TOKEN, NOW, "/v1/models/a%2fb", htm="GET")
    assert reader().read(headers(escaped, b"/v1/models/a%2Fb", b"GET"), TOKEN)
    with pytest.raises(AuthenticationError):
        reader().read(headers(escaped, b"/v1/models/a/b", b"GET"), TOKEN)
    root = proof(TOKEN, NOW, htu=proving.URL)
    assert reader().read(headers(root, b"/"), TOKEN), "an empty path is that of the root"


def test_keys_that_are_none_for_a_proof() -> None:
    good = proving.public()
    private = {**good, "d": "AAAA"}
    huge = rsa.RSAPublicNumbers(65537, (1 << 5000) + 1)
    wide = {"kty": "RSA", "n": proving.public(issuing.RSA, "PS256")["n"], "e": issuing.b64(b"\1" * 5).decode()}
    large = {"kty": "RSA", "n": issuing.b64(huge.n.to_bytes(626, "big")).decode(), "e": "AQAB"}
    off_curve = {**good, "y": good["x"]}
    symmetric = {"kty": "oct", "k": "AAAA"}
    weak = proving.public(issuing.WEAK_RSA, "PS256")
    for jwk, algorithm in [
        (private, "ES256"),
        ({**good, "k": "AAAA"}, "ES256"),
        (off_curve, "ES256"),
        ({**good, "crv": "P-384"}, "ES256"),
        ({**good, "x": 5}, "ES256"),
        ({**good, "x": good["x"] + "="}, "ES256"),
        ({**good, "alg": "ES384"}, "ES256"),
        (symmetric, "ES256"),
        ({"kty": ["EC"]}, "ES256"),
        (wide, "PS256"),
        (large, "PS256"),
        (weak, "PS256"),
        ([good], "ES256"),
    ]:
        with pytest.raises(Malformed):
            key_of(jwk, algorithm)
    assert key_of(good, "ES256").thumbprint.decode() == proving.thumbprint()
    assert key_of({**good, "kid": "x", "use": "sig"}, "ES256").thumbprint.decode() == proving.thumbprint(), "only some members count"


def test_a_thumbprint_is_that_of_the_rfc() -> None:
    """RFC 9449, 6.1: the example's key and its jkt."""
    jwk = {
        "kty": "EC",
        "x": "l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs",
        "y": "9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA",
        "crv": "P-256",
    }
    assert key_of(jwk, "ES256").thumbprint == b"0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"


def test_a_nonce_is_asked_for_and_ends() -> None:
    clock = Clock()
    asking = reader(clock, nonce="required")
    with pytest.raises(AuthenticationError) as caught:
        asking.read(headers(proof(TOKEN, NOW)), TOKEN)
    said = dict(caught.value.headers)
    assert caught.value.code == "use_dpop_nonce" and 'error="use_dpop_nonce"' in said["www-authenticate"]
    nonce = said["dpop-nonce"]
    assert asking.read(headers(proof(TOKEN, NOW, nonce=nonce)), TOKEN)
    assert reader(clock, nonce="required").read(headers(proof(TOKEN, NOW, nonce=nonce)), TOKEN), "any process takes it"
    for wrong in (nonce[:-4] + "AAAA", nonce[:-1], "", 5, "\u00e9" * 32, "=" * 32, "-" * 32):
        with pytest.raises(AuthenticationError) as caught:
            asking.read(headers(proof(TOKEN, NOW, nonce=wrong)), TOKEN)
        assert caught.value.code == "use_dpop_nonce"
    clock.now += 301
    with pytest.raises(AuthenticationError) as caught:
        asking.read(headers(proof(TOKEN, clock.now, nonce=nonce)), TOKEN)
    assert caught.value.code == "use_dpop_nonce"
    other = Nonces(b"t" * 32, clock)
    assert not other.knows(Nonces(b"s" * 32, clock).new()) and other.knows(other.new())
    assert refusal(proof(TOKEN, NOW, key=OTHER, head={"jwk": proving.public()}), nonce="required").code == "invalid_dpop_proof", (
        "only who signs is given one"
    )


@given(st.binary(max_size=64) | st.text(max_size=40).map(lambda text: json.dumps({"htm": text, "htu": text, "jti": text}).encode()))
def test_no_payload_breaks_the_reader(payload: bytes) -> None:
    head = json.dumps({"typ": "dpop+jwt", "alg": "ES256", "jwk": proving.public()}).encode()
    with pytest.raises(AuthenticationError):
        reader().read(headers(issuing.signed(head, payload, issuing.EC, "ES256")), TOKEN)


@given(st.text(max_size=60))
def test_no_url_but_its_own_is_that_of_a_request(text: str) -> None:
    assert not reader()._is_here(text, "/v1/chat/completions")
    assert not reader()._is_here("https://gateway.example" + text, "/v1/chat/completions")
