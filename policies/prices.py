"""What a request costs, in whole nano-units of a currency (10^-9 USD, for instance). Pure, and without floating point.

A rate is kept in nano-units for a million tokens, so that 0.0375 USD per million tokens is a whole number as well. Each request's cost is
rounded up once, to a whole nano-unit: what many requests cost is never less than the price, and less than one nano-unit for each above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Final

from gateway.core.price_rules import rates, spans
from gateway.core.price_specs import PriceSpec
from gateway.core.prices import LineUp, Price
from policies.patterns import matches

NANO: Final = 1_000_000_000
_PER: Final = {"1": 1_000_000, "1K": 1_000, "1M": 1}
_RATED_AS: Final = (
    ("cached", "prompt"),
    ("image", "prompt"),
    ("audio", "prompt"),
    ("reasoning", "completion"),
    ("audio_completion", "completion"),
)


class PriceTable:
    """The prices of a configuration. The most specific pattern counts: a name before a pattern, more literal characters before fewer, then
    the configuration's order. Outside its validity a price gives way to the next one."""

    def __init__(self, prices: Sequence[PriceSpec]) -> None:
        order = sorted(range(len(prices)), key=lambda index: _rank(prices[index].model))
        valid = spans(prices)
        self._prices = [(prices[index].model, *valid[index], price_of(prices[index])) for index in order]

    def line_up(self, model: str) -> LineUp | None:
        """The prices of one model in time; None if it never has one."""
        mine = tuple((begin, end, price) for pattern, begin, end, price in self._prices if matches(pattern, model))
        return LineUp(mine) if mine else None

    def at(self, model: str, time: float) -> Price | None:
        """The price of a model at a time, in seconds since the epoch; None if it has none then."""
        line_up = self.line_up(model)
        return None if line_up is None else line_up.at(time)


def price_of(spec: PriceSpec) -> Price:
    """The price with its rates as whole numbers. version: a digest of what the price says."""
    given = rates(spec)
    request = _nano(given.pop("request"), 1)
    exact = {rate: _nano(amount, _PER[spec.per]) for rate, amount in given.items()}
    for kind, general in _RATED_AS:
        if given[kind] is None:
            exact[kind] = exact[general]
    currency = spec.currency.lower()
    said = ",".join(f"{name}={number}" for name, number in (*sorted(exact.items()), ("request", request), ("from", spec.since)))
    version = sha256(f"{spec.model},{currency},{said}".encode()).hexdigest()[:12]
    return Price(currency, version, request, **exact)


def of_models(prices: Sequence[PriceSpec], models: Sequence[str]) -> Mapping[str, LineUp]:
    """The prices of those models that have some."""
    if not prices:
        return {}
    table = PriceTable(prices)
    return {model: line_up for model in models if (line_up := table.line_up(model)) is not None}


def unmatched(prices: Sequence[PriceSpec], models: Sequence[str]) -> list[str]:
    """Patterns of prices that no model matches, in order: each may be a misspelled name."""
    return list(dict.fromkeys(price.model for price in prices if not any(matches(price.model, model) for model in models)))


def _rank(pattern: str) -> tuple[bool, int]:
    return "*" in pattern, -len(pattern.replace("*", ""))


def _nano(amount: float | None, times: int) -> int:
    """Nano-units. The shortest text of a float is the number that was written."""
    return 0 if amount is None else round(Decimal(repr(float(amount))) * NANO * times)
