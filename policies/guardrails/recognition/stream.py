"""Entities in a text that grows: everything passes at once except what may still become an entity.

A place is undecided while the text from it to the end is the beginning of a candidate. Only places before the first undecided one are
judged, so how the text was cut into pieces makes no difference to what is found. At most the longest candidate is held, with MAX_HIDDEN
invisible characters behind each of its own.

An entity without a greatest length (a private key) is known by its beginning; what belongs to it is dropped as it comes (`_Region`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from hashlib import sha256
from typing import Final

from gateway.core.types import MOST_FINDINGS, Finding
from policies.guardrails.folding import has_control, trim_hidden, unveiled, veiled
from policies.guardrails.recognition.actions import ANNOTATE, Actions
from policies.guardrails.recognition.around import Around, Match
from policies.guardrails.recognition.normal import as_bytes, escapes, fold, places
from policies.guardrails.recognition.tail import Tail
from policies.guardrails.recognition.words import CONTEXT

_AHEAD: Final = 48
_BEFORE: Final = CONTEXT + 1
"""Characters that are kept of what was released."""
_LEFT: Final = 2
"""Characters before a place that rule out recognisers there (`Finder.calm`)."""
_GLIDE: Final = 192
"""The most characters that are followed one by one."""
_FIRST: Final = 8
"""Characters beyond ASCII that are read at a time while regions begin and end; behind the beginning of one, where it may end at once."""
_ASCII_AHEAD: Final = 48
"""The same of ASCII; twice as many each time that no region begins. Were all of a piece read behind each region, a piece of regions in a
row would cost the square of its length."""
_LEAST_AHEAD: Final = 8
"""The same where regions have followed each other closely: what is ahead of the next one would be searched again for each."""
_MOST_KEPT: Final = 64 * 1024
"""Bytes of a region whose text is kept; a longer one is masked where it would get a pseudonym."""
_SIGNS: Final = re.compile(r'\\.?|"', re.DOTALL)


def _ahead(text: str, most: int, of_ascii: int) -> tuple[str, str]:
    """What to read of a text now, and what later: so many characters, or so many of ASCII, which costs little to fold."""
    head = text[:of_ascii]
    return (head, text[of_ascii:]) if head.isascii() else (text[:most], text[most:])


class _Region:
    """An entity whose beginning has been found, and that goes on. start: its place in the text."""

    __slots__ = ("digest", "entity", "keeps", "last", "over", "parts", "size", "start", "tail")

    def __init__(self, entity: str, tail: Tail, start: int, keeps: bool) -> None:
        self.entity, self.tail, self.start, self.keeps = entity, tail, start, keeps
        self.digest = sha256()
        self.parts: list[str] | None = None  # its text, where that is wanted
        self.last = b""
        self.size = 0
        self.over = False

    def taken(self, data: bytes) -> int:
        """How many leading bytes belong to it."""
        end, self.over = self.tail.end(self.last, data)
        self.size += end
        self.last = (self.last + data[:end])[-self.tail.memory :]
        return end


class _Json:
    """Follows a text that may be the JSON of a tool's arguments: whether a place is inside of a string. What takes the place of a number
    must be a string, or the arguments can no longer be read."""

    __slots__ = ("_head", "_state", "over")

    def __init__(self) -> None:
        self._head: str | None = ""  # the text, until it is known to be an object
        self._state = 0  # 1: inside of a string; 2: behind a backslash in one
        self.over = False  # it is no object

    def pass_on(self, text: str) -> None:
        """The text goes on from behind this piece."""
        state = self._state
        if state == 2 and text:
            text, state = text[1:], 1
        if '"' in text or "\\" in text:
            for sign in _SIGNS.findall(text):
                if sign == '"':
                    state ^= 1
                elif state and len(sign) == 1:
                    state = 2
        self._state = state
        if self._head is not None:
            self._head += text
            head = self._head.lstrip()
            inner = head[1:].lstrip()
            if (head and head[0] != "{") or (inner and inner[0] != '"') or len(self._head) > 4096:
                self.over = True
            elif inner:
                self._head = None

    @property
    def outside(self) -> bool:
        """Whether the next character is in an object and in no string of it."""
        return self._head is None and not self._state


class EntityStream:
    """Follows one text. found: the entities that were acted upon. Raises GuardrailViolation when one is to be blocked."""

    __slots__ = (
        "_actions",
        "_before",
        "_before_data",
        "_held",
        "_hidden",
        "_json",
        "_lead",
        "_nesting",
        "_place",
        "_region",
        "_stale",
        "_veiled",
        "count",
        "findings",
        "found",
        "verdict",
    )

    def __init__(self, actions: Actions, count: int = 0) -> None:
        """count: entities that were found in the texts before, for the bound on all of them."""
        self._actions = actions
        self._before = ""  # the last folded characters that were released
        self._before_data = b""  # the same as RE2 reads it
        self._lead = 0  # how many characters at the end of `_before` and `_held` may begin a lead; -1: they cannot be glided over
        self._held = ""
        self._hidden = ""  # the end of the text so far, as `trim_hidden` wants it
        self._place = 0  # of the first held character in the text
        self._region: _Region | None = None
        self._stale = False  # whether `_before` has moved on without `_before_data`, and may be longer than is needed
        self._veiled = False  # whether control characters stand in other shapes here
        self._json: _Json | None = _Json()
        self._nesting = actions.nesting()
        self.found: set[str] = set()
        self.findings: list[Finding] = []
        self.count = count
        self.verdict = ANNOTATE

    @property
    def reason(self) -> str:
        """For the audit record."""
        return self._actions.reason(self.found)

    @property
    def held(self) -> str:
        return unveiled(self._held) if self._veiled else self._held

    def feed(self, text: str) -> str:
        """What may pass now."""
        if self._lead >= 0 and (passed := self._glided(text)) is not None:
            return passed
        if has_control(text):
            text, self._veiled = veiled(text), True
        text, self._hidden, cut = trim_hidden(text, self._hidden)
        if cut:
            self.verdict = "rewrite"
        return self._advance(self._held + text, False)

    def _glided(self, text: str) -> str | None:
        """`feed` for what most pieces are: a few words of ASCII in which nothing matches and no lead ends, behind more of them. None where
        that is not certain."""
        if not text.isascii():
            return None
        before, held = self._before, self._held
        back = max(_LEFT, self._lead - len(held))
        seen = before[-back:] + held + text
        size = len(seen)
        finder = self._actions.finder
        start = size - len(held) - len(text)
        if size - start > finder.longest or size > _GLIDE:
            return None
        data = seen.encode("ascii")
        lead = finder.leading.open(data, max(0, size - len(text) - self._lead))
        cut = finder.calm(data, start) if lead >= 0 else -1
        if cut < 0:
            return None
        passed = seen[start:cut]
        before += passed
        self._before = before[-_BEFORE:] if len(before) > _GLIDE else before
        self._held = seen[cut:]
        if text:
            self._hidden = ""
        self._lead = size - lead
        self._stale = True
        self._moved(passed)
        return passed

    def finish(self) -> str:
        """The rest, at the end of the text."""
        return self._advance(self._held, True) if self._held or self._region is not None else ""

    def _advance(self, text: str, final: bool) -> str:
        if self._stale:
            self._stale = False
            self._before = self._before[-_BEFORE:]
            self._before_data = self._before.encode("ascii")
        if self._region is None:
            out, rest = self._searched(text, final)
            out += self._followed(rest, final)
        else:
            out = self._followed(text, final)
        return unveiled(out) if self._veiled else out

    def _followed(self, text: str, final: bool) -> str:
        """What may pass of a text where a region goes on, and of what follows it."""
        out: list[str] = []
        ahead = _ASCII_AHEAD
        while (region := self._region) is not None:
            head, more = _ahead(text, _AHEAD if region.size else _FIRST, max(_ASCII_AHEAD, region.size))
            passed, text = self._dropped(region, head, final and not more)
            out.append(passed)
            text += more
            if region.over:
                passed, text = self._searched_in_pieces(text, final, ahead)
                out.append(passed)
                following = self._region
                if following is not None:
                    ahead = min(_ASCII_AHEAD, max(_LEAST_AHEAD, following.start - region.start + 4))
            elif not more:
                break
        return "".join(out)

    def _searched_in_pieces(self, text: str, final: bool, of_ascii: int) -> tuple[str, str]:
        """As `_searched`, but where one region follows another, what lies ahead of them is not read again for each. of_ascii: how many
        characters are read first."""
        out: list[str] = []
        while True:
            head, text = _ahead(text, _AHEAD, of_ascii)
            of_ascii *= 2
            passed, rest = self._searched(self._held + head, final and not text)
            out.append(passed)
            if self._region is not None or not text:
                return "".join(out), rest + text

    def _searched(self, text: str, final: bool) -> tuple[str, str]:
        """What may pass of a text outside of a region, and if one begins, what follows its beginning."""
        finder, start = self._actions.finder, len(self._before)
        new = fold(text)
        folded, data = self._before + new, escapes(self._before_data + as_bytes(new))
        around = finder.around(data, start)
        limit = len(data) if final else len(data) - finder.longest
        match, limit, settled = self._next(data, folded, start, limit, final, around)
        if match is None and new is text:  # in most cases: all of ASCII
            cut = limit - start
            self._keep(folded, data, limit, text[cut:])
            self._moved(text[:cut])
            return text[:cut], ""
        where = None if new is text else places(text)
        out: list[str] = []
        done, position = 0, start
        while match is not None:
            first, done_before = match.start - start, done
            done = match.end - start
            if where is not None:
                first, done = where[first], where[done - 1] + 1
            out.append(text[done_before:first])
            self._moved(text[done_before:first])
            value = text[first:done]
            replacement = self._acted(match, folded[match.start : match.end], value, match.tail is None)
            if match.tail is not None:
                if self._enter(match, match.tail, value, replacement).keeps:
                    out.append(value)
                self._moved(value)
                return "".join(out), text[done:]
            out.append(value if replacement is None else replacement)
            self._moved(value)
            position = start + (done if where is None else bisect_left(where, done))
            match, limit, settled = self._next(data, folded, position, limit, settled, around)
        cut = max(done, limit - start if where is None else where[limit - start])
        out.append(text[done:cut])
        self._moved(text[done:cut])
        self._keep(folded, data, start + (cut if where is None else bisect_left(where, cut)), text[cut:])
        return "".join(out), ""

    def _next(self, data: bytes, folded: str, position: int, limit: int, settled: bool, around: Around) -> tuple[Match | None, int, bool]:
        """The next match, the place before which everything is decided, and whether `Finder.open` has computed that place.

        A match that begins before `limit` can be decided without it. Computing it is dear: that is done once there is no such match.
        limit, settled: the place and the flag that the last call returned."""
        finder = self._actions.finder
        if not settled and position < limit:
            match = finder.next(data, folded, position, limit, self._actions.wanted, around)
            if match is not None:
                return match, limit, False
        if not settled or position > limit:
            limit = finder.open(data, folded, position, around)
        match = finder.next(data, folded, position, limit, self._actions.wanted, around) if position < limit else None
        return match, limit, True

    def _moved(self, text: str) -> None:
        """A piece of the text is dealt with."""
        self._place += len(text)
        if self._nesting is not None:
            self._nesting.feed(text)
        if self._json is not None:
            self._json.pass_on(text)
            if self._json.over:
                self._json = None

    def _acted(self, match: Match, folded: str, value: str, whole: bool) -> str | None:
        """What takes the place of an entity that begins here; None: it stays. whole: all of it is there."""
        if self._veiled:
            value = unveiled(value)
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(match.entity, self._place, self._place + len(value), value))
        self.found.add(match.entity)
        self.count += 1
        if self.count > self._actions.most:
            raise self._actions.too_many()
        replacement = self._actions.replacement(match.entity, folded, value if whole else None, self._depth)
        if replacement is None:
            return None
        self.verdict = "rewrite"
        return f'"{replacement}"' if self._json is not None and self._json.outside else replacement

    @property
    def _depth(self) -> int:
        return 0 if self._nesting is None else self._nesting.depth

    def _enter(self, match: Match, tail: Tail, value: str, replacement: str | None) -> _Region:
        """A region begins with what was found."""
        region = self._region = _Region(match.entity, tail, self._place, replacement is None)
        region.digest.update(value.encode("utf-8", "replace"))
        if self._actions.keeps(match.entity):
            region.parts = [value]
        self._before, self._before_data, self._held = "", b"", ""
        self._lead = -1
        return region

    def _dropped(self, region: _Region, text: str, final: bool) -> tuple[str, str]:
        """What may pass of a text that goes on with a region, and what follows the region if it ends."""
        new = fold(text)
        data = escapes(as_bytes(new))
        taken = region.taken(data)
        cut = taken if new is text or text[:taken].isascii() else places(text)[taken]
        region.digest.update(text[:cut].encode("utf-8", "replace"))
        if region.parts is not None:
            region.parts.append(text[:cut])
            if region.size > _MOST_KEPT:
                region.parts = None
        depth = self._depth
        self._moved(text[:cut])
        out = text[:cut] if region.keeps else ""
        if not (region.over or final):
            return out, ""
        value = region.digest.hexdigest()
        if self.findings and (finding := self.findings[-1]).start == region.start:  # it was noted, and nothing since
            finding.end, finding.value = self._place, value
        if not region.keeps:
            whole = None if region.parts is None else unveiled("".join(region.parts))
            out = self._actions.replacement(region.entity, value, whole, depth) or ""
        self._region = None
        region.over = True
        return out, text[cut:]

    def _keep(self, folded: str, data: bytes, end: int, held: str) -> None:
        low = end - _BEFORE if end > CONTEXT else 0
        self._before, self._before_data, self._held = folded[low:end], data[low:end], held
        plain = not self._veiled and folded.isascii() and held.isascii() and data.find(b"\\", low) < 0
        self._lead = len(folded) - low if plain else -1
