"""The shares of rates that a process has in hand (`precision: leased`): taken in the calls that decide requests, and used without one.

A share is about as much as this process used in the last 50 to 250 ms, and never more than half of what is left in the bucket, divided by
the processes that hold one. A bucket that is rarely asked for is decided by Redis, as exactly as ever. What is in hand and not used for
100 ms is given back. While Redis is away it can be used until it expires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.limits.redis.calls import MOST_KEYS, Asked, Call, Take
from gateway.limits.redis.hand import LIFE
from gateway.limits.redis.held import Part
from gateway.limits.redis.pot import Pot

LOOK: Final = 0.1
"""Seconds between two looks at what is in hand."""
MORE, EXCHANGE, RETURN, TELL = 0, 1, 2, 3
"""What is asked of Redis: more; what is in hand back for another share; it back; nothing, only that it knows what is in hand."""


class Advance:
    """stir: sees to it that a call is sent soon. later: the loop's call_later. now: microseconds of our own clock."""

    def __init__(self, stir: Callable[[], None], later: Callable[[float, Callable[[], None]], object], now: Callable[[], int]) -> None:
        self._stir, self._later, self._now = stir, later, now
        self._wanted: dict[Pot, int] = {}
        self._held: dict[Pot, None] = {}
        self._looking = False
        self.decided = 0
        """Requests that were decided from what was in hand."""

    @property
    def waiting(self) -> bool:
        """Whether Redis is to be asked."""
        return bool(self._wanted)

    def parts(self, asked: Asked, now: int) -> list[Part] | None:
        """What a request takes from the shares in hand, of all its buckets; None if one does not suffice."""
        pots, ticks = asked.pots, asked.ticks
        for index, pot in enumerate(pots):
            hand = pot.hand
            if hand is None or not hand.covers(now, ticks[index]):
                return None
        self.decided += 1
        parts: list[Part] = []
        for index, pot in enumerate(pots):
            hand = pot.hand
            assert hand is not None
            if hand.use(ticks[index]) and not hand.under_way:
                self._want(pot, MORE)
            pot.show_hand()
            parts.append(Part(pot, asked.units[index], ticks[index]))
        return parts

    def given_at(self, asked: Asked) -> int:
        """Since when Redis counts what `parts` took, by its clock: a bucket that was full after that owes nothing for it any more."""
        found = 0
        for pot in asked.pots:
            hand = pot.hand
            if hand is not None and (not found or hand.given_at < found):
                found = hand.given_at
        return found

    def asking(self, asked: Asked) -> None:
        """A request goes to Redis, which gives a share with the answer. What does not suffice goes back, so that it may be enough there."""
        for index, pot in enumerate(asked.pots):
            hand = pot.hand
            if hand is not None:
                hand.asking(asked.ticks[index])
                if not hand.under_way:
                    self._wanted[pot] = EXCHANGE

    def settle(self, pot: Pot, amounts: list[int]) -> list[int]:
        """Ends a reservation from a share; what of it Redis must be told."""
        return amounts if pot.hand is None else pot.hand.correct(self._now(), amounts)

    def _want(self, pot: Pot, what: int) -> None:
        if pot not in self._wanted:
            self._wanted[pot] = what
            self._stir()

    def pots(self) -> list[Pot]:
        """Of what something is in hand, or asked for."""
        return [*self._wanted, *self._held]

    # --- calls

    def into(self, call: Call, now: int) -> bool:
        """Adds to a call what Redis is to be asked; whether there is anything in it."""
        while self._wanted and call.keys < MOST_KEYS:
            pot = next(iter(self._wanted))
            self._take(call, pot, self._wanted.pop(pot), now)
        return bool(call.asked or call.notes or call.takes)

    def tell(self, call: Call, now: int) -> bool:
        """There is a new connection, perhaps to a Redis that has forgotten what is in hand."""
        for pot in list(self._held):
            if call.keys < MOST_KEYS:
                self._take(call, pot, TELL, now)
        return bool(call.takes)

    def _take(self, call: Call, pot: Pot, what: int, now: int) -> None:
        hand = pot.hand
        if hand is None or hand.under_way:
            return
        if now >= hand.until:
            hand.drop()
        if what <= EXCHANGE:
            hand.pace(now)
        batch = hand.batch if what <= EXCHANGE else 0
        if not (batch or hand.known or what == TELL):
            return
        count = len(hand.amounts)
        back = [0] * count
        if what in (EXCHANGE, RETURN):
            back = hand.amounts
            hand.amounts = [0] * count
        wanted = [max(0, batch * mean - left) for mean, left in zip(hand.mean, hand.amounts, strict=True)]
        hand.told()
        call.take(Take(pot, pot.turn, batch, list(hand.amounts), back, wanted))

    def answered(self, call: Call, found: list[int], place: int, now: int) -> None:
        """What Redis gave, from this place of its answer on."""
        for take in call.takes:
            pot = take.pot
            count = len(take.rest)
            given, debts = found[place : place + count], found[place + count : place + 2 * count]
            place += 2 * count
            hand = pot.hand
            if hand is None:
                continue
            hand.under_way = False
            if pot.turn != take.turn:
                continue
            pot.debts, pot.seen = debts, now
            hand.known = any(given) or any(take.rest)
            until = call.sent_at + LIFE
            if now < until:
                hand.given(until, found[0], given)
            else:  # it came too late to be used; Redis counts it as out for a moment, and then lets the bucket refill
                hand.drop()
            if hand.known:
                self._look_later(pot)

    def unanswered(self, call: Call) -> None:
        """It is unknown whether Redis ran the call, so neither what it may have given nor what was to go back is used."""
        for take in call.takes:
            if take.pot.hand is not None:
                take.pot.hand.under_way = False

    # --- what is not used

    def _look_later(self, pot: Pot) -> None:
        self._held[pot] = None
        if not self._looking:
            self._looking = True
            self._later(LOOK, self._look)

    def _look(self) -> None:
        self._looking = False
        now = self._now()
        for pot in list(self._held):
            hand = pot.hand
            if hand is None or not hand.known or (now >= hand.until and not hand.under_way):
                if hand is not None:
                    hand.drop()
                    hand.known = False
                del self._held[pot]
            elif hand.touched:
                hand.touched = False
            elif not hand.under_way:
                self._want(pot, RETURN)
        if self._held:
            self._looking = True
            self._later(LOOK, self._look)
