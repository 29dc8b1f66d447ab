"""One DPoP proof (RFC 9449, 4): a small signed token that its sender makes for one request, with the key that its access token is bound to.

Strict where the RFC leaves a choice: besides what it asks for, a proof has at most MAX_BYTES, its key has no private member and no exponent
that makes verifying slow, and its `jti` is a text of at most 256 characters. What is wrong is said, because it only concerns what the
sender has made.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from gateway.core.clock import Clock
from gateway.core.errors import AuthenticationError
from gateway.core.proofs import INVALID_PROOF, METHOD, PATH, PROOF, USE_NONCE
from gateway.core.specs.identity import DpopSpec
from gateway.core.types import Headers
from gateway.identity import jose
from gateway.identity.claims import numeric_date
from gateway.identity.jose import Malformed

TYPE: Final = "dpop+jwt"
MAX_BYTES: Final = 4096
MAX_JTI: Final = 256
MAX_URL: Final = 2048
REMEMBERED: Final = 4096
"""How many keys are remembered, by the head of their proofs, which is always the same."""
NONCE_SECONDS: Final = 300.0
"""How long a nonce can be used."""
_PERIOD: Final = 60.0
_PORTS: Final = {"https": 443, "http": 80}
_MEMBERS: Final = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}
"""The members of a public key that its thumbprint is computed from (RFC 7638, 3.2; RFC 8037, 2)."""
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"})
_MAX_EXPONENT, _MAX_MODULUS = 6, 683
"""Characters in base64url: 32 and 4096 bits."""
_BASE64: Final = re.compile(r"[A-Za-z0-9_-]+").fullmatch
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Proof:
    """A proof that fits its request, but may have been used before. key: the key's thumbprint."""

    __slots__ = ("id", "issued", "key")

    def __init__(self, key: bytes, id: bytes, issued: float) -> None:
        self.key, self.id, self.issued = key, id, issued


class Key:
    """A key from the head of a proof."""

    __slots__ = ("public", "thumbprint")

    def __init__(self, public: Any, thumbprint: bytes) -> None:
        self.public, self.thumbprint = public, thumbprint


