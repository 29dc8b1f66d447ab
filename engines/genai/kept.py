"""Sequences of ended requests, kept for those that begin alike: what they have in common is not computed again.

A library's sequence can go back, not branch: whoever takes one takes it whole, and all behind the common beginning is forgotten. Domains
of callers (`cache_salt`) share nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.genai.native import Text

LEAST = 16
"""Common tokens for which a kept sequence is worth taking."""


@dataclass(slots=True, eq=False)
class _Kept:
    text: Text
    domain: bytes
    searched: dict[str, Any]


class Kept:
    """At most as many as its caller allows each time. Not thread-safe: its caller locks."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []  # the one that was used last is last

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, tokens: Sequence[int], domain: bytes, searched: dict[str, Any], *, full: bool) -> tuple[Text, int] | None:
        """Takes the sequence with the longest common prefix, and returns it with the length of the prefix, which is always shorter than the
        prompt, since the prompt's last token must be read. full: a sequence has to be given up anyway. Otherwise one that would lose more
        than half of its tokens is left for requests that continue it."""
        best, common = None, LEAST - 1
        for kept in self._kept:
            if kept.domain == domain and kept.searched == searched:
                found = min(beginning(kept.text.tokens, tokens), kept.text.reusable, len(tokens) - 1)
                if found > common and (full or 2 * found >= len(kept.text.tokens)):
                    best, common = kept, found
        if best is None:
            return None
        self._kept.remove(best)
        return best.text, common

    def put(self, text: Text, domain: bytes, searched: dict[str, Any]) -> None:
        """Keep a sequence that nobody uses any more."""
        self._kept.append(_Kept(text, domain, searched))

    def shrink(self, most: int) -> list[Text]:
        """Forget the least recently used until so many are left; those, for the caller to let go of without its lock."""
        gone = max(0, len(self._kept) - max(0, most))
        dropped, self._kept = [kept.text for kept in self._kept[:gone]], self._kept[gone:]
        return dropped


def beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens two texts have in common."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    low, high = 0, most  # the first `low` are equal, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
