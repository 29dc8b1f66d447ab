"""Legal holds: the tenants of which no audit record is taken away."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import HoldControl
from admin.resource import Paged, Tenant, location, portion
from gateway.core.errors import NotFound, StoreUnavailable

Why = Annotated[str, Meta(min_length=1, max_length=1024)]


class HoldSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """why: who ordered it and for what; it is shown and recorded."""

    tenant: Tenant
    why: Why


class HoldView(msgspec.Struct, kw_only=True):
    """everywhere: the store has it, so that every replica honours it; until then the replica that was asked does. released: when it was
    taken back, in the answer to that; null while it is in force."""

    tenant: str
    since: Timestamp
    why: str
    actor: str
    everywhere: bool
    released: Timestamp | None = None


class HoldPage(msgspec.Struct):
    items: list[HoldView]
    cursor: str | None = None


class HoldDryRun(msgspec.Struct):
    result: HoldPage
    diff: list[dict[str, Any]]
    dry_run: bool = True


class ReleaseQuery(Written, forbid_unknown_fields=True, kw_only=True):
    """why: who allowed it; it is recorded."""

    why: Why


async def index(call: Call) -> Answer:
    found, cursor = portion(call.query, await _holds(call), lambda one: str(one["tenant"]))
    return _answer(call, found, cursor=cursor)


async def create(call: Call) -> Answer:
    """Of a tenant that is held already, the older hold stays."""
    wanted: HoldSettings = call.body
    call.target = f"audit/holds/{wanted.tenant}"
    call.diff = [{"path": "tenant", "from": None, "to": wanted.tenant}, {"path": "why", "from": None, "to": wanted.why}]
    if call.dry_run:
        return _answer(call, await _holds(call))
    try:
        made = await _control(call).add(wanted.tenant, wanted.why, call.actor)
    except OSError as error:
        raise StoreUnavailable(f"the file of holds cannot be written: {error}") from None
    return _answer(call, [made], 201, location("audit/holds", wanted.tenant))


async def delete(call: Call) -> Answer:
    tenant = call.path["tenant"]
    call.target = f"audit/holds/{tenant}"
    call.diff = [{"path": "tenant", "from": tenant, "to": None}, {"path": "why", "from": None, "to": call.query.why}]
    held = next((one for one in await _holds(call) if one["tenant"] == tenant), None)
    if held is not None and not call.dry_run:
        try:
            held = await _control(call).release(tenant)
        except OSError as error:
            raise StoreUnavailable(f"the file of holds cannot be written: {error}") from None
    if held is None:
        raise NotFound(f"There is no hold of the tenant {tenant!r}.")
    return _answer(call, [held])


def _control(call: Call) -> HoldControl:
    if call.ports.holds is None:
        raise StoreUnavailable("this gateway has no store")
    return call.ports.holds


async def _holds(call: Call) -> list[dict[str, Any]]:
    try:
        return await _control(call).list()
    except OSError as error:
        raise StoreUnavailable(f"the file of holds cannot be read: {error}") from None


def _answer(call: Call, holds: list[dict[str, Any]], status: int = 200, where: str | None = None, cursor: str | None = None) -> Answer:
    items = [{**hold, "since": timestamp(hold["since"]), "released": timestamp(hold.get("released"))} for hold in holds]
    page = {"items": items, "cursor": cursor}
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": page})
    return Answer(page, status, location=where)


def operations() -> list[Operation]:
    either = (HoldPage, HoldDryRun)
    return [
        Operation("GET", "audit/holds", "audit:read", "List legal holds", index, HoldPage, query=Paged),
        Operation("POST", "audit/holds", "audit:hold", "Hold a tenant's audit records", create, either, Written, HoldSettings, 201),
        Operation("DELETE", "audit/holds/{tenant}", "audit:hold", "Take a legal hold back", delete, either, ReleaseQuery, finds=True),
    ]
