"""Which kept connection carries a request, and which are to be closed: decided from plain values, without I/O.

The decision is taken again at each event that can change it (a request, a released connection, the clock, a new address, the end), always
by the same function, and carried out by its caller. httpcore's connection pool is built around such a function; there it also queues
requests, here admission has done that before.
"""

from __future__ import annotations

from typing import TypeVar


class Kept:
    """What the decision reads of a connection. `generation`: of the address that it goes to. `idle_since`: monotonic seconds."""

    __slots__ = ("generation", "idle_since")

    def __init__(self, generation: int, idle_since: float = 0.0) -> None:
        self.generation, self.idle_since = generation, idle_since


K = TypeVar("K", bound=Kept)


def assign(idle: list[K], asked: bool, generation: int, since: float, room: int) -> tuple[int, int, bool]:
    """(how many of the longest idle ones to close, how many of the latest, whether the latest that remains carries the request).

    idle: connections without a request, the longest idle one first. asked: a request needs a connection; without one it opens a new one.
    generation: of the address in force; connections to an earlier one are closed. since: those idle since before that are closed.
    room: how many may stay idle; the longest idle ones give way.

    The latest one is used first, so that those which are not needed grow old and go. Only the ends of `idle` are looked at: an earlier
    generation is at its front (the address changed while they were idle) or the latest (it was released after the change).
    """
    first, last = 0, len(idle)
    while last and idle[last - 1].generation != generation:
        last -= 1
    while first < last and (last - first > room or idle[first].idle_since < since or idle[first].generation != generation):
        first += 1
    return first, len(idle) - last, asked and first < last
