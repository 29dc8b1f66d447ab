"""Authenticates callers outside of the pipeline: on small paths of the data listener, and in the handshakes of WebSockets."""

from __future__ import annotations

from collections.abc import Awaitable
from time import time

from gateway.core.errors import AuthenticationError, GatehouseError
from gateway.core.types import Headers, OutcomeRecord, Peer, Principal
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.statuses import outcome_of


async def identified(plane: DataPlane, headers: Headers, peer: Peer, request_id: bytes, users: bool = True) -> Principal:
    """The caller whose credential these headers hold. users: a trusted peer may name the user. A login that fails is recorded, as on the
    inference paths. Raises AuthenticationError and whatever else the authenticators raise, PermissionDenied for somebody who is stopped."""
    try:
        found = plane.current().identity.authenticate(headers, peer)
        principal = await found if isinstance(found, Awaitable) else found
        if principal is None:
            raise AuthenticationError("No credential was given.", headers=(("www-authenticate", 'Bearer realm="gatehouse"'),))
        if peer.trusted:
            principal = plane.named.of(principal, headers, plane.current().spec.identity.open_webui if users else None)
        if plane.standing.active:
            plane.standing.admit(principal)
    except GatehouseError as error:
        record_denial(plane, peer, request_id, error)
        raise
    return principal


def record_denial(plane: DataPlane, peer: Peer, request_id: bytes, error: GatehouseError) -> None:
    """Records that somebody unknown was refused, unless that was recorded of this peer just now."""
    if plane.first_denial(peer.address, error.code, plane.now):
        plane.current().audit.outcome(
            OutcomeRecord(time(), request_id.decode(), outcome_of(error), error.status, error.code, peer=peer.address)
        )


def owner_of(principal: Principal) -> str:
    """The name under which a caller's sockets and bytes are counted."""
    return f"{principal.tenant}/{principal.kind}/{principal.id}"
