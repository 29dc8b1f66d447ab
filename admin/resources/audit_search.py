"""The audit log's index: requests and events found by what they were about, and what happened in a period."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin.moments import Moment, Timestamp, timestamp
from admin.operation import Answer, Call, Operation
from admin.ports import AuditIndexReader
from admin.resource import Tenant
from gateway.core.audit_questions import TEXTS, AuditScope, AuditSearch
from gateway.core.errors import NotFound, RequestError, StoreUnavailable

SEARCH: Final = "records:search"
REPORT: Final = "records:report"
Text = Annotated[str, Meta(min_length=1, max_length=255)]
Kind = Literal["request", "event"]


class SearchQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Requests and events that match all that is given, the newest first. In a text but `request_id`, `*` stands for any characters.

    key: the id of a key, or the subject. method: how the caller had logged in. outcome: ok, denied, failed, cancelled, timeout, unknown.
    since (inclusive), until (exclusive): when a request began, or an event was. records: with the log's own lines.
    """

    request_id: Text | None = None
    tenant: Text | None = None
    key: Text | None = None
    user: Text | None = None
    agent: Text | None = None
    session: Text | None = None
    method: Text | None = None
    peer: Text | None = None
    operation: Text | None = None
    model: Text | None = None
    endpoint: Text | None = None
    outcome: Text | None = None
    code: Text | None = None
    rule: Text | None = None
    decision: Text | None = None
    guardrail: Text | None = None
    event: Text | None = None
    actor: Text | None = None
    target: Text | None = None
    writer: Text | None = None
    kind: Kind | None = None
    since: Moment | None = None
    until: Moment | None = None
    records: bool = False
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    cursor: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,100}$")] | None = None


class Found(msgspec.Struct, omit_defaults=True):
    """A request, or an event. cost: in nano-units of the record's currency. records: the log's lines, where they were asked for. tenants:
    those that an event is about. unopened: why a record of it, encrypted as a whole, could not be opened, so that parts are missing."""

    time: Timestamp
    kind: Kind
    writer: str
    request_id: str = ""
    tenant: str = ""
    principal: str = ""
    user: str = ""
    agent: str = ""
    session: str = ""
    method: str = ""
    peer: str = ""
    operation: str = ""
    model: str = ""
    endpoint: str = ""
    outcome: str = ""
    code: str = ""
    rule: str = ""
    decision: str = ""
    guardrail: str = ""
    event: str = ""
    actor: str = ""
    target: str = ""
    status: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0
    duration_ms: float = 0.0
    config: int = 0
    records: list[dict[str, Any]] = []
    tenants: list[str] = []
    unopened: str = ""


class Missing(msgspec.Struct):
    """state: `lost` is one that has not been heard of for a while."""

    id: str
    state: Literal["serving", "lost"]


class Coverage(msgspec.Struct):
    """Whose logs an answer covers. replica: the one that answered; "" where it has no id yet. missing: the others on the same store, whose
    logs it does not have; null where they are not known, because the store does not answer."""

    replica: str
    missing: list[Missing] | None


class FoundList(msgspec.Struct, kw_only=True):
    """unopened: how many requests and events may be wanted, too, but are encrypted as a whole and could not be opened; by the reason:
    `shredded`, `withheld` (written without who asked, because the key could not be had), or another. Of several pages each has its own."""

    items: list[Found]
    cursor: str | None = None
    coverage: Coverage
    unopened: dict[str, int]


class ReportQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """since (inclusive), until (exclusive): the period. tenant: only this one. verify: with the verification of the whole log."""

    since: Moment
    until: Moment | None = None
    tenant: Tenant | None = None
    verify: bool = False


