"""Puts values back into an answer. Only the exact form counts: what a model has changed (case, brackets, spaces) stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from policies.guardrails.pseudonyms.nesting import Nesting, escaped

DIGITS: Final = 7
"""The most digits of a pseudonym's number."""
WINDOW: Final = 16 * 1024
"""Characters in which pseudonyms are looked for in one step."""
Value = Callable[[str], str | None]
"""The value of a pseudonym; None if it stands for none."""


class Forms:
    """How the pseudonyms of some entities look. pattern: of whole ones. longest: characters."""

    __slots__ = ("_open", "longest", "pattern")

    def __init__(self, entities: Iterable[str]) -> None:
        names = sorted({entity.upper() for entity in entities}, key=lambda name: (-len(name), name))
        self.pattern = re.compile(rf"<(?:{'|'.join(map(re.escape, names))})_[1-9][0-9]{{0,{DIGITS - 1}}}>")
        beginnings = sorted({f"<{name}_"[:length] for name in names for length in range(1, len(name) + 3)}, key=len, reverse=True)
        heads = "|".join(re.escape(f"<{name}_") for name in names)
        self._open = re.compile(rf"(?:(?:{heads})[1-9][0-9]{{0,{DIGITS - 1}}}|{'|'.join(map(re.escape, beginnings))})\Z")
        self.longest = max(map(len, names), default=0) + DIGITS + 3

    def windows(self, text: str) -> Iterator[tuple[int, int]]:
        """Where parts of a text begin and end, none of which cuts a pseudonym in two."""
        begin, size = 0, len(text)
        while begin < size:
            end = begin + WINDOW
            if end < size:  # what begins before the end and goes beyond it begins with the last `<`
                last = text.rfind("<", end - self.longest, end)
                end = last if last > begin else end
            yield begin, end
            begin = end

    def open(self, text: str) -> int:
        """Where the beginning of a pseudonym stands at the end of a text; its length if there is none."""
        start = text.rfind("<", max(0, len(text) - self.longest))
        return len(text) if start < 0 or self._open.match(text, start) is None else start


class Restoring:
    """Follows one text of a stream and holds only the beginning of what may be a pseudonym. nested: whether values may need escapes. grown:
    is told of the characters that take the place of each pseudonym, and may raise."""

    __slots__ = ("_forms", "_grown", "_nesting", "_value", "held")

    def __init__(self, forms: Forms, value: Value, nested: bool, grown: Callable[[int], None] = lambda size: None) -> None:
        self._forms, self._value, self._grown = forms, value, grown
        self._nesting = Nesting() if nested else None
        self.held = ""

    def feed(self, text: str) -> str:
        if not self.held and self._nesting is None and "<" not in text:
            return text
        text = self.held + text
        cut = self._forms.open(text)
        self.held = text[cut:]
        return self._restored(text[:cut])

    def finish(self) -> str:
        rest, self.held = self.held, ""
        return self._restored(rest)

    def _restored(self, text: str) -> str:
        out: list[str] = []
        done = 0
        for match in self._forms.pattern.finditer(text) if "<" in text else ():
            value = self._value(match[0])
            if value is None:
                continue
            before = text[done : match.start()]
            out.append(before)
            if self._nesting is not None:
                self._nesting.feed(before)
                value = escaped(value, self._nesting.depth)
                self._nesting.feed(match[0])
            out.append(value)
            self._grown(len(value))
            done = match.end()
        if self._nesting is not None:
            self._nesting.feed(text[done:])
        return text if not out else "".join(out) + text[done:]
