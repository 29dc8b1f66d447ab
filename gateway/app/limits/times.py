"""When each limit that lasts was in force on this replica, and with which way of counting.

The audit log has every request, a limit counts those that came while it was in force: one that is added at noon has nothing of the morning.
So whoever compares the two asks here what of the log counts. Kept in the state directory, beside the log that it is about.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from gateway.core.slices import Steps, at_once, in_slices, portions
from gateway.core.specs import LimitSpec
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


class LimitTimes:
    """state_dir: of this replica. `applied` is to be called with each configuration, before anything is served by it, and `prepare` before
    that: then the loop is not held while thousands of limits are read."""

    def __init__(self, state_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._file, self._now = state_dir / FILE, now
        self._times: dict[str, list[Time]] | None = None
        self._known: dict[str, tuple[LimitSpec, dict[str, str]]] = {}
        """The limits that last, and how their amounts count, by their names."""
        self._prepared: tuple[Sequence[LimitSpec], dict[str, str]] = ((), {})
        self._applied: dict[str, str] | None = None

    async def prepare(self, limits: Sequence[LimitSpec]) -> None:
        """Reads limits that are about to be in force."""
        self._prepared = (limits, await in_slices(self._counting(limits)))

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

    def applied(self, limits: Sequence[LimitSpec]) -> None:
        """Limits that are in force from now on. Where nothing was noted yet, they always were."""
        first = self._times is None and not self._read()
        wanted = self._prepared[1] if self._prepared[0] is limits else at_once(self._counting(limits))
        if wanted == self._applied:
            return
        self._applied = wanted
        if self._apply(wanted, 0.0 if first else self._now()) or first:
            try:
                self._write()
            except OSError as error:
                log.warning(
                    "%s cannot be written, so `limits reconcile` will not know of this change after a restart: %s", self._file, error
                )

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

    def _apply(self, wanted: dict[str, str], now: float) -> bool:
        """Whether something has changed."""
        assert self._times is not None
        changed = False
        for name, times in list(self._times.items()):
            last = times[-1]
            if not last.end and wanted.get(name) != last.counts:
                last.end, changed = now, True
            if times[0].end:
                self._times[name] = [one for one in times if not one.end or one.end > self._now() - KEPT]
                if not self._times[name]:
                    del self._times[name]
        for name, counts in wanted.items():
            times = self._times.setdefault(name, [])
            if not times or times[-1].end:
                times.append(Time(now, 0.0, counts))
                changed = True
        return changed

    def _write(self) -> None:
        draft = self._file.with_name(f".{FILE}.new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self._times))
        draft.rename(self._file)


def _name(limit: LimitSpec, meter: Meter) -> str:
    return f"{limit.name}/{meter.name}"


def _counted(limit: LimitSpec) -> dict[str, str]:
    return {_name(limit, meter): _counts(limit, meter) for meter in meters_of(limit) if meter.durable}


def _counts(limit: LimitSpec, meter: Meter) -> str:
    budget = meter.budget
    how = (meter.unit,) if budget is None else (budget.unit, budget.window, budget.timezone)
    return sha256(msgspec.json.encode((limit.per, limit.match, limit.weights, how))).hexdigest()[:16]
