"""Data keys for the tests of records that are encrypted as a whole."""

from __future__ import annotations

import asyncio
import hashlib

from gateway.audit.envelopes import RecordSealer
from gateway.audit.keyring import DataKey, KeyRing
from gateway.audit.opening import SHREDDED, Opener
from gateway.core.clock import FakeClock
from gateway.core.errors import GatehouseError, MasterUnavailable
from gateway.core.secret import Secret
from gateway.core.tasks import TaskOwner
from gateway.core.vault import DataKeyGiven


class Vault:
    """Keys by tenant; `version` rotates them, `away` are tenants whose keys cannot be had, `shredded` ids that are gone. gate: keys come
    once it is set."""

    def __init__(self) -> None:
        self.version = 1
        self.tenants: dict[str, str] = {}
        self.away: set[str] = set()
        self.shredded: set[str] = set()
        self.fault: GatehouseError | None = None
        self.gate: asyncio.Event | None = None
        self.fetched: list[str] = []
        self.ring = KeyRing(self.give, TaskOwner("test"), FakeClock())
        self.opener = Opener(self.open)
        self.sealer = RecordSealer(self.ring, wait=30.0)

    async def give(self, tenant: str) -> DataKeyGiven:
        if self.gate is not None:
            await self.gate.wait()
        if tenant in self.away:
            raise MasterUnavailable("away")
        name = tenant if tenant.isascii() and tenant.isprintable() else hashlib.sha256(tenant.encode()).hexdigest()[:8]
        self.tenants[f"dk-{name}-{self.version}"] = tenant
        key = self.key(f"dk-{name}-{self.version}")
        return DataKeyGiven(id=key.id, tenant=tenant, version=self.version, key=Secret(key.revealed()), seconds=100.0)

    def open(self, id: str) -> DataKey | str:
        self.fetched.append(id)
        if self.fault is not None:
            raise self.fault
        return SHREDDED if id in self.shredded else self.key(id)

    def key(self, id: str) -> DataKey:
        return DataKey(id, self.tenants.get(id, ""), self.version, hashlib.sha256(id.encode()).digest())
