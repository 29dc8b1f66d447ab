"""The public keys of gateway tokens, as every process knows them. The private ones are gateway.app.identity.tokens' alone."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class TokenKeys:
    """By name (`kid`), for one event loop. version: grows when one is withdrawn, so that what was verified with it is verified again.

    changed: called after each change. jwks: the answer of `/.well-known/jwks.json` (RFC 7517).
    """

    def __init__(self) -> None:
        self.version = 0
        self.changed: list[Callable[[], None]] = []
        self.rows: dict[str, str] = {}
        """Name to public key, in base64url (`x` of the JWK, RFC 8037)."""
        self._keys: dict[str, Ed25519PublicKey] = {}
        self.jwks = _jwks({})

    def replace(self, rows: Mapping[str, str]) -> None:
        """From now on these are all. Raises ValueError for what is no key."""
        if dict(rows) == self.rows:
            return
        keys = {name: self._keys.get(name) or Ed25519PublicKey.from_public_bytes(_bytes(x)) for name, x in rows.items()}
        if any(rows.get(name) != x for name, x in self.rows.items()):
            self.version += 1
        self.rows, self._keys, self.jwks = dict(rows), keys, _jwks(rows)
        for hear in self.changed:
            hear()

    def get(self, name: str | None) -> Ed25519PublicKey | None:
        """The key of exactly this name."""
        return None if name is None else self._keys.get(name)


def text_of(public: bytes) -> str:
    """A public key as rows have it."""
    return urlsafe_b64encode(public).rstrip(b"=").decode()


def name_of(x: str) -> str:
    """The name of a key: its thumbprint (RFC 7638; RFC 8037, appendix A.3)."""
    canonical = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": x}, separators=(",", ":"), sort_keys=True)
    return urlsafe_b64encode(sha256(canonical.encode()).digest()).rstrip(b"=").decode()


def _bytes(x: str) -> bytes:
    return urlsafe_b64decode(x + "=" * (-len(x) % 4))


def _jwks(rows: Mapping[str, str]) -> bytes:
    keys: list[dict[str, Any]] = [
        {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": name, "use": "sig", "alg": "EdDSA"} for name, x in rows.items()
    ]
    return json.dumps({"keys": keys}, separators=(",", ":")).encode()
