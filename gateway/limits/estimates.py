"""How many tokens a request will take, learned for each model from what its engines counted.

The wire formats guess the tokens of a prompt from its bytes. Here the guess is corrected by the ratio between what was counted and what was
guessed lately, between a quarter and four times. A request that sets no bound on its answer is taken to generate as much as nineteen of
twenty did, and at most what the model allows: nothing is admitted without a bound. A prompt that its engine has counted is not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.core.specs import ModelSpec
from gateway.core.types import InferenceRequest, Usage

FIRST: Final = 256
"""Generated tokens of a request without a bound, until something is learned."""
MODELS: Final = 10_000
"""Models that are remembered; beyond, what was learned first is forgotten."""
LEAST: Final = 0.25
MOST: Final = 4.0
SHARE: Final = 0.05
"""What one request counts in the mean."""
QUANTILE: Final = 0.95
SMALL: Final = 16
"""Prompts of fewer tokens say nothing about the ratio."""


def bounds_of(models: Iterable[ModelSpec]) -> dict[str, int]:
    """`max_tokens` of the models that have it."""
    return {model.name: model.max_tokens for model in models if model.max_tokens is not None}


class _Learned:
    __slots__ = ("completion", "ratio")

    def __init__(self) -> None:
        self.ratio = 1.0
        self.completion = float(FIRST)


class Estimates:
    """bounds: `max_tokens` of the models that have it, kept by the owner."""

    def __init__(self) -> None:
        self.bounds: dict[str, int] = {}
        self._models: dict[str, _Learned] = {}

    def estimate(self, request: InferenceRequest) -> tuple[int, int]:
        """Tokens to reserve: (of the prompt, that may be generated). The request is told, so that its record says the same."""
        prompt, completion = request.prompt_tokens, request.max_tokens
        if prompt < 0:
            prompt = 0
        if request.counted > 0:
            prompt = request.prompt_tokens = request.counted
        if not request.api.generates:
            return prompt, completion if completion > 0 else 0
        learned = self._models.get(request.model)
        if request.counted == 0 and learned is not None and prompt >= SMALL:
            prompt = int(prompt * learned.ratio + 0.5)
            request.prompt_tokens = prompt
        if completion <= 0:
            completion = FIRST if learned is None else int(learned.completion) + 1
            bound = self.bounds.get(request.model, 0)
            if 0 < bound < completion:
                completion = bound
            completion *= request.choices
        request.expected = completion
        return prompt, completion if completion > 0 else 0

    def learn(self, model: str, guess: int, usage: Usage) -> None:
        """What a request took whose prompt was guessed so."""
        if usage.estimated or usage.prompt_tokens <= 0:
            return
        learned = self._models.get(model)
        if learned is None:
            if len(self._models) >= MODELS:
                del self._models[next(iter(self._models))]
            learned = self._models[model] = _Learned()
        if guess >= SMALL:
            ratio = min(max(usage.prompt_tokens / guess, LEAST), MOST)
            learned.ratio += SHARE * (ratio - learned.ratio)
        if usage.completion_tokens > 0:
            step = max(4.0, learned.completion * SHARE)
            if usage.completion_tokens > learned.completion:
                learned.completion += step * QUANTILE
            else:
                learned.completion = max(1.0, learned.completion - step * (1.0 - QUANTILE))
