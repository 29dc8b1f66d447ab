"""The public table: approximate list prices of well-known hosted models of about one day. They were not verified against the vendors'
pages, which the table names. Nothing is ever downloaded.

It counts only for models that a price of the configuration or of the store assigns to it (`table: public`). It grows old: `DATE` says from
when it is, and operators must check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.core.specs.prices import PriceSpec

FILE: Final = Path(__file__).with_name("public_prices.json")


class Table(msgspec.Struct, frozen=True):
    """date: of about when the prices are. sources: the pages on which to check them, by vendor. rows: by model, the versions of its
    price."""

    date: str
    notice: str
    sources: dict[str, str]
    rows: dict[str, tuple[PriceSpec, ...]]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    date: str
    notice: str
    sources: dict[str, str]
    prices: list[dict[str, Any]]


@cache
def table() -> Table:
    """Read from the package once."""
    file = msgspec.json.decode(FILE.read_bytes(), type=_File)
    found: dict[str, list[PriceSpec]] = {}
    for row in file.prices:
        vendor, note = file.sources[row.pop("vendor")], row.pop("note", "")
        reference = f"{vendor} as of {file.date}" + (f"; {note}" if note else "")
        price = msgspec.convert({**row, "reference": reference}, PriceSpec)
        found.setdefault(price.model, []).append(price)
    return Table(file.date, file.notice, file.sources, {model: tuple(rows) for model, rows in found.items()})


def listed(name: str) -> Sequence[PriceSpec]:
    """The versions of the price of a model by its name in the table; a vendor's name before a slash does not count (`openai/gpt-4o`). Empty
    for a model that is not there."""
    rows = table().rows
    return rows.get(name) or rows.get(name.rpartition("/")[2], ())
