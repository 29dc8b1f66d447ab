"""One scan for several guardrails: whether a text holds anything that one of them could act upon.

A guardrail that is made of patterns says what every text that it does not allow has: its `trigger`. The triggers of all such guardrails
of a configuration are one RE2 pattern. Ordinary prose has none of them, so one scan in linear time stands for the checks of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final

import re2

from policies.guardrails.folding import BEFORE, CONTROL_CLASS, has_nul
from policies.guardrails.reading import MOST, Reading

_START: Final = re2._re2.RE2.Anchor.ANCHOR_START
_MEMORY: Final = 32 * 1024 * 1024
LARGEST: Final = 256 * 1024
"""Bytes of all triggers together. Larger ones (a list of ten thousand phrases) would cost more memory and time than they save."""
PORTION: Final = 8 * 1024
"""Bytes that are scanned before it is asked how long that takes."""
OVERLAP: Final = 1024
"""Bytes of the portion before that are scanned again: more than any trigger is long, with what stands around it."""
PATIENCE: Final = 2_000_000
"""Nanoseconds after which a scan is given up. It takes long only where the text is of a new kind to a pattern with thousands of phrases,
whose automaton grows with what it sees; the guardrails themselves read such a text in steps."""
_QUOTES: Final = bytes.maketrans(b'"\x01', b'\x00"')


class Prefilter:
    """The triggers of at least two guardrails. Immutable. Raises ValueError for triggers that RE2 does not take."""

    def __init__(self, triggers: Sequence[str]) -> None:
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.case_sensitive = False
        options.never_capture = True
        options.max_mem = _MEMORY
        options.log_errors = False
        # A backslash may be the escape of anything in JSON inside of a text: that is for the guardrails to read.
        # A control character may stand inside of what they look for.
        whole = "|".join([*(f"(?:{trigger})" for trigger in triggers), r"\\", CONTROL_CLASS])
        self._pattern = re2._re2.RE2(rf"{BEFORE}(?:{whole})".encode("ascii"), options)
        if not self._pattern.ok():
            raise ValueError(f"the triggers cannot be compiled: {self._pattern.error()}")
        self._match = self._pattern.Match

    def clear(self, texts: Sequence[str]) -> bool:
        """Whether every guardrail behind the triggers allows the texts for certain. False says nothing."""
        text = texts[0] if len(texts) == 1 else "\x00".join(texts)
        if len(text) > MOST or not text.isascii() or has_nul(texts):
            return False
        return self._without(text.encode("ascii"))

    def shared(self, texts: Sequence[str]) -> Sequence[str]:
        """The texts, for all guardrails behind the triggers: what each of them would make of the texts is made once."""
        return Reading(texts)

    def clear_json(self, values: Sequence[bytes]) -> bool:
        """The same for every string in some JSON values, keys too, without decoding them. What stands between two strings is read as a text
        of its own, so this is `clear` of those strings and of some more. Escapes but the usual two, and what is not ASCII, are for the
        guardrails to read."""
        data = b"\x00".join(values)
        if len(data) > MOST or not data.isascii():
            return False
        if data.find(b"\\") < 0:
            data = data.replace(b'"', b"\x00")
        elif data.find(b"\\\\") >= 0 or data.find(b"\x01") >= 0:
            return False
        else:
            data = data.replace(b'\\"', b"\x01").replace(b"\\n", b"\n").translate(_QUOTES)
        return self._without(data)

    def _without(self, data: bytes) -> bool:
        """Whether there is no trigger for certain."""
        size = len(data)
        if size <= PORTION:
            return bool(self._match(_START, data, 0, size)[0][0] < 0)
        until = perf_counter_ns() + PATIENCE
        for start in range(0, size, PORTION):
            if self._match(_START, data, max(0, start - OVERLAP), min(size, start + PORTION))[0][0] >= 0:
                return False
            if perf_counter_ns() > until:
                return False
        return True


def prefilter(triggers: Sequence[str]) -> Prefilter | None:
    """None where one scan would spare nothing, or the triggers are too many."""
    distinct = list(dict.fromkeys(triggers))  # many guardrails of one type have the same
    if len(triggers) < 2 or sum(map(len, distinct)) > LARGEST:
        return None
    return Prefilter(distinct)
