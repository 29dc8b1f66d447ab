"""Many patterns of names (policies.patterns), of which a name fits a few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from policies.patterns import matches


class PatternIndex:
    """Finds the patterns that a name fits without looking at all: those without `*` by the name, the others by what is before their first
    `*`. Patterns that begin with `*` are all looked at."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._exact: dict[str, list[int]] = {}
        self._begun: dict[str, list[tuple[int, str]]] = {}
        for number, pattern in enumerate(patterns):
            begin, star, _ = pattern.partition("*")
            if star:
                self._begun.setdefault(begin, []).append((number, pattern))
            else:
                self._exact.setdefault(pattern, []).append(number)
        self._lengths = sorted({len(begin) for begin in self._begun})

    def fits(self, name: str) -> Sequence[int]:
        """The numbers of the patterns, from 0 on in the order in which they were given."""
        found = list(self._exact.get(name, ()))
        for length in self._lengths:
            if length > len(name):
                break
            found += [number for number, pattern in self._begun.get(name[:length], ()) if matches(pattern, name)]
        found.sort()
        return found
