"""Items that a request names instead of sending them (`item_reference`), as some clients do by default with all items of earlier answers.

The identifier of an item that this gateway wrote contains its response's, so that the response can be found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Any, Final

from msgspec import Raw, Struct, json

from gateway.core.errors import RequestError
from gateway.wire.responses.fields import REFERENCE

_RESPONSE: Final = "resp_"
_WRITTEN: Final = re.compile(r"[a-z]{1,8}_([0-9a-f]{48})(?:_[0-9]{1,9})?")


class _Named(Struct, gc=False):
    type: Any = ""
    id: Any = ""


_NAMED: Final = json.Decoder(list[_Named])
_ITEMS: Final = json.Decoder(list[Raw])
_ITEM: Final = json.Decoder(_Named)


def named(given: Raw) -> list[str]:
    """The items that an input names, in its order. Raises RequestError."""
    found = [(number, item.id) for number, item in enumerate(_NAMED.decode(given)) if item.type == REFERENCE]
    for number, identity in found:
        if not isinstance(identity, str) or not 0 < len(identity) <= 128:
            raise RequestError(f"input[{number}].id: a reference has the id of an item.", param=f"input[{number}].id")
    return [identity for _, identity in found]


def response_with(identity: str) -> str:
    """The response that an item belongs to; "" where its identifier does not say so."""
    match = _WRITTEN.fullmatch(identity)
    return "" if match is None else f"{_RESPONSE}{match[1]}"


def with_items(given: Raw, items: Sequence[Raw]) -> list[Raw]:
    """An input with the items in the places of its references, in their order."""
    rest = iter(items)
    return [next(rest) if _ITEM.decode(item).type == REFERENCE else item for item in _ITEMS.decode(given)]


def by_id(items: bytes, names: Set[str]) -> dict[str, Raw]:
    """Those items of a kept conversation that have one of these identifiers, copied out of it; of two with the same one the later."""
    found: dict[str, Raw] = {}
    for item in _ITEMS.decode(items):
        name = _ITEM.decode(item).id
        if isinstance(name, str) and name in names:
            found[name] = item.copy()
    return found
