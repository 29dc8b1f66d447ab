"""Budgets in Redis that are nearly spent: told of once in a window, by one of the processes that share them.

A process that hears of a share asks Redis whether it has been told of already, on its connection and beside the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gateway.limits.redis.names import Names
from gateway.limits.redis.pot import Pot
from gateway.transport.redis.connection import Connection
from gateway.transport.redis.resp import command

Told = Callable[[str, tuple[str, ...], int], None]
"""Hears of a limit, whose bucket it is, and the share in percent."""
TELL: Final = b"""
local told = redis.pcall('GET', KEYS[1])
if type(told) == 'string' and (tonumber(told) or 0) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
"""1 if nobody has announced this share or a higher one yet. ARGV: percent; milliseconds to remember it."""


class BudgetAlerts:
    """line: the present connection, None while there is none."""

    def __init__(self, names: Names, told: Told, line: Callable[[], Connection | None]) -> None:
        self._names, self._told, self._line = names, told, line

    def crossed(self, pot: Pot, now: int) -> None:
        """A bucket says for the first time here that so much of a budget is used. now: by the clock of Redis, in microseconds."""
        line, share = self._line(), pot.share
        window = pot.window(now)
        if line is None or window <= 0:
            pot.share = 0
            return

        def replied(reply: Any) -> None:
            if reply == 1:
                self._told(pot.shape.name, pot.key, share)
            elif reply != 0:
                pot.share = 0  # it is asked again with the next request

        key = self._names.told(pot.word.split(b"\r\n", 2)[1])
        line.send(command("EVAL", TELL, "1", key, str(share), str(window // 1000 + 1)), replied)
