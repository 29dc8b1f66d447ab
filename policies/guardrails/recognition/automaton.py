"""Many bounded patterns at once, from one place on: which of them match there, how far, and which may go on behind the end of the text.

A deterministic automaton that is built as texts need it (R. S. Boyer, J S. Moore, 1977; K. Thompson, 1968). It is asked at one place at a
time, never everywhere at once: so it has few states, and a hostile text cannot make it build new ones for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.guardrails.recognition.bounded import Bounded, Piece

MOST_STATES: Final = 20_000
"""Beyond it all states are built anew."""


class State:
    """Where a walk is. next: by class of characters; None: not built yet. accepted: the patterns that match up to here. alive: those that
    have come this far, and match here or may go on."""

    __slots__ = ("accepted", "alive", "members", "next")

    def __init__(self, members: frozenset[int], accepted: list[int], alive: list[int], classes: int) -> None:
        self.members, self.accepted, self.alive = members, accepted, alive
        self.next: list[State | None] = [None] * classes


class Automaton:
    """patterns: read without regard to case."""

    def __init__(self, patterns: Sequence[Bounded]) -> None:
        self._kinds: dict[frozenset[str], int] = {}  # sets of characters: positions share them, for there are thousands of positions
        self._kind: list[int] = []  # of each position: which set of characters it takes
        self._owner: list[int] = []
        self._follow: list[list[int]] = []
        self._last: list[bool] = []
        first: set[int] = set()
        for number, pattern in enumerate(patterns):
            begins, ends, _ = self._positions(pattern.tree, number)
            first |= begins
            for place in ends:
                self._last[place] = True
        codes = [_codes(members) for members in self._kinds]
        self._classes, self._takes = _classified(codes)
        self._states: dict[frozenset[int], State] = {}
        self._nothing: list[int] = []
        self._lists: dict[tuple[int, ...], list[int]] = {(): self._nothing}
        none = frozenset[int]()
        self._dead = State(none, self._nothing, self._nothing, len(self._takes))
        self._start = State(none, self._nothing, self._nothing, len(self._takes))
        self._first = first
        beginning = {self._kind[place] for place in first}
        self.begins: bytes = bytes([1 if any(code in codes[kind] for kind in beginning) else 0 for code in range(256)])
        """By code: 1 if any pattern may begin with it, else 0."""

    def ends(self, data: bytes, place: int, size: int) -> list[tuple[list[int], int]]:
        """(patterns, where they end), in the order of the ends, of the ways in which patterns match from a place on. Of a run of ends of
        the same patterns only the last."""
        found: list[tuple[list[int], int]] = []
        state, classes, dead = self._start, self._classes, self._dead
        last = self._nothing
        end = place
        while place < size:
            kind = classes[data[place]]
            after = state.next[kind]
            if after is None:
                after = self._built(state, kind)
            if after is dead:
                break
            state = after
            place += 1
            accepted = state.accepted
            if accepted is not self._nothing:
                if accepted is not last and last is not self._nothing:
                    found.append((last, end))
                last = accepted
                end = place
        if last is not self._nothing:
            found.append((last, end))
        return found

    def open(self, data: bytes, place: int, size: int) -> list[int]:
        """The patterns that more text may complete or lengthen, or that end with the text, from a place on."""
        state, classes, dead = self._start, self._classes, self._dead
        while place < size:
            after = state.next[classes[data[place]]]
            if after is None:
                after = self._built(state, classes[data[place]])
            if after is dead:
                return []
            state = after
            place += 1
        return state.alive

    def undecided(self, data: bytes, place: int, size: int) -> list[int] | None:
        """As `open`, but None where any pattern matches from a place on, even if it ends before the text does."""
        state, classes, dead, nothing = self._start, self._classes, self._dead, self._nothing
        while place < size:
            kind = classes[data[place]]
            after = state.next[kind]
            if after is None:
                after = self._built(state, kind)
            if after is dead:
                return nothing
            if after.accepted is not nothing:
                return None
            state = after
            place += 1
        return state.alive

    def _built(self, state: State, kind: int) -> State:
        takes, kinds = self._takes[kind], self._kind
        if state is self._start:
            found = {place for place in self._first if takes[kinds[place]]}
        else:
            found = {place for member in state.members for place in self._follow[member] if takes[kinds[place]]}
        if not found:
            after = self._dead
        else:
            members = frozenset(found)
            known = self._states.get(members)
            if known is None:
                if len(self._states) >= MOST_STATES:
                    self._forget()
                accepted = self._known(tuple(sorted({self._owner[place] for place in members if self._last[place]})))
                alive = self._known(tuple(sorted({self._owner[place] for place in members})))
                known = self._states[members] = State(members, accepted, alive, len(self._takes))
            after = known
        state.next[kind] = after
        return after

    def _known(self, patterns: tuple[int, ...]) -> list[int]:
        """The one list of these patterns."""
        return self._lists.setdefault(patterns, list(patterns))

    def _forget(self) -> None:
        """Walks that are under way keep their states."""
        for state in self._states.values():
            state.next = [None] * len(self._takes)
        self._states.clear()
        self._start.next = [None] * len(self._takes)

    def _positions(self, piece: Piece, number: int) -> tuple[set[int], set[int], bool]:
        """Adds the positions of a piece: the first ones, the last ones, and whether it may be empty (V. M. Glushkov, 1961)."""
        if piece.kind == "set":
            place = len(self._kind)
            self._kind.append(self._kinds.setdefault(piece.members, len(self._kinds)))
            self._owner.append(number)
            self._follow.append([])
            self._last.append(False)
            return {place}, {place}, False
        if piece.kind == "alternatives":
            firsts: set[int] = set()
            lasts: set[int] = set()
            empty = False
            for part in piece.parts:
                one, other, nothing = self._positions(part, number)
                firsts |= one
                lasts |= other
                empty = empty or nothing
            return firsts, lasts, empty
        return self._repeat(piece, number) if piece.kind == "repeat" else self._sequence(piece.parts, number)

    def _sequence(self, parts: Sequence[Piece], number: int) -> tuple[set[int], set[int], bool]:
        firsts: set[int] = set()
        lasts: set[int] = set()
        empty = True
        for part in parts:
            one, other, nothing = self._positions(part, number)
            for last in lasts:
                self._follow[last].extend(sorted(one))
            if empty:
                firsts |= one
            lasts = (lasts | other) if nothing else other
            empty = empty and nothing
        return firsts, lasts, empty

    def _repeat(self, piece: Piece, number: int) -> tuple[set[int], set[int], bool]:
        """A copy for each time. A copy is only behind the one before it, none is left out: of `a{0,500}` each state has one member, not up
        to 500 of them, which would take a millisecond to build."""
        firsts: set[int] = set()
        lasts: set[int] = set()
        before: set[int] = set()
        empty = piece.low == 0
        for time in range(1, piece.high + 1):
            one, other, nothing = self._positions(piece.parts[0], number)
            for last in before:
                self._follow[last].extend(sorted(one))
            if time == 1:
                firsts = one
            empty = empty or nothing
            if empty or time >= piece.low:
                lasts |= other
            before = other
        return firsts, lasts, empty


def _codes(members: frozenset[str]) -> frozenset[int]:
    """The codes of these characters, in both cases."""
    return frozenset(ord(one) for sign in members for one in (sign, sign.lower(), sign.upper()) if len(one) == 1 and ord(one) < 256)


def _classified(sets: Sequence[frozenset[int]]) -> tuple[bytes, list[bytes]]:
    """The class of each code, and by class and set 1 if the set has it, else 0: codes that all sets treat alike are one class."""
    known: dict[bytes, int] = {}
    classes = [known.setdefault(bytes([code in one for one in sets]), len(known)) for code in range(256)]
    return bytes(classes), list(known)
