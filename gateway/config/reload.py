"""Changing the configuration while traffic flows: read, build beside what is in force, swap in one step, drain the old.

There is one change at a time. One that fails before the swap changes nothing, and its error is kept for the status. The reloader knows
neither engines nor pipelines: what is built, swapped and drained is handed in.

idle -> reading -> building -> swapping -> idle        a change is applied
        reading | building -> idle, with an error      nothing has changed
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from gateway.config.convert import NO_PLUGINS, PluginSchemas
from gateway.config.load import Loaded, describe
from gateway.core.clock import Clock, SystemClock
from gateway.core.errors import ConfigError, VersionMismatch
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner

T = TypeVar("T")
State = Literal["idle", "reading", "building", "swapping"]
Read = Callable[[], tuple[ConfigSpec, str]]
"""Reads settings, with their text; blocks."""
POLL_SECONDS = 1.0
log = logging.getLogger("gatehouse.config")


@dataclass(frozen=True, slots=True)
class Applied:
    """A file or a text that was put into force. before: what was, None at the start. actor: who asked for it, "" for nobody. restores: the
    number of the entry of the history that it brings back."""

    before: ConfigSpec | None
    after: ConfigSpec
    text: str
    source: str
    actor: str
    changed: list[str]
    version: int
    restores: int | None = None


@dataclass(frozen=True, slots=True)
class Steps(Generic[T]):
    """What the composition root hands in. A change is built even if no setting differs, because files that settings name (phrases,
    certificates) may have changed.

    read: reads the file. parse: parses a text. Both block, run in a thread, and raise ConfigError. check: for a dry run; raises ConfigError
    for what `build` would refuse, as far as that shows without starting anything. build: builds everything new beside the old, in slices
    that leave the loop free; undoes its own work and raises ConfigError if it fails. swap: puts the built object into force at once; must
    not fail. drain: retires what was in force before. schemas: of the plug-ins' settings, to show them. applied: told of each file or text
    that has been put into force; must not fail.
    """

    read: Callable[[], Loaded]
    parse: Callable[[str], ConfigSpec]
    check: Callable[[ConfigSpec], Awaitable[None]]
    build: Callable[[ConfigSpec], Awaitable[T]]
    swap: Callable[[T], None]
    drain: Callable[[T], Awaitable[None]]
    schemas: PluginSchemas = NO_PLUGINS
    applied: Callable[[Applied], None] = lambda applied: None


@dataclass(slots=True)
class Status:
    """What operators see. Times in seconds since the epoch. until_restart: the configuration in force is not what the file said when it was
    last read, so a restart, or reading the file again, ends it."""

    state: State = "idle"
    version: int = 1
    source: str = ""
    applied_at: float = 0.0
    error: str | None = None
    failed_at: float | None = None
    failed_source: str | None = None
    until_restart: bool = False


class Reloader(Generic[T]):
    """The ConfigApplier of a process. `loaded` and `built` are what is in force at the start."""

    def __init__(self, loaded: Loaded, built: T, steps: Steps[T], owner: TaskOwner, clock: Clock | None = None) -> None:
        self._steps, self._owner = steps, owner
        self._clock: Clock = clock or SystemClock()
        self._spec, self._built = loaded.spec, built
        self._in_file = loaded.spec
        """What the file said when it was last read and could be applied."""
        self._file = loaded.file
        self._lock = asyncio.Lock()
        self._queued: asyncio.Task[dict[str, Any]] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._described: tuple[ConfigSpec, dict[str, Any]] | None = None
        self._seen = self._candidate = _stamp(self._file)
        self.status = Status(source=loaded.file, applied_at=self._clock.wall())

    @property
    def version(self) -> int:
        return self.status.version

    @property
    def spec(self) -> ConfigSpec:
        """The configuration in force."""
        return self._spec

    def current(self) -> dict[str, Any]:
        """The configuration in force, secrets masked. Made once for each configuration, which takes long for one of thousands of members;
        not to be changed. Usable in any thread."""
        spec, described = self._spec, self._described
        if described is None or described[0] is not spec:
            described = self._described = (spec, describe(spec, self._steps.schemas))
        return described[1]

    async def apply(
        self, text: str, *, source: str, dry_run: bool = False, expected: int | None = None, actor: str = "", restores: int | None = None
    ) -> dict[str, Any]:
        """Applies a text: {"version", "changed": paths, "applied", "until_restart"}. With `dry_run` it is parsed and checked only; then
        `would` is what would be in force, as `current` shows it.

        The file is not written, so `until_restart` says whether a restart brings something else back. Raises ConfigError when the text is
        invalid, VersionMismatch when the version in force is not the expected one; nothing has changed then.
        """

        def read() -> tuple[ConfigSpec, str]:
            spec = self._steps.parse(text)  # an invalid text is refused before a wrong version (RFC 9110, section 13.2.1)
            if expected is not None and expected != self.version:
                error = VersionMismatch(f"The configuration now has version {self.version}: read it again.")
                error.current = self.version
                raise error
            return spec, text

        if dry_run:
            spec, _ = await asyncio.to_thread(read)
            await self._steps.check(spec)
            return {
                "version": self.version,
                "changed": await asyncio.to_thread(changes, self._spec, spec),
                "applied": False,
                "until_restart": spec != self._in_file,
                "would": await asyncio.to_thread(describe, spec, self._steps.schemas),
            }
        return await self._change(read, source, actor, restores)

    async def reload(self, actor: str = "") -> dict[str, Any]:
        """Reads the file again. Calls made while another one waits for its turn share its outcome."""
        if self._queued is None:
            self._queued = self._owner.spawn(self._reload(actor), name="reload")
        return await asyncio.shield(self._queued)

    async def refresh(self, source: str) -> dict[str, Any]:
        """Builds the configuration in force again, because something else that goes into it (the store) has changed."""
        return await self._change(None, source)

    def request_reload(self) -> asyncio.Task[None]:
        """Reloads in the background, for signal handlers. A failure is logged and kept in the status. The task ends with the reload."""
        return self._owner.spawn(self._reload_and_log(), name="reload on request")

    def watch(self, on: bool) -> None:
        """Starts or stops watching the file: looks at it each second and reloads once it has changed and come to rest."""
        if on and self._watching is None:
            self._watching = self._owner.every(POLL_SECONDS, self.poll, name="watch the configuration")
        elif not on and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def poll(self) -> None:
        """Looks at the file once. It must look the same twice before it is read, lest it is still being written."""
        stamp = await asyncio.to_thread(_stamp, self._file)
        at_rest, self._candidate = stamp == self._candidate, stamp
        if stamp == self._seen or not at_rest or stamp is None:
            return
        await asyncio.shield(self._owner.spawn(self._reload_and_log(), name="reload the changed file"))  # which may end the watch

    async def _reload_and_log(self) -> None:
        try:
            outcome = await self.reload()
        except ConfigError as error:
            log.error("the configuration was not applied, the old one stays in force: %s", error)
        else:
            log.info("the configuration was read again: version %d, changed: %s", outcome["version"], outcome["changed"] or "nothing")

    async def _reload(self, actor: str) -> dict[str, Any]:
        def read() -> tuple[ConfigSpec, str]:
            loaded = self._steps.read()
            return loaded.spec, loaded.text

        async with self._lock:
            self._queued = None
            self._seen = self._candidate = await asyncio.to_thread(_stamp, self._file)
            return await self._run(read, self._file, actor, from_file=True)

    async def _change(self, read: Read | None, source: str, actor: str = "", restores: int | None = None) -> dict[str, Any]:
        """Makes one change in a task of the owner, so that a caller that goes away does not leave it half done. read: runs in a thread."""

        async def locked() -> dict[str, Any]:
            async with self._lock:
                return await self._run(read, source, actor, restores)

        return await asyncio.shield(self._owner.spawn(locked(), name="change"))

    async def _run(
        self, read: Read | None, source: str, actor: str, restores: int | None = None, *, from_file: bool = False
    ) -> dict[str, Any]:
        status, before = self.status, self._spec
        try:
            status.state = "reading"
            spec, text = (self._spec, "") if read is None else await asyncio.to_thread(read)
            again = spec is self._spec
            changed = [] if again else await asyncio.to_thread(changes, self._spec, spec)
            status.state = "building"
            built = await self._steps.build(spec)
            status.state = "swapping"
            old, self._built, self._spec = self._built, built, spec
            self._steps.swap(built)
        except ConfigError as error:
            status.error, status.failed_at, status.failed_source = str(error), self._clock.wall(), source
            raise
        finally:
            status.state = "idle"
        if from_file:
            self._in_file = spec
        status.version += 1
        if not again:
            status.until_restart = not from_file and spec != self._in_file
        status.source, status.applied_at = source, self._clock.wall()
        if not again or status.failed_source == source:  # a rebuild says nothing about a file that was refused
            status.error = status.failed_at = status.failed_source = None
        self._owner.spawn(self._drain(old), name="drain")
        if not again:
            self._steps.applied(Applied(before, spec, text, source, actor, changed, status.version, restores))
        if status.until_restart and not again:
            log.warning(
                "the configuration of %s counts until a restart, or until %s is read again: put it there to keep it", source, self._file
            )
        return {"version": status.version, "changed": changed, "applied": True, "until_restart": status.until_restart}

    async def _drain(self, old: T) -> None:
        await self._steps.drain(old)


def changes(before: ConfigSpec, after: ConfigSpec) -> list[str]:
    """The paths that differ, never a value; members that have names are shown by name: `listen.data`, `engines.chat-a`, `limits`. Pure; of
    thousands of members it takes some milliseconds, so that it belongs in a thread."""
    found: list[str] = []
    for name in ConfigSpec.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct) and type(old) is type(new):
            found += [f"{name}.{part}" for part in old.__struct_fields__ if getattr(old, part) != getattr(new, part)]
        elif isinstance(old, tuple) and isinstance(new, tuple):
            found += _changed_members(name, old, new)
        else:
            found.append(name)
    return found


def _changed_members(path: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> list[str]:
    before = {getattr(member, "name", None): member for member in old}
    after = {getattr(member, "name", None): member for member in new}
    names = [name for name in (*before, *(name for name in after if name not in before)) if before.get(name) != after.get(name)]
    if None in names or not names:
        return [path]  # members without names, or the same members in another order
    return [f"{path}.{name}" for name in names]


def _stamp(file: str) -> tuple[int, int, int] | None:
    """What changes with a file: time, size, inode. None if the file does not exist."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
