"""Halts: the kill switch. They are kept in the store, where all replicas see them, or in a file, which works without a store.

The file `halts` in the state directory has a line for each halt, `TARGET [reason]`; `#` begins a comment, and in a target `%20` stands for
a space. Operators may edit it; it is looked at four times a second. While the store does not answer, new halts go there too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.app.store.following import Followed
from gateway.core.errors import AlreadyExists, ConfigError, NotFound, StoreUnavailable
from gateway.core.standing import Standing, check_target, halt
from gateway.core.storage import ControlStore, Resource
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse")
KIND: Final = "halts"
FILE: Final = "halts"
LOOK_SECONDS: Final = 0.25
"""Between two looks at the file."""
STORE_SECONDS: Final = 2.0
"""How long the store may take; after that the file is written."""
MAX_BYTES: Final = 1 << 20
MAX_TRIES: Final = 5
Record = Callable[..., None]
_STORABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}", re.ASCII)


@dataclass(frozen=True)
class Halt:
    """One halt as operators see it. source: `store`, in force on every replica, or `file`, on this one."""

    target: str
    reason: str = ""
    actor: str = ""
    since: float | None = None
    source: str = "file"


class Halts:
    """All halts of a gateway. Life: `start`, then `look` every LOOK_SECONDS and `heard` for the feed; the owner ends its tasks.

    record: (event, target, detail) for the audit log.
    """

    def __init__(self, store: ControlStore, standing: Standing, state_dir: Path, record: Record, owner: TaskOwner) -> None:
        self._store, self._standing, self._record = store, standing, record
        self._file = HaltFile(state_dir / FILE)
        self._stored: dict[str, Halt] = {}
        self._pending: dict[str, Halt] = {}
        """Halts on their way to the store; in force at once, however long that takes."""
        self._writing = asyncio.Lock()
        self._followed = Followed(store, KIND, self._take, owner, self._some)
        self.heard = self._followed.heard

    async def start(self) -> None:
        """Puts what is halted into force. Raises StoreUnavailable."""
        await self.look()
        await self._followed.start()

    def _take(self, found: list[Resource]) -> None:
        self._stored = {one.target: one for one in map(_of, found)}
        self._standing.replace("halts", map(halt, self._stored.keys() | self._pending.keys()))

    def _some(self, found: list[Resource], gone: list[str]) -> None:
        targets = [name if name in self._stored else self._named(name) for name in gone]
        for target in targets:
            self._stored.pop(target, None)
        self._stored.update([(one.target, one) for one in map(_of, found)])
        self._apply(*targets, *[one.target for one in map(_of, found)])

    def _named(self, name: str) -> str:
        """The target whose name in the store is a digest."""
        return next((target for target in self._stored if name_of(target) == name), name) if ":" in name else name

    def _apply(self, *targets: str) -> None:
        """Puts into force what is stored and pending of these."""
        halted = [target for target in targets if target in self._stored or target in self._pending]
        self._standing.change("halts", map(halt, halted), targets)

    async def look(self) -> None:
        """Reads the file if it has changed, and puts it into force."""
        async with self._writing:
            before = dict(self._file.halts)
            messages = await asyncio.to_thread(self._file.look)
            self._note(before)
        for message in messages:
            log.error("%s", message)
            self._record("halts_file", "halts", {"reason": message}, outcome="failed")

    def _note(self, before: dict[str, Halt], actor: str = "file") -> None:
        after = self._file.halts
        if before.keys() == after.keys():
            return
        self._standing.replace("halts file", map(halt, after))
        for target in after.keys() - before.keys():
            log.warning("halted by the file: %s", target)
            self._record("halted", target, {"reason": after[target].reason, "source": "file"}, actor=actor)
        for target in before.keys() - after.keys():
            log.warning("no longer halted by the file: %s", target)
            self._record("unhalted", target, {"source": "file"}, actor=actor)

    # --- for operators

    def views(self) -> list[Halt]:
        """All halts, in no order; one that is in the store and in the file appears twice."""
        return [*self._stored.values(), *self._file.halts.values()]

    async def halt(self, target: str, reason: str, actor: str, *, dry_run: bool = False) -> Halt:
        """Stops a target; it is in force here when this returns. What is halted already stays as it is. Raises ConfigError for what cannot
        be a target, OSError when neither store nor file can be written."""
        check_target(target)
        wanted = Halt(target, reason, actor, time.time(), "store")
        if not dry_run and target not in self._pending:
            self._pending[target] = wanted
            self._apply(target)
        try:
            return await self._halt(wanted, dry_run)
        finally:
            if self._pending.get(target) is wanted:
                del self._pending[target]
                self._apply(target)

    async def _halt(self, wanted: Halt, dry_run: bool) -> Halt:
        target = wanted.target
        try:
            async with asyncio.timeout(STORE_SECONDS), self._followed.lock:
                known = _of(await self._written(wanted, dry_run))
                if not dry_run:
                    self._stored[target] = known
                return known
        except (StoreUnavailable, TimeoutError):
            if target in self._stored:
                return self._stored[target]
            wanted = replace(wanted, source="file")
        if not dry_run:
            async with self._writing:
                before = dict(self._file.halts)
                self._file.halts[target] = wanted
                self._note(before, wanted.actor)
                await asyncio.to_thread(self._file.add, wanted)
        return wanted

    async def _written(self, wanted: Halt, dry_run: bool) -> Resource:
        """The halt as the store has it now. What is known here may be over: another replica may have just taken it back."""
        name, body = name_of(wanted.target), {"target": wanted.target, "reason": wanted.reason}
        for _ in range(MAX_TRIES):
            with suppress(AlreadyExists):
                return await self._store.create(KIND, name, body, actor=wanted.actor, dry_run=dry_run)
            with suppress(NotFound):
                return await self._store.get(KIND, name)
        raise StoreUnavailable("The halt changes too often.")

    async def unhalt(self, target: str, actor: str, *, dry_run: bool = False) -> list[Halt]:
        """Takes a halt back, in the store and in this replica's file; returns what there was. Raises NotFound; StoreUnavailable for one of
        the store while it does not answer."""
        async with self._followed.lock:
            gone = [self._stored[target]] if target in self._stored else []
            if gone or target not in self._file.halts:  # nor is it known here at once that another replica has made one
                try:
                    deleted = await self._store.delete(KIND, name_of(target), actor=actor, dry_run=dry_run)
                    gone = gone or [_of(deleted)]
                except NotFound:
                    pass  # another replica was faster
                if not dry_run and self._stored.pop(target, None) is not None:
                    self._apply(target)
            async with self._writing:
                before = dict(self._file.halts)
                if target in before:
                    gone.append(before[target])
                    if not dry_run:
                        await asyncio.to_thread(self._file.remove, target)
                        self._file.halts.pop(target, None)
                        self._note(before, actor)
        if not gone:
            raise NotFound(f"{target[:128]!r} is not halted.")
        return gone

    def collect(self) -> Iterable[Metric]:
        """For a scrape."""
        found = GaugeMetricFamily("gatehouse_halts", "What is halted, by where that is written", labels=["source"])
        found.add_metric(["store"], float(len(self._stored)))
        found.add_metric(["file"], float(len(self._file.halts)))
        yield found


class HaltFile:
    """The file. halts: what counts of it, by target. Its methods may block.

    A target counts as soon as it is read. It goes only when two looks in a row have found it missing: whoever writes the file may be in the
    middle of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.halts: dict[str, Halt] = {}
        self._seen: tuple[int, ...] | None = None
        self._text: str | None = None
        self._settled = False

    def look(self) -> list[str]:
        """Reads the file if it has changed; returns what is wrong with it. Then what counted before still does."""
        seen = self._stat()
        if seen == self._seen and self._settled:
            return []
        try:
            text = self._read() if seen else ""
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            fresh, self._seen, self._settled = self._seen != seen, seen, True
            return [f"the file {self.path} cannot be used, so what it halted stays halted: {reason}"] if fresh else []
        found, faults = parse(text)
        self._settled = text == self._text
        fresh, self._text, self._seen = not self._settled, text, seen
        if self._settled and not faults:
            self.halts = {target: self.halts.get(target, one) for target, one in found.items()}
        else:
            self.halts = {**found, **self.halts}
        return [f"{self.path}:{line}: {fault}" for line, fault in faults] if fresh else []

    def add(self, wanted: Halt) -> None:
        """Appends a line. Raises OSError."""
        reason = " ".join(wanted.reason.split())
        text = self._read() if self._stat() else ""
        if text and not text.endswith("\n"):
            text += "\n"
        self._write(f"{text}{quote(wanted.target, safe='/@:~+')} {reason}".rstrip() + "\n")

    def remove(self, target: str) -> None:
        """Removes the lines with this target. Raises OSError."""
        kept = [line for line in (self._read() if self._stat() else "").split("\n") if target not in parse(line)[0]]
        self._write("\n".join(kept))

    def _stat(self) -> tuple[int, ...]:
        """What changes when the file does; empty without one."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return ()
        except OSError as error:
            return (-(error.errno or 1),)
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> str:
        with self.path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return data.decode()

    def _write(self, text: str) -> None:
        beside = self.path.with_name(f".{self.path.name}-{os.getpid()}")
        with open(beside, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)


def parse(text: str) -> tuple[dict[str, Halt], list[tuple[int, str]]]:
    """The halts of a file's text, by target, and (line, fault) of what cannot be one."""
    found: dict[str, Halt] = {}
    faults: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        try:
            target = check_target(unquote(words[0]))
        except ConfigError as error:
            faults.append((number, error.message))
        else:
            found[target] = Halt(target, words[1] if len(words) > 1 else "", since=time.time())
    return found, faults


def name_of(target: str) -> str:
    """The name of a halt in the store: its target, where that can be a name."""
    return target if _STORABLE.fullmatch(target) else f"sha256:{sha256(target.encode()).hexdigest()}"


def _of(resource: Resource) -> Halt:
    body: dict[str, Any] = resource.body
    return Halt(str(body.get("target", resource.name)), str(body.get("reason", "")), resource.actor, resource.created, "store")
