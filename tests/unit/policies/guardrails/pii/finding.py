"""What the table's recognisers find in a text."""

from __future__ import annotations

from policies.guardrails.pii.table import RECOGNISERS
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.normal import as_bytes, fold

ALL = Finder(RECOGNISERS)


def found(text: str, finder: Finder = ALL) -> list[tuple[str, str]]:
    """Each entity with its folded text."""
    folded = fold(text)
    data = as_bytes(folded)
    place, matches = 0, []
    while (match := finder.next(data, folded, place, len(data), lambda _: True)) is not None:
        matches.append((match.entity, folded[match.start : match.end]))
        place = match.end
    return matches
