"""What a kept answer was made from, as OpenAI lists it (API reference, "List input items"): all items before its own output, also those of
the conversation that it went on with.

Items are kept as clients sent them. Here a message has the type that may be left out, its content is parts, and every item has an
identifier.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, Struct, json

from gateway.core.errors import RequestError
from gateway.core.slices import Steps

_PREFIX: Final = "resp_"
_PART: Final = 256
"""Items between two pauses."""


class _Answered(Struct):
    output: list[Raw]


class _Known(Struct, gc=False):
    id: Any = ""


_ITEMS: Final = json.Decoder(list[Raw])
_FIELDS: Final = json.Decoder(dict[str, Raw])
_OUTPUT: Final = json.Decoder(_Answered)
_KNOWN: Final = json.Decoder(_Known)


def input_items(identity: str, items: bytes, answer: bytes, limit: int, after: str | None, newest: bool) -> Steps[bytes]:
    """One page. items, answer: what is kept under this identifier. Raises RequestError if no item is named `after`."""
    every = _ITEMS.decode(items)
    given = every[: len(every) - len(_OUTPUT.decode(answer).output)]
    yield
    names = yield from _names(identity, given)
    order = range(len(given) - 1, -1, -1) if newest else range(len(given))
    start = 0
    if after is not None:
        if after not in names:
            raise RequestError(f"after: there is no item {after[:128]!r} in this list.", param="after")
        start = order.index(names.index(after)) + 1
    shown = order[start : start + limit]
    data = [_shown(given[place], names[place]) for place in shown]
    ends = {"first_id": names[shown[0]], "last_id": names[shown[-1]]} if shown else {"first_id": None, "last_id": None}
    return json.encode({"object": "list", "data": data, **ends, "has_more": start + limit < len(given)})


def _names(identity: str, given: list[Raw]) -> Steps[list[str]]:
    """The items' own identifiers; where there is none, or an earlier item has it too, one that says the place."""
    names: list[str] = []
    taken: set[str] = set()
    for place, item in enumerate(given):
        if place % _PART == _PART - 1:
            yield
        own = _KNOWN.decode(item).id
        name = own if isinstance(own, str) and own and own not in taken else f"in_{identity.removeprefix(_PREFIX)}_{place}"
        taken.add(name)
        names.append(name)
    return names


def _shown(item: Raw, name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {**_FIELDS.decode(item)}
    if "role" in fields and json.decode(fields.get("type", b'"message"')) == "message":
        content = fields.get("content", Raw(b"null"))
        if bytes(content).lstrip()[:1] == b'"':
            wrote = json.decode(fields["role"]) == "assistant"
            part = {"type": "output_text", "text": content, "annotations": []} if wrote else {"type": "input_text", "text": content}
            fields["content"] = [part]
        fields = {"type": "message", "status": "completed", **fields}
    return {**fields, "id": name}
