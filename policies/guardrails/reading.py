"""Texts that several guardrails read one after the other, with what each of them would make of the texts for itself, made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.guardrails.folding import has_nul, plain

MOST: Final = 128 * 1024
"""Characters that are read at once: about a quarter of a millisecond. Longer texts are the guardrails' own business."""


class Reading(list[str]):
    """The texts. data: their bytes, with a NUL between two of them, if all is ASCII without control characters and not too long; else None,
    and every guardrail reads the texts itself."""

    __slots__ = ("data",)

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(texts)
        joined = texts[0] if len(texts) == 1 else "\x00".join(texts)
        self.data = None if len(joined) > MOST or has_nul(texts) else plain(joined)


def data_of_all(texts: Sequence[str]) -> bytes | None:
    """The `data` of texts that several guardrails read; None for others."""
    return texts.data if isinstance(texts, Reading) else None
