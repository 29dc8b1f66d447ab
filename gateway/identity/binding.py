"""Tokens that are bound to a client certificate (RFC 8705, 3): whoever presents one must have the certificate too."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

from gateway.core.types import Login, Peer, Principal
from gateway.identity.credentials import invalid_credentials
from gateway.identity.jose import Malformed

METHOD: Final = "x5t#S256"
"""The member of `cnf` with the SHA-256 of the certificate's DER, in base64url."""


def bound_to(claims: Mapping[str, Any]) -> str:
    """The certificate's SHA-256 in hex; "" for a token that is not bound. Raises Malformed for one that is bound to something else (a key,
    as with DPoP), which proves nothing by itself."""
    if "cnf" not in claims:
        return ""
    found = claims["cnf"]
    if not isinstance(found, dict) or set(found) != {METHOD}:
        raise Malformed("it is bound to something else than a certificate")
    value = found[METHOD]
    if not isinstance(value, str) or len(value) != 43:
        raise Malformed("its certificate's hash is not one")
    try:
        digest = urlsafe_b64decode(value.encode("ascii") + b"=")
    except (binascii.Error, ValueError):
        raise Malformed("its certificate's hash is not one") from None
    if len(digest) != 32:
        raise Malformed("its certificate's hash is not one")
    return digest.hex()


def confirmation(certificate: str) -> dict[str, str]:
    """The member `cnf` of a token that is bound to a certificate. certificate: its SHA-256 in hex."""
    return {METHOD: urlsafe_b64encode(bytes.fromhex(certificate)).rstrip(b"=").decode()}


def bind(principal: Principal, thumbprint: str, issuer: str) -> None:
    """From now on the principal counts only together with this certificate (`proved`)."""
    if thumbprint:
        principal.login = principal.login or Login("token", issuer=issuer)
        principal.login.certificate = thumbprint


def proved(principal: Principal, peer: Peer) -> Principal:
    """The principal, if the other end has the certificate that it is bound to. Raises AuthenticationError."""
    login = principal.login
    if login is not None and login.certificate and login.certificate != peer.thumbprint:
        raise invalid_credentials()
    return principal
