"""One call of the script (gateway.limits.redis.script): gathered, encoded, and its answer read. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from gateway.core.ports import Reservation
from gateway.core.waiting import Signal
from gateway.limits.bucket import Amounts
from gateway.limits.redis.hand import KEPT
from gateway.limits.redis.pot import Pot
from gateway.limits.redis.script import LUA, SHA
from gateway.transport.redis.resp import word_of

MOST_ASKED: Final = 256
"""Requests in one call: Redis does nothing else meanwhile."""
MOST_KEYS: Final = 1000
MOST_NOTES: Final = 500
HOLD: Final = 10_000_000
"""Microseconds for which a slot is a process's without being renewed."""
LATEST: Final = 250_000_000_000_000_000
"""What no clock shows: microseconds since the epoch in the year 9892. Later there are no windows of the calendar."""
MOST_SAID: Final = 1 << 62
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(list[int]).decode


class Asked:
    """A request that Redis decides. units: what it costs, for each amount of each bucket; ticks: the same as Redis counts it. would: limits
    that would refuse it if they were enforced. signal: None once it was decided otherwise. leased: shares in hand may decide it. deadline:
    of its first call, in microseconds of our own clock."""

    __slots__ = ("amounts", "deadline", "leased", "pots", "signal", "ticks", "units", "would")

    def __init__(
        self,
        pots: tuple[Pot, ...],
        units: list[list[int]],
        ticks: list[list[int]],
        amounts: Amounts,
        would: list[str],
        leased: bool = False,
    ) -> None:
        self.pots, self.units, self.ticks, self.amounts, self.would = pots, units, ticks, amounts, would
        self.leased, self.deadline = leased, 0
        self.signal: Signal[Reservation] | None = None


class Note(NamedTuple):
    """Something to be charged (or given back, below 0) without a question. slots: to be given back; below 0, it was admitted without Redis
    by one of so many processes, and time has refilled it here since `taken_at`. late: Redis admitted it too late for anybody to use."""

    pot: Pot
    taken_at: int
    slots: int
    amounts: list[int]
    late: bool = False


class Take(NamedTuple):
    """A share of a bucket that is asked for. turn: of the pot, when it was; batch: for how many requests it is; rest: what stays in hand;
    back: what is given back; wanted: in ticks."""

    pot: Pot
    turn: int
    batch: int
    rest: list[int]
    back: list[int]
    wanted: list[int]


class Script(NamedTuple):
    """The script as words of commands: by its hash, and whole."""

    by_hash: bytes
    whole: bytes

    @classmethod
    def of(cls, text: bytes = LUA, sha: str = SHA) -> Script:
        return cls(word_of(b"EVALSHA") + word_of(sha.encode()), word_of(b"EVAL") + word_of(text))


class Call:
    """Filled by `ask`, `note`, `hold` and `take`, then encoded once. pots: all that it is about. number: of its notes; 0 for none.
    sent_at, deadline: microseconds of our own clock. overdue: it has passed."""

    __slots__ = (
        "_asks",
        "_holds",
        "_notes",
        "_takes",
        "_words",
        "asked",
        "body",
        "deadline",
        "id",
        "notes",
        "number",
        "overdue",
        "pots",
        "sent_at",
        "takes",
        "tries",
    )

    def __init__(self, id: int, number: int = 0) -> None:
        self.id, self.number = id, number
        self.asked: list[Asked] = []
        self.notes: list[Note] = []
        self.pots: list[Pot] = []
        self._asks: list[int] = []
        self._notes: list[int] = []
        self._holds: list[int] = []
        self._takes: list[int] = []
        self.takes: list[Take] = []
        self.body = b""
        self._words = 0
        self.tries = self.deadline = self.sent_at = 0
        self.overdue = False

    @property
    def keys(self) -> int:
        return len(self.pots)

    def _index(self, pot: Pot) -> int:
        if pot.call != self.id:
            self.pots.append(pot)
            pot.call, pot.index = self.id, len(self.pots)
        return pot.index

    def ask(self, asked: Asked) -> None:
        flat = self._asks
        self.asked.append(asked)
        flat.append(len(asked.pots))
        for index, pot in enumerate(asked.pots):
            flat.append(self._index(pot))
            flat += asked.ticks[index]

    def note(self, note: Note) -> None:
        self.notes.append(note)
        self._notes += (self._index(note.pot), -note.taken_at if note.late else note.taken_at, note.slots)
        self._notes += note.amounts

    def hold(self, pot: Pot, slots: int, whole: bool) -> None:
        """Renews what the process holds of a bucket. whole: it is exactly that, whatever Redis believes; otherwise at least that."""
        self._holds += (self._index(pot), slots, 1 if whole else 0)

    def take(self, take: Take) -> None:
        self.takes.append(take)
        self._takes += (self._index(take.pot), take.batch)
        for index, rest in enumerate(take.rest):
            self._takes += (rest, take.back[index], take.wanted[index])

    def encode(self, who: str, epoch: int, process: bytes, holder: bytes, hold: int = HOLD) -> None:
        """process: the word of the process's key. holder: this process, as what it took of budgets names it."""
        budgets: list[int] = []
        wires, words, took = [], [process], []
        for index, pot in enumerate(self.pots, 1):
            terms = pot.terms
            wires.append(terms.wire)
            words.append(pot.word)
            if terms.budget_at >= 0:
                budgets += (index, terms.budget_at + 1)
                took.append(pot.took_by(holder))
        argument = _ENCODE([who, epoch, self.number, hold, wires, self._notes, self._holds, self._asks, self._takes, KEPT, budgets])
        words += took
        self._words = len(words) + 4
        self.body = b"".join((word_of(b"%d" % len(words)), *words, word_of(argument)))

    def command(self, script: Script) -> bytes:
        """What is sent: by the hash at first, whole if Redis does not know it."""
        return b"*%d\r\n%b%b" % (self._words, script.whole if self.tries else script.by_hash, self.body)


def pots_of(calls: Iterable[Call], wanted: Iterable[Asked], notes: Iterable[Note]) -> set[Pot]:
    """All that these are about. None of them may be forgotten: its successor's requests might go into one call with the settlements of the
    former one, and of two pots with one key Redis would write what was charged to the last."""
    found = {note.pot for note in notes}
    for call in calls:
        found.update(call.pots)
    for asked in wanted:
        found.update(asked.pots)
    return found


def decoded(reply: Any, call: Call) -> list[int] | None:
    """The answer as a flat list; None for what is none, or has numbers that the script never says."""
    if not isinstance(reply, bytes):
        return None
    try:
        found = _DECODE(reply)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    length = 1 + sum(1 + sum(2 + len(ticks) for ticks in asked.ticks) for asked in call.asked)
    length += sum(2 * len(take.rest) for take in call.takes)
    fine = len(found) == length and 0 < found[0] < LATEST and min(found) >= 0 and max(found) <= MOST_SAID
    return found if fine else None
