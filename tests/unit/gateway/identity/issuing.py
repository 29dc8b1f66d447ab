"""Makes tokens and key sets as issuers do, and as attackers do."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
WEAK_RSA = rsa.generate_private_key(65537, 1024)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
ISSUER = "https://idp.example"
NOW = 1_790_000_000.0
CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "sub": "alice",
    "aud": "gatehouse",
    "exp": NOW + 600,
    "iat": NOW,
    "scope": "infer profile",
    "tenant": "acme",
    "groups": ["engineers"],
}
_ALGORITHMS = get_default_algorithms()


def b64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def token(claims: dict[str, Any] | bytes | None = None, key: Any = RSA, alg: str = "RS256", kid: str | None = "k1", **header: Any) -> bytes:
    """A signed token; claims replace or (None) remove those of CLAIMS, or are the payload itself."""
    if not isinstance(claims, bytes):
        merged = {**CLAIMS, **(claims or {})}
        claims = json.dumps({name: value for name, value in merged.items() if value is not None}).encode()
    head = {"alg": alg, "typ": "at+jwt", **({} if kid is None else {"kid": kid}), **header}
    return signed(json.dumps({name: value for name, value in head.items() if value is not None}).encode(), claims, key, alg)


def signed(head: bytes, payload: bytes, key: Any, alg: str) -> bytes:
    message = b64(head) + b"." + b64(payload)
    algorithm = _ALGORITHMS["EdDSA" if alg == "Ed25519" else alg]
    return message + b"." + b64(algorithm.sign(message, key))


def jwk(key: Any, signs: str, kid: str | None = "k1", **more: Any) -> dict[str, Any]:
    """The public half as a JWK."""
    public = json.loads(_ALGORITHMS["EdDSA" if signs == "Ed25519" else signs].to_jwk(key.public_key()))
    public.pop("key_ops", None)
    return {**public, **({} if kid is None else {"kid": kid}), "use": "sig", **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()
