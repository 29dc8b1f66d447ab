"""Makes DPoP proofs (RFC 9449) as clients do, and as attackers do."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

from tests.unit.gateway.identity import issuing

URL = "https://gateway.example"


def public(key: Any = issuing.EC, alg: str = "ES256") -> dict[str, Any]:
    found = issuing.jwk(key, alg, None)
    found.pop("use")
    return found


def thumbprint(key: Any = issuing.EC, alg: str = "ES256") -> str:
    members = {name: value for name, value in public(key, alg).items() if name in ("crv", "kty", "x", "y", "e", "n")}
    return issuing.b64(sha256(json.dumps(members, separators=(",", ":"), sort_keys=True).encode()).digest()).decode()


def ath(token: bytes) -> str:
    return urlsafe_b64encode(sha256(token).digest()).rstrip(b"=").decode()


def proof(
    token: bytes | None,
    now: float,
    path: str = "/v1/chat/completions",
    *,
    key: Any = issuing.EC,
    alg: str = "ES256",
    head: dict[str, Any] | None = None,
    **claims: Any,
) -> bytes:
    """A proof for a POST; claims replace or (None) remove what it says."""
    said: dict[str, Any] = {"jti": f"{now}-{path}", "htm": "POST", "htu": URL + path, "iat": now, **claims}
    if token is not None and "ath" not in claims:
        said["ath"] = ath(token)
    said = {name: value for name, value in said.items() if value is not None}
    header = {"typ": "dpop+jwt", "alg": alg, "jwk": public(key, alg), **(head or {})}
    header = {name: value for name, value in header.items() if value is not None}
    return issuing.signed(json.dumps(header).encode(), json.dumps(said).encode(), key, alg)
