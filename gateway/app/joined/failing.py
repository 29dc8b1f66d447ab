"""Placed engines that fail although their machines are heard: which of them are to be started elsewhere. Pure, from what one gateway sees.

An engine fails at a machine while the gateway's probes fail there, while its breaker opens again and again, or while its process ends
again and again. It is moved once it has done so for `machines.failing`, and nothing has brought it back meanwhile. Everything about a
move is on the safe side, as a gateway that is itself cut off sees all of its machines fail:

- nothing is moved while more than half of the machines fail here, where there are two or more;
- one machine of an engine at a time, and the next one after a pause that doubles with each move;
- what fails is ended only once another machine serves in its place, as this gateway's own probes say (gateway.app.joined.placing).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.joined.placing import Host, Pair
from gateway.routing.endpoints import Endpoint

TIMES: Final = 3
"""Failures of requests, or ends of its process, without a success between them, that count as failing."""
PAUSE: Final = 60.0
LONGEST_PAUSE: Final = 3600.0
"""Seconds from the end of a move of an engine to the next one's begin, and until it may go back to where it failed. They double."""
FORGET: Final = 4 * 3600.0
"""Seconds without a move after which the next pause is the shortest again."""
LONGEST_MOVE: Final = 1800.0
"""Seconds after which a move is given up that could not be brought to its end."""
Kind = Literal["well", "probes", "requests", "ended", ""]


@dataclass(frozen=True)
class Sight:
    """What a gateway sees of an engine at a machine. kind: what fails; "": nothing can be said now. count: changes with each failure."""

    kind: Kind
    why: str = ""
    count: int = 0


def sight(engine: str, ready: Container[str], broken: Container[str], endpoint: Endpoint | None) -> Sight:
    """ready, broken: engines that the machine says are ready, or have failed. endpoint: None: not in force."""
    if engine in broken:
        return Sight("ended", "its process ends again and again")
    if engine not in ready or endpoint is None:
        return Sight("")
    if endpoint.state == "ready":
        return Sight("well")
    if endpoint.drained or endpoint.breaker.forced is not None:
        return Sight("")
    if endpoint.state == "unhealthy" or endpoint.health.loading:
        return Sight("probes", endpoint.health.reason or "its probes fail")
    if endpoint.state in ("open", "half_open"):
        return Sight("requests", "its requests fail", endpoint.breaker.openings)
    return Sight("")


@dataclass
class _Track:
    """An engine that fails at a machine. probes: since when its probes fail without a break; None: they do not. moving: it is being moved,
    and fails until it works."""

    revision: str
    why: str
    since: float
    times: int = 0
    kind: Kind = ""
    count: int = 0
    probes: float | None = None
    moving: bool = False

    def note(self, seen: Sight, now: float) -> None:
        if not seen.kind:
            self.kind, self.probes = "", None
            return
        if seen.kind in ("requests", "ended") and (seen.kind, seen.count) != (self.kind, self.count):
            self.times += 1
        self.probes = None if seen.kind != "probes" else now if self.probes is None else self.probes
        self.kind, self.count, self.why = seen.kind, seen.count, seen.why

    def over(self, now: float, after: float) -> bool:
        by_probes = self.probes is not None and now - self.probes >= after
        return self.moving or by_probes or (self.times >= TIMES and now - self.since >= after)


@dataclass
class _Moves:
    """The moves of one engine. pair: what is being moved. begun, ended: seconds. until: no other move begins before then."""

    pair: Pair | None = None
    times: int = 0
    until: float = 0.0
    begun: float = 0.0
    ended: float = 0.0


