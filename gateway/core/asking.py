"""The port by which a guardrail or a cache asks a model of this gateway (implemented in gateway.pipeline.asking)."""

from __future__ import annotations

from typing import Any, Final, Protocol

from gateway.core.errors import EngineError
from gateway.core.values import UNLABELLED, Principal, Usage

GUARDRAIL: Final = "guardrail"


class Answered:
    """A model's answer. usage: what it cost, by the price of the model that was asked."""

    __slots__ = ("body", "usage")

    def __init__(self, body: bytes, usage: Usage) -> None:
        self.body, self.usage = body, usage


class Asker(Protocol):
    """Asks a model through the fleet: its pool, slots, queue, breakers and retries are those of a client's request. No guardrail reads the
    question or the answer."""

    async def ask(
        self,
        model: str,
        path: bytes,
        question: dict[str, Any],
        seconds: float,
        principal: Principal | None = None,
        labels: frozenset[str] = UNLABELLED,
        operation: str = GUARDRAIL,
    ) -> Answered:
        """Posts a question to a path of the OpenAI API; `model` is added to it.

        seconds: for all of it, the wait for a slot included. principal: on whose behalf it waits for a slot; None: the gateway's own.
        labels: of the texts in the question. operation: under which the metrics of the model count it.
        Raises GatehouseError where there is no answer: EngineTimeout after the deadline, PermissionDenied where no engine is cleared.
        """
        ...


class NobodyToAsk:
    """Implements Asker for guardrails that are only made to see whether their settings are right."""

    async def ask(self, *args: Any, **options: Any) -> Answered:
        raise EngineError("There is no gateway here whose models could be asked.")


def summed(usages: list[Usage]) -> Usage:
    """The usage of several answers together. Costs in another currency than the first one's are left out."""
    total = Usage()
    for usage in usages:
        add(total, usage)
    return total


def add(total: Usage, more: Usage) -> None:
    """Adds what something else has cost."""
    total.prompt_tokens += more.prompt_tokens
    total.completion_tokens += more.completion_tokens
    total.cached_tokens += more.cached_tokens
    total.reasoning_tokens += more.reasoning_tokens
    total.estimated = total.estimated or more.estimated
    if more.cost and total.currency in ("", more.currency):
        total.cost, total.currency = total.cost + more.cost, more.currency


def with_spent(usage: Usage | None, spent: Usage | None) -> Usage | None:
    """What a request cost: its own part, if it had any, and that of the model that a guardrail asked and that led to its refusal."""
    if usage is None or spent is None:
        return spent if usage is None else usage
    total = summed([usage, spent])
    total.of_media(usage.image_tokens, usage.audio_tokens, usage.audio_completion_tokens)
    total.device, total.currency = usage.device, usage.currency or total.currency
    return total
