"""Personal data in a text that grows: everything passes at once except what may still become an entity.

A place is undecided while the text from it to the end is the beginning of a candidate. Only places before the first undecided one are
judged, so how the text was cut into pieces makes no difference to what is found. At most the longest candidate is held, with MAX_HIDDEN
invisible characters behind each of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from gateway.core.types import MOST_FINDINGS, Finding
from policies.guardrails.folding import trim_hidden
from policies.guardrails.pii.actions import Actions
from policies.guardrails.pii.normal import as_bytes, escapes, fold, places
from policies.guardrails.pii.recogniser import CONTEXT


class PiiStream:
    """Follows one text. found: the entities that were replaced. Raises GuardrailViolation when one is to be blocked."""

    __slots__ = ("_actions", "_before", "_before_data", "_held", "_hidden", "_place", "findings", "found")

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._before = ""  # the last folded characters that were released
        self._before_data = b""
        self._held = ""
        self._hidden = 0  # invisible characters at the end of the text so far
        self._place = 0  # of the first held character in the text
        self.found: set[str] = set()
        self.findings: list[Finding] = []

    @property
    def reason(self) -> str:
        """For the audit record."""
        return replaced(self.found)

    @property
    def held(self) -> str:
        return self._held

    def feed(self, text: str) -> str:
        """What may pass now."""
        text, self._hidden, _ = trim_hidden(text, self._hidden)
        return self._advance(self._held + text, False)

    def finish(self) -> str:
        """The rest, at the end of the text."""
        return self._advance(self._held, True) if self._held else ""

    def _advance(self, text: str, final: bool) -> str:
        finder, start = self._actions.finder, len(self._before)
        new = fold(text)
        folded, data = self._before + new, escapes(self._before_data + as_bytes(new))
        limit = len(data) if final else finder.open(data, folded, start)
        match = finder.next(data, folded, start, limit, self._actions.wanted) if limit > start else None
        if match is None and new is text:  # in most cases: all of ASCII
            cut = limit - start
            self._keep(folded, data, limit, text[cut:])
            self._place += cut
            return text[:cut]
        where = range(len(text) + 1) if new is text else places(text)
        out: list[str] = []
        done, position = 0, start
        while match is not None:
            first, done_before = where[match.start - start], done
            done = where[match.end - 1 - start] + 1
            out.append(text[done_before:first])
            if len(self.findings) < MOST_FINDINGS:
                self.findings.append(Finding(match.entity, self._place + first, self._place + done, text[first:done]))
            out.append(self._actions.replacement(match.entity, folded[match.start : match.end]))
            self.found.add(match.entity)
            position = start + bisect_left(where, done)
            if position > limit:
                limit = finder.open(data, folded, position)
            match = finder.next(data, folded, position, limit, self._actions.wanted)
        cut = max(done, where[limit - start])
        out.append(text[done:cut])
        self._keep(folded, data, start + bisect_left(where, cut), text[cut:])
        self._place += cut
        return "".join(out)

    def _keep(self, folded: str, data: bytes, end: int, held: str) -> None:
        low = end - CONTEXT if end > CONTEXT else 0
        self._before, self._before_data, self._held = folded[low:end], data[low:end], held


def replaced(found: Iterable[str]) -> str:
    """Why a text is not what it was."""
    return f"Personal data was replaced: {', '.join(sorted(found))}." if found else "Invisible characters were removed."
