"""Usage reports: requests, tokens and costs by caller, model and day; what each cost centre pays for a month; reconciliation."""

from __future__ import annotations

import base64
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, convert, to_builtins

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation
from admin.resource import Tenant, scope
from gateway.core.errors import NotFound, RequestError, StoreUnavailable
from gateway.core.ledger import EngineRow
from gateway.core.price_rules import device_rate, nano
from gateway.core.slices import Steps, in_slices
from gateway.core.specs import EngineCostSpec

DIMENSIONS: Final = ("tenant", "key", "user", "agent", "model", "operation", "currency", "day")
COUNTS: Final = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost", "unknown")
_ANY: Final = "|".join(DIMENSIONS)
Day = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Text = Annotated[str, Meta(max_length=255)]
FIRST_DAY: Final = "0001-01-01"
PAGE: Final = 10_000
MOST: Final = 1_000_000
"""Rows of a month that are summed for its cost centres."""
NOBODY: Final = ""
"""The cost centre of usage that neither a rule nor a tenant assigns to one."""


class UsageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """group_by: any of tenant, key, user, agent, model, operation, currency, day, with commas between. since, until: days (UTC), inclusive.
    cursor: from the page before."""

    group_by: Annotated[str, Meta(pattern=rf"^({_ANY})(,({_ANY})){{0,7}}$")] = "tenant"
    since: Day = FIRST_DAY
    until: Day = "9999-12-31"
    tenant: Tenant | None = None
    key: Tenant | None = None
    user: Text | None = None
    agent: Text | None = None
    model: Tenant | None = None
    operation: Text | None = None
    currency: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = 1000
    cursor: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,4000}$")] | None = None


class UsageSum(msgspec.Struct):
    """cost: a decimal number in `currency`; both null where costs are in several currencies. unknown: requests whose process was killed,
    which were charged what they had reserved."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    unknown: int
    cost: str | None = None
    currency: str | None = None
    tenant: str | None = None
    key: str | None = None
    user: str | None = None
    agent: str | None = None
    model: str | None = None
    operation: str | None = None
    day: str | None = None


class UsageReport(msgspec.Struct):
    items: list[UsageSum]
    cursor: str | None = None


class CentreQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """month: `YYYY-MM` (UTC). tenant: only its usage."""

    month: Annotated[str, Meta(pattern=r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])$")]
    tenant: Tenant | None = None


class CentreSum(msgspec.Struct):
    """What one cost centre pays in one currency. currency: empty for what has no price."""

    cost_centre: str
    currency: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    unknown: int
    cost: str


class CentreReport(msgspec.Struct):
    month: str
    items: list[CentreSum]


class SessionQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """since, until: days (UTC), inclusive. session: only this one. limit: those that were used last."""

    since: Day = "0001-01-01"
    until: Day = "9999-12-31"
    tenant: Tenant | None = None
    session: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = 1000


class SessionSum(msgspec.Struct):
    """What a session used. key, user, agent: of its last request. day: the last one."""

    tenant: str
    session: str
    currency: str
    key: str
    user: str
    agent: str
    day: str
    last: Timestamp
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    unknown: int
    cost: str


class SessionReport(msgspec.Struct):
    items: list[SessionSum]
    cursor: str | None = None


class EngineQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """since, until: days (UTC), inclusive; absent: today."""

    since: Day | None = None
    until: Day | None = None


class EngineSum(msgspec.Struct):
    """An engine with a rate. begins: from when on it counts within the days asked for. hours: since then. busy_hours: those that
    requests held, as of the whole engine. cost: of these. idle_cost: of the rest, by the same rate. whole_cost: of all hours."""

    engine: str
    currency: str
    devices: int
    requests: int
    begins: Timestamp
    hours: float
    busy_hours: float
    prefill_hours: float
    decode_hours: float
    cost: str
    idle_cost: str
    whole_cost: str


class EngineReport(msgspec.Struct):
    since: str
    until: str
    items: list[EngineSum]


class Reconciled(msgspec.Struct):
    """A line of a reconciliation. unit: what is counted; costs are in `nano-CURRENCY`."""

    scope: str
    unit: str
    from_audit: int
    charged: int
    difference: int


class ReconciledWriter(msgspec.Struct):
    """up_to: the last line that both sides count. complete_from: the first day that is compared, where older segments are gone."""

    writer: str
    up_to: int
    complete_from: str | None = None


class ReconciledBudget(msgspec.Struct):
    """One amount of a budget's bucket in its present window, or of a rate over more than a minute. charged: by its counter, of a window of
    the calendar and of budgets in Redis what this replica took. in_hand: of that, what this gateway has taken in advance and not used.
    under_way: what requests have reserved that have no outcome yet. lost: what a killed worker had in hand, which comes back once nothing
    is under way; in Redis, what came back just now of what killed processes had reserved.
    difference: charged without all these, less what the log says; of a rate, only what is less than that."""

    limit: str
    scope: str
    amount: str
    unit: str
    from_audit: int
    charged: int
    in_hand: int
    under_way: int
    lost: int
    difference: int


class NotCompared(msgspec.Struct):
    limit: str
    reason: str


class Reconciliation(msgspec.Struct):
    """difference: the sum of all differences of the scopes, without their signs. budgets: apart from it, with rates over more than a
    minute. not_compared: those of which the log cannot say enough. unopened: outcomes that are not in `from_audit`, because they were
    encrypted as a whole and their tenant's keys were destroyed."""

    scopes: list[Reconciled]
    difference: int
    unopened: int = 0
    writers: list[ReconciledWriter] = []
    budgets: list[ReconciledBudget] = []
    not_compared: list[NotCompared] = []


