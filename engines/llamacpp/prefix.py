"""Reuse of what is already in the KV memory: which line a new prompt takes, and how much of it need not be computed.

A *line* is one llama.cpp sequence: the tokens whose KV it holds. A request occupies a line; when it ends, the line keeps
its tokens until something better needs the room (least recently used first). A new prompt is compared with every line:

- the line's whole content starts the prompt (the next turn of a conversation): the line is taken over;
- a shared beginning only (the same system prompt): another line is given that beginning by sharing the KV cells,
  which costs no computation and, in llama.cpp's unified memory, no room until the two differ; unless there is no empty line and
  more would be lost in the one to be replaced than by cutting this one (the same prompt asked again).

Each prompt belongs to an isolation domain, and so does what its line holds: a prompt is compared with lines of its own domain only, and
with pinned ones, which the operator configured for all; and never with lines of another LoRA adapter, whose keys and values differ. So
neither the number of reused tokens nor the time to the first one tells a caller what another domain has asked. Which line a prompt replaces
depends on when lines were used, never on what another domain's hold.

Pure: the caller applies the decisions to llama.cpp's memory. Rooms are counted in cells (tokens); shared cells are counted
for each line, so the true use is never above the count.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy

MIN_REUSE = 8
"""Shorter common beginnings (a BOS token, a template's first words) are not worth copying."""


SMALL_LOSS = 0.25
"""A line is cut rather than copied if that loses less than this share of what the copy would replace."""


@dataclass(slots=True, eq=False)
class Line:
    """One sequence of the KV memory: `tokens` are those whose KV is present, or will be when the step under way ends. domain: the
    isolation domain of the prompt that it was computed for. adapter: with which it was computed."""

    seq: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    busy: bool = False
    pinned: bool = False
    stamp: int = 0
    domain: bytes = b""
    adapter: str = ""


@dataclass(slots=True, frozen=True)
class Placement:
    """Where a prompt goes: keep `reuse` positions of `line`, copied from `source` if there is one."""

    line: Line
    reuse: int
    source: Line | None = None


def common(left: array[int], right: array[int]) -> int:
    """Length of the common beginning of two token sequences."""
    size = min(len(left), len(right))
    if size == 0 or left[0] != right[0]:
        return 0
    differ = numpy.frombuffer(left, numpy.int32, size) != numpy.frombuffer(right, numpy.int32, size)
    at = int(differ.argmax())
    return at if differ[at] else size


class Lines:
    """All lines of a context. partial: the memory can be cut at any position (not so for recurrent models)."""

    def __init__(self, count: int, cells: int, *, partial: bool = True) -> None:
        self.cells = cells
        self._lines = [Line(seq) for seq in range(count)]
        self._partial = partial
        self._clock = 0

    def place(self, prompt: Sequence[int], domain: bytes = b"", adapter: str = "") -> Placement:
        """Choose the line for a prompt of an isolation domain, to be read with an adapter, and mark it busy; its `tokens` are then what is
        reused. Raises LookupError: none is free."""
        placement = self._place(prompt, domain, adapter)
        placement.line.adapter = adapter
        return placement

    def _place(self, prompt: Sequence[int], domain: bytes, adapter: str) -> Placement:
        wanted = array("i", prompt)
        best, length = self._longest(wanted, domain, adapter)
        idle = [line for line in self._lines if not line.busy and not line.pinned]
        if not idle:
            raise LookupError("every line is busy")
        if best is None:
            return self._take(min(idle, key=_worth), 0, domain)
        target = min((line for line in idle if line is not best), key=_worth, default=best)
        if best in idle and (len(best.tokens) - length) <= len(target.tokens) * SMALL_LOSS:
            return self._take(best, length, domain)
        return self._take(target, length, domain, best if target is not best else None)

    def release(self, line: Line, *, keep: bool = True) -> None:
        """The request has ended; its tokens stay for the next one, unless not `keep`."""
        line.busy = False
        if not keep:
            line.tokens = array("i")
        self._touch(line)

    def pin(self, line: Line) -> None:
        """Keep a line's content for ever (a system prompt named in the settings)."""
        line.busy, line.pinned = False, True

    def pinned(self) -> list[list[int]]:
        """The tokens of each pinned line."""
        return [line.tokens.tolist() for line in self._lines if line.pinned]

    def room(self, need: int) -> list[Line]:
        """Forget the least recently used lines until `need` cells are free; returns them for the caller to clear."""
        free = self.cells - self.used()
        if free >= need:
            return []
        gone = []
        idle = sorted((line for line in self._lines if line.tokens and not line.busy and not line.pinned), key=_worth)
        for line in idle:
            if free >= need:
                break
            free += len(line.tokens)
            line.tokens = array("i")
            gone.append(line)
        return gone

    def used(self) -> int:
        """Cells in use, shared ones counted for each line."""
        return sum(len(line.tokens) for line in self._lines)

    def held(self) -> int:
        """Those of `used` that no other prompt can have now: of requests under way and of pinned prompts."""
        return sum(len(line.tokens) for line in self._lines if line.busy or line.pinned)

    def forget(self) -> None:
        """Forget all lines: the memory was cleared."""
        for line in self._lines:
            line.tokens = array("i")
            line.busy = line.pinned = False

    def _longest(self, prompt: array[int], domain: bytes, adapter: str) -> tuple[Line | None, int]:
        """The domain's line with the longest usable beginning of the prompt; the last token must always be computed for its logits."""
        best, length = None, MIN_REUSE - 1
        for line in self._lines:
            if line.adapter != adapter or (line.domain != domain and not line.pinned):
                continue
            shared = common(line.tokens, prompt)
            if not self._partial and (line.busy or shared < len(line.tokens) or shared >= len(prompt)):
                continue
            shared = min(shared, len(prompt) - 1)
            if shared > length or (best is not None and shared == length and best.busy and not line.busy):
                best, length = line, shared
        return best, length if best is not None else 0

    def _take(self, line: Line, reuse: int, domain: bytes, source: Line | None = None) -> Placement:
        line.tokens = (source or line).tokens[:reuse]
        line.domain = domain
        line.busy = True
        self._touch(line)
        if source is not None:
            self._touch(source)
        return Placement(line, reuse, source)

    def _touch(self, line: Line) -> None:
        self._clock += 1
        line.stamp = self._clock


def _worth(line: Line) -> tuple[bool, int]:
    """Sort key for eviction: empty lines first, then the least recently used."""
    return bool(line.tokens), line.stamp
