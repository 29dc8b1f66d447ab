"""How long the refusal of a login by password takes, so that its time does not tell whether there is such a user.

A directory hashes the password only where it knows the name, which may take it half a second, and cannot be made to hash for a name that
it does not know. So the gateway measures what checks of passwords take, and answers an unknown name as late as a wrong password: after a
time drawn from those of late, and no refusal at all before nearly all of these would be over. While little is known, refusals take
FIRST_SECONDS at least, whatever the reason.

Of each account only its newest check counts: nobody shapes the times by failing again and again with one name.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

ACCOUNTS: Final = 64
"""Whose newest check is remembered."""
ENOUGH: Final = 8
"""So many accounts say what is usual."""
FIRST_SECONDS: Final = 0.5
SHARE: Final = 0.95
"""Of the checks that are over when a refusal is answered."""


class Pace:
    """Of one directory, for one event loop. most: seconds that nothing exceeds. choose: draws one."""

    def __init__(self, most: float, choose: Callable[[Sequence[float]], float] | None = None) -> None:
        self._most, self._choose = most, choose or random.SystemRandom().choice
        self._wrong: OrderedDict[str, float] = OrderedDict()
        self._right: OrderedDict[str, float] = OrderedDict()

    def wrong(self, account: str, seconds: float) -> None:
        """The directory has checked a password of this account, which was wrong."""
        _note(self._wrong, account, seconds)

    def right(self, account: str, seconds: float) -> None:
        """It was right. That says less, because some directories hesitate before they refuse; it counts until there are enough others."""
        _note(self._right, account, seconds)

    def busy(self, seconds: float, checked: bool) -> float:
        """For how many seconds in all a refusal that took so long keeps its place among the logins. checked: a password was compared, or
        may have been."""
        known = self._known()
        return seconds if checked or not known else max(seconds, min(self._choose(known), self._most))

    def answer(self, busy: float) -> float:
        """After how many seconds in all it is answered. busy: what `busy` said."""
        known = sorted(self._known())
        if len(known) < ENOUGH:
            usual = max([FIRST_SECONDS, *known])
        else:
            usual = known[ceil(SHARE * len(known)) - 1]
        return max(busy, min(usual, self._most))

    def _known(self) -> list[float]:
        wrong = list(self._wrong.values())
        return wrong if len(wrong) >= ENOUGH else [*wrong, *self._right.values()]


def _note(known: OrderedDict[str, float], account: str, seconds: float) -> None:
    known[account] = seconds
    known.move_to_end(account)
    if len(known) > ACCOUNTS:
        known.popitem(last=False)
