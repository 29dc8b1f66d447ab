"""Entities without a greatest length: how they go on behind their beginning, and how patterns are compiled."""

from __future__ import annotations

from typing import Any, Final

import re2

_MEMORY: Final = 16 * 1024 * 1024
_UNANCHORED: Final = re2._re2.RE2.Anchor.UNANCHORED


class Tail:
    """How an entity goes on behind the match, however long it is. memory: how many of its last bytes `end` needs."""

    def __init__(self, among: str, stop: str) -> None:
        self._other = compiled(f"[^{among}]")
        self._stop = compiled(stop) if stop else None
        self.memory = 96

    def end(self, before: bytes, data: bytes) -> tuple[int, bool]:
        """How many leading bytes of `data` belong to it, and whether it ends there. before: the last ones that did."""
        end, over = len(data), False
        if (other := self._other.Match(_UNANCHORED, data, 0, end)[0][0]) >= 0:
            end, over = other, True
        if self._stop is not None:
            text = before + data[:end]
            if (stop := self._stop.Match(_UNANCHORED, text, 0, len(text))[0][1]) > len(before):
                end, over = stop - len(before), True
        return end, over


def _options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = False
    options.longest_match = True
    options.never_capture = True
    options.max_mem = _MEMORY
    options.log_errors = False
    return options


def compiled(pattern: str) -> Any:
    made = re2._re2.RE2(pattern.encode("latin-1"), _options())
    if not made.ok():
        raise ValueError(f"the patterns cannot be compiled: {made.error()}")
    return made
