"""Keeps the text of each policy that was in force, by its SHA-256, and records when: for evidence bundles (gateway.audit.bundle).

A text's file has the time at which it was put into force last, and goes once the audit log, as far as it is still there, begins later.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.app.configuration.snapshots import Built
from gateway.app.events import Events
from gateway.audit.bundle import POLICY_EVENT
from gateway.audit.policy_files import date_policy, policy_files, read_policy, write_policy
from gateway.audit.record import MAX_LINE
from gateway.audit.repair import read_header
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import list_segments
from gateway.config.convert import PluginSchemas
from gateway.config.load import described, described_roles
from gateway.core.collecting import uncollected
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.audit")

FOLDER: Final = "policies"
"""The folder of the texts, below the state directory."""
DATED: Final = "dated"
"""A file beside the texts: their times are those at which they were last in force. Before, they were those of their first time."""
MARGIN: Final = 86_400.0
"""Seconds: a text is kept for so much longer, whatever the clocks did."""
PARTS: Final = ("roles", "bindings", "limits", "guardrails", "models", "engines", "identity", "network", "approvals", "prices", "usage")


@dataclass(frozen=True)
class Text:
    """The text of settings. starts: where in it the members of each list, and the roles, begin; member i ends before starts[i + 1] - 1."""

    spec: ConfigSpec
    data: bytes
    starts: Mapping[str, array[int]]


def policy_text(spec: ConfigSpec, schemas: PluginSchemas, before: Text | None = None) -> Text:
    """What decides about requests, as JSON, with every secret masked. The same settings give the same text, with and without another one
    `before`, from which the text of every member is taken that is the same object in both."""
    with uncollected():
        keys = {name: _keys(value) for name in PARTS if isinstance(value := getattr(spec, name), tuple) or name == "roles"}
        known = {} if before is None else {name: _members(before, name) for name in keys}
        fresh: dict[str, Any] = {}
        for name, wanted in keys.items():
            old, value = known.get(name, {}), getattr(spec, name)
            if isinstance(value, dict):
                fresh[name] = {key[0]: value[key[0]] for key in wanted if key not in old}
            else:
                fresh[name] = tuple([member for key, member in zip(wanted, value, strict=True) if key not in old])
        texts = _encoded(msgspec.structs.replace(spec, **fresh), schemas)
        made, starts, length = [b"{"], {}, 1
        for name in sorted(PARTS):
            made.append(b'%b"%b":' % (b"," if length > 1 else b"", name.encode()))
            length += len(made[-1])
            if name in keys:
                new, old = iter(texts[name]), known.get(name, {})
                members = [old[key] if key in old else next(new) for key in keys[name]]
                starts[name] = array("Q", accumulate((len(one) + 1 for one in members), initial=length + 1))
                made.append((b"{%b}" if name == "roles" else b"[%b]") % b",".join(members))
            else:
                made += texts[name]
            length += len(made[-1])
        return Text(spec, b"".join([*made, b"}"]), starts)


def _keys(members: tuple[Any, ...] | Mapping[str, Any]) -> list[Any]:
    """One for each, in the order of the text; the same only for the same object, as long as that is there."""
    if isinstance(members, tuple):
        return [id(member) for member in members]
    return [(name, id(members[name])) for name in sorted(members)]


def _members(text: Text, name: str) -> dict[Any, bytes]:
    """The texts of the members of a setting, by their keys."""
    data, starts = text.data, text.starts[name]
    return {key: data[starts[place] : starts[place + 1] - 1] for place, key in enumerate(_keys(getattr(text.spec, name)))}


def _encoded(spec: ConfigSpec, schemas: PluginSchemas) -> dict[str, list[bytes]]:
    """The texts of the members of each list and of the roles; of any other setting the whole as one."""
    rest = msgspec.structs.replace(spec, roles={})
    made = {
        name: [_json(one) for one in value] if isinstance(value, Iterator) else [_json(value)]
        for name, value in described(rest, schemas)
        if name in PARTS
    }
    made["roles"] = [_json(name) + b":" + _json(role) for name, role in described_roles(spec.roles)]
    return made


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


class PolicyTexts:
    """Records the policies in force. Call `heard` for each configuration; the newest before the audit log was open is recorded by
    `start`."""

    def __init__(self, state_dir: Path, schemas: PluginSchemas, events: Events, owner: TaskOwner) -> None:
        self._folder, self._schemas, self._events, self._owner = state_dir / FOLDER, schemas, events, owner
        self._first: Built | None = None
        self._open = False
        self._turn = asyncio.Lock()
        """One text at a time: each is made from the one before, and told in the order in which they came into force."""
        self._last: tuple[Text, str] | None = None
        """What was written last, without the text itself, and its digest."""

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
        async with self._turn:
            digest = await asyncio.to_thread(self._write, built.stated)
        self._events.record(POLICY_EVENT, "policies", {"version": snapshot.version, "sha256": digest})

    def _write(self, spec: ConfigSpec) -> str:
        if self._last is None:
            date_texts(self._folder)
        elif all(getattr(spec, name) == getattr(self._last[0].spec, name) for name in PARTS) and date_policy(self._folder, self._last[1]):
            return self._last[1]
        text = policy_text(spec, self._schemas, self._before())
        digest = sha256(text.data).hexdigest()
        if not date_policy(self._folder, digest):
            write_policy(self._folder, digest, text.data)
        self._last = (replace(text, data=b""), digest)
        return digest

    def _before(self) -> Text | None:
        """What was written last. None if its file is not as it was written."""
        if self._last is None:
            return None
        text, digest = self._last
        data = read_policy(self._folder, digest)
        return None if data is None else replace(text, data=data)


def date_texts(folder: Path) -> None:
    """Once: texts that were kept before their times meant anything may have been in force until now."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / DATED).exists():
        for path in policy_files(folder):
            os.utime(path)
        (folder / DATED).touch(mode=0o600)


def forget_texts(folder: Path, directory: Path, now: float, kept: float = 0.0) -> int:
    """Takes away the texts of policies that no record of the audit log in this directory can name any more, and that were not in force for
    `kept` seconds; the newest one stays. How many. Nothing while a segment says that it began later than now: the clock was wrong."""
    if not (folder / DATED).exists():
        return 0
    texts = sorted((path.stat().st_mtime, path) for path in policy_files(folder))[:-1]
    old = [path for time, path in texts if time < now - max(kept, MARGIN)]
    if old:
        begin = _begin_of(directory)
        old = [path for time, path in texts if time < min(begin - MARGIN, now - kept)] if begin <= now else []
    for path in old:
        path.unlink()
    if old:
        log.info("%d texts of policies were taken away: the audit log no longer names them", len(old))
    return len(old)


def _begin_of(directory: Path) -> float:
    """The earliest time at which any segment that is still there began; 0 where one does not say so, or there is none."""
    found: list[float] = []
    for segments in list_segments(directory).values():
        for _, path in segments:
            with open_segment(path) as lines:
                header = read_header(lines.readline(MAX_LINE))
            found.append(0.0 if header is None else header.time)
    return min(found, default=0.0)
