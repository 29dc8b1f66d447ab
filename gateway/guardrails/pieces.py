"""Texts in pieces that a model can read whole: what it does not see, it cannot judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.errors import EngineError
from gateway.core.types import MOST_FINDINGS, Finding, Usage, Verdict


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


def pieces(texts: Sequence[str], window: int, overlap: int) -> list[Piece]:
    """Every text in windows of so many characters that overlap; texts without anything to read are left out."""
    found: list[Piece] = []
    for number, text in enumerate(texts):
        if not text or text.isspace():
            continue
        start = 0
        while True:
            found.append(Piece(number, start, text[start : start + window]))
            if start + window >= len(text):
                break
            start += window - overlap
    return found


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