class Report(msgspec.Struct, kw_only=True):
    """accesses, callers, denials: requests of the period, the most first; of callers `not_ok` counts those that did not end well.
    logins: events of logins and refused ones. changes: the newest changes of configuration and policy. log: events of the log itself.
    integrity: as the verification found it; null where it was not asked for. unopened: how many requests and events of the period are
    encrypted as a whole and could not be opened, by the reason: the tables have only what is in the clear of them."""

    since: Timestamp
    until: Timestamp
    tenants: list[str] | None
    accesses: list[dict[str, Any]]
    callers: list[dict[str, Any]]
    denials: list[dict[str, Any]]
    logins: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    log: list[dict[str, Any]]
    integrity: dict[str, Any] | None
    coverage: Coverage
    unopened: dict[str, int]


async def search(call: Call) -> Answer:
    """Of those tenants whose records the caller may search. Whoever may search everywhere sees what belongs to no tenant, too."""
    q: SearchQuery = call.query
    given = {name: getattr(q, name) for name in TEXTS if hasattr(q, name)}
    asked = AuditSearch(
        **given,
        request_id=q.request_id,
        principal=q.key,
        kind=q.kind,
        since=q.since,
        until=q.until,
        tenants=call.access.tenants(SEARCH),
        limit=q.limit,
        before=None if q.cursor is None else _place(q.cursor),
    )
    found, unopened = await _index(call).search(asked, records=q.records)
    cursor = _cursor(found[-1]) if len(found) == q.limit else None
    items = [{**_without_id(one), "time": timestamp(one["time"])} for one in found]
    return Answer({"items": items, "cursor": cursor, "coverage": await _coverage(call), "unopened": unopened})


async def report(call: Call) -> Answer:
    q: ReportQuery = call.query
    until = call.ports.clock.wall() if q.until is None else q.until
    if until <= q.since:
        raise RequestError("until must be after since", param="until")
    tenants = call.access.tenants(REPORT)
    if q.tenant is not None:
        call.require(REPORT, q.tenant)
        tenants = frozenset({q.tenant})
    if q.verify:
        call.require("audit:verify", None)
    found = await _index(call).report(q.since, until, tenants)
    whole = {name: [_timed(row) for row in rows] for name, rows in {"log": [], **found}.items() if name != "unopened"}
    integrity = await _verified(call) if q.verify else None
    period = {"since": timestamp(q.since), "until": timestamp(until), "tenants": None if tenants is None else sorted(tenants)}
    return Answer({**period, **whole, "integrity": integrity, "coverage": await _coverage(call), "unopened": found["unopened"]})


async def _coverage(call: Call) -> dict[str, Any]:
    """Each replica has the log of its own requests: an answer must not be taken for the whole fleet's."""
    try:
        roll = (await call.ports.replicas())["replicas"]
    except StoreUnavailable:
        return {"replica": "", "missing": None}
    here = next((one["id"] for one in roll if one["here"]), "")
    others = {one["id"]: one["state"] for one in roll if one["id"] != here}
    return {"replica": here, "missing": [{"id": name, "state": state} for name, state in sorted(others.items())]}


async def _verified(call: Call) -> dict[str, Any]:
    return await asyncio.to_thread(call.ports.audit_reader.verify, AuditScope())


def _index(call: Call) -> AuditIndexReader:
    if call.ports.audit_index is None:
        raise NotFound("this gateway has no audit log that can be searched")
    return call.ports.audit_index


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "time": timestamp(row["time"])} if "time" in row else row


def _without_id(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "id"}


def _cursor(entry: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([entry["time"], entry["id"]])).decode().rstrip("=")


def _place(cursor: str) -> tuple[float, int]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=tuple[float, int])
    except (msgspec.MsgspecError, RecursionError, binascii.Error, ValueError):
        raise RequestError("cursor: this one is from no search", param="cursor") from None


def operations() -> list[Operation]:
    return [
        Operation("GET", "audit/search", SEARCH, "Search requests and events", search, FoundList, query=SearchQuery, refuses=(503,)),
        Operation("GET", "audit/report", REPORT, "Report on a period", report, Report, query=ReportQuery, refuses=(503,)),
    ]
