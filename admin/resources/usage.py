"""Usage reports: requests and tokens by tenant, key, model and day."""

from __future__ import annotations

import base64
from datetime import date
from typing import Annotated

import msgspec
from msgspec import Meta

from admin.operation import Answer, Call, Operation
from admin.resource import Tenant, scope
from gateway.core.errors import RequestError

Day = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


class UsageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """group_by: any of tenant, key, model, day, with commas between. since, until: days (UTC), inclusive. cursor: from the page before."""

    group_by: Annotated[str, Meta(pattern=r"^(tenant|key|model|day)(,(tenant|key|model|day)){0,3}$")] = "tenant"
    since: Day = "0001-01-01"
    until: Day = "9999-12-31"
    tenant: Tenant | None = None
    key: Tenant | None = None
    model: Tenant | None = None
    limit: Annotated[int, Meta(ge=1, le=10000)] = 1000
    cursor: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,2000}$")] | None = None


class UsageSum(msgspec.Struct):
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    day: str | None = None


class UsageReport(msgspec.Struct):
    items: list[UsageSum]
    cursor: str | None = None


async def report(call: Call) -> Answer:
    query: UsageQuery = call.query
    _check_day(query.since, "since")
    _check_day(query.until, "until")
    if query.since > query.until:
        raise RequestError(f"The days end ({query.until}) before they begin ({query.since}).", param="until")
    dimensions = query.group_by.split(",")
    if len(set(dimensions)) != len(dimensions):
        raise RequestError("A dimension appears twice.", param="group_by")
    found = await call.store.report_usage(
        dimensions,
        since=query.since,
        until=query.until,
        tenant=scope(call, "usage:read", query.tenant),
        key=query.key,
        model=query.model,
        limit=query.limit + 1,
        after=_after(query.cursor),
    )
    rows = list(found[: query.limit])
    more = len(found) > query.limit
    return Answer({"items": rows, "cursor": _cursor([rows[-1][name] for name in dimensions]) if more else None})


def _cursor(last: list[str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(last)).decode().rstrip("=")


def _after(cursor: str | None) -> list[str] | None:
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=list[str])
    except ValueError:
        raise RequestError("This cursor did not come from a page.", param="cursor") from None


def _check_day(day: str, param: str) -> None:
    try:
        date.fromisoformat(day)
    except ValueError:
        raise RequestError(f"{day} is not a day of the calendar.", param=param) from None


def operations() -> list[Operation]:
    return [Operation("GET", "usage", "usage:read", "Report usage", report, UsageReport, query=UsageQuery)]
