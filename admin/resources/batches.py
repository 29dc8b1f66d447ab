"""Batches of clients: how they stand, and their end before it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin import values
from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import BatchControl
from admin.resource import Cursor, Tenant
from gateway.core.batches import BatchRecord, State
from gateway.core.errors import NotFound, RequestError

READ, CANCEL = "batches:read", "batches:cancel"


class BatchErrorView(msgspec.Struct, kw_only=True):
    """line: of the input, from 1; null for one of the whole batch."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchView(msgspec.Struct, kw_only=True):
    """creator: the credential that made it, as `tenant/id`. repeated, unknown: lines that were run again after a crash, and lines whose
    outcome it took. moments: when each state began. holder: the process that works on it; "" for none."""

    id: str
    tenant: str
    creator: str
    state: State
    endpoint: str
    input_file: str
    output_file: str
    error_file: str
    total: int
    completed: int
    failed: int
    repeated: int
    unknown: int
    errors: list[BatchErrorView]
    created_at: Timestamp
    expires_at: Timestamp
    moments: dict[str, Timestamp]
    holder: str


class BatchPage(msgspec.Struct):
    items: list[BatchView]
    cursor: str | None = None


class BatchDryRun(msgspec.Struct):
    result: BatchView
    diff: list[dict[str, Any]]
    dry_run: bool = True


class BatchQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """state: as it is now; by default all. cursor: from the previous page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None
    state: State | None = None
    tenant: Tenant | None = None


async def index(call: Call) -> Answer:
    """The newest first."""
    wanted: BatchQuery = call.query
    tenants = tenants_of(call, READ, wanted.tenant)
    found, more = await _port(call).page(tenants, wanted.limit, after_of(wanted.cursor), wanted.state)
    return Answer({"items": [_view(one) for one in found], "cursor": f"store:{found[-1].id}" if more else None})


async def show(call: Call) -> Answer:
    return Answer(_view(await _visible(call)))


async def cancel(call: Call) -> Answer:
    """Lines that run end as they would; the others are in the error file. One that is over stays what it is."""
    found = await _visible(call)
    tenant = found.creator.tenant
    call.require(CANCEL, tenant)
    call.target = f"batches/{found.id}"
    made = await _port(call).stop(found.id, [tenant], call.actor, dry_run=call.dry_run)
    call.diff = values.diff({"state": found.state}, {"state": made.state})
    return Answer({"dry_run": True, "diff": call.diff, "result": _view(made)} if call.dry_run else _view(made))


async def _visible(call: Call) -> BatchRecord:
    """Raises NotFound, also for one of a tenant whose batches the caller may not read."""
    id = call.path["id"]
    found = await _port(call).get(id, None)
    call.seen(READ, found.creator.tenant, "batch", id[:64])
    return found


def tenants_of(call: Call, permission: str, wanted: str | None) -> list[str] | None:
    """The tenants to list: the wanted one, or all that the caller may read; None: every tenant. Raises PermissionDenied."""
    if wanted is not None:
        call.require(permission, wanted)
        return [wanted]
    held = call.access.tenants(permission)
    return None if held is None else sorted(held)


def after_of(cursor: str | None) -> str | None:
    """Raises RequestError."""
    part, _, after = (cursor or "store:").partition(":")
    if part != "store":
        raise RequestError("This cursor did not come from a page.", param="cursor")
    return after or None


def _view(record: BatchRecord) -> dict[str, Any]:
    counts = {name: getattr(record, name) for name in ("total", "completed", "failed", "repeated", "unknown")}
    return {
        "id": record.id,
        "tenant": record.creator.tenant,
        "creator": record.creator.name,
        "state": record.state,
        "endpoint": record.endpoint,
        "input_file": record.input,
        "output_file": record.output,
        "error_file": record.error,
        **counts,
        "errors": [msgspec.to_builtins(error) for error in record.errors],
        "created_at": timestamp(record.created),
        "expires_at": timestamp(record.expires),
        "moments": {name: timestamp(at) for name, at in record.moments.items()},
        "holder": record.holder,
    }


def _port(call: Call) -> BatchControl:
    if call.ports.batches is None:
        raise NotFound("Batches are not enabled here (batches.enabled).")
    return call.ports.batches


def operations() -> list[Operation]:
    either = (BatchView, BatchDryRun)
    return [
        Operation("GET", "batches", READ, "List batches", index, BatchPage, BatchQuery, finds=True),
        Operation("GET", "batches/{id}", READ, "Get a batch", show, BatchView, finds=True),
        Operation("POST", "batches/{id}/cancel", CANCEL, "Cancel a batch", cancel, either, Written, finds=True),
    ]
