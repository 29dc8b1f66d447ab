"""Settles what processes that were killed had in hand of budgets: the audit log says what they used, and the rest comes back.

A run of the gateway is from one start to the next. A file in the state directory names the runs that did not end well, and how far the log
of each writer went when they began; the counters in the store say what each of them took (gateway.limits.counter). Once the successors
have recovered the logs, so that every request of these runs has an outcome, both are compared, and the counters corrected. Requests are
served meanwhile: theirs are of the present run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.app.limits.budget_log import Key, Tally, read
from gateway.app.limits.times import LimitTimes
from gateway.audit.ledger import end_of
from gateway.audit.opening import CLOSED, Opener
from gateway.audit.segments import segment_size
from gateway.audit.sinks.file import list_segments
from gateway.core.errors import ConfigError, GatehouseError
from gateway.core.specs import ConfigSpec
from gateway.core.storage import ControlStore, CounterName
from gateway.core.tasks import TaskOwner
from gateway.limits.counter import expires, settled
from gateway.limits.meter import Meter, meters_of

log = logging.getLogger("gatehouse.limits")

FILE: Final = "budget-runs.json"
LOOK: Final = 1.0
SELDOM: Final = 300.0
"""Seconds between two looks for whether the runs can be settled: twice as long after each."""
LOOKS: Final = 8
"""So often is looked after a process that has ended, half an hour in all."""
MOST: Final = 100_000
BATCH: Final = 500
RUNS: Final = 32
"""Runs that are remembered; what earlier ones had in hand counts as used until its window ends."""


class Run(msgspec.Struct):
    """holders: the processes, as counters know them. marks: by writer, the segment and offset at which the log ended when it began.
    handed: another program went on with what it had in hand."""

    holders: list[str]
    marks: dict[str, tuple[int, int]]
    handed: bool = False


class BudgetRuns:
    """holder: this process. logs: the directory of the audit log. spec: the configuration in force. done: called once nothing of an earlier
    run is left to be settled. Life: `begin` before anything is served, `start`, `aclose`."""

    def __init__(
        self,
        store: ControlStore,
        holder: str,
        state_dir: Path,
        logs: Path,
        spec: Callable[[], ConfigSpec],
        times: LimitTimes,
        tasks: TaskOwner,
        done: Callable[[], None],
        opener: Opener = CLOSED,
    ) -> None:
        self._store, self._holder, self._file, self._logs = store, holder, state_dir / FILE, logs
        self._spec, self._times, self._tasks, self._done, self._opener = spec, times, tasks, done, opener
        self._runs: list[Run] = []
        self._looking = self._gone = False
        self.in_redis: Callable[[], Awaitable[bool]] | None = None
        """Settles what Redis counts, where it does. Whether that is done."""

    @property
    def ended(self) -> list[Run]:
        """Those before this one that are to be settled."""
        return self._runs[:-1]

    async def begin(self) -> None:
        """Notes that a run begins. Raises ConfigError."""
        try:
            await asyncio.to_thread(self._begin)
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be written: {error.strerror}", path="state_dir") from None

    def start(self) -> None:
        """Settles what can be settled, as soon as it can be."""
        if self.ended:
            self._tasks.spawn(self._settle_soon(), name="settle budgets")
        else:
            self._done()

    def look_again(self) -> None:
        """A process of this run has ended: what it took of budgets in Redis is settled once its log has been recovered."""
        self._gone = True
        if self._spec().redis is not None and not self._looking:
            self._looking = True
            self._tasks.spawn(self._settle_redis(), name="settle budgets in Redis")

    async def _settle_redis(self) -> None:
        pause, left = LOOK, LOOKS
        try:
            while left:
                await asyncio.sleep(pause)
                if self._gone:
                    pause, left, self._gone = LOOK, LOOKS, False
                pause, left = min(4 * pause, SELDOM), left - 1
                try:
                    if (self.in_redis is None or await self.in_redis()) and not self._gone:
                        break
                except (GatehouseError, OSError) as error:
                    log.debug("budgets in Redis are settled later: %s", error)
        finally:
            self._looking = False

    async def aclose(self, *, handed: bool, given_back: bool) -> None:
        """handed: another program goes on with what is in hand. given_back: nothing is in hand any more."""
        if self._runs:
            self._runs[-1].handed = handed
            if given_back:
                del self._runs[-1]
            try:
                await asyncio.to_thread(self._write)
            except OSError as error:  # the next start looks at this run as at one that was killed
                log.warning("%s cannot be written: %s", self._file, error.strerror)

    def _begin(self) -> None:
        try:
            self._runs = msgspec.json.decode(self._file.read_bytes(), type=list[Run])[-RUNS:]
        except FileNotFoundError:
            self._runs = []
        except (msgspec.DecodeError, UnicodeDecodeError):
            log.warning("%s cannot be read: what earlier runs had in hand of budgets counts as used", self._file)
            self._runs = []
        if self._runs and self._runs[-1].handed:
            self._runs[-1].handed = False
            self._runs[-1].holders.append(self._holder)
        else:
            segments = list_segments(self._logs) if self._logs.is_dir() else {}
            ends = {writer: end_of(*found[-1]) for writer, found in segments.items()}
            self._runs.append(Run([self._holder], {writer: (mark.segment, mark.offset) for writer, mark in ends.items()}))
        self._write()

    def _write(self) -> None:
        draft = self._file.with_name(f".{FILE}.new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self._runs))
        draft.rename(self._file)

    async def _settle_soon(self) -> None:
        pause = LOOK
        while True:
            await asyncio.sleep(pause)
            try:
                if await self.settle():
                    break
            except (GatehouseError, OSError) as error:
                log.debug("budgets of an earlier run are settled later: %s", error)
            pause = min(2 * pause, SELDOM)
        self._done()

    async def settle(self) -> bool:
        """Whether what earlier runs had in hand is settled. Raises StoreUnavailable, OSError."""
        ended = self.ended
        if not await asyncio.to_thread(_complete, self._logs, ended[0]):
            log.warning("the audit log of a run that was killed is gone: what it had in hand of budgets counts as used")
        elif self._spec().redis is None:
            tallies = await self._tallies()
            marks = [run.marks for run in self._runs]
            counted, until = [tally for tally, _ in tallies], len(ended) + 1
            if await asyncio.to_thread(read, self._logs, counted, marks, until=until, opener=self._opener):
                return False
            for tally, keys in tallies:
                for number, run in enumerate(ended, 1):
                    if not tally.unsure:
                        await self._correct(tally, keys, run.holders, tally.spent.get(number, {}))
        elif self.in_redis is not None and not await self.in_redis():
            return False
        self._runs = self._runs[-1:]
        await asyncio.to_thread(self._write)
        return True

    async def _tallies(self) -> list[tuple[Tally, set[Key]]]:
        found, now = [], time.time()
        for limit in self._spec().limits:
            for meter in meters_of(limit):
                if meter.budget is not None:
                    rows = [row for row in await self._store.counters_of(limit.name, MOST) if row.name[1] == meter.name]
                    states = {row.name[2]: json.loads(row.body) for row in rows}
                    since = {key: float(state.get("since", 0.0)) for key, state in states.items()}
                    tally = Tally(limit, meter, now, since, times=self._times.of(limit, meter))
                    tally.unsure = tally.times.changed_since(tally.begin)
                    if not isinstance(meter.budget.window, str):
                        tally.begin = 0.0  # what a run took of a rolling window is known since it began
                    found.append((tally, set(states)))
        return found

    async def _correct(self, tally: Tally, keys: set[Key], holders: Sequence[str], spent: dict[Key, int]) -> None:
        wanted: list[CounterName] = [(tally.limit.name, tally.meter.name, key) for key in sorted({*keys, *spent})]
        for first in range(0, len(wanted), BATCH):
            await _corrected(self._store, tally.meter, wanted[first : first + BATCH], holders, spent)


async def _corrected(
    store: ControlStore, meter: Meter, names: Sequence[CounterName], holders: Sequence[str], spent: dict[Key, int]
) -> None:
    def change(now: float, bodies: Sequence[str | None]) -> list[tuple[str, float]]:
        written = []
        for name, body in zip(names, bodies, strict=True):
            state: dict[str, Any] = json.loads(body or "{}")
            if spent.get(name[2]) or any(holder in state.get("by", {}) for holder in holders):
                state, lost = settled(state, meter, holders, spent.get(name[2], 0), now)
                if lost:
                    log.info("%d of the budget '%s' of %s was in hand of a process that was killed", lost, name[0], "/".join(name[2]))
            written.append((json.dumps(state, separators=(",", ":")), expires(state, meter, now)))
        return written

    await store.change_counters(names, change)


def _complete(logs: Path, first: Run) -> bool:
    """Whether the log is there since a run began."""
    segments = list_segments(logs) if logs.is_dir() else {}
    for writer, (segment, offset) in first.marks.items():
        path = dict(segments.get(writer, ())).get(segment)
        if path is None or segment_size(path) < offset:
            return False
    return True
