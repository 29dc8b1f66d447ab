"""What is known of a text while it is searched: so that nothing is searched twice, however many matches it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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


class Said:
    """Where the words of one set may stand. hit: the last place where one may begin; denied: such a place, where none does in truth. begin,
    end: of the last one that stands there in truth."""

    __slots__ = ("begin", "denied", "end", "hit")

    def __init__(self) -> None:
        self.hit = self.denied = self.begin = self.end = -1


class Around:
    """What stands in a text that recognisers depend on, and what is known of it. leads: the places, in order, right behind something that
    one must be behind, each with the number of that one. worded: whether there is any context word; None: nobody asked yet. free: of the
    matches that need nothing right before them. signed: of those with a sign, by recogniser. said: by set of context words; heard: up to
    where they were looked for; resume: where no word begins before that is not noted."""

    __slots__ = ("free", "heard", "leads", "resume", "said", "signed", "worded")

    def __init__(self, leads: Sequence[tuple[int, int]]) -> None:
        self.leads = leads
        self.worded: bool | None = None
        self.free = Known()
        self.signed: dict[int, Known] = {}
        self.said: list[Said] = []
        self.heard = self.resume = 0
