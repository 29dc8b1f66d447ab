"""What the audit log of this machine says was used of limits that last, by the keys of their buckets. Everything here blocks.

A request counts at its beginning, as its reservation does: one that begins before midnight and ends after it belongs to the day before. A
request with an intent but no outcome is under way, and counts what it reserved. Requests are grouped by the run of the gateway (from one
start to the next) that reserved for them, because what a killed run took of a budget is settled by what its requests used. If Redis counts,
they are grouped by process, which the beginning of each log names.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gateway.app.limits.times import Times
from gateway.audit.chain import read_lines
from gateway.audit.entries import may_end
from gateway.audit.neighbours import holder
from gateway.audit.opening import CLOSED, SEALED, Opener
from gateway.audit.outcome_figures import OutcomeFigures
from gateway.audit.segments import open_segment, segment_time
from gateway.audit.sinks.file import list_segments
from gateway.audit.unfinished import Intent, decode_intent
from gateway.core.specs import LimitSpec
from gateway.core.types import Principal, Usage
from gateway.limits.bucket import Weights
from gateway.limits.counter import LIFE, SLICES, TWICE
from gateway.limits.meter import MONEY, REQUESTS, SECOND, TOKENS, Meter
from gateway.limits.redis.meters import Ticks
from gateway.limits.windows import span
from policies.limits import LimitRules
from policies.replay import METADATA

MEMO: Final = 20_000
_BREATH: Final = 256
"""Lines between which other threads get their turn."""
_HEAD: Final = 48
_INTENT: Final = b'"kind":"intent"'
_OUTCOME: Final = b'"kind":"outcome"'
_EVENT: Final = b'"kind":"event"'
_OPENED: Final = b'"event":"audit.opened"'
_CLOSED: Final = b'"event":"audit.closed"'
_SEGMENT: Final = b'"kind":"segment"'
EDGE: Final = 2.0
"""Seconds by which the clocks of Redis and of the log may differ."""
ALWAYS: Final = Times()
Key = tuple[str, ...]
Marks = Mapping[str, tuple[int, int]]
"""How far the log of each writer went at some moment: segment and offset."""


class _Detail(msgspec.Struct):
    limits_not_enforced: list[str] = []


class Line(OutcomeFigures):
    """An outcome, as far as budgets count it. early: of one that cannot be opened, whether no intent came before it."""

    request_id: str = ""
    peer: str = ""
    credential: str = ""
    caller: msgspec.Raw = msgspec.Raw()
    duration_ms: float = 0.0
    charged: bool = False
    detail: _Detail | None = None
    early: bool = False


class _Caller(msgspec.Struct):
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()


class _Named(msgspec.Struct):
    process: str = ""


class _Opened(msgspec.Struct):
    detail: _Named = msgspec.field(default_factory=_Named)


class Processes:
    """Processes that counted in Redis and have ended, as the log names them. ended: it has all of their requests. lost: nobody has the log,
    and it has not been recovered yet. stepped: by so many seconds at most the clock of the log went back: its times say little then."""

    def __init__(self) -> None:
        self.stepped = 0.0
        self.ended: set[str] = set()
        self.lost: set[str] = set()


class Portion:
    """What one process used of one bucket. used: by slice of a rolling window, under 0 for other windows. unsure: the part of it that came
    so early that it may not count there. before: what came just too early to count."""

    __slots__ = ("before", "unsure", "used")

    def __init__(self) -> None:
        self.used: dict[int, int] = {}
        self.unsure = self.before = 0


_line = msgspec.json.Decoder(Line).decode
_caller = msgspec.json.Decoder(_Caller).decode
_opened = msgspec.json.Decoder(_Opened).decode
_segment = msgspec.json.Decoder(_Named).decode


class Tally:
    """One amount of one limit. spent: by run and bucket. under_way: by bucket. unsure: the log does not say of every request whether the
    limit applied to it. since: for each bucket, when it was made full last. now: seconds since the epoch. life: seconds for which a slice
    of a rolling window counts beyond it. created: for each bucket in Redis, when it was unused at last; then `portions` are kept, by
    process and bucket: "" are those of earlier versions, which have no names. times: when it was in force. spare: by bucket, what of
    `spent` came while that changed, so that it may not count."""

    def __init__(
        self,
        limit: LimitSpec,
        meter: Meter,
        now: float,
        since: Mapping[Key, float],
        life: float = LIFE,
        created: Mapping[Key, float] | None = None,
        times: Times = ALWAYS,
    ) -> None:
        self.limit, self.meter, self.now, self.since, self.times = limit, meter, now, since, times
        self.begin, self.end = _window(meter, now, life)
        self.spent: dict[int, dict[Key, int]] = {}
        self.under_way: dict[Key, int] = {}
        self.spare: dict[Key, int] = {}
        self.unsure = False
        self._rules, self._weights = LimitRules((limit,)), Weights(limit)
        self._needs = limit.match.group != "*" or limit.match.role != "*" or limit.per == "group" or limit.match.key != "*"
        self._memo: dict[tuple[str | bytes, ...], list[Key]] = {}
        self._paced: dict[Key, dict[int, int]] = {}
        self._created = created
        self.portions: dict[str, dict[Key, Portion]] = {}
        self._edge = 0.0 if created is None else EDGE
        rolling = meter.budget is not None and not isinstance(meter.budget.window, str)
        self._width = Ticks(meter).begin / 1_000_000 if rolling else 0.0

    def outcome(self, line: Line, intent: Intent | None, run: int, kind: str, process: str = "") -> None:
        began = line.time - line.duration_ms / 1000 if intent is None else intent.time
        if not self.begin - self._edge <= began < self.end or (line.detail and self.limit.name in line.detail.limits_not_enforced):
            return
        units = self._units(line)
        maybe, certain = self.times.at(began)
        if not units or not maybe:
            return
        model = line.model if intent is None else intent.model  # of a fallback's answer, the limits of the model asked for
        for key in self._keys(line, line.caller if intent is None else intent.caller, kind, model):
            counts = began >= max(self.begin, self.since.get(key, 0.0))
            if self._created is not None:
                self._portion(process, key, began, units, counts, certain and began >= self._created.get(key, 0.0))
            if counts and not certain:
                self.spare[key] = self.spare.get(key, 0) + units
                if self.meter.budget is None:
                    continue
            if counts:
                spent = self.spent.setdefault(run, {})
                spent[key] = spent.get(key, 0) + units
                if self.meter.budget is None:
                    paced = self._paced.setdefault(key, {})
                    paced[int(began)] = paced.get(int(began), 0) + units

    def _portion(self, process: str, key: Key, began: float, units: int, counts: bool, certain: bool) -> None:
        portion = self.portions.setdefault(process, {}).setdefault(key, Portion())
        if counts:
            slice = int(began / self._width) if self._width else 0
            portion.used[slice] = portion.used.get(slice, 0) + units
            if not certain:
                portion.unsure += units
        elif began >= max(self.begin, self.since.get(key, 0.0)) - EDGE:
            portion.before += units

    def reserved(self, intent: Intent) -> None:
        if self.begin <= intent.time < self.end and self.times.at(intent.time)[0]:
            meter, units = self.meter, 1
            if meter.what == TOKENS:
                units = self._weights.bound(intent.reserved_prompt, intent.reserved_completion)
            elif meter.what == MONEY:
                units = intent.reserved_cost if intent.currency == meter.currency else 0
            for key in self._keys(intent, intent.caller, intent.credential, intent.model):
                if intent.time >= self.since.get(key, 0.0):
                    self.under_way[key] = self.under_way.get(key, 0) + min(units, meter.burst)

    def debts(self) -> dict[Key, int]:
        """For a rate: what would be used now if each request in the log had taken its part when it began."""
        found: dict[Key, int] = {}
        for key, paced in self._paced.items():
            full = 0
            for second in sorted(paced):
                full = max(full, second * SECOND) + paced[second] * self.meter.unit
            found[key] = max(0, full - int(self.now) * SECOND) // self.meter.unit
        return found

    def _keys(self, line: Line | Intent, caller: msgspec.Raw, kind: str, model: str) -> list[Key]:
        known = bytes(caller) if self._needs else b""
        operation = "infer" if line.operation == METADATA else line.operation
        who = (line.principal, line.tenant, kind, line.user, line.agent, line.session, model, operation, known)
        keys = self._memo.get(who)
        if keys is None:
            facts = _Caller() if not known or known == b"null" else _caller(known)
            if self._needs and (not known or known == b"null" or {"groups", "roles", "limits"} & set(facts.unrecorded)):
                self.unsure = True
            if len(self._memo) >= MEMO:
                self._memo.clear()
            named = tuple(name for name in facts.limits if name == self.limit.name)
            principal = Principal(
                line.principal,
                line.tenant,
                kind,
                roles=facts.roles,
                limits=named,
                user=line.user,
                groups=facts.groups,
                agent=line.agent,
                session=line.session,
            )
            keys = self._memo[who] = [key for _, key in self._rules.applying(principal, model, operation)]
        return keys

    def _units(self, line: Line) -> int:
        if self.meter.what == MONEY:
            return line.cost if line.currency == self.meter.currency else 0
        if self.meter.what == TOKENS:
            usage = Usage(line.prompt_tokens, line.completion_tokens, line.cached_tokens, False, line.reasoning_tokens)
            return self._weights.of(usage)
        return 1 if self.meter.what == REQUESTS and line.charged else 0


def _window(meter: Meter, now: float, life: float) -> tuple[float, float]:
    """Requests that began in it count now."""
    if meter.budget is None:
        return now - TWICE * meter.burst_ps / SECOND, now + meter.per
    window = meter.budget.window
    if isinstance(window, str):
        return span(window, meter.budget.timezone, now)
    width = max(1.0, window.rolling / SLICES)
    return (int((now - window.rolling - life) / width)) * width, now + window.rolling


def read(
    directory: Path,
    tallies: Sequence[Tally],
    runs: Sequence[Marks] = (),
    *,
    until: int | None = None,
    processes: Processes | None = None,
    opener: Opener = CLOSED,
) -> int:
    """Adds up what the log says. runs: for each run except the first one, how far the log went when it began. until: the first run that
    does not matter; then nothing before the first mark is read. Returns how many requests of the runs before `until` may still be under
    way. processes: collects those that the log names and that have ended. opener: for records that are encrypted as a whole; one that can
    no longer be opened makes the tallies unsure. Raises OSError, GatehouseError."""
    begin = min((tally.begin for tally in tallies), default=0.0)
    first = runs[0] if until is not None and runs else {}
    left = 0
    for writer, segments in (list_segments(directory) if directory.is_dir() else {}).items():
        marks = [marks.get(writer, (0, 0)) for marks in runs]
        reading = _Reading(writer, tallies, marks, until, processes or Processes(), opener)
        for number, path in segments:
            segment, offset = first.get(writer, (0, 0))
            if number < segment:
                continue
            if segment_time(path) < begin:
                reading.skip(number)
                continue
            reading.segment(number, path, offset if number == segment else 0)
        left += reading.end(None if processes is None else holder(directory, writer) is not None)
    return left


class _Reading:
    """The log of one writer."""

    def __init__(
        self,
        writer: str,
        tallies: Sequence[Tally],
        marks: Sequence[tuple[int, int]],
        until: int | None,
        processes: Processes,
        opener: Opener,
    ) -> None:
        self._writer, self._tallies, self._marks, self._until = writer, tallies, marks, until
        self._processes, self._opener, self._closed = processes, opener, False
        self._run = 0
        self._process: str | None = None
        self._open: dict[str, list[tuple[Intent, int]]] = {}
        self._kinds: dict[tuple[str, str], str] = {}
        self._newest = 0.0

    def skip(self, number: int) -> None:
        """A segment in which nothing counts."""
        while self._run < len(self._marks) and self._marks[self._run][0] <= number:
            self._run += 1

    def segment(self, number: int, path: Path, offset: int) -> None:
        with open_segment(path) as file:
            file.seek(offset)
            for turn, text in enumerate(read_lines(file)):
                if turn % _BREATH == 0:
                    time.sleep(0)
                try:
                    self._take(text, (number, offset))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    pass  # `audit verify` tells
                offset += len(text)

    def end(self, held: bool | None) -> int:
        """What is left open is under way. held: whether a process has this log now. Returns how many of the runs before `until`."""
        left = 0
        if self._process and held is False:
            (self._processes.ended if self._closed else self._processes.lost).add(self._process)
        for same_id in self._open.values():
            for intent, run in same_id:
                left += self._until is not None and run < self._until
                for tally in self._tallies:
                    tally.reserved(intent)
        return left

    def _take(self, text: bytes, place: tuple[int, int]) -> None:
        head = text[:_HEAD]
        if SEALED in text and _EVENT not in head:
            text = self._opener.line(self._writer, text)
        if _INTENT in head:
            intent = decode_intent(text)
            self._unsure(intent.unopened)
            self._open.setdefault(intent.request_id, []).append((intent, self._run))
            self._kinds[intent.tenant, intent.principal] = intent.credential
        elif _OUTCOME in head:
            self._outcome(_line(text))
        elif _SEGMENT in head:
            if self._process is None:  # of one that began before what is read
                self._process = _segment(text).process
        elif _OPENED in text[:128]:
            self._open.clear()
            before, self._process = self._process, _opened(text).detail.process
            self._closed = False
            if before and before != self._process:  # the header of a segment may have named this one
                self._processes.ended.add(before)
            while self._run < len(self._marks) and place >= self._marks[self._run]:
                self._run += 1
        elif _CLOSED in text[:128]:
            self._closed = True

    def _unsure(self, why: str) -> None:
        """Notes a request whose record can no longer be opened."""
        if why:
            for tally in self._tallies:
                tally.unsure = True

    def _outcome(self, line: Line) -> None:
        intent, run = None, self._run
        self._unsure(line.unopened)
        if line.time < self._newest:
            self._processes.stepped = max(self._processes.stepped, self._newest - line.time)
        self._newest = max(self._newest, line.time)
        if not (line.peer or line.early) and (same_id := self._open.get(line.request_id)) is not None:
            for place, (one, began) in enumerate(same_id):
                if may_end(one.tenant, one.principal, line.tenant, line.principal):  # callers choose the ids of their requests
                    intent, run = one, began
                    del same_id[place]
                    break
            if not same_id:
                del self._open[line.request_id]
        if self._until is not None and run >= self._until:
            return
        kind = intent.credential if intent is not None else line.credential
        kind = kind or self._kinds.get((line.tenant, line.principal), "api_key")
        for tally in self._tallies:
            tally.outcome(line, intent, run, kind, self._process or "")


def spent_in(tally: Tally, runs: Iterable[int]) -> dict[Key, int]:
    """What was used in some runs, by bucket."""
    found: dict[Key, int] = {}
    for run in runs:
        for key, units in tally.spent.get(run, {}).items():
            found[key] = found.get(key, 0) + units
    return found
