"""Texts in pieces that a model can read whole: what it does not see, it cannot judge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from gateway.core.asking import Answered, summed
from gateway.core.deadlines import Patience
from gateway.core.errors import ContextLengthExceeded, EngineError, EngineTimeout
from gateway.core.slices import Steps, at_once, in_slices
from gateway.core.types import MOST_FINDINGS, Finding, Usage, Verdict

AT_ONCE: Final = 512
"""Texts, or pieces of them, that are gone through in one step: a request may have tens of thousands."""
_SHORT: Final = 64 * 1024
"""Characters of texts that are gone through in one step."""
SHORTEST: Final = 8
"""Characters of a window that is not divided any more."""
T = TypeVar("T")


class Piece(NamedTuple):
    """A part of a text. number: of the text; start: the offset of the part."""

    number: int
    start: int
    text: str

    def halves(self, overlap: int) -> list[Piece]:
        """The same in two parts that overlap."""
        middle = len(self.text) // 2
        over = min(overlap, middle // 2)
        late = middle - over
        return [self._replace(text=self.text[: middle + over]), self._replace(start=self.start + late, text=self.text[late:])]


def readable(texts: Sequence[str]) -> bool:
    """Whether there is anything to read."""
    return any(text and not text.isspace() for text in texts)


def pieces(texts: Sequence[str], window: int, overlap: int) -> Steps[list[Piece]]:
    """Every text in windows of so many characters that overlap; texts without anything to read are left out."""
    found: list[Piece] = []
    done = 0
    for number, text in enumerate(texts):
        if not text or text.isspace():
            continue
        start = 0
        while True:
            found.append(Piece(number, start, text[start : start + window]))
            done += 1
            if done % AT_ONCE == 0:
                yield
            if start + window >= len(text):
                break
            start += window - overlap
    return found


async def in_turns(texts: Sequence[str], steps: Steps[T]) -> T:
    """The result of work on texts: at once for a few, else between other work."""
    few = len(texts) <= AT_ONCE and sum(map(len, texts)) <= _SHORT
    return at_once(steps) if few else await in_slices(steps)


async def read_whole(
    asked: list[Piece],
    ask: Callable[[dict[str, Any], float], Awaitable[Answered]],
    read: Callable[[bytes, int], tuple[Sequence[T], set[int]]],
    *,
    model: str,
    batch: int,
    overlap: int,
    patience: Patience,
) -> tuple[list[tuple[Piece, T]], Usage]:
    """What a model says of every piece, in any order; pieces that it cannot read whole are asked about in halves.

    ask: puts a question, within so many seconds. read: of an answer to so many pieces, what it says of each, and which were cut. Raises
    EngineTimeout, EngineError.
    """

    def halves(cut: list[Piece]) -> list[Piece]:
        if any(len(piece.text) < 2 * SHORTEST for piece in cut):
            raise EngineError(f"The model {model!r} cannot read {2 * SHORTEST} characters.")
        return [half for piece in cut for half in piece.halves(overlap)]

    found: list[tuple[Piece, T]] = []
    usages: list[Usage] = []
    while asked:
        part, asked = asked[:batch], asked[batch:]
        left = patience.left()
        if left <= 0:
            raise EngineTimeout(f"The model {model!r} did not answer in time.")
        try:
            answered = await ask({"input": [sendable(piece.text) for piece in part]}, left)
        except ContextLengthExceeded:  # by an engine that does not cut
            longest = max(len(piece.text) for piece in part)
            asked = [one for piece in part for one in (halves([piece]) if 2 * len(piece.text) > longest else [piece])] + asked
            continue
        usages.append(answered.usage)
        said, cut = read(answered.body, len(part))
        found += [(piece, said[index]) for index, piece in enumerate(part) if index not in cut]
        asked = halves([part[index] for index in sorted(cut)]) + asked
    return found, summed(usages)


def bounded(texts: Sequence[str], most: int) -> None:
    """Raises EngineError for more characters than may be asked about at once."""
    if sum(map(len, texts)) > most:
        raise EngineError(f"The texts are longer than max_bytes ({most}).")


def sendable(text: str) -> str:
    """The text as UTF-8 can hold it: halves of surrogate pairs become question marks."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def found_as(action: str, name: str, reason: str, findings: list[Finding], usage: Usage) -> Verdict:
    """The verdict of a guardrail that has found something and rewrites nothing: block, annotate, or annotate with its label."""
    kept = tuple(findings[:MOST_FINDINGS])
    return Verdict("block" if action == "block" else "annotate", name, reason, (), kept, usage, action == "label")
