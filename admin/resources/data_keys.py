"""The data keys that encrypt texts in the audit log: listed, rotated, and destroyed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import VaultControl
from admin.resource import Tenant
from gateway.core.errors import RequestError, StoreUnavailable
from gateway.core.vault import DataKeyRow, ShredPlan

KEYS, SHRED = "audit:keys", "audit:shred"
Reason = Annotated[str, Meta(min_length=1, max_length=1024)]


class KeyQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tenant: Tenant | None = None


class Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """tenant: whose keys; by default all that have one. master: instead of making new data keys, wrap those that a former master key has
    wrapped by the present one."""

    tenant: Tenant | None = None
    master: bool = False


class Shredding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """confirm: the digest that the plan has (`GET audit/data-keys/shred?tenant=`)."""

    tenant: Tenant
    reason: Reason
    confirm: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]


class ShredQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tenant: Tenant


class DataKeyView(msgspec.Struct, kw_only=True):
    """master: the id of the master key that wraps it. ended_at: when it was retired or shredded."""

    id: str
    tenant: str
    version: int
    state: Literal["active", "retired", "shredded"]
    master: str
    created_at: Timestamp
    ended_at: Timestamp | None


class DataKeyPage(msgspec.Struct):
    items: list[DataKeyView]
    cursor: str | None = None


class DataKeyDryRun(msgspec.Struct):
    result: DataKeyPage
    diff: list[dict[str, Any]]
    dry_run: bool = True


class Shredded(msgspec.Struct, kw_only=True):
    """keys: those that are (or would be) destroyed. held: why they may not be; "" if they may."""

    tenant: str
    keys: list[str]
    digest: str
    held: str


class ShredDryRun(msgspec.Struct):
    result: Shredded
    diff: list[dict[str, Any]]
    dry_run: bool = True


async def index(call: Call) -> Answer:
    """By tenant and version; nothing of the keys themselves."""
    tenant = call.query.tenant
    return Answer(_page(await vault(call).views(None if tenant is None else [tenant])))


async def rotate(call: Call) -> Answer:
    wanted: Rotation = call.body
    port = vault(call)
    if wanted.master and wanted.tenant is not None:
        raise RequestError("tenant: the master key wraps the keys of all tenants; leave one of the two out.", param="tenant")
    call.target = "audit/data-keys" if wanted.tenant is None else f"audit/data-keys/{wanted.tenant}"
    if wanted.master:
        found = await port.rewrap(call.actor, dry_run=call.dry_run)
    else:
        found = await port.rotate(wanted.tenant, call.actor, dry_run=call.dry_run)
    call.diff = [{"path": f"keys.{row.id}", "from": None, "to": row.master if wanted.master else row.version} for row in found[:1000]]
    page = _page(found)
    return Answer({"dry_run": True, "diff": call.diff, "result": page} if call.dry_run else page)


async def plan(call: Call) -> Answer:
    """What shredding would destroy, and the digest that confirms it."""
    tenant: str = call.query.tenant
    call.require(SHRED, tenant)
    found = await vault(call).plan(tenant)
    return Answer(_plan(found))


async def shred(call: Call) -> Answer:
    wanted: Shredding = call.body
    call.require(SHRED, wanted.tenant)
    call.target = f"audit/data-keys/{wanted.tenant}"
    if call.dry_run:
        found = await vault(call).plan(wanted.tenant)
        call.diff = _gone(found.keys)
        return Answer({"dry_run": True, "diff": call.diff, "result": _plan(found)})
    try:
        found = await vault(call).shred(wanted.tenant, wanted.reason, wanted.confirm, call.actor)
    except OSError as error:
        raise StoreUnavailable(f"the state directory cannot be written, so nothing was destroyed: {error.strerror}") from None
    call.diff = _gone(found.keys)
    return Answer(_plan(found))


def _gone(ids: Sequence[str]) -> list[dict[str, Any]]:
    return [{"path": f"keys.{id}", "from": "wrapped", "to": None} for id in ids[:1000]]


def _plan(found: ShredPlan) -> dict[str, Any]:
    return {"tenant": found.tenant, "keys": list(found.keys), "digest": found.digest, "held": found.held}


def vault(call: Call) -> VaultControl:
    """Raises RequestError (409) where nothing is encrypted."""
    texts = call.ports.texts
    if texts is None or texts.vault is None:
        raise RequestError("Nothing is encrypted here: audit.encryption is not configured.", code="encryption_off", status=409)
    return texts.vault


def _page(rows: Any) -> dict[str, Any]:
    return {"items": [_view(row) for row in rows], "cursor": None}


def _view(row: DataKeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "tenant": row.tenant,
        "version": row.version,
        "state": row.state,
        "master": row.master,
        "created_at": timestamp(row.created),
        "ended_at": None if row.ended is None else timestamp(row.ended),
    }


def operations() -> list[Operation]:
    at = "audit/data-keys"
    off = (409,)
    return [
        Operation("GET", at, KEYS, "List the keys of texts", index, DataKeyPage, query=KeyQuery, refuses=off),
        Operation(
            "POST",
            f"{at}/rotate",
            KEYS,
            "Rotate the keys of texts",
            rotate,
            (DataKeyPage, DataKeyDryRun),
            query=Written,
            body=Rotation,
            finds=True,
            refuses=off,
        ),
        Operation("GET", f"{at}/shred", SHRED, "Show what shredding destroys", plan, Shredded, query=ShredQuery, finds=True, refuses=off),
        Operation(
            "POST",
            f"{at}/shred",
            SHRED,
            "Destroy a tenant's keys, and so its texts",
            shred,
            (Shredded, ShredDryRun),
            query=Written,
            body=Shredding,
            finds=True,
            refuses=off,
        ),
    ]
