"""Patterns of thousands of phrases, shared by the versions of a list.

RE2 takes a long time to compile so many, and does not let go of the interpreter meanwhile: everything else in the process waits. A list
that differs little from one in use needs a pattern of its own for what was added only. What was removed is still found by the old one: then
the phrases themselves say that it does not count.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakSet

LEAST: Final = 24 * 1024
"""Characters of a list from which its pattern is shared: a shorter one is compiled in some 20 ms."""
MOST_ADDED: Final = 16 * 1024
"""Characters that another list may have besides."""
MOST_REMOVED: Final = 0.1
"""Part of the phrases that another list may lack: a text with one of them is followed character by character."""


class Base:
    """pattern: of these phrases, as RE2 has compiled it."""

    __slots__ = ("__weakref__", "pattern", "phrases")

    def __init__(self, phrases: frozenset[str], pattern: Any) -> None:
        self.phrases, self.pattern = phrases, pattern


class Bases:
    """Those in use: each lives as long as a list that needs it. Usable in any thread."""

    def __init__(self) -> None:
        self._known: WeakSet[Base] = WeakSet()

    def add(self, base: Base) -> Base:
        self._known.add(base)
        return base

    def nearest(self, phrases: frozenset[str]) -> Base | None:
        """The base from which least is missing of these phrases, if that is little and it has few others."""
        found, least = None, MOST_ADDED + 1
        for base in tuple(self._known):
            if abs(len(base.phrases) - len(phrases)) > len(phrases) // 4:
                continue
            added = sum(map(len, phrases - base.phrases))
            if added < least and len(base.phrases - phrases) <= MOST_REMOVED * len(base.phrases):
                found, least = base, added
        return found
