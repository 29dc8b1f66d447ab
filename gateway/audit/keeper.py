"""Looks after closed segments, of all writers of a directory: seals, compresses and archives them, takes away what is old, copies
checkpoints.

Each step leaves the log valid whenever it is interrupted, and the next look goes on: a seal is one line; a compressed segment takes its
place as a whole; a tombstone is on the disk before its segment goes. What cannot be sealed, because it is not as it was written, is told
and left as it is.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

import msgspec

from gateway.audit.archive import Archive
from gateway.audit.checkpoint_copies import CheckpointCopy
from gateway.audit.clock_jump import ClockJumpDetector
from gateway.audit.closing import NotSealed, clean, compress_segment, seal_of
from gateway.audit.crypto import CheckpointVerifier, Signer, replace_file
from gateway.audit.encode import encode_json
from gateway.audit.holds import Holds, concerns
from gateway.audit.segments import is_compressed
from gateway.audit.signing_keys import trusted
from gateway.audit.sink_positions import FOLDER
from gateway.audit.sinks.file import checkpoints_name, list_segments, sync_directory
from gateway.audit.statements import (
    SEAL,
    TOMBSTONE,
    Seal,
    Statements,
    append,
    seals,
    seals_name,
    tombstone,
    tombstones,
    tombstones_name,
)
from gateway.core.clock import Clock
from gateway.core.specs.retention import RetentionSpec

log = logging.getLogger("gatehouse.audit")

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0
STATE: Final = "archive.state"
SLICE: Final = 0.002
"""Seconds of work before a rest."""
REST: Final = 4.0
"""How many times as long a rest is as the work before it."""
LONGEST_REST: Final = 0.05


class News(NamedTuple):
    """What the audit log is to tell: an event's name, its target, its details, its outcome."""

    event: str
    target: str
    detail: dict[str, Any]
    outcome: str = "ok"


class Progress(msgspec.Struct):
    """archived: of each writer, where its segments were put, by number. copied: bytes of the checkpoints files, by place and writer."""

    archived: dict[str, dict[int, str]] = {}
    copied: dict[str, dict[str, int]] = {}


class Stopped(Exception):
    """The process ends."""


class Closed(NamedTuple):
    """A closed segment that is sealed."""

    number: int
    path: Path
    seal: Seal


