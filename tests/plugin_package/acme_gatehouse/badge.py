"""An authenticator: employees send the number of their badge in a header."""

from __future__ import annotations

from hashlib import sha256

from gateway.core.errors import AuthenticationError
from gateway.core.plugins import AuthenticatorContext, AuthenticatorRow
from gateway.core.specs import Spec
from gateway.core.types import Headers, Peer, Principal


class Settings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """badges: the SHA-256 of each badge's number, in hex, and whose it is. models: patterns of those that badges may use."""

    badges: dict[str, str]
    tenant: str
    models: tuple[str, ...] = ("*",)


class Badges:
    """One Principal object a badge: what is decided about a caller is remembered by this object."""

    def __init__(self, settings: Settings) -> None:
        self._principals = {digest: Principal(name, settings.tenant, "badge", settings.models) for digest, name in settings.badges.items()}

    def authenticate(self, headers: Headers, peer: Peer) -> Principal | None:
        badge = headers.get(b"x-acme-badge")
        if badge is None:
            return None
        principal = self._principals.get(sha256(badge).hexdigest())
        if principal is None:
            raise AuthenticationError("The badge is not valid.", code="invalid_badge", headers=(("www-authenticate", "Badge"),))
        return principal


def build(settings: Settings, context: AuthenticatorContext) -> Badges:
    return Badges(settings)


ROW = AuthenticatorRow(name="badge", settings=Settings, build=build)
