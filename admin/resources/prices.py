"""Prices of models, for the whole installation. Those of the store count beside those of the configuration file. And what models cost
now by all of them together: by rates of their own, of the public table, or by the time of devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from admin.operation import Answer, Call, Operation
from admin.resource import Collection
from admin.resources.usage import amount
from gateway.core.errors import ConfigError, RequestError
from gateway.core.prices import Price
from gateway.core.specs.base import Name
from gateway.core.specs.prices import PriceSpec

RATES: Final = ("prompt", "completion", "cached", "reasoning", "image", "audio", "audio_completion", "request")


class PriceSettings(PriceSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A price of the store has a name."""

    name: Name


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Those without a name are called by their places in the file."""
    return [{**price, "name": price["name"] or f"prices/{place}"} for place, price in enumerate(config["prices"])]


async def check(call: Call, settings: PriceSettings, before: dict[str, Any] | None) -> None:
    try:
        await call.ports.check("prices", {**msgspec.to_builtins(settings), "name": settings.name})
    except ConfigError as error:
        _, within, setting = (error.path or "").partition("].")
        raise RequestError(error.message, param=setting if within else "model") from None


PRICES = Collection("prices", "price", PriceSettings, in_file, lambda body: "", check)


class ModelPrice(msgspec.Struct):
    """What a model costs now: decimal numbers for a million tokens, `request` for each request. basis: `tokens`; or `device_time`, where
    the time counts for which a request holds a slot of its engine, and there are no rates by tokens. version: as audit records name it."""

    model: str
    currency: str
    basis: str
    version: str
    prompt: str | None = None
    completion: str | None = None
    cached: str | None = None
    reasoning: str | None = None
    image: str | None = None
    audio: str | None = None
    audio_completion: str | None = None
    request: str | None = None


class ModelPrices(msgspec.Struct):
    items: list[ModelPrice]


async def of_models(call: Call) -> Answer:
    now = call.ports.clock.wall()
    found = []
    for model, line_up in sorted(call.ports.prices().items()):
        price = line_up.at(now)
        if price is not None:
            found.append(shown(model, price))
    return Answer({"items": found})


def shown(model: str, price: Price) -> dict[str, Any]:
    """A price of a model as `ModelPrice` has it."""
    line: dict[str, Any] = {"model": model, "currency": price.currency, "basis": price.basis or "tokens", "version": price.version}
    if not price.basis:
        line |= {rate: amount(getattr(price, rate)) for rate in RATES}
    return line


def operations() -> list[Any]:
    in_force = Operation("GET", "prices:models", "prices:read", "Show what models cost now", of_models, ModelPrices)
    return [*PRICES.operations(), in_force]
