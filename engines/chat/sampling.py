"""How a token is chosen, as every runtime that generates understands it: the settings of a request, and scores of what was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request; by default everything is off except the draw at temperature 1.

    grammar: what the runtime's `engines.chat.conversation.Constraints` made of a format or of calls.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Natural-log probabilities of the chosen token and of the most likely ones, before any sampling setting."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs_of(logits: NDArray[numpy.float32], token: int, count: int) -> TopLogprobs:
    """Log-probability of `token` and the `count` most likely tokens with theirs, in falling order."""
    peak = float(logits.max())
    total = peak + math.log(float(numpy.exp(logits - peak, dtype=numpy.float64).sum()))
    top: tuple[tuple[int, float], ...] = ()
    if count > 0:
        count = min(count, len(logits))
        best = numpy.argpartition(logits, -count)[-count:]
        best = best[numpy.argsort(-logits[best], kind="stable")]
        top = tuple((int(item), float(logits[item]) - total) for item in best)
    return TopLogprobs(float(logits[token]) - total, top)
