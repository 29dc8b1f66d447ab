"""The list of models in Anthropic's shape, for clients that say `anthropic-version` (API reference, "List Models")."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from gateway.core.errors import RequestError

VERSION: Final = b"anthropic-version"
"""The header by which a client asks for this shape."""
DEFAULT: Final = 20
MOST: Final = 1000


def model(name: str, created: int) -> dict[str, Any]:
    """One model. created: seconds since the epoch."""
    moment = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": moment, "lifecycle": "active"}


def page(models: Sequence[tuple[str, int]], query: bytes) -> bytes:
    """The page that a query asks for (`limit`, `after_id`, `before_id`). models: their names, with when they were created. Raises
    RequestError."""
    asked = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
    limit = asked.get("limit", str(DEFAULT))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= MOST):
        raise RequestError(f"limit: send a number from 1 to {MOST}.", param="limit")
    names = [name for name, _ in models]
    first, last = 0, len(names)
    if "after_id" in asked:
        first = _place(names, asked["after_id"], "after_id") + 1
    if "before_id" in asked:
        last = _place(names, asked["before_id"], "before_id")
    backwards = "before_id" in asked and "after_id" not in asked
    found = models[max(first, last - int(limit)) : last] if backwards else models[first : min(last, first + int(limit))]
    more = len(found) < last - first
    edges = (found[0][0], found[-1][0]) if found else (None, None)
    data = [model(name, created) for name, created in found]
    return msgspec.json.encode({"data": data, "has_more": more, "first_id": edges[0], "last_id": edges[1]})


def _place(names: Sequence[str], name: str, param: str) -> int:
    if name not in names:
        raise RequestError(f"{param}: there is no model {name[:128]!r}.", param=param)
    return names.index(name)