class Failing:
    """record: (event, engine, detail) for the audit log. `look` is called several times a second."""

    def __init__(self, now: Callable[[], float], record: Callable[[str, str, dict[str, Any]], None]) -> None:
        self._now, self._record = now, record
        self._tracks: dict[Pair, _Track] = {}
        self._moves: dict[str, _Moves] = {}
        self._bars: dict[Pair, tuple[str, float]] = {}
        """Where an engine failed: (revision, until)."""
        self._begun: dict[str, int] = {}
        self.well: frozenset[Pair] = frozenset()
        """What works, as this gateway sees it."""
        self.unwell: frozenset[Pair] = frozenset()
        self.over: frozenset[Pair] = frozenset()
        """What has failed for long enough, whether or not it is being moved."""
        self.held = ""
        """Why nothing is moved now."""

    def look(
        self,
        hosts: Iterable[Host],
        wanted: Mapping[str, str],
        sights: Mapping[Pair, Sight],
        after: float,
        *,
        places: Callable[[str], bool],
        stood: float = 0.0,
    ) -> dict[Pair, str]:
        """What is to be moved now, and why: one machine of an engine at most. wanted: engine -> revision. sights: of engines of machines
        that are heard, placed or not. after: seconds; 0: nothing is moved. places: whether this gateway may move an engine. stood: for so
        many seconds this process stood still since the last look; what failed before has not failed for as long."""
        now = self._now()
        for track in self._tracks.values() if stood else ():
            track.since += stood
            track.probes = None if track.probes is None else track.probes + stood
        self.well = frozenset(pair for pair, seen in sights.items() if seen.kind == "well")
        self.unwell = frozenset(pair for pair, seen in sights.items() if seen.kind in ("probes", "requests"))
        found: set[Pair] = set()
        for host in hosts:
            for placed in host.room.placed:
                pair = (placed.name, host.name)
                counts = host.silent is None and not host.drained and placed.failed != placed.revision
                if counts and wanted.get(placed.name) == placed.revision and pair in sights:
                    found.add(pair)
                    self._note(pair, placed.revision, sights[pair], now)
        self._tracks = {pair: track for pair, track in self._tracks.items() if pair in found}
        self.held = _doubt(sights)
        self._end(now, wanted)
        self.over = frozenset(pair for pair, track in self._tracks.items() if after > 0 and track.over(now, after))
        if after > 0 and not self.held:
            self._begin(now, places)
        moving = [one.pair for one in self._moves.values() if one.pair in self.over and not self.held]
        return {pair: self._tracks[pair].why for pair in moving if pair is not None}

    def _note(self, pair: Pair, revision: str, seen: Sight, now: float) -> None:
        track = self._tracks.get(pair)
        if seen.kind == "well" or (track is not None and track.revision != revision):
            self._tracks.pop(pair, None)
        elif track is None and seen.kind:
            track = self._tracks[pair] = _Track(revision, seen.why, now)
            track.note(seen, now)
        elif track is not None:
            track.note(seen, now)

    def _end(self, now: float, wanted: Mapping[str, str]) -> None:
        """Ends the moves of engines that have left their machine or work there again, and those that take longer than LONGEST_MOVE."""
        for moves in self._moves.values():
            if (pair := moves.pair) is not None and (pair not in self._tracks or now - moves.begun > LONGEST_MOVE):
                self._tracks.pop(pair, None)
                moves.pair, moves.ended = None, now
                moves.until = now + _pause(moves.times)
                if pair not in self.well and pair in self._bars:
                    self._bars[pair] = (self._bars[pair][0], moves.until)
                else:
                    self._bars.pop(pair, None)
        self._bars = {pair: bar for pair, bar in self._bars.items() if bar[1] > now and wanted.get(pair[0]) == bar[0]}
        self._moves = {engine: one for engine, one in self._moves.items() if one.pair is not None or now - one.ended < FORGET}
        self._begun = {engine: count for engine, count in self._begun.items() if engine in wanted}

    def _begin(self, now: float, places: Callable[[str], bool]) -> None:
        for pair in sorted(self.over, key=lambda pair: self._tracks[pair].since):
            moves = self._moves.setdefault(pair[0], _Moves(ended=now))
            if moves.pair is None and now >= moves.until and places(pair[0]):
                track = self._tracks[pair]
                moves.pair, moves.times, moves.begun, track.moving = pair, moves.times + 1, now, True
                self._bars[pair] = (track.revision, float("inf"))
                self._begun[pair[0]] = self._begun.get(pair[0], 0) + 1
                self._record("engine_failing", pair[0], {"machine": pair[1], "reason": track.why, "seconds": round(now - track.since)})

    @property
    def shunned(self) -> frozenset[Pair]:
        """Where an engine has failed, and goes back to for the time being only if there is no other machine."""
        return frozenset(self._bars)

    def why(self, engine: str, machine: str) -> str:
        """Why an engine fails at a machine, and for how long it has; "": it does not."""
        track = self._tracks.get((engine, machine))
        if track is None:
            return ""
        held = f"; not moved: {self.held}" if self.held and (engine, machine) in self.over else ""
        return f"{track.why} (for {self._now() - track.since:.0f} s{held})"

    def at(self, machine: str) -> str:
        """The same of all engines of a machine."""
        return "; ".join(f"{engine}: {self.why(engine, name)}" for engine, name in sorted(self._tracks) if name == machine)

    def collect(self) -> Iterator[Metric]:
        failing = GaugeMetricFamily("gatehouse_placed_engine_failing", "Machines where a placed engine fails", labels=["engine"])
        moves = CounterMetricFamily("gatehouse_placed_engine_moves", "Moves of placed engines because they failed", labels=["engine"])
        for engine in sorted({engine for engine, _ in self._tracks}):
            failing.add_metric([engine], float(sum(one == engine for one, _ in self._tracks)))
        for engine, count in sorted(self._begun.items()):
            moves.add_metric([engine], float(count))
        yield from (failing, moves)


def _doubt(sights: Mapping[Pair, Sight]) -> str:
    """Why what is seen may be this gateway's own trouble; "": it is not."""
    seen = {machine for (_, machine), one in sights.items() if one.kind}
    working = {machine for (_, machine), one in sights.items() if one.kind == "well"}
    failing = len(seen) - len(working)
    if len(seen) > 1 and 2 * failing > len(seen):
        return f"{failing} of {len(seen)} machines fail as this gateway sees them, which may be its own fault"
    return ""


def _pause(times: int) -> float:
    return float(min(LONGEST_PAUSE, PAUSE * 2 ** min(times - 1, 20)))
