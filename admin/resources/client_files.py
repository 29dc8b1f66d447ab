"""Files of clients: inputs and results of batches. Their content is for the tenant alone; operators see that they are there, and delete."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin import values
from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import ClientFileControl
from admin.resource import Cursor, Tenant
from admin.resources.batches import after_of, tenants_of
from gateway.core.batches import FileRecord
from gateway.core.errors import NotFound, RequestError

READ, DELETE = "client-files:read", "client-files:delete"


class ClientFileView(msgspec.Struct, kw_only=True):
    """owner: the credential that sent it, or whose batch made it, as `tenant/id`. key: of the data key that encrypts it; "": none."""

    id: str
    tenant: str
    owner: str
    name: str
    purpose: str
    bytes: int
    key: str
    created_at: Timestamp
    expires_at: Timestamp


class ClientFilePage(msgspec.Struct):
    items: list[ClientFileView]
    cursor: str | None = None


class ClientFileDryRun(msgspec.Struct):
    result: ClientFileView
    diff: list[dict[str, Any]]
    dry_run: bool = True


class ClientFileQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """cursor: from the previous page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Cursor | None = None
    tenant: Tenant | None = None


async def index(call: Call) -> Answer:
    """The newest first."""
    wanted: ClientFileQuery = call.query
    tenants = tenants_of(call, READ, wanted.tenant)
    port, after = _port(call), after_of(wanted.cursor)
    try:
        found, more = await port.page(tenants, wanted.limit, after)
    except NotFound:
        raise RequestError("The file at this cursor is gone; begin with the first page.", param="cursor") from None
    return Answer({"items": [_view(one) for one in found], "cursor": f"store:{found[-1].id}" if more else None})


async def show(call: Call) -> Answer:
    return Answer(_view(await _visible(call)))


async def delete(call: Call) -> Answer:
    """With its content. Refused for the input of a batch that is not over."""
    found = await _visible(call)
    call.require(DELETE, found.tenant)
    call.target = f"client-files/{found.id}"
    gone = await _port(call).delete(found.id, call.actor, dry_run=call.dry_run)
    view = _view(gone)
    call.diff = values.diff(view, {})
    return Answer({"dry_run": True, "diff": call.diff, "result": view} if call.dry_run else view)


async def _visible(call: Call) -> FileRecord:
    """Raises NotFound, also for one of a tenant whose files the caller may not see."""
    id = call.path["id"]
    found = await _port(call).get(id)
    call.seen(READ, found.tenant, "file", id[:64])
    return found


def _view(record: FileRecord) -> dict[str, Any]:
    shown = {name: getattr(record, name) for name in ("id", "tenant", "owner", "name", "purpose", "key")}
    return {**shown, "bytes": record.size, "created_at": timestamp(record.created), "expires_at": timestamp(record.expires)}


def _port(call: Call) -> ClientFileControl:
    if call.ports.client_files is None:
        raise NotFound("Files of clients are not enabled here (files.enabled).")
    return call.ports.client_files


def operations() -> list[Operation]:
    either = (ClientFileView, ClientFileDryRun)
    one = "client-files/{id}"
    return [
        Operation("GET", "client-files", READ, "List files of clients", index, ClientFilePage, ClientFileQuery, finds=True),
        Operation("GET", one, READ, "Get a file of a client", show, ClientFileView, finds=True),
        Operation("DELETE", one, DELETE, "Delete a file of a client", delete, either, Written, finds=True, refuses=(409,)),
    ]
