"""Duplicate keys in an object, found without building anything beyond the decoder's result.

Every key has one colon behind it. A decoder that keeps the last of two equal keys loses the other's colon, so a body and what is written
from its decoded form have as many colons if and only if no key appeared twice, at any depth; colons inside strings are the same in
both once those written as \\u003a are counted, too.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from gateway.core.errors import RequestError

NAMED: Final = 64 * 1024
"""Largest body, in bytes, that is searched for the duplicate key, to name it."""
_ENCODER: Final = msgspec.json.Encoder()


def colons(raw: bytes) -> int:
    """Colons in JSON, including those written as escapes."""
    found = raw.count(b":")
    if raw.find(b"\\u003") >= 0:
        single = raw.replace(b"\\\\", b"")
        found += single.count(b"\\u003a") + single.count(b"\\u003A")
    return found


def written(value: Any) -> int:
    """Colons in a decoded value's encoding."""
    return _ENCODER.encode(value).count(b":")


def duplicate(raw: bytes, place: str) -> RequestError:
    """A 400 that names the key if the JSON is small enough to search."""
    name = _first(raw) if len(raw) <= NAMED else None
    if name is None:
        return RequestError(f"{place or 'body'}: a key appears twice in one object.", param=place or None)
    param = f"{place}.{name}" if place else name
    return RequestError(f"{param[:256]}: the key {name[:64]!r} appears twice in one object.", param=param[:256])


class _Twice(Exception):
    pass


def _first(raw: bytes) -> str | None:
    try:
        json.loads(raw, object_pairs_hook=_pairs)
    except _Twice as found:
        return str(found)
    except (ValueError, RecursionError):
        pass
    return None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Twice(name)
            seen.add(name)
    return found