class Nonces:
    """Numbers that a proof must hold so that it cannot have been made long before (RFC 9449, 8). They are not kept: each is a time with an
    HMAC. secret: the same in all processes that take each other's."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._secret, self._clock = hmac.digest(secret, b"dpop nonces", "sha256"), clock

    def new(self) -> str:
        return self._of(int(self._clock.wall() / _PERIOD))

    def knows(self, nonce: object) -> bool:
        """Whether the nonce was given out within NONCE_SECONDS, by this or another process whose clock is at most a period ahead."""
        if not isinstance(nonce, str) or len(nonce) != 32 or not nonce.isascii():
            return False
        try:
            period = int.from_bytes(urlsafe_b64decode(nonce)[:8], "big")
        except ValueError:
            return False
        age = int(self._clock.wall() / _PERIOD) - period
        return -1 <= age < NONCE_SECONDS / _PERIOD and hmac.compare_digest(nonce, self._of(period))

    def _of(self, period: int) -> str:
        head = period.to_bytes(8, "big")
        return urlsafe_b64encode(head + hmac.digest(self._secret, head, "sha256")[:16]).decode()


class Reader:
    """Reads the proofs of requests by the settings."""

    def __init__(self, spec: DpopSpec, clock: Clock, nonces: Nonces) -> None:
        self._spec, self._clock, self._nonces = spec, clock, nonces
        self._algorithms = frozenset(spec.algorithms)
        self._places = frozenset(_place(urlsplit(url)) for url in spec.urls)
        self._keys: dict[bytes, Key] = {}
        self._algs = f'algs="{" ".join(spec.algorithms)}"'
        self.window, self.ahead = spec.max_age + spec.leeway, spec.leeway
        """For how many seconds a proof can count, and how many of them lie before it was made."""

    def read(self, headers: Headers, token: bytes | None) -> Proof:
        """The proof of this request. token: the access token that it must name; None at the token endpoint, where there is none.
        Raises AuthenticationError (invalid_dpop_proof, use_dpop_nonce)."""
        try:
            return self._read(headers, token)
        except Malformed as reason:
            text = str(reason)
        raise AuthenticationError(f"The DPoP proof is not valid: {text}.", code=INVALID_PROOF, headers=self.challenge(INVALID_PROOF))

    def challenge(self, error: str) -> tuple[tuple[str, str], ...]:
        """The headers of a 401 (RFC 9449, 7.1)."""
        return (("www-authenticate", f'DPoP realm="gatehouse", error="{error}", {self._algs}'),)

    def _read(self, headers: Headers, token: bytes | None) -> Proof:
        value = headers.get(PROOF)
        if value is None:
            raise Malformed("the header DPoP is absent")
        if len(value) > MAX_BYTES:
            raise Malformed(f"it is longer than {MAX_BYTES} bytes")
        proof = jose.read(value)  # of two headers the comma between them is none of its characters
        if proof.type != TYPE:
            raise Malformed(f"its typ is not {TYPE}")
        if proof.algorithm not in self._algorithms:
            raise Malformed(f"its alg must be one of {', '.join(self._spec.algorithms)}")
        head = value[: value.index(b".")]
        key = self._keys.get(head)
        if key is None:
            key = key_of(proof.jwk, proof.algorithm)
        jose.verify(proof, key.public)
        if len(self._keys) >= REMEMBERED and head not in self._keys:
            del self._keys[next(iter(self._keys))]
        self._keys[head] = key
        issued = self._check(proof.claims, headers, token)
        jti = proof.claims.get("jti")
        if not isinstance(jti, str) or not 0 < len(jti) <= MAX_JTI:
            raise Malformed(f"its jti is not a text of 1 to {MAX_JTI} characters")
        return Proof(key.thumbprint, sha256(jti.encode("utf-8", "surrogatepass")).digest(), issued)

    def _check(self, claims: dict[str, Any], headers: Headers, token: bytes | None) -> float:
        """Checks that the proof is for this request and new. Returns when it was made."""
        if claims.get("htm") != headers[METHOD].decode("ascii"):
            raise Malformed("its htm is not the request's method")
        if not self._is_here(claims.get("htu"), headers[PATH].decode("latin-1")):
            raise Malformed("its htu is not the request's URL")
        issued, now = numeric_date(claims.get("iat")), self._clock.wall()
        if issued is None or issued < now - self._spec.max_age or issued > now + self._spec.leeway:
            raise Malformed(f"its iat is not within the last {self._spec.max_age:g} s")
        if token is not None or "ath" in claims:
            said = claims.get("ath")
            wanted = urlsafe_b64encode(sha256(token or b"").digest()).rstrip(b"=").decode()
            if token is None or not isinstance(said, str) or said != wanted:
                raise Malformed("its ath is not the hash of the access token")
        if self._spec.nonce == "required" and not self._nonces.knows(claims.get("nonce")):
            raise AuthenticationError(
                "The DPoP proof needs the nonce of the header DPoP-Nonce.",
                code=USE_NONCE,
                headers=(*self.challenge(USE_NONCE), ("dpop-nonce", self._nonces.new()), ("cache-control", "no-store")),
            )
        return issued

    def _is_here(self, htu: object, path: str) -> bool:
        """Whether a URL is that of the request, for clients that call the gateway by one of `urls`. Its query and fragment do not count
        (RFC 9449, 4.3), nor does another spelling of the same URL (RFC 3986, 6.2.2 and 6.2.3)."""
        if not isinstance(htu, str) or len(htu) > MAX_URL or not htu.isascii() or not htu.isprintable() or " " in htu:
            return False
        try:
            scheme, host, port, said = _place(urlsplit(htu))
        except ValueError:
            return False
        wanted = _plain(path)
        for base_scheme, base_host, base_port, prefix in self._places:
            if (scheme, host, port) == (base_scheme, base_host, base_port) and (said or "/") == prefix + wanted:
                return True
        return False


def key_of(jwk: object, algorithm: str) -> Key:
    """The public key in the head of a proof. Raises Malformed."""
    if not isinstance(jwk, dict):
        raise Malformed("its head has no jwk")
    members = _MEMBERS.get(str(jwk.get("kty")))
    if members is None or not _PRIVATE.isdisjoint(jwk):
        raise Malformed("its jwk is no public key")
    values = {name: jwk.get(name) for name in members}
    for name, value in values.items():
        if not isinstance(value, str) or (name not in ("crv", "kty") and _BASE64(value) is None):
            raise Malformed("its jwk is no public key")
    if len(str(values.get("e", ""))) > _MAX_EXPONENT or len(str(values.get("n", ""))) > _MAX_MODULUS:
        raise Malformed("its jwk is too large")
    canonical = json.dumps(values, separators=(",", ":"), sort_keys=True).encode()
    thumbprint = urlsafe_b64encode(sha256(canonical).digest()).rstrip(b"=")
    return Key(jose.public_key(jwk, algorithm), thumbprint)


def _place(parts: SplitResult) -> tuple[str, str, int | None, str]:
    """Scheme, host, port and path, normalised; a path of a single slash is empty. Raises ValueError."""
    if parts.username is not None or parts.password is not None:
        raise ValueError("no URL of a request")
    port = parts.port or _PORTS.get(parts.scheme)
    return parts.scheme, parts.hostname or "", port, _plain(parts.path) if parts.path != "/" else ""


def _plain(path: str) -> str:
    """A normalised path: nothing is escaped that need not be."""
    return path if "%" not in path else _ESCAPE.sub(_unescaped, path)


def _unescaped(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return character if character in _UNRESERVED else found[0].upper()
