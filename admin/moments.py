"""Moments: RFC 3339 in UTC in every answer; RFC 3339 or seconds since the epoch in bodies and queries. The one place that converts them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from msgspec import Meta

FORMAT: Final = "date-time"
LAST: Final = 253402300799
"""9999-12-31T23:59:59Z: RFC 3339 has no later one."""
Moment = Annotated[float, Meta(ge=0, le=LAST, extra_json_schema={"format": FORMAT})]
"""Seconds since the epoch; a caller may write it as RFC 3339 too (`values.decode`, `values.convert`)."""
Timestamp = Annotated[str, Meta(extra_json_schema={"format": FORMAT})]
"""A moment as it is shown."""
WORDS: Final = "a time such as 2027-01-31T00:00:00Z (RFC 3339), or seconds since the epoch"
_EPOCH: Final = datetime(1970, 1, 1)
_RFC3339: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,18})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def timestamp(seconds: float | None) -> str | None:
    """`2027-01-31T00:00:00Z`; with milliseconds where it is not a whole second. None stays None."""
    if seconds is None:
        return None
    moment = _EPOCH + timedelta(milliseconds=round(seconds * 1000))
    return f"{moment.isoformat(timespec='milliseconds').removesuffix('.000')}Z"


def seconds(text: str) -> float | None:
    """RFC 3339 as seconds since the epoch; None for any other text, and for what is before 1970."""
    if _RFC3339.fullmatch(text) is None:
        return None
    try:
        found = datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):  # no such day or hour
        return None
    return found if found >= 0 else None


def shown(view: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A copy of a view in which the fields of these names are timestamps."""
    return {**view, **{name: timestamp(view[name]) for name in names if name in view}}


def documented(schema: Any) -> Any:
    """A JSON schema in which a Moment is a text too, as callers may write it."""
    if isinstance(schema, list | tuple):
        return type(schema)(documented(member) for member in schema)
    if not isinstance(schema, dict):
        return schema
    found = {key: documented(member) for key, member in schema.items()}
    return {**found, "type": ["string", "number"]} if (found.get("type"), found.get("format")) == ("number", FORMAT) else found
