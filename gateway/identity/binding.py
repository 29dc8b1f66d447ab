"""Tokens that are bound to a client certificate (RFC 8705, 3) or to a key (DPoP, RFC 9449, 6), which whoever presents the token must
hold."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.core.proofs import PROVED
from gateway.core.specs.identity import Binding
from gateway.core.types import Headers, Login, Peer, Principal
from gateway.identity.credentials import invalid_credentials
from gateway.identity.jose import Malformed

CERTIFICATE: Final = "x5t#S256"
"""The member of `cnf` with the SHA-256 of the certificate's DER, in base64url."""
KEY: Final = "jkt"
"""The member of `cnf` with the key's thumbprint (RFC 7638), in base64url."""


class Bound(NamedTuple):
    """What a token is bound to: a certificate (its SHA-256 in hex), a key (its thumbprint), or nothing."""

    certificate: str = ""
    key: str = ""


def bound_to(claims: Mapping[str, Any], wanted: Binding = "optional") -> Bound:
    """What a token is bound to. Raises Malformed for one that is bound to something else, or not to what is wanted."""
    bound = _bound(claims["cnf"]) if "cnf" in claims else Bound()
    if not satisfies(bound, wanted):
        raise Malformed("it is not bound to what its issuer's settings ask for")
    return bound


def satisfies(bound: Bound, wanted: Binding) -> bool:
    """Whether a token that is bound like this may be used under a setting."""
    if wanted == "optional":
        return True
    return bool(bound.key and wanted != "certificate") or bool(bound.certificate and wanted != "dpop")


def _bound(confirmation: object) -> Bound:
    if not isinstance(confirmation, dict) or len(confirmation) != 1:
        raise Malformed("it does not name exactly one thing that it is bound to")
    ((member, value),) = confirmation.items()
    if member not in (CERTIFICATE, KEY) or not isinstance(value, str) or len(value) != 43:
        raise Malformed("it is bound to something else than a certificate or a key")
    try:
        digest = urlsafe_b64decode(value.encode("ascii") + b"=")
    except (binascii.Error, ValueError):
        raise Malformed("the hash that it is bound to is not one") from None
    if urlsafe_b64encode(digest).rstrip(b"=").decode() != value:
        raise Malformed("the hash that it is bound to is not one")
    return Bound(digest.hex()) if member == CERTIFICATE else Bound(key=value)


def confirmation(bound: Bound) -> dict[str, str] | None:
    """The claim `cnf` of a token; None for one that is not bound."""
    if bound.key:
        return {KEY: bound.key}
    if not bound.certificate:
        return None
    return {CERTIFICATE: urlsafe_b64encode(bytes.fromhex(bound.certificate)).rstrip(b"=").decode()}


def bind(principal: Principal, bound: Bound, issuer: str) -> None:
    """Binds the principal: from now on it is accepted only with proof of this (`proved`)."""
    if bound.certificate or bound.key:
        principal.login = principal.login or Login("token", issuer=issuer)
        principal.login.certificate, principal.login.key = bound


def proved(principal: Principal, headers: Headers, peer: Peer) -> Principal:
    """The principal, if its sender holds what it is bound to. Raises AuthenticationError."""
    if not has_proved(principal, headers, peer):
        raise invalid_credentials()
    return principal


def has_proved(principal: Principal, headers: Headers, peer: Peer) -> bool:
    """Whether the other end has what a token is bound to: the certificate of the connection, the key of the proof that
    gateway.identity.proving has read."""
    login = principal.login
    if login is None:
        return True
    if login.certificate and login.certificate != peer.thumbprint:
        return False
    return not login.key or headers.get(PROVED) == login.key.encode()
