"""JSON inside of one text of an answer, such as the arguments of a tool's call: its strings, decoded as they come, are read by the
guardrails of patterns as well.

A string without a backslash says what stands there, and that has been read. From the first backslash of a string on, its decoded
characters pass through matchers of their own, and no more of the text is released than these release. What they would rewrite has no
place in the text, so it blocks. A string that is JSON itself is read the same way, one level deeper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from gateway.core.errors import GuardrailViolation
from gateway.core.ports import StreamMatcher
from gateway.core.slices import Steps
from gateway.core.snapshot import Inspector
from gateway.pipeline.guarded import Note
from gateway.pipeline.nested import LEVELS

PREFIX: Final = 8192
"""Characters of a string before its first backslash that are read again with those behind it: more than any matcher holds."""
PIECE: Final = 4096
"""Characters of a whole text that are read in one step."""
WHY: Final = "A policy would rewrite JSON inside a text, in content that is written with escapes."
_OPENING: Final = '{["'
_SPACES: Final = " \t\r\n\ufeff"
_SHORT: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_UNPAIRED: Final = "\ufffd"
_START, _PLAIN, _OUTSIDE, _INSIDE = 0, 1, 2, 3


class Same:
    """A guardrail's matcher that may hold text back, and must give it back as it came. Raises GuardrailViolation otherwise."""

    __slots__ = ("_guardrail", "_matcher", "_note", "_waiting")

    def __init__(self, guardrail: Inspector, matcher: StreamMatcher, note: Note | None) -> None:
        self._guardrail, self._matcher, self._note = guardrail, matcher, note
        self._waiting = ""

    def feed(self, text: str) -> str:
        self._waiting += text
        return self._checked(self._passed(text, False))

    def finish(self) -> str:
        found = self._checked(self._passed("", True))
        if self._waiting:
            raise self._refused(WHY)
        return found

    def _passed(self, text: str, final: bool) -> str:
        try:
            return self._matcher.finish() if final else self._matcher.feed(text)
        except GuardrailViolation as error:
            raise self._refused(error.message) from error

    def _checked(self, found: str) -> str:
        if not self._waiting.startswith(found):
            raise self._refused(WHY)
        self._waiting = self._waiting[len(found) :]
        return found

    def _refused(self, why: str) -> GuardrailViolation:
        if self._note is not None:
            self._note.add("block", why, ())
        return GuardrailViolation(why, code=self._guardrail.name)


class Reading:
    """What reads a string: makes its matchers. text: the number of the text, for the records of guardrails that only watch."""

    __slots__ = ("_guardrails", "_notes", "_text")

    def __init__(self, guardrails: Sequence[Inspector], notes: Sequence[Note | None], text: int) -> None:
        self._guardrails, self._notes, self._text = guardrails, notes, text

    def matchers(self) -> list[Same]:
        found: list[Same] = []
        for guardrail, note in zip(self._guardrails, self._notes, strict=True):
            if guardrail.patterned and (matcher := guardrail.stream(note if guardrail.monitor else None, self._text)) is not None:
                found.append(Same(guardrail, matcher, note))
        return found


def reading(guardrails: Sequence[Inspector], notes: Sequence[Note | None], text: int) -> Reading | None:
    """None where no guardrail looks for patterns."""
    return Reading(guardrails, notes, text) if any([guardrail.patterned for guardrail in guardrails]) else None


