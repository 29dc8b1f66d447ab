"""The conversation of one process with Redis about its limits; outlives Snapshots.

Requests of one turn of the loop go in one call, with the settlements that came before them; calls are pipelined. A request waits for its
answer for `patience` seconds at most. Then, and at once while Redis is known to be away, each of its limits says what happens
(gateway.limits.redis.away). Away is: a call had no answer in time, an error as its answer, or there is no connection. It is over once a
call without requests, of which one is under way at a time, was answered in time.

Nothing is lost or done twice: answers belong to calls in order; what a late answer admits is given back; settlements are repeated until an
answer says that they arrived, and the script does none twice. A new connection first tells what this process holds; older ones are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from gateway.core.errors import GatehouseError
from gateway.core.ports import Reservation
from gateway.core.types import Usage
from gateway.core.waiting import Signal
from gateway.limits import headers
from gateway.limits.exceeded import exceeded
from gateway.limits.redis.advance import Advance
from gateway.limits.redis.away import Outage, limits_unavailable
from gateway.limits.redis.bounds import AGAIN, HANGING, LONGEST_PROBE, LOOK, MOST_KEPT, MOST_WAITING, NOTE, PROBE, RENEW
from gateway.limits.redis.calls import HOLD, MOST_ASKED, MOST_KEYS, MOST_NOTES, Asked, Call, Note, Script, decoded, pots_of
from gateway.limits.redis.events import Events
from gateway.limits.redis.held import IN_HAND, Decision, Part, SharedHeld, add_unused, go_on, owed
from gateway.limits.redis.names import holder_of
from gateway.limits.redis.pot import SHORT, Pot
from gateway.limits.redis.refusals import as_before
from gateway.limits.redis.watch import Watch
from gateway.transport.redis.connection import Connection, Unreachable
from gateway.transport.redis.resp import RedisError, word_of


class SharedLimits:
    """See the module. key: of a process, by the name that this one gives itself. patience: in seconds. parts: how many processes share
    the limits. soon, later: the loop's call_soon and call_later. hold: microseconds for which a slot is this process's without being
    renewed, which happens every `renew` seconds. replica: whose process this is; `who`: what it calls itself. learn: hears what a request
    used, with its model and the first guess at its prompt. noted: hears of each limit that would have refused a request if it were
    enforced. spent: hears of each bucket that says that more of its budget is used than before, with the time by the clock of Redis."""

    def __init__(
        self,
        key: Callable[[str], bytes],
        patience: float,
        events: Events,
        parts: Callable[[], int],
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], object],
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        script: Script | None = None,
        hold: int = HOLD,
        renew: float = RENEW,
        replica: str = "",
        learn: Callable[[str, int, Usage], None] | None = None,
        noted: Callable[[str], None] | None = None,
        spent: Callable[[Pot, int], None] | None = None,
    ) -> None:
        self._learn, self._unenforced, self._spent = learn, noted, spent
        self._key, self._events, self._lasts, self._renews = key, events, hold, renew
        self._patience = int(patience * 1_000_000)
        self._soon, self._later = soon, later
        clock = clock or SystemClock()
        self._monotonic = clock.monotonic
        self._ahead = int((clock.wall() - clock.monotonic()) * 1_000_000)
        self._entropy = entropy or SystemEntropy()
        self._script = script or Script.of()
        self._replica = replica
        self._name()
        self.outage = Outage(self, parts)
        self.advance = Advance(self._stir, later, self.now)
        self._line: Connection | None = None
        self.up = False
        self._epoch = self._number = self._calls = 0
        self._back_at = 0
        self._wanted: list[Asked] = []
        self._notes: deque[Note] = deque()
        self._sent: deque[Call] = deque()
        self._again: deque[tuple[int, list[Note]]] = deque()
        self._told: dict[Pot, None] = {}
        self._waiting = 0
        self._pause = PROBE
        self._flushing = self._noting = self._renewing = self._probing = False
        self._watch = Watch(later, self.now, self._looked)
        self.asked = self.called = self.late = self.dropped = 0
        """Requests asked for, calls sent, calls without an answer in time, settlements dropped."""
        self.outage.begin()

    @property
    def line(self) -> Connection | None:
        """The connection on which Redis answers in time, if there is one."""
        return self._line if self.up else None

    @property
    def busy(self) -> bool:
        """Whether Redis has still to hear something, and can."""
        return self.up and bool(self._sent or self._notes or self._wanted)

    def pinned(self) -> set[Pot]:
        """Pots of which something is still to be said: they may not be forgotten (`pots_of` says why)."""
        notes = [note for _, again in self._again for note in again]
        return pots_of(self._sent, self._wanted, (*notes, *self._notes)) | {*self.outage.pots(), *self.advance.pots()}

    def finish(self) -> None:
        """Sends what waits to be sent."""
        self._flush()

    def _name(self) -> None:
        """A name that no process ever had."""
        self.who = self._entropy.bytes(8).hex()
        self._process, self._holder = word_of(self._key(self.who)), holder_of(self._replica, self.who)

    # --- asking and settling

    def now(self) -> int:
        return int(self._monotonic() * 1_000_000)

    def redis_now(self) -> int:
        """Microseconds since the epoch by the clock of Redis, as far as it is known here."""
        return self.now() + self._ahead

    def ask(self, asked: Asked) -> Signal[Reservation] | SharedHeld:
        """The reservation, or what completes with it. Raises or fails with LimitExceeded, Overloaded."""
        now = self.now()
        if asked.leased and (parts := self.advance.parts(asked, now)) is not None:
            return self._held(asked, parts, self.advance.given_at(asked), asked.would, IN_HAND)
        if not self.up:
            return self._alone(asked, now)
        for index, pot in enumerate(asked.pots):
            if now < pot.short_until and pot.shape.enforce and pot.hopeless(asked.ticks[index]):
                error = as_before(asked, now)
                if error is not None:
                    raise error
        if self._waiting >= MOST_WAITING:
            raise limits_unavailable()
        signal: Signal[Reservation] = Signal()
        asked.signal = signal
        self._waiting += 1
        self._wanted.append(asked)
        if asked.leased:
            self.advance.asking(asked)
        self._stir()
        return signal

    def _stir(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._soon(self._flush)

    def settle(self, held: SharedHeld, usage: Usage | None) -> None:
        """Ends a reservation; called once for each by the reservation itself. usage: None for what was not served."""
        asked = held.amounts
        if usage is not None and self._learn is not None:
            self._learn(asked.model, asked.raw, usage)
        here = held.outage > 0 and held.outage == self.outage.number and not self.outage.over
        taken_at = held.taken_at or self._back_at
        for part in held.parts:
            pot = part.pot
            pot.in_use -= 1
            pot.short_until = 0
            amounts = owed(part, usage, asked.currency, here)
            if held.outage == IN_HAND and amounts:
                amounts = self.advance.settle(pot, amounts)
            slots = 1 if pot.shape.concurrent else 0
            if here:
                if part.ticks is not None:
                    self.outage.settle(pot, amounts, self.now())
            elif slots or any(amounts):
                self._note(Note(pot, taken_at, slots, amounts or [0] * len(part.units)))

    def _note(self, note: Note) -> None:
        self._notes.append(note)
        if len(self._notes) > MOST_KEPT:
            self._notes.popleft()
            self.dropped += 1
        if self.up and not self._noting:
            self._noting = True
            self._later(NOTE, self._noted)

    def _noted(self) -> None:
        self._noting = False
        if self._notes and self.up:
            self._flush()

    # --- calls

    def _flush(self) -> None:
        self._flushing = False
        wanted, self._wanted = self._wanted, []
        place = 0
        while self.up and (place < len(wanted) or self._notes or self.advance.waiting):
            call = self._with_notes()
            while place < len(wanted) and len(call.asked) < MOST_ASKED and call.keys < MOST_KEYS:
                call.ask(wanted[place])
                place += 1
            if not self.advance.into(call, self.now()):
                break
            self._send(call)
        if place < len(wanted):
            self._decide_here(wanted[place:])

    def _call(self, number: int = 0) -> Call:
        self._calls += 1
        return Call(self._calls, number)

    def _with_notes(self) -> Call:
        call, notes = self._call(), self._notes
        if notes:
            self._number += 1
            call.number = self._number
            for _ in range(min(len(notes), MOST_NOTES)):
                call.note(notes.popleft())
        return call

    def _send(self, call: Call) -> None:
        line = self._line
        assert line is not None
        for asked in call.asked:
            for pot in asked.pots:
                pot.asked += 1
            self._tell(asked.pots)
        call.encode(self.who, self._epoch, self._process, self._holder, self._lasts)
        call.sent_at = self.now()
        call.deadline = call.sent_at + self._patience
        for asked in call.asked:  # one that is asked again has no more time for it
            asked.deadline = asked.deadline or call.deadline
            call.deadline = min(call.deadline, asked.deadline)
        self.called += 1
        self.asked += len(call.asked)
        self._sent.append(call)
        self._watch.by(call.deadline)
        line.send(call.command(self._script), self._replied)
        if line.clogged:
            self._away("it does not read what it is sent")

    # --- answers

    def _replied(self, reply: Any) -> None:
        """An answer to the oldest call that is under way, or the end of the connection."""
        call = self._sent.popleft()
        if isinstance(reply, Unreachable):
            self._unanswered(call)
            return
        if isinstance(reply, RedisError):
            self._refused(call, reply)
            return
        found = decoded(reply, call)
        if found is None:
            self._unanswered(call)
            self._give_up("what it answers cannot be read")
            return
        self._ahead = found[0] - self.now()
        if call.asked or call.takes:
            self._decided(call, found)
        if not self.up and not self._sent:
            if not call.asked and self.now() <= call.deadline:
                self._come_back(found[0])
            elif call.asked:
                self._probe()
            else:
                self._probe_later()

    def _decided(self, call: Call, found: list[int]) -> None:
        """Everything is noted before the first request goes on."""
        now, ours, place = found[0], self.now(), 1
        done: list[Decision] = []
        unused: dict[Pot, Note] = {}
        for asked in call.asked:
            admitted, signal = found[place] == 1, asked.signal
            place += 1
            parts: list[Part] = []
            would = asked.would
            for index, pot in enumerate(asked.pots):
                ticks = asked.ticks[index]
                flags, after = found[place], place + 2 + len(ticks)
                pot.asked -= 1
                pot.heard(ours, flags, found[place + 1], found[place + 2 : after])
                if pot.terms.budget_at >= 0 and pot.nearly_spent() and self._spent is not None:
                    self._spent(pot, now)
                if flags < SHORT:
                    parts.append(Part(pot, asked.units[index], ticks))
                elif admitted:
                    would = [*would, pot.shape.name]
                place = after
            if signal is None:  # it was too late
                if admitted:
                    add_unused(unused, parts, now)
                continue
            self._waiting -= 1
            if admitted:
                done.append((signal, self._held(asked, parts, now, would), None))
            else:
                for pot, ticks in zip(asked.pots, asked.ticks, strict=True):
                    pot.refused(ticks)
                done.append((signal, None, exceeded(asked.pots, asked.units, 0)))
        for note in unused.values():
            self._note(note)
        self.advance.answered(call, found, place, ours)
        for decision in done:
            go_on(*decision)

    def _held(self, asked: Asked, parts: list[Part], now: int, would: list[str], outage: int = 0) -> SharedHeld:
        for part in parts:
            part.pot.in_use += 1
        if would and self._unenforced is not None:
            for name in would:
                self._unenforced(name)
        shown = headers.line(asked.pots[0], 0) if len(asked.pots) == 1 else headers.lines(asked.pots, 0)
        return SharedHeld(self, asked.amounts, parts, now, outage, shown, tuple(would))

    def _refused(self, call: Call, error: RedisError) -> None:
        """An error as the answer: nothing of the call was done."""
        if error.code == "NOSCRIPT" and not call.tries and self._line is not None:
            call.tries = 1
            if call.number:  # calls with later numbers come before it, and may be done by then
                call.number = self._number = self._number + 1
                call.encode(self.who, self._epoch, self._process, self._holder, self._lasts)
            self._sent.append(call)
            self._line.send(call.command(self._script), self._replied)
            return
        self._notes.extendleft(reversed(call.notes))
        call.number = 0
        if error.code == "TRYAGAIN" and self.up and self.now() + AGAIN < call.deadline:
            self._ask_again(call)
            return
        self._away(str(error))
        self._unanswered(call)
        if error.code == "STALE":
            self._name()
        if not self._events.moved(error):
            self._probe_later()

    def _ask_again(self, call: Call) -> None:
        """The keys of a call are on two servers of a Redis Cluster for the moment: nothing of it was done."""
        self.advance.unanswered(call)
        for asked in call.asked:
            for pot in asked.pots:
                pot.asked -= 1
        self._wanted[:0] = [asked for asked in call.asked if asked.signal is not None]
        if not self._flushing:
            self._flushing = True
            self._later(AGAIN / 1_000_000, self._flush)

    def _unanswered(self, call: Call) -> None:
        """Nobody knows whether it was carried out. The notes are sent again; what it may have admitted stays charged."""
        if call.number:
            self._again.append((call.number, call.notes))
        for asked in call.asked:
            for pot in asked.pots:
                pot.asked -= 1
        self.advance.unanswered(call)
        self._decide_here(call.asked)

    def _decide_here(self, wanted: Sequence[Asked]) -> None:
        """Without Redis, as each limit says."""
        self.outage.begin()
        now = self.now()
        for asked in wanted:
            signal, asked.signal = asked.signal, None
            if signal is None:
                continue
            self._waiting -= 1
            try:
                go_on(signal, self._alone(asked, now), None)
            except GatehouseError as error:
                go_on(signal, None, error)

    def _alone(self, asked: Asked, now: int) -> SharedHeld:
        held = self.outage.decide(asked, now)
        self._tell(asked.pots)
        if held.not_enforced and self._unenforced is not None:
            for name in held.not_enforced:
                self._unenforced(name)
        return held

    def _tell(self, pots: tuple[Pot, ...]) -> None:
        """Redis knows from now on, or will, that this process holds slots of these."""
        for pot in pots:
            if pot.shape.concurrent and not pot.told:
                pot.told = True
                self._told[pot] = None
                if not self._renewing:
                    self._renewing = True
                    self._later(self._renews, self._renew)

    # --- up and away

    def connected(self, line: Connection) -> None:
        """There is a new connection."""
        self._line = line
        self._epoch += 1
        self._pause = PROBE
        self._probe()

    def disconnected(self, error: Exception) -> None:
        """It is lost, or none came about."""
        self._line = None
        self._away(str(error))

    def _away(self, why: str) -> None:
        self.up = False
        self.outage.begin()
        self._events.lost(why)

    def _give_up(self, why: str) -> None:
        """The connection is of no use."""
        self._away(why)
        if self._line is not None:
            self._line.lose(Unreachable(why))

    def _probe_later(self) -> None:
        if not self._probing and self._line is not None:
            self._probing = True
            pause, self._pause = self._pause, min(LONGEST_PROBE, 2 * self._pause)
            self._later(pause * (0.5 + self._entropy.uniform() / 2), self._probe_due)

    def _probe_due(self) -> None:
        self._probing = False
        if not self.up and not self._sent:
            self._probe()

    def _probe(self) -> None:
        """A call without requests: shows whether Redis answers in time, and takes writes."""
        if self._line is not None:
            self._send(self._call())

    def _come_back(self, now: int) -> None:
        """Redis hears first what has happened without it: settlements, what was admitted here, and which slots are held."""
        self._back_at = now
        self._notes.extend(self.outage.end(self.now(), now))
        again, self._again = self._again, deque()
        for number, notes in again:
            call = self._call(number)
            for note in notes:
                call.note(note)
            self._send(call)
        while self._notes:
            self._send(self._with_notes())
        call = self._call()
        if self.advance.tell(call, self.now()):
            self._send(call)
        self._hold(whole=True)
        if self._line is not None and not self._line.clogged:
            self.up, self._pause = True, PROBE
            self._events.back()

    def _renew(self) -> None:
        """Slots that nobody renews come back."""
        self._renewing = False
        if self.up:
            self._hold(whole=False)
        if self._told:
            self._renewing = True
            self._later(self._renews, self._renew)

    def _hold(self, whole: bool) -> None:
        pots = list(self._told)
        for first in range(0, len(pots), MOST_NOTES):
            call = self._call()
            for pot in pots[first : first + MOST_NOTES]:
                held = pot.in_use + pot.asked
                call.hold(pot, held if whole else pot.in_use, whole or not held)
                if not held:
                    pot.told = False
                    del self._told[pot]
            self._send(call)

    def _looked(self) -> None:
        """Some call is due. Its answer may have come and not been read yet, if this process was busy: then it is read first."""
        if any(call.deadline <= self.now() for call in self._sent):
            self._later(0.001, self._judge)
        else:
            self._look_again()

    def _look_again(self) -> None:
        """The answers under way are due one after the other; a connection that hangs is looked at now and then."""
        now = self.now()
        due = [call.deadline for call in self._sent if call.deadline > now]
        self._watch.again(min(due) if due else now + LOOK if self._sent else 0)

    def _judge(self) -> None:
        now = self.now()
        for call in list(self._sent):
            if call.deadline <= now and not call.overdue:
                call.overdue = True
                self.late += 1
                self._away("it does not answer in time")
                self._decide_here(call.asked)
        if self._sent and self._sent[0].deadline + HANGING <= now:
            self._give_up("it has not answered for a long time")
        self._look_again()
