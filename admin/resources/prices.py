"""Prices of models, for the whole installation. Those of the store count beside those of the configuration file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from admin.operation import Call
from admin.resource import Collection
from gateway.core.errors import ConfigError, RequestError
from gateway.core.price_specs import PriceSpec
from gateway.core.spec import Name


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


def operations() -> list[Any]:
    return PRICES.operations()
