"""What is known of a text while it is searched: so that nothing is searched twice, however many matches it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from policies.guardrails.recognition.words import Zones

if TYPE_CHECKING:
    from policies.guardrails.recognition.tail import Tail


class Match:
    """Places in the folded text."""

    __slots__ = ("end", "entity", "start", "tail")

    def __init__(self, start: int, end: int, entity: str, tail: Tail | None) -> None:
        self.start, self.end, self.entity, self.tail = start, end, entity, tail


class Known:
    """A search from left to right that is asked for again and again. match: the next one; where there is none, no match begins from `since`
    on and before `place`."""

    __slots__ = ("match", "place", "since")

    def __init__(self) -> None:
        self.since = self.place = 0
        self.match: Match | None = None


class Around:
    """What stands in a text that recognisers depend on, and what is known of it. leads: the places, in order, right behind something that
    one must be behind, each with the number of that one. worded: whether there is any context word; None: nobody asked yet. zones: where
    they count, by set; None: nobody asked yet. free: of the matches that need nothing right before them. signed: of those with a sign, by
    recogniser. runs: where the last run of characters of one class begins and ends, by recogniser. None: nothing yet.
    quiet: one scan has found no lead, no context word, and nothing that begins a match which needs neither of them nor a sign.
    judged: how many of the first leads need not be looked at again: each lies before `since`, where the last search began, or begins no
    match."""

    __slots__ = ("free", "judged", "leads", "quiet", "runs", "signed", "since", "worded", "zones")

    def __init__(self, leads: Sequence[tuple[int, int]], quiet: bool = False) -> None:
        self.leads, self.quiet = leads, quiet
        self.worded: bool | None = False if quiet else None
        self.zones: list[Zones] | None = None
        self.free: Known | None = None
        self.signed: dict[int, Known] | None = None
        self.runs: dict[int, tuple[int, int]] | None = None
        self.judged = self.since = 0
