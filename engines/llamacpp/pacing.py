"""Reads a long prompt in few large pieces while other answers stream evenly. Pure: no model, no thread, no clock.

While a prompt is read beside streams, a step may take `stall` times as long as usual. Deep in a prompt, that is enough for two to four
prompt tokens, each of which costs up to four times what it would cost in a full tile of llama.cpp's attention (`scheduler.TILE`). So if
only few fit, steps are made without prompt tokens. These end before their tokens are due, so the tokens are held back and sent at the usual
pace (`Pacer.due`). Once enough time is saved, one step reads a large piece (`Pacer.plan`), which together with the streams' own tokens
fills a tile exactly, as one more token would cost a second tile. The streams stay as even as with small pieces, and the prompt is read in
half the time.

No token is held for longer than `hold` seconds, the last token of an answer is never held, and nothing is held while no prompt is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from engines.llamacpp.scheduler import Allowance, Plan, StepCosts, Work, share

HOLD = 1.0
"""Seconds that a token may be held back, unless configured."""
FEW = 16
"""If a step has time for so many prompt tokens it reads them: more at once are hardly cheaper."""
MARGIN = 0.6
"""Share of the time ahead that is kept, because what a piece costs is an estimate and tokens that are late are noticed."""
FULL_MARGIN = 0.1
"""The share that is kept once no more can be held: where this is too little for a piece, pieces would be smaller and dearer."""
STARVED = 3.0
"""After this many times `hold`, the prompt that has waited longest gets a piece even if no stream is ahead."""

W = TypeVar("W", bound=Work)


class Pacer:
    """Plans steps, and says when their tokens are due. hold: seconds that a token may be held back; 0: none ever is."""

    def __init__(self, costs: StepCosts, hold: float = HOLD) -> None:
        self._costs = costs
        self._hold = hold if costs.least < FEW else 0.0
        self._pace = 0.0
        self._served = -math.inf
        """When the prompt that has waited longest last got something, or reading began."""

    def plan(self, running: Sequence[W], capacity: int, now: float) -> Plan[W]:
        """The next step. running: all that have a slot."""
        streams = [item for item in running if item.decoding and not item.paused]
        prompts = [item for item in running if not item.decoding]
        count, depth, left = len(streams), max((item.done for item in prompts), default=0), sum(map(_readable, prompts))
        usual, extra = self._costs.step(count), self._costs.extra(count, len(prompts)) if streams and prompts else None
        if usual is None or extra is None or not self._hold:
            self._pace = 0.0
            return share(running, capacity, self._costs.allowance(capacity, count, len(prompts), depth, left))
        if not self._pace:
            self._served = now
        self._pace = usual + extra
        ahead = max(0.0, min(item.due for item in streams) - now)
        waited = now - self._served
        full, starved = ahead + self._pace > self._hold, waited > STARVED * self._hold
        seconds = extra + ahead * (1 - (FULL_MARGIN if full else MARGIN))
        whole = self._costs.piece(count)
        if whole > min(left, capacity - count):
            whole = 0
        size = self._costs.pieces(capacity, count, depth, seconds) if whole else 0
        if whole and not size and waited > self._hold:  # streams that have just begun, again and again, must not starve it
            furthest = max(item.due for item in streams) - now
            if self._costs.pieces(capacity, count, depth, self._hold if starved else extra + furthest * (1 - MARGIN)):
                size = whole
        if size:
            plan = share(running, capacity, Allowance(size))
        else:
            allowance = self._costs.allowance(capacity, count, len(prompts), depth, 0)
            plan = share(running, capacity, replace(allowance, seconds=seconds))
            if not (full or starved):
                plan.prefill = [(item, read) for item, read in plan.prefill if read >= self._worth(item, allowance, whole)]
        oldest = min(prompts, key=lambda item: item.arrival)
        if any(item is oldest for item, _count in plan.prefill):
            self._served = now
        return plan

    def _worth(self, work: Work, allowance: Allowance, whole: int) -> int:
        """The least piece of this prompt that is not dear. whole: tokens that fill a tile with the streams' own, if so many are left."""
        return min(_readable(work), FEW if allowance.fit(allowance.seconds, work.done, FEW) == FEW else whole or allowance.tokens)

    def due(self, work: Work, now: float) -> float:
        """When the next token of a stream, made `now`, is to be handed out. The first is at once."""
        work.due = min(max(now, work.due + self._pace), now + self._hold) if self._pace and work.due else now
        return work.due


def _readable(work: Work) -> int:
    """Tokens of its prompt that a step may read."""
    return min(work.prompt - work.done, work.largest_chunk)
