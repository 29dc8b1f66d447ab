"""Texts in the audit log, in the process with the store: their keys, the debug captures, and revealing them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gateway.app.audit.captures import Captures
from gateway.app.audit.reveals import Reveals
from gateway.app.audit.texts import records_of, texts_of
from gateway.app.audit.vault import Vault
from gateway.audit.crypto import PUBLIC_KEY, load_verifier
from gateway.audit.opening import FromLoop, Opener
from gateway.audit.reader import LogReader
from gateway.audit.sinks import local_sink
from gateway.core.ports import Change
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner
from gateway.store.store import Store

CLEAR_SECONDS: Final = 5.0
"""Between two looks for captures and reveals that are over."""
Record = Callable[..., None]


class TextKeeping:
    """held (blocks): says why a tenant's texts may not be destroyed, or "". vault: None where nothing is encrypted. texts: whose texts this
    process keeps. records: has the keys of whole records at hand. opener: opens those, from `prepare` on. Life: `prepare` once the store
    has been started and before the audit log is, `start` after it."""

    def __init__(
        self,
        spec: ConfigSpec,
        store: Store,
        base: Path,
        environ: Mapping[str, str],
        record: Record,
        owner: TaskOwner,
        held: Callable[[str], str],
        opener: Opener,
    ) -> None:
        self._owner, state_dir = owner, Path(spec.state_dir)
        encryption = spec.audit.encryption
        self.vault = None
        if encryption is not None:
            self.vault = Vault(encryption, store.data_keys, state_dir, base, environ, record, owner)
            opener.seconds = encryption.cache
            self.vault.dropped.append(opener.drop)
        self._opener = opener
        self.records = records_of(spec.audit, None if self.vault is None else self.vault.ring)
        self.captures = Captures(store, record, owner)
        self.texts = texts_of(spec.audit, None if self.vault is None else self.vault.ring)
        if self.texts is not None:
            self.captures.changed.append(self.texts.debug)
        directory = local_sink(spec.audit, spec.state_dir, "0").directory
        if self.vault is not None:
            self.vault.held = held

        def reader() -> LogReader:
            return LogReader(directory, load_verifier(state_dir / "keys" / PUBLIC_KEY), opener)

        self.reveals = Reveals(store, self.vault, reader, record)

    async def prepare(self) -> None:
        """Has at hand what opens the log and encrypts records. Raises ConfigError, MasterUnavailable, StoreUnavailable."""
        if self.vault is None:
            return
        await self.vault.check()
        self._opener.fetch = FromLoop(self.vault.opening, asyncio.get_running_loop())

    async def start(self) -> None:
        """Raises ConfigError, StoreUnavailable."""
        if self.vault is not None:
            await self.vault.start()
        await self.captures.start()
        self._owner.every(CLEAR_SECONDS, self._clear, name="captures")

    def heard(self, change: Change) -> None:
        """For the feed."""
        if self.vault is not None:
            self.vault.heard(change)
        self.captures.heard(change)

    async def _clear(self) -> None:
        await self.captures.clear()
        await self.reveals.clear()