class Trouble:
    """What fails, and when it is tried again."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.pause = 0.0
        self.again = 0.0

    def failed(self, reason: str, now: float) -> bool:
        """Whether this is new."""
        fresh, self.reason = self.reason is None, reason
        self.pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self.pause))
        self.again = now + self.pause
        return fresh

    def over(self) -> bool:
        """Whether something had failed."""
        had, self.reason, self.pause = self.reason is not None, None, 0.0
        return had


class Keeper:
    """`look` blocks; one at a time. signer: gives the key in force. needed(writer): the oldest segment that somebody still has to read;
    those from it on are not taken away. unsure: says why nothing may be taken away now, or "". `archived`, `expired`, `failures`: since the
    start; `waiting`, `oldest`: bytes of sealed segments that are not in the archive yet, and when the oldest of them ended; `unsealed`:
    segments that cannot be sealed."""

    def __init__(
        self,
        directory: Path,
        state_dir: Path,
        spec: RetentionSpec,
        signer: Callable[[], Signer],
        clock: Clock,
        *,
        archive: Archive | None = None,
        copies: tuple[CheckpointCopy, ...] = (),
        needed: Callable[[str], int] = lambda writer: 1 << 62,
        unsure: Callable[[], str] = str,
    ) -> None:
        self._directory, self._spec, self._signer, self._clock = directory, spec, signer, clock
        self._archive, self._copies, self._needed, self._unsure = archive, copies, needed, unsure
        self._state = state_dir / FOLDER / STATE
        self.holds = Holds(directory, clock)
        self._jumps, self._told_jump = ClockJumpDetector(clock), False
        self.archived = self.expired = self.failures = self.waiting = 0
        self.oldest: float | None = None
        self.unsealed: set[tuple[str, int]] = set()
        self.trouble = Trouble()
        self.copy_trouble = Trouble()
        self._held: dict[tuple[str, int, frozenset[str]], bool] = {}
        self._progress: Progress | None = None
        self._news: list[News] = []
        self._stopping = self._cleaned = False
        self._slice = perf_counter()

    def stop(self) -> None:
        """Has a look that is under way end soon."""
        self._stopping = True

    def look(self) -> list[News]:
        """Does what is due; what is to be told. A directory that cannot be read now is looked at again later."""
        self._news = []
        try:
            self._look()
        except Stopped:
            pass
        except OSError as error:
            log.warning("closed segments of the audit log could not be processed, which is tried again: %s", error)
        return self._news

    def _turn(self) -> None:
        """Between two slices of work. Every line of a closed segment is read and hashed, in a thread that shares the interpreter with the
        requests: it rests four times as long as it works, so that a segment that was just closed slows nobody down."""
        if self._stopping:
            raise Stopped
        worked = perf_counter() - self._slice
        if worked < SLICE:
            sleep(0)
            return
        sleep(min(LONGEST_REST, REST * worked))
        self._slice = perf_counter()

    def _look(self) -> None:
        if not self._directory.is_dir():
            return
        if not self._cleaned:
            clean(self._directory)
            self._cleaned = True
        signer = self._signer()
        verifier = trusted(signer.verifier, self._directory)
        found = list_segments(self._directory)
        closed = {writer: self._closed(writer, segments, signer, verifier) for writer, segments in found.items()}
        self._compress(closed)
        self._put_away(closed)
        self._copy(found)
        if self._spec.delete_after is not None or self._spec.keep_bytes is not None:
            self._expire(closed, signer, verifier)

    # --- seals

    def _closed(self, writer: str, segments: list[tuple[int, Path]], signer: Signer, verifier: CheckpointVerifier) -> list[Closed]:
        """The closed segments, sealed."""
        known: Statements = seals(self._directory, writer, verifier)
        size, sealed = known.size, []
        for (number, path), (_, after) in itertools.pairwise(segments):
            seal: Seal | None = known.found.get(number)
            if seal is None and (writer, number) not in self.unsealed:
                try:
                    seal = seal_of(writer, number, path, after, verifier, self._clock.wall(), self._turn)
                except NotSealed as error:
                    self._cannot_seal(writer, number, str(error))
                    continue
                seal = append(self._directory / seals_name(writer), SEAL, seal, signer, size)
                size += len(encode_json(seal)) + 1
            if seal is not None:
                sealed.append(Closed(number, path, seal))
        return sealed

    def _cannot_seal(self, writer: str, number: int, reason: str) -> None:
        self.unsealed.add((writer, number))
        log.error("segment %d of the audit log of %s cannot be sealed and is left as it is: %s", number, writer, reason)
        self._news.append(News("audit.unsealed", f"audit-{writer}", {"segment": number, "reason": reason}, "failed"))

    def _compress(self, closed: dict[str, list[Closed]]) -> None:
        after = 0.0 if self._archive is not None else self._spec.compress_after
        if after is None:
            return
        for writer, segments in closed.items():
            for place, one in enumerate(segments):
                if is_compressed(one.path) or self._clock.wall() - one.seal.ended < after:
                    continue
                try:
                    segments[place] = one._replace(path=compress_segment(one.path, one.seal, self._turn))
                except NotSealed as error:
                    if (writer, one.number) not in self.unsealed:
                        self._cannot_seal(writer, one.number, str(error))

    # --- the archive, and copies of checkpoints

    def _read_progress(self) -> Progress:
        if self._progress is None:
            try:
                self._progress = msgspec.json.decode(self._state.read_bytes(), type=Progress)
            except FileNotFoundError:
                self._progress = Progress({}, {})
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                log.error("%s cannot be understood (%s): all closed segments are archived again", self._state, error)
                self._progress = Progress({}, {})
        return self._progress

    def _save(self) -> None:
        self._state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._state, msgspec.json.encode(self._progress))

    def _put_away(self, closed: dict[str, list[Closed]]) -> None:
        if self._archive is None:
            return
        progress = self._read_progress()
        left = [(writer, one) for writer, found in closed.items() for one in found if one.number not in progress.archived.get(writer, {})]
        self.waiting = sum(one.seal.bytes for _, one in left)
        self.oldest = min((one.seal.ended for _, one in left), default=None)
        if self._clock.monotonic() < self.trouble.again and self.trouble.reason is not None:
            return
        for writer, one in left:
            self._turn()
            try:
                where = self._archive.put_segment(one.path, one.seal)
            except OSError as error:
                self._archive_failed(str(error))
                return
            progress.archived.setdefault(writer, {})[one.number] = where
            self._save()
            self.archived += 1
            self.waiting -= one.seal.bytes
            detail = {"segment": one.number, "root": one.seal.root, "first": one.seal.first, "last": one.seal.last, "where": where}
            self._news.append(News("audit.archived", f"audit-{writer}", detail))
        if left:
            self.oldest = None
            if self.trouble.over():
                log.warning("the archive of the audit log takes segments again")
                self._news.append(News("audit.archive_recovered", "archive", {}))

    def _archive_failed(self, reason: str) -> None:
        self.failures += 1
        if self.trouble.failed(reason, self._clock.monotonic()):
            log.error("the archive of the audit log takes no segments: %s", reason)
            self._news.append(News("audit.archive_failed", "archive", {"reason": reason}, "failed"))

    def _copy(self, found: dict[str, list[tuple[int, Path]]]) -> None:
        if not self._copies or (self.copy_trouble.reason is not None and self._clock.monotonic() < self.copy_trouble.again):
            return
        progress = self._read_progress()
        try:
            for copy in self._copies:
                done = progress.copied.setdefault(copy.name, {})
                for writer in found:
                    self._turn()
                    if not (self._directory / checkpoints_name(writer)).exists():
                        continue
                    reached = copy.take(self._directory, writer, done.get(writer, 0))
                    if reached != done.get(writer, 0):
                        done[writer] = reached
                        self._save()
        except OSError as error:
            self.failures += 1
            if self.copy_trouble.failed(str(error), self._clock.monotonic()):
                log.error("checkpoints of the audit log cannot be copied: %s", error)
                self._news.append(News("audit.copy_failed", copy.name, {"reason": str(error)}, "failed"))
            return
        if self.copy_trouble.over():
            self._news.append(News("audit.copy_recovered", "checkpoints", {}))

    # --- the end

    def _expire(self, closed: dict[str, list[Closed]], signer: Signer, verifier: CheckpointVerifier) -> None:
        if self._unsure():
            return
        held = frozenset(hold.tenant for hold in self.holds.list())
        for writer, one, why in self._due(closed):
            self._turn()
            if self._is_held(writer, one, closed[writer], held):
                continue
            self._bury(writer, one, why, signer, verifier)

    def _may_go_by_age(self) -> bool:
        """Whether the clock can be trusted with what is old."""
        if not self._jumps.jumped:
            self._told_jump = False
            return True
        if not self._told_jump:
            self._told_jump, seconds = True, round(self._jumps.gained)
            log.error("the clock was set forward by %d s: no segment of the audit log is taken away by its age for a day", seconds)
            self._news.append(News("audit.clock_jumped", "audit", {"seconds": seconds}, "failed"))
        return False

    def _due(self, closed: dict[str, list[Closed]]) -> list[tuple[str, Closed, str]]:
        """What may be taken away by age or size, the oldest first."""
        archived = self._read_progress().archived if self._archive is not None else None
        all_of_them = sorted(((one.seal.ended, writer, one) for writer, found in closed.items() for one in found), key=lambda x: x[:2])
        now, most, by_age = self._clock.wall(), self._spec.keep_bytes, self._may_go_by_age()
        total = sum(path.stat().st_size for found in list_segments(self._directory).values() for _, path in found)
        due = []
        for ended, writer, one in all_of_them:
            old = by_age and self._spec.delete_after is not None and now - ended >= self._spec.delete_after
            large = most is not None and total > most
            if not (old or large) or one.number >= self._needed(writer):
                continue
            if archived is not None and one.number not in archived.get(writer, {}):
                continue
            due.append((writer, one, "age" if old else "size"))
            total -= one.path.stat().st_size
        return due

    def _is_held(self, writer: str, one: Closed, segments: list[Closed], held: frozenset[str]) -> bool:
        """Whether the segment has records of a tenant that is held, or follows one that has: an outcome may be behind its intent."""
        return any(self._has(writer, near, held) for near in segments if near.number in (one.number, one.number - 1)) if held else False

    def _has(self, writer: str, one: Closed, held: frozenset[str]) -> bool:
        key = (writer, one.number, held)
        if key not in self._held:
            if len(self._held) > 10_000:
                self._held.clear()
            self._held[key] = one.path.exists() and concerns(one.path, held)
        return self._held[key]

    def _bury(self, writer: str, one: Closed, why: str, signer: Signer, verifier: CheckpointVerifier) -> None:
        known = tombstones(self._directory, writer, verifier)
        progress = self._read_progress() if self._archive is not None else Progress({}, {})
        where = progress.archived.get(writer, {}).get(one.number, "")
        if one.number not in known.found:
            path = self._directory / tombstones_name(writer)
            append(path, TOMBSTONE, tombstone(one.seal, self._clock.wall(), why, where), signer, known.size)
        one.path.unlink(missing_ok=True)
        sync_directory(self._directory)
        self.expired += 1
        detail = {
            "segment": one.number,
            "root": one.seal.root,
            "first": one.seal.first,
            "last": one.seal.last,
            "why": why,
            "archived": where,
        }
        log.warning("segment %d of the audit log of %s was taken away (%s)", one.number, writer, why)
        self._news.append(News("audit.expired", f"audit-{writer}", detail))
