"""How the data workers share the slots of one engine, exactly and by demand. Pure: no clock, no loop, no messages.

    ledger = Ledger(8)
    for given in ledger.join({"1": None}, now): send(given.worker, given.number, given.slots)
    for given in ledger.used("1", number, in_flight, waiting, now): ...

A worker never has more requests under way than it was given. So that all of them together never have more than the engine has slots, slots
move in two steps: one worker's are lowered, and once it has said that no more than that many requests are under way there, another's are
raised. What a worker wants are its requests under way and waiting; wants are met by max-min fairness (the smallest first, what is left is
split evenly among the others). What nobody wants goes to those that wanted more a moment ago, then evenly to all, so that the next request
of any worker finds a slot and slots do not wander with every request. When more workers have
requests than there are slots, a slot is lent for LENT_SECONDS and goes then to the worker that has been without one for longest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LENT_SECONDS: Final = 0.1
"""How long a worker keeps a slot that another one waits for, when there are fewer slots than workers that want one."""
RECENT_SECONDS: Final = 2.0
"""How long it counts what a worker has wanted."""
FRESH_SECONDS: Final = 0.02
"""A worker that wants more than it gets makes the others say what they use, unless they said so within this time."""


@dataclass(frozen=True, slots=True)
class Want:
    """What is known of one worker. slots: what it was given. lent: it was given its slots less than LENT_SECONDS ago. waited: since when it
    has had none (any clock; only compared). recent: the most that it has wanted lately. leaving: it takes no new requests."""

    in_flight: int = 0
    waiting: int = 0
    slots: int = 0
    lent: bool = False
    waited: float = 0.0
    recent: int = 0
    leaving: bool = False

    @property
    def total(self) -> int:
        return self.in_flight + self.waiting


def plan(total: int, wants: Mapping[str, Want]) -> dict[str, int]:
    """How many slots each worker is to have: together `total`. Each one that wants some gets at least one if there are enough."""
    wanting = sum(1 for want in wants.values() if want.total)
    scarce = total < wanting
    even = max(1, total // max(1, wanting))

    def turn(name: str) -> tuple[int, bool, float]:
        """Those who come last get what is left over."""
        want = wants[name]
        return min(want.total, even), want.lent and want.slots > 0, -want.waited if scarce else want.slots

    shares: dict[str, int] = {}
    left = total
    ordered = sorted(wants, key=turn)
    for number, name in enumerate(ordered):
        shares[name] = min(wants[name].total, left // (len(ordered) - number))
        left -= shares[name]
    staying = [name for name in ordered if not wants[name].leaving]
    if staying and left:
        lately = {name: max(0, wants[name].recent - shares[name]) for name in staying}
        staying.sort(key=lambda name: (lately[name], wants[name].slots - shares[name]))  # who has some left over keeps them
        for number, name in enumerate(staying):
            more = min(lately[name], left // (len(staying) - number))
            shares[name] += more
            left -= more
        for number, name in enumerate(reversed(staying)):
            shares[name] += left // len(staying) + (number < left % len(staying))
    return shares


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker was given by an earlier control process. held: how many requests may be under way there at most."""

    number: int
    slots: int
    held: int


@dataclass(frozen=True, slots=True)
class Given:
    """A worker's slots from now on. number: it grows with each change; the worker's answer names the one that it follows."""

    worker: str
    number: int
    slots: int


class _Worker:
    """held: how many requests may be under way there at most, until it has confirmed less."""

    __slots__ = (
        "asked_at",
        "given_at",
        "held",
        "in_flight",
        "leaving",
        "number",
        "peak",
        "peak_at",
        "said_at",
        "slots",
        "waited",
        "waiting",
    )

    def __init__(self, now: float) -> None:
        self.number = self.slots = self.held = self.in_flight = self.waiting = 0
        self.given_at = self.said_at = self.asked_at = 0.0
        self.waited = now
        self.leaving = False
        self.peak, self.peak_at = 0, now


