"""What a request costs, in whole nano-units of a currency (10^-9 USD, for instance). Pure, and without floating point.

A rate is kept in nano-units for a million tokens, so that 0.0375 USD per million tokens is a whole number as well. Each request's cost is
rounded up once, to a whole nano-unit: what many requests cost is never less than the price, and less than one nano-unit for each above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import inf
from types import MappingProxyType
from typing import Final

from gateway.core.price_rules import AT_ONCE, nano, rates, spans
from gateway.core.prices import LineUp, Price
from gateway.core.slices import Steps, at_once
from gateway.core.specs.prices import PriceSpec
from policies.pattern_index import PatternIndex
from policies.public_prices import listed

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
        at_once(self._build(prices))

    @classmethod
    def building(cls, prices: Sequence[PriceSpec]) -> Steps[PriceTable]:
        """The same in steps."""
        table = cls(())
        yield from table._build(prices)
        return table

    def _build(self, prices: Sequence[PriceSpec]) -> Steps[None]:
        order = sorted(range(len(prices)), key=lambda index: (*_rank(prices[index].model), prices[index].table is not None))
        yield
        valid = spans(prices)
        yield
        self._prices: list[tuple[PriceSpec, float, float, Price | None]] = []
        for place, index in enumerate(order):
            price = None if prices[index].table else price_of(prices[index])
            self._prices.append((prices[index], *valid[index], price))
            if place % AT_ONCE == 0:
                yield
        self._index = PatternIndex(spec.model for spec, *_ in self._prices)

    def line_up(self, model: str, otherwise: Price | None = None) -> LineUp | None:
        """The prices of one model in time; None if it never has one. otherwise: the price where no other counts."""
        mine: tuple[tuple[float, float, Price], ...] = ()
        for place in self._index.fits(model):
            spec, begin, end, price = self._prices[place]
            mine += _listed(spec.listed_as or model, begin, end) if price is None else ((begin, end, price),)
        if otherwise is not None:
            mine = (*mine, (-inf, inf, otherwise))
        return LineUp(mine) if mine else None

    def at(self, model: str, time: float) -> Price | None:
        """The price of a model at a time, in seconds since the epoch; None if it has none then."""
        line_up = self.line_up(model)
        return None if line_up is None else line_up.at(time)


def _listed(name: str, begin: float, end: float) -> tuple[tuple[float, float, Price], ...]:
    """The prices of the public table, as far as they are valid in this time."""
    rows = listed(name)
    found = ((max(begin, first), min(end, last), price_of(row)) for row, (first, last) in zip(rows, spans(rows), strict=True))
    return tuple((first, last, price) for first, last, price in found if first < last)


def not_listed(prices: Sequence[PriceSpec]) -> list[str]:
    """Names that the public table does not have, of prices that name one model of it each."""
    names = [spec.listed_as or spec.model for spec in prices if spec.table is not None and (spec.listed_as or "*" not in spec.model)]
    return [name for name in dict.fromkeys(names) if not listed(name)]


def price_of(spec: PriceSpec) -> Price:
    """The price with its rates as whole numbers. version: a digest of what the price says."""
    given = rates(spec)
    request = nano(given.pop("request"), 1)
    exact = {rate: nano(amount, _PER[spec.per]) for rate, amount in given.items()}
    for kind, general in _RATED_AS:
        if given[kind] is None:
            exact[kind] = exact[general]
    currency = spec.currency.lower()
    said = ",".join(f"{name}={number}" for name, number in (*sorted(exact.items()), ("request", request), ("from", spec.since)))
    version = sha256(f"{spec.model},{currency},{said}".encode()).hexdigest()[:12]
    return Price(currency, version, request, **exact)


def of_models(
    prices: Sequence[PriceSpec], models: Sequence[str], devices: Mapping[str, Price] = MappingProxyType({})
) -> Steps[dict[str, LineUp]]:
    """The prices of those models that have some. devices: prices by the time of devices, which count where there is none by tokens."""
    found: dict[str, LineUp] = {}
    if prices or devices:
        table = yield from PriceTable.building(prices)
        for number, model in enumerate(models):
            line_up = table.line_up(model, devices.get(model))
            if line_up is not None:
                found[model] = line_up
            if number % AT_ONCE == 0:
                yield
    return found


def unmatched(prices: Sequence[PriceSpec], models: Sequence[str]) -> list[str]:
    """Patterns of prices that no model matches, in order: each may be a misspelled name."""
    patterns = list(dict.fromkeys(price.model for price in prices))
    index = PatternIndex(patterns)
    matched = {place for model in models for place in index.fits(model)} if patterns else set()
    return [pattern for place, pattern in enumerate(patterns) if place not in matched]


def _rank(pattern: str) -> tuple[bool, int]:
    return "*" in pattern, -len(pattern.replace("*", ""))
