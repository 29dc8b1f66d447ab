"""The keys that encrypt what clients' files and batches hold: a tenant's data key (`audit.vault`), so that destroying it destroys them
too; without one, a key derived from the pepper, which all replicas share."""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.app.audit.vault import Vault
from gateway.audit.keyring import DataKey
from gateway.core.errors import Shredded
from gateway.core.waiting import as_future
from gateway.store.store import Store

_INFO: Final = b"gatehouse client files of "


class TenantKeys:
    """vault: None where nothing is encrypted with data keys."""

    def __init__(self, store: Store, vault: Vault | None) -> None:
        self._store, self._vault = store, vault

    async def current(self, tenant: str) -> tuple[str, bytes]:
        """The id, "" for one of the pepper, and the key. Raises MasterUnavailable, StoreUnavailable."""
        if self._vault is None:
            return "", self._of_pepper(tenant)
        found = self._vault.ring.current(tenant)
        key = found if isinstance(found, DataKey) else await as_future(found)
        return key.id, bytes.fromhex(key.revealed())

    async def opening(self, tenant: str, id: str) -> bytes:
        """Raises Shredded for one that was destroyed, or that cannot be had here; MasterUnavailable, StoreUnavailable."""
        if not id:
            return self._of_pepper(tenant)
        if self._vault is None:
            raise Shredded(f"The data key {id} cannot be opened: audit.encryption is not configured.")
        found = await self._vault.opening(id)
        if isinstance(found, str):
            raise Shredded(f"The data key {id} is gone: {found}.")
        try:
            return bytes.fromhex(found.revealed())
        finally:
            found.drop()

    def _of_pepper(self, tenant: str) -> bytes:
        return HKDF(SHA256(), 32, salt=None, info=_INFO + tenant.encode()).derive(self._store.derived("client files"))
