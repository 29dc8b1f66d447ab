"""Patterns of bounded length, of which a stream can be told what could still become a match.

A pattern is parsed here and written out in RE2's syntax twice: as it is, and as the pattern of all its beginnings. Matched up to the
end of a text, the second finds the earliest place where a match may have begun.

The syntax: literals, `.`, classes (`[a-f0-9]`, `[^...]`), `\\d \\w \\s`, `\\l` (a letter beyond ASCII) and escaped signs, `( )`, `(?: )`,
`|`, and the repetitions `?`, `{n}`, `{m,n}`. There is no `*` and no `+`: they have no bound. Patterns are of ASCII and read normalised text
(policies.guardrails.recognition.normal).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

MAX_LENGTH: Final = 512
_ESCAPES: Final = {
    "d": frozenset("0123456789"),
    "w": frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"),
    "s": frozenset(" \t\n\r\f\v"),
    "t": frozenset("\t"),
    "n": frozenset("\n"),
    "l": frozenset("\x80"),
}
_EVERY: Final = frozenset(map(chr, range(256)))


@dataclass(frozen=True, slots=True)
class Piece:
    """A pattern as a tree. kind: `set` (one of the members), `sequence`, `alternatives`, `repeat` (of one part, low to high times)."""

    kind: str
    members: frozenset[str] = frozenset()
    parts: tuple[Piece, ...] = ()
    low: int = 1
    high: int = 1


@dataclass(frozen=True, slots=True)
class Bounded:
    """What a piece of a pattern matches (`full`; as a tree, `tree`), its beginnings (`start`, the empty one among them), its lengths, the
    characters that it may begin with (`first`), and what every match of at least so many characters begins with (`head`): short
    patterns, of which many can be searched for at once."""

    full: str
    start: str
    shortest: int
    longest: int
    first: frozenset[str]
    head: Callable[[int], str]
    tree: Piece


def bounded(pattern: str) -> Bounded:
    """Raises ValueError that names the place."""
    parser = _Parser(pattern)
    found = parser.alternatives()
    if parser.place < len(pattern):
        raise parser.error("unexpected )")
    if found.shortest == 0:
        raise ValueError(f"the pattern {pattern!r} matches an empty text")
    if found.longest > MAX_LENGTH:
        raise ValueError(f"the pattern {pattern!r} matches up to {found.longest} characters; {MAX_LENGTH} are the most")
    return found


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.place = pattern, 0

    def error(self, why: str) -> ValueError:
        return ValueError(f"the pattern {self.pattern!r}: {why} at character {self.place + 1}")

    def _peek(self) -> str:
        return self.pattern[self.place : self.place + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise self.error("unexpected end")
        self.place += 1
        return character

    def alternatives(self) -> Bounded:
        found = [self._sequence()]
        while self._peek() == "|":
            self.place += 1
            found.append(self._sequence())
        if len(found) == 1:
            return found[0]
        return Bounded(
            f"(?:{'|'.join(one.full for one in found)})",
            f"(?:{'|'.join(one.start for one in found)})",
            min(one.shortest for one in found),
            max(one.longest for one in found),
            frozenset().union(*(one.first for one in found)),
            lambda least: f"(?:{'|'.join(one.head(least) for one in found)})",
            Piece("alternatives", parts=tuple(one.tree for one in found)),
        )

    def _sequence(self) -> Bounded:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        start = ""
        for part in reversed(parts):
            start = f"(?:{part.full}{start}|{part.start})" if start else part.start
        first: frozenset[str] = frozenset()
        for part in parts:
            first |= part.first
            if part.shortest:
                break
        full = "".join(part.full for part in parts)
        shortest, longest = sum(part.shortest for part in parts), sum(part.longest for part in parts)
        return Bounded(full, start, shortest, longest, first, _head(parts), Piece("sequence", parts=tuple(part.tree for part in parts)))

    def _repeated(self, atom: Bounded) -> Bounded:
        sign = self._peek()
        if sign in ("*", "+"):
            raise self.error(f"{sign} has no bound; write {{m,n}}")
        if sign == "?":
            self.place += 1
            low, high = 0, 1
        elif sign == "{":
            end = self.pattern.find("}", self.place)
            bounds = self.pattern[self.place + 1 : max(end, 0)].split(",")
            if end < 0 or len(bounds) > 2 or not all(bound.isascii() and bound.isdigit() and len(bound) < 5 for bound in bounds):
                raise self.error("a repetition must be {n} or {m,n}")
            low, high = int(bounds[0]), int(bounds[-1])
            if not low <= high <= MAX_LENGTH or high == 0:
                raise self.error(f"a repetition must be from 0 to {MAX_LENGTH} times, the smaller number first")
            self.place = end + 1
        else:
            return atom
        if self._peek() in ("?", "*", "+", "{"):
            raise self.error("a repetition of a repetition")
        start = f"(?:{atom.full}){{0,{high - 1}}}{atom.start}" if high > 1 else atom.start
        full = f"(?:{atom.full}){{{low},{high}}}"

        def head(least: int) -> str:
            enough = -(-least // atom.shortest) if atom.shortest else low
            return full if low == 0 or enough > low else f"(?:{atom.full}){{{enough}}}"

        tree = Piece("repeat", parts=(atom.tree,), low=low, high=high)
        return Bounded(full, start, low * atom.shortest, high * atom.longest, atom.first, head, tree)

    def _atom(self) -> Bounded:
        sign = self._take()
        if sign == "(":
            if self._peek() == "?":
                self.place += 1
                if self._take() != ":":
                    raise self.error("only groups of the form (?: ) or ( ) are possible")
            found = self.alternatives()
            if self._take() != ")":
                raise self.error("a missing )")
            return Bounded(f"(?:{found.full})", f"(?:{found.start})", found.shortest, found.longest, found.first, found.head, found.tree)
        if sign == "[":
            return _one_of(self._class())
        if sign == ".":
            return _one_of(_EVERY - {"\n"})
        if sign == "\\":
            return _one_of(self._escaped())
        if sign in "^$*+?{":
            raise self.error(f"unexpected {sign}")
        return _one_of(frozenset(self._ascii(sign)))

    def _ascii(self, character: str) -> str:
        if not character.isascii():
            raise self.error(f"{character!r} is no ASCII character")
        return character

    def _escaped(self) -> frozenset[str]:
        sign = self._ascii(self._take())
        if sign in _ESCAPES:
            return _ESCAPES[sign]
        if sign.isalnum():
            raise self.error(f"unknown escape \\{sign}")
        return frozenset(sign)

    def _class(self) -> frozenset[str]:
        negated = self._peek() == "^"
        self.place += negated
        members: set[str] = set()
        while (sign := self._take()) != "]":
            one = self._escaped() if sign == "\\" else frozenset(self._ascii(sign))
            if self._peek() == "-" and self.pattern[self.place + 1 : self.place + 2] not in ("]", ""):
                self.place += 1
                last = self._take()
                other = self._escaped() if last == "\\" else frozenset(self._ascii(last))
                if len(one) != 1 or len(other) != 1 or min(one) > min(other):
                    raise self.error("a range from a larger to a smaller character")
                members.update(map(chr, range(ord(min(one)), ord(min(other)) + 1)))
            else:
                members |= one
        if not members:
            raise self.error("an empty class")
        return _EVERY - members if negated else frozenset(members)


def _head(parts: Sequence[Bounded]) -> Callable[[int], str]:
    """Of a sequence: its parts up to the one with which there are enough characters."""

    def head(least: int) -> str:
        found = ""
        for part in parts:
            if least <= 0:
                break
            found += part.head(least) if part.shortest >= least else part.full
            least -= part.shortest
        return found

    return head


def _one_of(characters: frozenset[str]) -> Bounded:
    """One character; a class in RE2's syntax, as ranges of bytes."""
    codes = sorted(map(ord, characters))
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    inside = "".join(f"\\x{low:02x}" if low == high else f"\\x{low:02x}-\\x{high:02x}" for low, high in ranges)
    return Bounded(f"[{inside}]", f"[{inside}]?", 1, 1, characters, lambda least: f"[{inside}]", Piece("set", characters))
