"""Keeps the text of each policy that was in force, by its SHA-256, and records when: for evidence bundles (gateway.audit.bundle)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.app.events import Events
from gateway.app.snapshots import Built
from gateway.audit.bundle import POLICY_EVENT, policy_file
from gateway.audit.crypto import replace_file
from gateway.config.convert import PluginSchemas
from gateway.config.load import described
from gateway.core.collecting import uncollected
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner

FOLDER: Final = "policies"
"""Below the state directory."""
PARTS: Final = ("roles", "bindings", "limits", "guardrails", "models", "engines", "identity", "network", "approvals", "prices", "usage")


def policy_text(spec: ConfigSpec, schemas: PluginSchemas) -> bytes:
    """What decides about requests, as JSON, with every secret masked. The same settings give the same text."""
    with uncollected():
        parts = {name: _encoded(value) for name, value in described(spec, schemas) if name in PARTS}
        return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), parts[name]) for name in sorted(parts))


def _encoded(value: Any) -> bytes:
    if isinstance(value, Iterator):
        return b"[%b]" % b",".join(msgspec.json.encode(member, order="deterministic") for member in value)
    return msgspec.json.encode(value, order="deterministic")


class PolicyTexts:
    """`heard` for each configuration that is put into force; the first one is told by `start`, once the audit log is open."""

    def __init__(self, state_dir: Path, schemas: PluginSchemas, events: Events, owner: TaskOwner) -> None:
        self._folder, self._schemas, self._events, self._owner = state_dir / FOLDER, schemas, events, owner
        self._first: Built | None = None
        self._open = False
        self._last: tuple[ConfigSpec, str] | None = None
        """Settings that were written, and their digest."""

    def heard(self, built: Built) -> None:
        if self._open:
            self._owner.spawn(self._keep(built), name="policy text")
        else:
            self._first = built

    def start(self) -> None:
        self._open = True
        if self._first is not None:
            self.heard(self._first)
            self._first = None

    async def _keep(self, built: Built) -> None:
        snapshot = built.snapshot
        digest = await asyncio.to_thread(self._write, built.stated)
        self._events.record(POLICY_EVENT, "policies", {"version": snapshot.version, "sha256": digest})

    def _write(self, spec: ConfigSpec) -> str:
        if self._last is not None and all(getattr(spec, name) == getattr(self._last[0], name) for name in PARTS):
            return self._last[1]
        data = policy_text(spec, self._schemas)
        digest = sha256(data).hexdigest()
        path = policy_file(self._folder, digest)
        if not path.exists():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, data)
        self._last = (spec, digest)
        return digest
