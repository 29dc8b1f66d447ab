"""The slots of every process of every engine, shared among the data workers: the ledgers (gateway.routing.slots) and their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gateway.core.messages import Message
from gateway.core.slices import Steps
from gateway.routing import mirror_messages as m
from gateway.routing.scheduler import Scheduler
from gateway.routing.slots import LENT_SECONDS, Given, Held, Ledger

JOIN_SECONDS: Final = 10.0
"""How long the slots of a worker that is expected are kept for it."""


class SlotMarket:
    """Control process only. tell: (worker, message)."""

    def __init__(self, tell: Callable[[str, Message], None], now: Callable[[], float], scheduler: Scheduler) -> None:
        self._tell, self._now, self._scheduler = tell, now, scheduler
        self._ledgers: dict[str, dict[str, Ledger]] = {}
        """Engine -> address -> the ledger of the process there."""
        self._lent: dict[tuple[str, str], None] = {}
        """Where a slot is lent and has to go on when its time is over."""
        self._restless: dict[tuple[str, str], None] = {}
        """Where time alone may move slots; of ten thousand engines, few."""
        self._due = False
        self._before: dict[tuple[str, str, str], Held] = {}
        """(engine, address, worker) -> what an earlier control process gave; until the ledger there begins."""
        self._expected: set[str] = set()
        """Workers of an earlier control process that have not joined yet: their slots are theirs meanwhile."""

    # --- workers

    @property
    def engines(self) -> set[str]:
        return set(self._ledgers)

    def join(self, worker: str) -> None:
        now = self._now()
        self._expected.discard(worker)
        for engine, address, ledger in self._all():
            if ledger.given(worker) is None:
                given = ledger.join({worker: None}, now)
                self._send(engine, address, ledger, [one for one in given if one.worker != worker])

    def leave(self, worker: str) -> None:
        now = self._now()
        for engine, address, ledger in self._all():
            self._send(engine, address, ledger, ledger.leave(worker, now))

    def gone(self, worker: str) -> None:
        now = self._now()
        self._before = {key: held for key, held in self._before.items() if key[2] != worker}
        self._expected.discard(worker)
        for engine, address, ledger in self._all():
            self._send(engine, address, ledger, ledger.gone(worker, now))

    def of(self, worker: str, only: Sequence[str] | None = None) -> list[m.SlotsGiven]:
        """Everything that a worker was given; only: of these engines."""
        return [
            m.SlotsGiven(engine, address, given.number, given.slots)
            for engine, address, ledger in (self._all() if only is None else self._all_of(only))
            if (given := ledger.given(worker)) is not None
        ]

    def hand_over(self) -> list[m.SlotsHeld]:
        """What every worker was given, for the control process that takes this one's place."""
        return [
            m.SlotsHeld(engine, address, worker, held.number, held.slots, held.held)
            for engine, address, ledger in self._all()
            for worker, held in ledger.holding().items()
        ]

    def take_over(self, handed: Iterable[m.SlotsHeld]) -> None:
        """What workers that will `join` were given by the control process before this one. Whoever has not joined soon is dead."""
        for one in handed:
            self._before[one.engine, one.address, one.worker] = Held(one.number, one.slots, one.held)
            self._expected.add(one.worker)
        now = self._now()
        for engine, address, ledger in self._all():
            self._send(engine, address, ledger, ledger.join(self._claims(engine, address, ()), now))
        self._scheduler.later(JOIN_SECONDS, self._give_up)

    def _give_up(self) -> None:
        for worker in list(self._expected):
            self.gone(worker)

    # --- engines

    def sync(self, engine: str, totals: Mapping[str, int], workers: Iterable[str]) -> None:
        """The engine has processes at these addresses, with so many slots each."""
        now = self._now()
        known = self._ledgers.pop(engine, {})
        if totals:
            kept = self._ledgers[engine] = {address: ledger for address, ledger in known.items() if address in totals}
            for address, total in totals.items():
                ledger = kept.get(address)
                if ledger is None:
                    ledger = kept[address] = Ledger(total)
                    self._send(engine, address, ledger, ledger.join(self._claims(engine, address, workers), now))
                else:
                    self._send(engine, address, ledger, ledger.resize(total, now))

    def used(self, worker: str, use: m.SlotsUse) -> None:
        """A worker says what it uses."""
        if (ledger := self._ledgers.get(use.engine, {}).get(use.address)) is not None:
            self._send(use.engine, use.address, ledger, ledger.used(worker, use.number, use.in_flight, use.waiting, self._now()))

    def seen(self, worker: str, use: m.EndpointUse) -> None:
        """A worker's report at intervals: what it uses of its only process; with two, `used` alone tells them apart."""
        ledgers = self._ledgers.get(use.endpoint, {})
        if len(ledgers) == 1:
            for address, ledger in ledgers.items():
                self._send(use.endpoint, address, ledger, ledger.used(worker, -1, use.in_flight, use.waiting, self._now()))

    @property
    def restless(self) -> int:
        """How many `look` looks at."""
        return len(self._restless)

    def look(self) -> Steps[None]:
        """Moves what is due."""
        restless, self._restless = self._restless, {}
        for engine, address in restless:
            if (ledger := self._ledgers.get(engine, {}).get(address)) is not None:
                self._send(engine, address, ledger, ledger.look(self._now()))
            yield

    def _claims(self, engine: str, address: str, workers: Iterable[str]) -> dict[str, Held | None]:
        """These workers and those that are expected, with what each has there already."""
        return {worker: self._before.pop((engine, address, worker), None) for worker in {*workers, *self._expected}}

    def _all(self) -> list[tuple[str, str, Ledger]]:
        return [(engine, address, ledger) for engine, ledgers in self._ledgers.items() for address, ledger in ledgers.items()]

    def _all_of(self, engines: Sequence[str]) -> list[tuple[str, str, Ledger]]:
        return [(engine, address, ledger) for engine in engines for address, ledger in self._ledgers.get(engine, {}).items()]

    def _send(self, engine: str, address: str, ledger: Ledger, given: list[Given]) -> None:
        for one in given:
            self._tell(one.worker, m.SlotsGiven(engine, address, one.number, one.slots))
        if given or not ledger.settled(self._now()):
            self._restless[engine, address] = None
        if ledger.scarce:
            self._lent[engine, address] = None
            if not self._due:
                self._due = True
                self._scheduler.later(LENT_SECONDS, self._lent_out)

    def _lent_out(self) -> None:
        self._due = False
        lent, self._lent = self._lent, {}
        for engine, address in lent:
            if (ledger := self._ledgers.get(engine, {}).get(address)) is not None:
                self._send(engine, address, ledger, ledger.look(self._now()))