def amount(nano: int) -> str:
    """Nano-units as a decimal number."""
    text = f"{Decimal(nano).scaleb(-9):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


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
        limit=query.limit + 1,
        after=_after(query.cursor),
        **{name: getattr(query, name) for name in DIMENSIONS if name not in ("tenant", "day")},
    )
    rows = list(found[: query.limit])
    more = len(found) > query.limit
    shown = [{**row, "cost": None if row["cost"] is None else amount(row["cost"])} for row in rows]
    return Answer({"items": shown, "cursor": _cursor([rows[-1][name] for name in dimensions]) if more else None})


async def by_cost_centre(call: Call) -> Answer:
    query: CentreQuery = call.query
    year, month = map(int, query.month.split("-"))
    groups = ("tenant", "key", "user", "currency")
    of_tenant = await _tenants(call)
    rules = call.ports.config.current().get("usage", {}).get("cost_centres", [])
    sums: dict[tuple[str, str], list[int]] = {}
    after: list[str] | None = None
    for _ in range(MOST // PAGE):
        rows = await call.store.report_usage(
            groups,
            since=f"{query.month}-01",
            until=f"{query.month}-{monthrange(year, month)[1]:02d}",
            tenant=scope(call, "usage:read", query.tenant),
            limit=PAGE,
            after=after,
        )
        await in_slices(_added(sums, rows, lambda row: _centre(call, row, rules, of_tenant)))
        if len(rows) < PAGE:
            break
        after = [rows[-1][name] for name in groups]
    else:
        raise RequestError(f"This month has more than {MOST} callers; ask for one tenant.", param="tenant")
    items = []
    for (centre, currency), counts in sorted(sums.items()):
        named: dict[str, Any] = dict(zip(COUNTS, counts, strict=True))
        items.append({"cost_centre": centre, "currency": currency, **named, "cost": amount(named["cost"])})
    return Answer({"month": query.month, "items": items})


def _added(
    sums: dict[tuple[str, str], list[int]], rows: Sequence[Mapping[str, Any]], centre_of: Callable[[Mapping[str, Any]], str]
) -> Steps[None]:
    """Adds rows to the sums of their cost centres and currencies. For each of ten thousand callers, each rule may be asked."""
    for row in rows:
        known = sums.setdefault((centre_of(row), row["currency"]), [0] * len(COUNTS))
        for place, name in enumerate(COUNTS):
            known[place] += row[name]
        yield


async def _tenants(call: Call) -> dict[str, str]:
    """The cost centres of the tenants of the store."""
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await call.store.list("tenants", limit=1000, cursor=cursor)
        found.update({one.name: str(one.body.get("cost_centre", "")) for one in page.items})
        cursor = page.cursor
        if cursor is None:
            return found


def _centre(call: Call, row: Mapping[str, Any], rules: Sequence[Mapping[str, Any]], of_tenant: Mapping[str, str]) -> str:
    """`matches` asks whether an outer pattern allows an inner one, and every name is a pattern of itself."""
    matches = call.ports.matches
    for rule in rules:
        if all(rule.get(name, "*") == "*" or matches(rule[name], row[name]) for name in ("tenant", "key", "user")):
            return str(rule["name"])
    return of_tenant.get(row["tenant"], NOBODY)


async def sessions(call: Call) -> Answer:
    query: SessionQuery = call.query
    _check_day(query.since, "since")
    _check_day(query.until, "until")
    tenant = scope(call, "usage:read", query.tenant)
    found = await call.store.usage_of_sessions(
        since=query.since, until=query.until, tenant=tenant, session=query.session, limit=query.limit
    )
    rows = [{**to_builtins(one), "cost": amount(one.cost), "last": timestamp(one.last)} for one in found]
    return Answer({"items": rows, "cursor": None})


async def engines(call: Call) -> Answer:
    """Devices are paid for around the clock, whether they work or not: what no request held was idle."""
    query: EngineQuery = call.query
    now = call.ports.clock.wall()
    today = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d")
    since, until = query.since or today, min(query.until or today, today)
    _check_day(since, "since")
    _check_day(until, "until")
    begin = datetime.fromisoformat(since).replace(tzinfo=UTC).timestamp()
    end = min(now, datetime.fromisoformat(until).replace(tzinfo=UTC).timestamp() + 86400)
    if end <= begin:
        raise RequestError(f"The days end ({until}) before they begin ({since}).", param="since")
    found: dict[str, list[EngineRow]] = {}
    for row in await call.store.usage_of_engines(FIRST_DAY, until):
        found.setdefault(row.engine, []).append(row)
    items = []
    for engine in call.ports.config.current().get("engines", []):
        if engine.get("cost"):
            rows = found.get(str(engine["name"]), [])
            there = await _there_since(call, str(engine["name"]), rows, today)
            items.append(engine_sum(engine, [row for row in rows if row.day >= since], min(end, max(begin, there)), end))
    return Answer({"since": since, "until": until, "items": items})


async def _there_since(call: Call, engine: str, rows: Sequence[EngineRow], today: str) -> float:
    """When an engine was first known, in seconds since the epoch: of the store, when it was created; of the configuration file, the first
    day on which requests held it, or else the start of this gateway."""
    try:
        return (await call.store.get("engines", engine)).created
    except NotFound:
        first = min((row.day for row in rows if row.engine == engine), default=today)
        if first < today:
            return datetime.fromisoformat(first).replace(tzinfo=UTC).timestamp()
        return float(call.ports.fleet.status()["started_at"])


def engine_sum(engine: Mapping[str, Any], rows: Sequence[EngineRow], begin: float, end: float) -> dict[str, Any]:
    """What one engine with a rate did in this time. engine: its settings as plain values. rows: of the days asked for."""
    seconds = end - begin
    cost = convert(engine["cost"], EngineCostSpec)
    rate = device_rate(cost)
    mine = [row for row in rows if row.engine == engine["name"]]
    prefill, decode = sum(row.prefill_us for row in mine), sum(row.decode_us for row in mine)
    charged = rate.cost(prefill, decode, 1)
    whole = round(nano(cost.rate, cost.devices) * Decimal(seconds) / 3600)
    busy = (prefill + decode) / 1e6
    unused = max(0, whole - round(nano(cost.rate, cost.devices) * Decimal(busy) / 3600))
    return {
        "engine": engine["name"],
        "currency": rate.currency,
        "devices": cost.devices,
        "requests": sum(row.requests for row in mine),
        "begins": timestamp(begin),
        "hours": round(seconds / 3600, 4),
        "busy_hours": round(busy / 3600, 4),
        "prefill_hours": round(prefill / 3.6e9, 4),
        "decode_hours": round(decode / 3.6e9, 4),
        "cost": amount(charged),
        "idle_cost": amount(unused),
        "whole_cost": amount(whole),
    }


async def reconcile(call: Call) -> Answer:
    if call.ports.reconcile is None:
        raise StoreUnavailable("This process has no store, and so no usage.")
    try:
        return Answer(await call.ports.reconcile())
    except OSError as error:
        raise StoreUnavailable(f"The audit log cannot be read: {error.strerror}.") from None


def _cursor(last: list[str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(last)).decode().rstrip("=")


def _after(cursor: str | None) -> list[str] | None:
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=list[str])
    except (ValueError, RecursionError):
        raise RequestError("This cursor did not come from a page.", param="cursor") from None


def _check_day(day: str, param: str) -> None:
    try:
        date.fromisoformat(day)
    except ValueError:
        raise RequestError(f"{day} is not a day of the calendar.", param=param) from None


def operations() -> list[Operation]:
    return [
        Operation("GET", "usage", "usage:read", "Report usage", report, UsageReport, query=UsageQuery),
        Operation(
            "GET", "usage:cost-centres", "usage:read", "Report a month by cost centre", by_cost_centre, CentreReport, query=CentreQuery
        ),
        Operation("GET", "usage:sessions", "usage:read", "Report usage by session", sessions, SessionReport, query=SessionQuery),
        Operation("GET", "usage:engines", "usage:read", "Report the time of engines", engines, EngineReport, query=EngineQuery),
        Operation("GET", "usage:reconcile", "audit:read", "Compare the usage with the audit log", reconcile, Reconciliation),
    ]