class Nested:
    """One text, which may be JSON; in the form of a StreamMatcher that never changes it."""

    __slots__ = ("_before", "_before_size", "_escape", "_high", "_level", "_raw", "_reading", "_state", "_string")

    def __init__(self, reading: Reading, level: int = 0) -> None:
        self._reading, self._level = reading, level
        self._state: int = _START
        self._before: list[str] = []
        """The string that has begun, so far, while it has no backslash."""
        self._before_size = 0
        self._string: _String | None = None
        """The string that has begun, from its first backslash on."""
        self._escape = ""
        """An escape that has begun."""
        self._high = ""
        """The escape of the first half of a surrogate pair."""
        self._raw = ""
        """What has come and is not released."""

    @property
    def held(self) -> str:
        return self._raw

    def feed(self, text: str) -> str:
        if self._state == _PLAIN:
            return text
        if self._state == _START:
            begun = text.lstrip(_SPACES)
            if not begun:
                return text
            if begun[0] not in _OPENING:
                self._state = _PLAIN
                return text
            self._state = _OUTSIDE
        if self._state == _OUTSIDE and text.find('"') < 0:
            return text
        self._raw += text
        self._read(text)
        return self._release()

    def finish(self) -> str:
        """The text has ended, perhaps within a string. One that goes on afterwards is still within it."""
        string = self._string
        self._escape = self._high = ""
        self._string = None
        if string is not None:
            string.finish()
        self._forget()
        raw, self._raw = self._raw, ""
        return raw

    def _release(self) -> str:
        """What may pass: all but what the string's matchers hold, and an escape that is not whole."""
        kept = len(self._escape) + len(self._high)
        if self._string is not None:
            kept += self._string.held
        cut = len(self._raw) - kept
        passing, self._raw = self._raw[:cut], self._raw[cut:]
        return passing

    def _forget(self) -> None:
        if self._before:
            self._before = []
        self._before_size = 0

    def _read(self, text: str) -> None:
        at, size = 0, len(text)
        while at < size:
            if self._escape:
                at = self._escaped(text, at)
                continue
            quote = text.find('"', at)
            if self._state == _OUTSIDE:
                if quote < 0:
                    return
                self._state = _INSIDE
                at = quote + 1
                continue
            end = size if quote < 0 else quote
            slash = text.find("\\", at, end)
            if slash >= 0:
                end = slash
            if end > at:
                self._add(text[at:end])
            if slash >= 0:
                self._escape = "\\"
                if self._string is None:
                    self._begin()
            elif quote >= 0:
                self._close()
            at = end + 1
        if self._string is not None:
            self._string.flush()

    def _add(self, run: str) -> None:
        """Characters of a string that stand for themselves."""
        if self._high:
            self._unpaired()
        if self._string is not None:
            self._string.add(run, len(run))
            return
        self._before.append(run)
        self._before_size += len(run)
        if self._before_size > 2 * PREFIX:
            tail = "".join(self._before)[-PREFIX:]
            self._before = [tail[tail.find(" ") + 1 :]]
            self._before_size = len(self._before[0])

    def _begin(self) -> None:
        """At the first backslash of a string. What stands before it has been released already, or passes with what follows."""
        if self._level == LEVELS:
            raise GuardrailViolation(f"A text has JSON within JSON more than {LEVELS} times.", code="guardrail")
        before = "".join(self._before)
        self._forget()
        self._string = _String(self._reading, self._level)
        if before:
            self._string.add(before, 0)

    def _close(self) -> None:
        if self._high:
            self._unpaired()
        if self._string is not None:
            self._string.finish()
            self._string = None
        self._forget()
        self._state = _OUTSIDE

    def _escaped(self, text: str, at: int) -> int:
        """Takes one more character of an escape. Returns where to go on."""
        escape, sign = self._escape, text[at]
        string = self._string
        assert string is not None
        if len(escape) == 1:
            if sign == "u":
                self._escape = "\\u"
                return at + 1
            if self._high:
                self._unpaired()
            string.add(_SHORT.get(sign, sign), 2)
            self._escape = ""
            return at + 1
        if sign not in _HEX:  # no JSON: what stands there is read as it is
            if self._high:
                self._unpaired()
            string.add(escape, len(escape))
            self._escape = ""
            return at
        escape += sign
        self._escape = escape
        if len(escape) == 6:
            self._escape = ""
            self._coded(escape)
        return at + 1

    def _coded(self, escape: str) -> None:
        """An escape by number is whole."""
        string, code = self._string, int(escape[2:], 16)
        assert string is not None
        if self._high and 0xDC00 <= code < 0xE000:
            high = int(self._high[2:], 16)
            string.add(chr(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00)), 12)
            self._high = ""
            return
        if self._high:
            self._unpaired()
        if 0xD800 <= code < 0xDC00:
            self._high = escape
        else:
            string.add(_UNPAIRED if 0xDC00 <= code < 0xE000 else chr(code), 6)

    def _unpaired(self) -> None:
        self._high = ""
        if self._string is not None:
            self._string.add(_UNPAIRED, 6)


class _String:
    """One string of the JSON that has an escape: what it says, and how much of how it is written may pass."""

    __slots__ = ("_added", "_inner", "_matchers", "_sizes", "held")

    def __init__(self, reading: Reading, level: int) -> None:
        self._inner = Nested(reading, level + 1)
        self._matchers = reading.matchers()
        self._added: list[str] = []
        self._sizes: deque[tuple[int, int]] = deque()
        """Of what is not released: numbers of characters, and of those they are written with."""
        self.held = 0
        """Characters, as it is written, that may not pass yet."""

    def add(self, said: str, written: int) -> None:
        self._added.append(said)
        self._sizes.append((len(said), written))
        self.held += written

    def flush(self) -> None:
        """Reads what was added."""
        if self._added:
            said = "".join(self._added)
            self._added = []
            said = self._inner.feed(said)
            for matcher in self._matchers:
                said = matcher.feed(said)
            self._passed(len(said))

    def finish(self) -> None:
        """The string has ended: raises GuardrailViolation, or nothing is held."""
        self.flush()
        rest = self._inner.finish()
        for matcher in self._matchers:
            rest = (matcher.feed(rest) if rest else "") + matcher.finish()
        self._sizes.clear()
        self.held = 0

    def _passed(self, count: int) -> None:
        sizes = self._sizes
        while count > 0 and sizes:
            said, written = sizes.popleft()
            if said <= count:
                count -= said
                self.held -= written
                continue
            left = said - count
            passing = count if written == said else 0  # of an escape, and of what was released before, nothing is in part
            sizes.appendleft((left, written - passing))
            self.held -= passing
            count = 0


def whole_steps(guardrails: Sequence[Inspector], notes: Sequence[Note | None], texts: Sequence[str]) -> Steps[None]:
    """Reads whole texts, in steps. Raises GuardrailViolation."""
    for number, text in enumerate(texts):
        if not may_say_more(text):
            continue
        found = reading(guardrails, notes, number)
        if found is None:
            return
        nested = Nested(found)
        for at in range(0, len(text), PIECE):
            nested.feed(text[at : at + PIECE])
            yield
        nested.finish()


def may_say_more(text: str) -> bool:
    """Whether a text may be JSON with an escape."""
    if text.find("\\") < 0:
        return False
    begun = text.lstrip(_SPACES)
    return begun != "" and begun[0] in _OPENING
