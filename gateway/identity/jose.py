"""Signed tokens as bytes: strict reading of a JWS in compact form (RFC 7515, RFC 7519, RFC 8725), and its signature.

Reading is stricter than the RFCs where they leave a choice: a duplicate member, a number that JSON does not have, padding or another
spelling of the same base64url text refuse the token. Headers that name keys or addresses (`jwk`, `jku`, `x5u`, `x5c`) are never looked at
here (the `jwk` of a DPoP proof, which is all about its own key, is gateway.identity.dpop's); `crit` is refused, because no extension is
supported. The algorithm must be one that the issuer's settings allow and that the key is for.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

import jwt
from jwt.algorithms import Algorithm, OKPAlgorithm, get_default_algorithms

MAX_BYTES: Final = 16 * 1024
_COMPACT: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Asymmetric algorithms only: a gateway never shares a secret with an issuer. `Ed25519` is RFC 9864's name for what `EdDSA` means here."""
_VERIFIERS: Final[dict[str, Algorithm]] = {
    **{name: algorithm for name, algorithm in get_default_algorithms().items() if name in ALGORITHMS},
    "Ed25519": OKPAlgorithm(),
}
_ACCESS: Final = frozenset({"", "jwt", "at+jwt"})
"""Values of `typ` that an access token may have, without `application/`, in lower case (RFC 9068, 2.1)."""


class Malformed(Exception):
    """Not a token, or not one that may be used. The message is for tests and counters, never for the caller."""


class WrongSignature(Malformed):
    """The token was not signed by the key, which may have been replaced by another one of the same name."""


class Unverified:
    """A token whose signature was not looked at yet. claims: all of them. jwk: what the head has under that name. Nothing of it may be
    believed."""

    __slots__ = ("algorithm", "claims", "jwk", "kid", "signature", "signed", "type")

    def __init__(
        self, algorithm: str, kid: str | None, type: str, claims: dict[str, Any], signed: bytes, signature: bytes, jwk: object = None
    ) -> None:
        self.algorithm, self.kid, self.type, self.jwk = algorithm, kid, type, jwk
        self.claims, self.signed, self.signature = claims, signed, signature


def read(token: bytes) -> Unverified:
    """The parts of a token in compact form. Raises Malformed."""
    if len(token) > MAX_BYTES or _COMPACT.fullmatch(token) is None:
        raise Malformed("not a token in compact form")
    head, payload, signature = token.split(b".")
    header = _object(head, "header")
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
    if not isinstance(algorithm, str) or algorithm not in _VERIFIERS:
        raise Malformed("the algorithm is not allowed")
    if "crit" in header or "b64" in header or "zip" in header or "enc" in header:
        raise Malformed("a critical header")
    if kid is not None and (not isinstance(kid, str) or not 0 < len(kid) <= 256):
        raise Malformed("the key's name is not a text")
    if not isinstance(kind, str):
        raise Malformed("the type is not a text")
    signed = token[: len(head) + 1 + len(payload)]
    kind = kind.lower().removeprefix("application/")
    return Unverified(algorithm, kid, kind, _object(payload, "claims"), signed, _decoded(signature), header.get("jwk"))


def is_access_type(token: Unverified) -> bool:
    """Whether `typ` is that of an access token, or says nothing."""
    return token.type in _ACCESS


def verify(token: Unverified, key: Any) -> None:
    """Raises WrongSignature when the signature is not this key's. key: as `public_key` gave it for the token's algorithm."""
    try:
        genuine = _VERIFIERS[token.algorithm].verify(token.signed, key, token.signature)
    except (TypeError, ValueError, jwt.PyJWTError):
        genuine = False
    if not genuine:
        raise WrongSignature("the signature is wrong")


def public_key(jwk: dict[str, Any], algorithm: str) -> Any:
    """The key of a JWK for an algorithm. Raises Malformed when it is for another one, too weak, or no public signature key."""
    declared = jwk.get("alg")
    if declared is not None and declared != algorithm and (declared, algorithm) not in (("EdDSA", "Ed25519"), ("Ed25519", "EdDSA")):
        raise Malformed("the key is for another algorithm")
    wanted = {"R": "RSA", "P": "RSA", "E": "EC"}[algorithm[0]] if algorithm not in ("EdDSA", "Ed25519") else "OKP"
    curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}.get(algorithm)
    if jwk.get("kty") != wanted or (curve is not None and jwk.get("crv") != curve) or "d" in jwk:
        raise Malformed("the key does not fit the algorithm")
    try:
        verifier = _VERIFIERS[algorithm]
        key = verifier.from_jwk(jwk)
        if verifier.check_key_length(key):
            raise Malformed("the key is too short")
    except (TypeError, ValueError, KeyError, jwt.PyJWTError):
        raise Malformed("the key cannot be read") from None
    return key


def _object(part: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(_decoded(part).decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Malformed(f"the {what} cannot be read") from None
    if not isinstance(found, dict):
        raise Malformed(f"the {what} is not an object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a duplicate member")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _decoded(part: bytes) -> bytes:
    """base64url without padding, in its one canonical spelling."""
    try:
        found = urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except ValueError:
        raise Malformed("not base64url") from None
    if urlsafe_b64encode(found).rstrip(b"=") != part:
        raise Malformed("not canonical base64url")
    return found
