"""When each limit that lasts was in force on this replica, and with which way of counting.

The audit log has every request, a limit counts those that came while it was in force: one that is added at noon has nothing of the morning.
So whoever compares the two asks here what of the log counts. Kept in the state directory, beside the log that it is about.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.core.slices import Steps, at_once, in_slices, portions
from gateway.core.specs import LimitSpec
from gateway.core.tasks import TaskOwner
from gateway.limits.meter import Meter, lasts, meters_of

log = logging.getLogger("gatehouse.limits")
FILE: Final = "limit-times.json"
SWITCH: Final = 2.0
"""Seconds within which all processes follow a change: a request that begins in them may be of the configuration before it or after it."""
READ: Final = 64
"""Limits that are read in a step."""
KEPT: Final = 400 * 86400.0
"""Seconds for which it is remembered that a limit was in force."""


class Time(msgspec.Struct, array_like=True):
    """begin, end: in seconds since the epoch; begin 0: longer than is known; end 0: it still is. counts: a digest of the settings by which
    it is decided which requests count, and how much."""

    begin: float
    end: float
    counts: str


class Times:
    """The times of one amount of one limit; none: it always was in force."""

    __slots__ = ("_now", "_times")

    def __init__(self, times: Iterable[Time] = (), now: str = "") -> None:
        self._times, self._now = tuple(times), now

    def changed_since(self, begin: float) -> bool:
        """Whether something that counts since then was counted in another way."""
        return any(one.counts != self._now and (not one.end or one.end + SWITCH > begin) for one in self._times)

    def at(self, moment: float) -> tuple[bool, bool]:
        """(whether a request that began then may count, whether that is certain)."""
        if not self._times:
            return True, True
        for one in self._times:
            if one.begin - SWITCH <= moment < one.begin + SWITCH and one.begin:
                return True, False
            if one.end and one.end - SWITCH <= moment < one.end + SWITCH:
                return True, False
            if one.begin <= moment and (not one.end or moment < one.end):
                return True, True
        return False, True


class Prepared(NamedTuple):
    """Limits that have been read but are not in force yet. counts: how each durable amount is counted. differing: amounts to look at when
    the limits come into force. turn: how many configurations were in force before."""

    limits: Sequence[LimitSpec]
    counts: dict[str, str]
    differing: list[str]
    turn: int


class LimitTimes:
    """state_dir: of this replica. `applied` is to be called with each configuration, before anything is served by it, and `prepare` before
    that: then the loop is not held while thousands of limits are read, and `tasks` may write the file soon after."""

    def __init__(self, state_dir: Path, now: Callable[[], float] = time.time, *, tasks: TaskOwner | None = None) -> None:
        self._file, self._now, self._tasks = state_dir / FILE, now, tasks
        self._times: dict[str, list[Time]] | None = None
        self._known: dict[str, tuple[LimitSpec, dict[str, str]]] = {}
        """The limits that last, and how their amounts count, by their names."""
        self._prepared = Prepared((), {}, [], -1)
        self._turn = 0
        self._changes = self._written = 0
        self._writing_soon = False

    async def prepare(self, limits: Sequence[LimitSpec]) -> None:
        """Reads limits that are about to be in force."""
        self._prepared = await in_slices(self._preparing(limits))

    def _preparing(self, limits: Sequence[LimitSpec]) -> Steps[Prepared]:
        turn, counts = self._turn, (yield from self._counting(limits))
        return Prepared(limits, counts, (yield from self._differing(counts)), turn)

    def _counting(self, limits: Sequence[LimitSpec]) -> Steps[dict[str, str]]:
        """How each amount that lasts counts. What was read of a limit that has not changed is kept."""
        wanted: dict[str, str] = {}
        known = {}
        for some in portions(limits, READ):
            for limit in some:
                if lasts(limit):
                    before = self._known.get(limit.name)
                    known[limit.name] = one = before if before is not None and before[0] is limit else (limit, _counted(limit))
                    wanted.update(one[1])
            yield
        self._known = known
        return wanted

    def _differing(self, wanted: dict[str, str]) -> Steps[list[str]]:
        """The amounts that begin, end, count in another way or have times that need not be remembered any more."""
        times, found = self._times or {}, []
        long_ago = self._now() - KEPT
        for some in portions(list(times)):
            for name in some:
                known = times[name]
                last, first = known[-1], known[0]
                if wanted.get(name) != (None if last.end else last.counts) or (first.end and first.end <= long_ago):
                    found.append(name)
            yield
        for some in portions(list(wanted)):
            found += [name for name in some if name not in times]
            yield
        return found

    def applied(self, limits: Sequence[LimitSpec]) -> None:
        """Limits that are in force from now on. Where nothing was noted yet, they always were."""
        first = self._times is None and not self._read()
        ready = self._prepared
        if prepared := ready.limits is limits and ready.turn == self._turn:
            counts, differing = ready.counts, ready.differing
        else:
            _, counts, differing, _ = at_once(self._preparing(limits))
        self._turn += 1
        if self._apply(differing, counts, 0.0 if first else self._now()) or first:
            self._changes += 1
            if not prepared or self._tasks is None:
                self._write()
            elif not self._writing_soon:
                self._writing_soon = True
                self._tasks.spawn(self._write_soon(), name="times of limits")

    def of(self, limit: LimitSpec, meter: Meter) -> Times:
        return Times((self._times or {}).get(_name(limit, meter), ()), _counts(limit, meter))

    def _read(self) -> bool:
        """Whether something was noted."""
        self._times = {}
        try:
            self._times = msgspec.json.decode(self._file.read_bytes(), type=dict[str, list[Time]])
        except FileNotFoundError:
            return False
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            log.warning("%s cannot be read: limits count as if they had always been in force", self._file)
            return False
        return True

    def _apply(self, names: Sequence[str], wanted: dict[str, str], now: float) -> bool:
        """Whether something has changed."""
        assert self._times is not None
        changed = False
        for name in names:
            counts = wanted.get(name)
            times = [one for one in self._times.get(name, ()) if not one.end or one.end > self._now() - KEPT]
            if times and not times[-1].end and times[-1].counts != counts:
                times[-1].end, changed = now, True
            if counts is not None and (not times or times[-1].end):
                times.append(Time(now, 0.0, counts))
                changed = True
            if times:
                self._times[name] = times
            else:
                self._times.pop(name, None)
        return changed

    async def _write_soon(self) -> None:
        try:
            while self._written != self._changes:
                changes = self._changes
                try:
                    draft = await in_slices(self._writing())
                    await asyncio.to_thread(draft.rename, self._file)  # ext4 writes the file out before it replaces another one
                except OSError as error:
                    self._complain(error)
                self._written = changes
        finally:
            self._writing_soon = False
            if self._written != self._changes:  # the process ends
                self._write()

    def _write(self) -> None:
        self._written = self._changes
        try:
            at_once(self._writing()).rename(self._file)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        log.warning("%s cannot be written, so `limits reconcile` will not know of this change after a restart: %s", self._file, error)

    def _writing(self) -> Steps[Path]:
        """A file that is to take the place of the one that is there. Raises OSError."""
        times = self._times or {}
        draft = self._file.with_name(f".{FILE}.new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            before = b"{"
            for some in portions(list(times)):
                if text := msgspec.json.encode({name: times[name] for name in some if name in times})[1:-1]:
                    file.write(before + text)
                    before = b","
                yield
            file.write(b"}" if before == b"," else b"{}")
        return draft


def _name(limit: LimitSpec, meter: Meter) -> str:
    return f"{limit.name}/{meter.name}"


def _counted(limit: LimitSpec) -> dict[str, str]:
    return {_name(limit, meter): _counts(limit, meter) for meter in meters_of(limit) if meter.durable}


def _counts(limit: LimitSpec, meter: Meter) -> str:
    budget = meter.budget
    how = (meter.unit,) if budget is None else (budget.unit, budget.window, budget.timezone)
    return sha256(msgspec.json.encode((limit.per, limit.match, limit.weights, how))).hexdigest()[:16]
