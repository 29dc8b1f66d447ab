"""Tokens of the command line that are bound to a key (DPoP, RFC 9449): who steals the token cannot use it without the key.

The key is made at the login and kept beside the refresh token, which is bound to it too.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Generator
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from admin.cli.errors import CommandError

ALGORITHM: Final = "ES256"
ADMIN: Final = "/admin/v1/"
_PORTS: Final = {"https": 443, "http": 80}


class Holder:
    """A key and the nonces that servers have given out for its proofs, by origin. text: as `text` gives it; "": a new key."""

    def __init__(self, text: str = "") -> None:
        ec = import_module("cryptography.hazmat.primitives.asymmetric.ec")  # takes a while to load, and not every command needs it
        self._ec = ec
        self._key = ec.derive_private_key(int(text, 16), ec.SECP256R1()) if text else ec.generate_private_key(ec.SECP256R1())
        numbers = self._key.public_key().public_numbers()
        self._jwk = {"crv": "P-256", "kty": "EC", "x": _number(numbers.x), "y": _number(numbers.y)}
        self.nonces: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Holder({self.thumbprint})"

    @property
    def text(self) -> str:
        """The private key: a secret."""
        return f"{self._key.private_numbers().private_value:064x}"

    @property
    def thumbprint(self) -> str:
        """RFC 7638."""
        return _base64(hashlib.sha256(json.dumps(self._jwk, separators=(",", ":"), sort_keys=True).encode()).digest())

    def proof(self, method: str, url: str, token: str = "") -> str:
        """A proof for one request to this URL, with this access token."""
        claims: dict[str, Any] = {"jti": secrets.token_urlsafe(16), "htm": method, "htu": _target(url), "iat": int(time.time())}
        if token:
            claims["ath"] = _base64(hashlib.sha256(token.encode()).digest())
        if nonce := self.nonces.get(_origin(url)):
            claims["nonce"] = nonce
        head = {"typ": "dpop+jwt", "alg": ALGORITHM, "jwk": self._jwk}
        signed = ".".join(_base64(json.dumps(part, separators=(",", ":")).encode()) for part in (head, claims))
        hashes = import_module("cryptography.hazmat.primitives.hashes")
        utils = import_module("cryptography.hazmat.primitives.asymmetric.utils")
        r, s = utils.decode_dss_signature(self._key.sign(signed.encode(), self._ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def note(self, response: Any) -> None:
        """Keeps the nonce of an answer, whoever the client is that got it."""
        if nonce := response.headers.get("dpop-nonce"):
            self.nonces[_origin(str(response.request.url))] = nonce


class Bound(httpx.Auth):
    """Sends a token with a proof for each request, again when the server asks for a nonce."""

    def __init__(self, token: str, holder: Holder) -> None:
        self._token, self._holder = token, holder

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if not isinstance(request.stream, httpx.ByteStream) and _origin(str(request.url)) not in self._holder.nonces:
            place = request.url.path.partition(ADMIN)[0] + ADMIN + "whoami"
            before = httpx.Request("GET", request.url.copy_with(path=place, query=None))  # the body can be sent once: is there a nonce?
            self._holder.note((yield self._prove(before)))
        response = yield self._prove(request)
        self._holder.note(response)
        if response.status_code == 401 and "dpop-nonce" in response.headers:
            self._holder.note((yield self._prove(request)))

    def _prove(self, request: httpx.Request) -> httpx.Request:
        request.headers["authorization"] = f"DPoP {self._token}"
        request.headers["dpop"] = self._holder.proof(request.method, str(request.url), self._token)
        return request


def credentials(key: str, holder: str = "") -> dict[str, Any]:
    """How httpx shows a key or token. holder: what the token is bound to, or "". Raises CommandError."""
    if not (key.isascii() and key.isprintable() and key == key.strip()):  # httpx would show it in its error
        raise CommandError("the key has a line break, or another character that no key has: is something else beside it?")
    if holder and key:
        return {"auth": Bound(key, Holder(holder))}
    return {"headers": {"authorization": f"Bearer {key}"}} if key else {}


def reaches(url: str, names: tuple[str, ...]) -> bool:
    """Whether a gateway that is called by these names takes proofs for requests to this URL."""
    try:
        return any(_place(url) == _place(name) for name in names)
    except ValueError:
        return False


def _place(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme), parts.path.rstrip("/")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _target(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]


def _number(value: int) -> str:
    return _base64(value.to_bytes(32, "big"))


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
