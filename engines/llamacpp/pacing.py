"""How a long prompt is read beside streams in few large pieces, while its readers see even streams. Pure: no model, no thread, no clock.

While prompts are read beside streams, a step may take `stall` times the usual. Deep in a prompt that is time for two to four tokens; each
costs two to four times what it costs among sixty-four, because llama.cpp's attention takes few tokens one by one. So where little fits into
a step, steps without prompt tokens are made instead. They end sooner than their tokens are due; the tokens are held back and handed out at
the pace at which they would have come (`Pacer.due`). What is ahead of the pace is time for a large piece (`Pacer.plan`): as it ends, the
next token is due. Streams are as even as with small pieces, and the prompt is read in half the time.

No token is held for longer than `hold` seconds, none that ends an answer is held at all, and none where no prompt is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from engines.llamacpp.scheduler import Allowance, Plan, StepCosts, Work, share

HOLD = 0.5
"""Seconds that a token may be held back, unless configured."""
FEW = 16
"""If a step has time for so many prompt tokens it reads them: more at once are hardly cheaper."""
PIECE = 64
"""Tokens that are worth waiting for otherwise: from there on llama.cpp's attention works on tiles of them, at half the cost of a token."""
MARGIN = 0.25
"""Share of the time ahead that is kept, because what a piece costs is an estimate and tokens that are late are noticed."""
PATIENT = 24
"""Steps in a row of which the prompt that has waited longest may get nothing."""

W = TypeVar("W", bound=Work)


class Pacer:
    """Plans steps, and says when their tokens are due. hold: seconds that a token may be held back; 0: none ever is."""

    def __init__(self, costs: StepCosts, hold: float = HOLD) -> None:
        self._costs = costs
        self._hold = hold if costs.least < FEW else 0.0
        self._pace = 0.0
        self._passed = 0

    def plan(self, running: Sequence[W], capacity: int, now: float) -> Plan[W]:
        """The next step. running: all that have a slot."""
        streams = [item for item in running if item.decoding and not item.paused]
        prompts = sum(not item.decoding for item in running)
        allowance = self._costs.allowance(capacity, len(streams), prompts)
        usual = self._costs.step(len(streams)) if streams and prompts else None
        if usual is None or allowance.seconds == math.inf or not self._hold:
            self._pace, self._passed = 0.0, 0
            return share(running, capacity, allowance)
        self._pace = usual + allowance.seconds
        ahead = max(0.0, min(item.due for item in streams) - now)
        plan = share(running, capacity, replace(allowance, seconds=allowance.seconds + ahead * (1 - MARGIN)))
        oldest = min((item for item in running if not item.decoding), key=lambda item: item.arrival)
        full = ahead + self._pace > self._hold
        if self._passed < PATIENT and not full:
            plan.prefill = [(item, count) for item, count in plan.prefill if count >= self._worth(item, allowance)]
        self._passed = 0 if any(item is oldest for item, _count in plan.prefill) else self._passed + 1
        return plan

    def _worth(self, work: Work, allowance: Allowance) -> int:
        """The least piece of this prompt that is not dear."""
        whole = min(work.prompt - work.done, work.largest_chunk)
        enough = FEW if allowance.fit(allowance.seconds, work.done, FEW) == FEW else PIECE
        return min(whole, enough, allowance.tokens)

    def due(self, work: Work, now: float) -> float:
        """When the next token of a stream, made `now`, is to be handed out. The first is at once."""
        work.due = min(max(now, work.due + self._pace), now + self._hold) if self._pace and work.due else now
        return work.due
