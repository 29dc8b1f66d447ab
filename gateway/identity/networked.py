"""The last word on a login: whether its tenant's credentials may be used from where it comes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping

from gateway.core.network import Networks, Rules
from gateway.core.ports import Authenticator
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.credentials import invalid_credentials

log = logging.getLogger("gatehouse.identity")


class Networked:
    """Every way to log in, for callers from where their tenant's rules admit them. tenants: the configuration's rules, by tenant; those of
    the store come with the principal. Who is refused is told no more than that the credential is not valid."""

    def __init__(self, inner: Authenticator, networks: Networks, tenants: Mapping[str, Rules]) -> None:
        self._authenticate, self._networks, self._tenants = inner.authenticate, networks, tenants

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        found = self._authenticate(headers, peer)
        if isinstance(found, Principal):
            if found.networks or self._tenants:
                self._check(found, peer)
            return found
        return None if found is None else self._wait(found, peer)

    async def _wait(self, answer: Awaitable[Principal | None], peer: Peer) -> Principal | None:
        found = await answer
        if found is not None:
            self._check(found, peer)
        return found

    def _check(self, principal: Principal, peer: Peer) -> None:
        own = self._tenants.get(principal.tenant)
        stored = self._networks.rules(principal.networks)
        if (own is not None and not own.admits(peer.address)) or (stored is not None and not stored.admits(peer.address)):
            log.info("a login of %r is refused: the tenant %r may not be used from %s", principal.id, principal.tenant, peer.address)
            raise invalid_credentials()
