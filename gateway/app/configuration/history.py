"""Tells the store of each configuration that was put into force from the file or as a text: who, when, what changed, and the text.

Changes of the store's own part are told by the store itself, in the transaction that makes them (gateway.store.config_rows). What is told
here is written in the background, in order; while the store does not answer, the newest WAITING wait for it. The text is kept as it was
written, so that references stay references; it is sealed, as it may hold secrets, and never shown.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from gateway.config.convert import PluginSchemas
from gateway.config.load import described
from gateway.config.reload import Applied
from gateway.config.unchanged import apart
from gateway.core.collecting import uncollected
from gateway.core.errors import StoreUnavailable
from gateway.core.specs import ConfigSpec
from gateway.core.storage import ControlStore
from gateway.core.tasks import TaskOwner
from gateway.store.config_rows import Written, compressed

log = logging.getLogger("gatehouse.config")

WAITING: Final = 32
RETRY_SECONDS: Final = 5.0
PATHS: Final = 200
DIFFERENCES: Final = 1000
PAGE: Final = 200


class ConfigHistory:
    """key: a secret under which texts are compared. differences: between two described configurations, secrets masked. Life: the owner
    ends its task."""

    def __init__(
        self,
        store: ControlStore,
        key: Callable[[], bytes],
        schemas: PluginSchemas,
        replica: str,
        differences: Callable[[dict[str, Any], dict[str, Any]], list[dict[str, Any]]],
        owner: TaskOwner,
    ) -> None:
        self._store, self._key, self._schemas, self._replica = store, key, schemas, replica
        self._differences, self._owner = differences, owner
        self._queue: deque[Applied] = deque(maxlen=WAITING)
        self._writing = False
        self._last: str | None = None
        """The digest of the text that this replica put into force last; None: the store has to be asked."""

    def applied(self, applied: Applied) -> None:
        """A configuration is in force."""
        self._queue.append(applied)
        if not self._writing:
            self._writing = True
            self._owner.spawn(self._write(), name="configuration history")

    async def _write(self) -> None:
        try:
            while self._queue:
                one = self._queue.popleft()
                while not await self._noted(one):
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._writing = False

    async def _noted(self, applied: Applied) -> bool:
        try:
            await self._note(applied)
        except StoreUnavailable as error:
            log.warning("the configuration's history could not be written yet: %s", error.message)
            return False
        return True

    async def _note(self, applied: Applied) -> None:
        digest = await asyncio.to_thread(_digest, self._key(), applied.text)
        if self._last is None:
            self._last = await self._known()
        if digest == self._last and applied.restores is None and not applied.changed:
            return  # the file was read again, or the program started again, and nothing is new
        told: dict[str, Any] = {
            "of": "file",
            "source": applied.source,
            "replica": self._replica,
            "version": applied.version,
            "changed": applied.changed[:PATHS],
            "count": len(applied.changed),
            "digest": digest,
            "rolled_back_to": applied.restores,
        }
        if applied.before is None:
            told["start"] = "again" if self._last else "first"
        kept = await asyncio.to_thread(self._kept, applied.before, applied.after, applied.text)
        await self._store.note_configuration(told, kept, actor=applied.actor or "gatehouse")
        self._last = digest

    async def _known(self) -> str:
        """The digest of what this replica told last; "" if it has told nothing that is still known."""
        page = await self._store.configurations(limit=PAGE)
        for row in page.items:
            if row.told.get("of") == "file" and row.told.get("replica") == self._replica:
                return str(row.told.get("digest", ""))
        return ""

    def _kept(self, before: ConfigSpec | None, after: ConfigSpec, text: str) -> str | None:
        with uncollected():
            differences: list[dict[str, Any]] = []
            if before is not None:
                old, new = apart(before, after)
                differences = self._differences(self._plain(old), self._plain(new))[:DIFFERENCES]
            return compressed({"text": text, "diff": differences, "config": Written(self._written(after))})

    def _written(self, spec: ConfigSpec) -> Iterator[tuple[str, Any]]:
        """The configuration as JSON, member by member: the event loop runs in between, and what exceeds the bound is never made."""
        for name, value in described(spec, self._schemas):
            yield name, map(_encoded, value) if isinstance(value, Iterator) else _encoded(value)

    def _plain(self, spec: ConfigSpec) -> dict[str, Any]:
        """As JSON has it."""
        parts = described(spec, self._schemas)
        return {name: [_json(one) for one in value] if isinstance(value, Iterator) else _json(value) for name, value in parts}


def _encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _digest(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()


def _json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