class Ledger:
    """The slots of one process of one engine. Every method returns what is to be sent; a worker answers each by `used`, also one that
    repeats what it has."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._workers: dict[str, _Worker] = {}

    @property
    def held(self) -> int:
        """How many requests may be under way at most, over all workers; more than `total` only after that has become less."""
        return sum(worker.held for worker in self._workers.values())

    @property
    def scarce(self) -> bool:
        """Whether a worker that waits may be due only when another one's time is over: look again with `look`."""
        return any(worker.waiting and not worker.slots for worker in self._workers.values())

    def settled(self, now: float) -> bool:
        """Whether `look` has nothing to say, however late, until something else than the time has changed. Ask it after a `look` that
        had nothing to say."""
        return not any(
            worker.waiting or now - worker.given_at < LENT_SECONDS or (worker.peak and now - worker.peak_at <= RECENT_SECONDS)
            for worker in self._workers.values()
        )

    def given(self, worker: str) -> Given | None:
        """What a worker was given last, for one that has to hear it again."""
        known = self._workers.get(worker)
        return None if known is None else Given(worker, known.number, known.slots)

    def join(self, workers: Mapping[str, Held | None], now: float) -> list[Given]:
        """Workers are there; those that an earlier control process has started have what it gave them."""
        for name, before in workers.items():
            self._workers[name] = joined = _Worker(now)
            if before is not None:
                joined.number, joined.slots, joined.held = before.number, before.slots, before.held
        return self.look(now)

    def holding(self) -> dict[str, Held]:
        """What each worker has, for the control process that takes this one's place."""
        return {name: Held(worker.number, worker.slots, worker.held) for name, worker in self._workers.items()}

    def leave(self, worker: str, now: float) -> list[Given]:
        """A worker takes no new requests: it keeps what it uses, and nothing in reserve."""
        if (known := self._workers.get(worker)) is None:
            return []
        known.leaving = True
        return self.look(now)

    def gone(self, worker: str, now: float) -> list[Given]:
        """A worker has ended, and its requests with it."""
        return self.look(now) if self._workers.pop(worker, None) is not None else []

    def resize(self, total: int, now: float) -> list[Given]:
        """The engine has another number of slots."""
        if total == self.total:
            return []
        self.total = total
        return self.look(now)

    def used(self, worker: str, number: int, in_flight: int, waiting: int, now: float) -> list[Given]:
        """Takes a worker's report of what it uses. number: that of the last grant that the worker has received."""
        known = self._workers.get(worker)
        if known is None:
            return []
        known.in_flight, known.waiting, known.said_at = in_flight, waiting, now
        if in_flight + waiting >= known.peak or now - known.peak_at > RECENT_SECONDS:
            known.peak, known.peak_at = in_flight + waiting, now
        if number == known.number:
            known.held = max(known.slots, in_flight)
        return self.look(now)

    def look(self, now: float) -> list[Given]:
        """Decides anew, after something has changed or a lent slot's time is over."""
        targets = plan(self.total, {name: self._want(worker, now) for name, worker in self._workers.items()})
        wanting = [
            name
            for name, worker in self._workers.items()
            if worker.in_flight + worker.waiting >= worker.slots and (targets[name] > worker.slots or worker.waiting)
        ]
        given: list[Given] = []
        spare = any(worker.leaving and worker.slots > targets[name] for name, worker in self._workers.items())
        if (
            spare
            or any(targets[name] > self._workers[name].slots for name in wanting)
            or sum(w.slots for w in self._workers.values()) != sum(targets.values())
        ):
            given += [self._give(name, slots, now) for name, slots in targets.items() if slots < self._workers[name].slots]
            given += self._raise(targets, now)
        return given + self._ask(wanting, given, now)

    def _want(self, worker: _Worker, now: float) -> Want:
        lent = now - worker.given_at < LENT_SECONDS
        waited = worker.waited if not worker.slots else now
        recent = worker.peak if now - worker.peak_at <= RECENT_SECONDS else 0
        return Want(worker.in_flight, worker.waiting, worker.slots, lent, waited, recent, worker.leaving)

    def _raise(self, targets: Mapping[str, int], now: float) -> list[Given]:
        """Gives out what is certainly free, first to whoever has least."""
        given: list[Given] = []
        free = self.total - self.held
        short = [name for name, slots in targets.items() if slots > self._workers[name].slots]
        for name in sorted(short, key=lambda name: (self._workers[name].slots, self._workers[name].waited)):
            worker = self._workers[name]
            more = min(targets[name] - worker.slots, free + max(0, worker.held - worker.slots))
            if more > 0:
                free -= max(0, worker.slots + more - worker.held)
                given.append(self._give(name, worker.slots + more, now))
        return given

    def _give(self, name: str, slots: int, now: float) -> Given:
        worker = self._workers[name]
        if not worker.slots and slots:
            worker.given_at = now
        if worker.slots and not slots:
            worker.waited = now
        worker.number += 1
        worker.slots = slots
        worker.held = max(worker.held, slots)
        worker.asked_at = now
        return Given(name, worker.number, slots)

    def _ask(self, wanting: list[str], given: list[Given], now: float) -> list[Given]:
        """Repeats what the others have, so that they say what they use: it may be less than is known."""
        if not any(self._workers[name].waiting for name in wanting):
            return []
        told = {one.worker for one in given}
        asked: list[Given] = []
        for name, worker in self._workers.items():
            fresh = now - max(worker.said_at, worker.asked_at) < FRESH_SECONDS
            if name not in wanting and name not in told and worker.slots and not fresh:
                worker.asked_at = now
                asked.append(Given(name, worker.number, worker.slots))
        return asked
