"""When prices are valid, and which ones contradict one another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from itertools import pairwise
from math import inf
from typing import Final

from gateway.core.errors import ConfigError
from gateway.core.prices import DevicePrice, DeviceRate
from gateway.core.slices import Steps, at_once
from gateway.core.specs import EngineSpec, ModelSpec
from gateway.core.specs.prices import EngineCostSpec, PriceSpec

AT_ONCE: Final = 64
"""Prices that are looked at between two pauses."""
FIRST_US: Final = 10_000_000
"""Microseconds of one slot that a request reserves while nothing is known of requests of its model."""

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


def nano(amount: float | None, times: int = 1) -> int:
    """Nano-units. The shortest text of a float is the number that was written."""
    return 0 if amount is None else round(Decimal(repr(float(amount))) * 1_000_000_000 * times)


def device_rate(spec: EngineCostSpec) -> DeviceRate:
    """An engine's rate as whole numbers."""
    prefill, decode = (nano(spec.rate if one is None else one, spec.devices) for one in (spec.prefill, spec.decode))
    currency = spec.currency.lower()
    version = sha256(f"device,{currency},{prefill},{decode},{spec.slots or 0}".encode()).hexdigest()[:12]
    return DeviceRate(currency, version, prefill, decode, spec.slots or 0)


def device_price(engines: Sequence[EngineSpec]) -> DevicePrice | None:
    """What a model costs whose pool has these engines, if one of them has a rate."""
    found = [(device_rate(engine.cost), engine) for engine in engines if engine.cost is not None]
    if not found:
        return None
    first = max(rate.cost(0, FIRST_US, rate.shared_by or engine.start_slots) for rate, engine in found)
    return DevicePrice(found[0][0].currency, found[0][0].version, first)


def moment(text: str | None, default: float) -> float:
    """Seconds since the epoch. Raises ValueError for a day or time that does not exist."""
    if text is None:
        return default
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def kind_of(price: PriceSpec) -> tuple[str, bool]:
    """Prices of one kind follow one another in time: of one pattern, with rates of their own or from a table."""
    return price.model, price.table is not None


def spans(prices: Sequence[PriceSpec]) -> list[tuple[float, float]]:
    """From when and until when each is valid, in seconds since the epoch. Without `until`, until the next of the same pattern begins."""
    begins = [moment(price.since, -inf) for price in prices]
    of_kind: dict[tuple[str, bool], list[float]] = {}
    for price, begin in zip(prices, begins, strict=True):
        of_kind.setdefault(kind_of(price), []).append(begin)
    for starts in of_kind.values():
        starts.sort()
    found = []
    for price, begin in zip(prices, begins, strict=True):
        starts = of_kind[kind_of(price)]
        following = bisect_right(starts, begin)
        after = starts[following] if following < len(starts) else inf
        found.append((begin, after if price.until is None else moment(price.until, inf)))
    return found


def check(prices: Sequence[PriceSpec], error: ErrorAt) -> None:
    """`checking` without pausing."""
    at_once(checking(prices, error))


def checking(prices: Sequence[PriceSpec], error: ErrorAt) -> Steps[None]:
    """Raises ConfigError for the first contradiction: a time that does not exist, no price at all, two prices at the same time."""
    for index, price in enumerate(prices):
        path = f"prices[{index}]"
        for name, text in (("from", price.since), ("until", price.until)):
            try:
                moment(text, 0.0)
            except ValueError:
                raise error(f"{path}.{name}", f"'{text}' does not exist; write a day or a time such as 2026-01-31T12:00:00Z") from None
        given = [name for name, rate in rates(price).items() if rate is not None]
        if price.table is not None and given:
            raise error(f"{path}.{given[0]}", "is a rate beside 'table'; the table has the rates: remove one of them")
        if price.table is None and price.listed_as is not None:
            raise error(f"{path}.listed_as", "is a name in a table; set 'table: public' too")
        if price.table is not None and (price.currency.lower() != "usd" or price.per != "1M"):
            raise error(f"{path}.table", "is in usd for 1M tokens; remove 'currency' and 'per'")
        if price.table is None and not given:
            raise error(path, f"has no price; give at least one of {', '.join(rates(price))} (0 for free)")
        if price.until is not None and moment(price.until, inf) <= moment(price.since, -inf):
            raise error(f"{path}.until", f"'{price.until}' is not after 'from' ({price.since})")
        if index % AT_ONCE == 0:
            yield
    yield
    _apart(prices, error)
    yield
    _currencies(prices, error)


def _apart(prices: Sequence[PriceSpec], error: ErrorAt) -> None:
    valid = spans(prices)
    by_kind: dict[tuple[str, bool], list[int]] = {}
    for index, price in enumerate(prices):
        by_kind.setdefault(kind_of(price), []).append(index)
    for (pattern, _), indices in by_kind.items():
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


def check_devices(models: Sequence[ModelSpec], engines: Sequence[EngineSpec], error: ErrorAt) -> None:
    """Raises ConfigError for a model whose engines have rates in several currencies: its costs could not be added up."""
    of_engine = {engine.name: engine.cost.currency.lower() for engine in engines if engine.cost is not None}
    for index, model in enumerate(models if of_engine else ()):
        names = [member if isinstance(member, str) else member.engine for member in model.pool]
        used = {of_engine[name] for name in names if name in of_engine}
        if len(used) > 1:
            raise error(f"models[{index}].pool", f"its engines have rates in several currencies ({', '.join(sorted(used))}); use one")
