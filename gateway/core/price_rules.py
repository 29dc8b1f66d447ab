"""When prices are valid, and which ones contradict one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import inf

from gateway.core.errors import ConfigError
from gateway.core.price_specs import PriceSpec

ErrorAt = Callable[[str, str], ConfigError]
"""(path, message) -> the error with its file and line."""


def rates(price: PriceSpec) -> dict[str, float | None]:
    """What was written, by name."""
    return {
        "prompt": price.prompt,
        "completion": price.completion,
        "cached": price.cached,
        "reasoning": price.reasoning,
        "image": price.image,
        "audio": price.audio,
        "audio_completion": price.audio_completion,
        "request": price.request,
    }


def moment(text: str | None, default: float) -> float:
    """Seconds since the epoch. Raises ValueError for a day or time that does not exist."""
    if text is None:
        return default
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def spans(prices: Sequence[PriceSpec]) -> list[tuple[float, float]]:
    """From when and until when each is valid, in seconds since the epoch. Without `until`, until the next of the same pattern begins."""
    found = []
    for price in prices:
        begin = moment(price.since, -inf)
        later = (moment(other.since, -inf) for other in prices if other.model == price.model)
        end = min((start for start in later if start > begin), default=inf) if price.until is None else moment(price.until, inf)
        found.append((begin, end))
    return found


def check(prices: Sequence[PriceSpec], error: ErrorAt) -> None:
    """Raises ConfigError for the first contradiction: a time that does not exist, no price at all, two prices at the same time."""
    for index, price in enumerate(prices):
        path = f"prices[{index}]"
        for name, text in (("from", price.since), ("until", price.until)):
            try:
                moment(text, 0.0)
            except ValueError:
                raise error(f"{path}.{name}", f"'{text}' does not exist; write a day or a time such as 2026-01-31T12:00:00Z") from None
        if all(rate is None for rate in rates(price).values()):
            raise error(path, f"has no price; give at least one of {', '.join(rates(price))} (0 for free)")
        if price.until is not None and moment(price.until, inf) <= moment(price.since, -inf):
            raise error(f"{path}.until", f"'{price.until}' is not after 'from' ({price.since})")
    _apart(prices, error)
    _currencies(prices, error)


def _apart(prices: Sequence[PriceSpec], error: ErrorAt) -> None:
    valid = spans(prices)
    by_pattern: dict[str, list[int]] = {}
    for index, price in enumerate(prices):
        by_pattern.setdefault(price.model, []).append(index)
    for pattern, indices in by_pattern.items():
        indices.sort(key=lambda index: valid[index])
        for before, after in pairwise(indices):
            if valid[after][0] < valid[before][1]:
                raise error(
                    f"prices[{max(before, after)}]",
                    f"overlaps with prices[{min(before, after)}]: both price '{pattern}' at the same time; set 'from' and 'until' apart",
                )


def _currencies(prices: Iterable[PriceSpec], error: ErrorAt) -> None:
    """A model that changed its currency within its history could not be compared with a budget."""
    known: dict[str, str] = {}
    for index, price in enumerate(prices):
        currency = price.currency.lower()
        if known.setdefault(price.model, currency) != currency:
            raise error(
                f"prices[{index}].currency", f"is {currency}, but '{price.model}' has another price in {known[price.model]}; use one"
            )
