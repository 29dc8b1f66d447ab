"""Debug captures: one API key's prompts and answers are kept in the audit log for a while, encrypted."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.ports import CaptureControl
from admin.resource import Paged, Tenant, location, portion
from admin.resources.data_keys import Reason, vault
from gateway.core.errors import NotFound, StoreUnavailable
from gateway.core.storage import Resource

CAPTURE = "audit:capture"
KeyId = Annotated[str, Meta(min_length=1, max_length=255)]


class CaptureSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """key: the id of an API key. seconds: for how long. reason: for the record."""

    key: KeyId
    seconds: Annotated[float, Meta(gt=0, le=3600)] = 600.0
    reason: Reason


class CaptureQuery(Paged, forbid_unknown_fields=True, kw_only=True):
    tenant: Tenant | None = None


class CaptureView(msgspec.Struct, kw_only=True):
    key: str
    tenant: str
    until: Timestamp
    reason: str
    actor: str


class CapturePage(msgspec.Struct):
    items: list[CaptureView]
    cursor: str | None = None


class CaptureDryRun(msgspec.Struct):
    result: CaptureView
    diff: list[dict[str, Any]]
    dry_run: bool = True


async def index(call: Call) -> Answer:
    """Those that run."""
    wanted = call.query.tenant
    if wanted is not None:
        call.require(CAPTURE, wanted)
    held, now = call.access.tenants(CAPTURE), call.ports.clock.wall()
    found = [one for one in await _port(call).every() if float(one.body["until"]) > now]
    visible = [one for one in found if (held is None or one.tenant in held) and wanted in (None, one.tenant)]
    shown, cursor = portion(call.query, visible, lambda one: one.name)
    return Answer({"items": [_view(one) for one in shown], "cursor": cursor})


async def create(call: Call) -> Answer:
    """Replaces one that runs. Answers once it is in force in this process; with `?wait=`, in all of its workers."""
    wanted: CaptureSettings = call.body
    vault(call)
    tenant = await _tenant_of(call, wanted.key)
    call.target = f"captures/{wanted.key}"
    made = await _port(call).begin(wanted.key, tenant, wanted.seconds, wanted.reason, call.actor, dry_run=call.dry_run)
    call.diff = [{"path": "until", "from": None, "to": timestamp(float(made.body["until"]))}]
    return _answer(call, made, 201, location("captures", wanted.key))


async def delete(call: Call) -> Answer:
    key = call.path["key"]
    tenant = await _tenant_of(call, key, strict=False)
    call.target = f"captures/{key}"
    call.require(CAPTURE, tenant)
    gone = await _port(call).end(key, call.actor, dry_run=call.dry_run)
    call.diff = [{"path": "until", "from": timestamp(float(gone.body["until"])), "to": None}]
    return _answer(call, gone, 200, None)


async def _tenant_of(call: Call, key: str, strict: bool = True) -> str:
    """The tenant of a key of the file or the store. Raises NotFound, also for one that the caller may not know of."""
    static = call.ports.config.current().get("identity", {}).get("api_keys", {}).get("static", ())
    tenant = next((str(one["tenant"]) for one in static if one["id"] == key), None)
    if tenant is None:
        try:
            tenant = (await call.store.get_key(key)).tenant
        except NotFound:
            if strict:
                raise NotFound(f"There is no key {key!r}.") from None
            tenant = next((one.tenant for one in await _port(call).every() if one.name == key), "")
    call.seen(CAPTURE, tenant, "key", key)
    return tenant


def _answer(call: Call, one: Resource, status: int, where: str | None) -> Answer:
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": _view(one)})
    return Answer(_view(one), status, location=where)


def _view(one: Resource) -> dict[str, Any]:
    return {
        "key": one.name,
        "tenant": one.tenant,
        "until": timestamp(float(one.body["until"])),
        "reason": one.body["reason"],
        "actor": one.actor,
    }


def _port(call: Call) -> CaptureControl:
    if call.ports.texts is None:
        raise StoreUnavailable("This installation has no store, so nothing is captured.")
    return call.ports.texts.captures


def operations() -> list[Operation]:
    either = (CaptureView, CaptureDryRun)
    off = (409,)
    return [
        Operation("GET", "captures", CAPTURE, "List debug captures", index, CapturePage, query=CaptureQuery),
        Operation(
            "POST", "captures", CAPTURE, "Capture a key's texts", create, either, Written, CaptureSettings, 201, finds=True, refuses=off
        ),
        Operation("DELETE", "captures/{key}", CAPTURE, "End a debug capture", delete, either, Written, finds=True),
    ]
