"""The kill switch: stops a key, an agent, a user, a tenant, a model or everything, at once and with what is under way."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from admin.resource import Paged, location, portion
from gateway.core.errors import ConfigError, RequestError, StoreUnavailable
from gateway.core.standing import TARGET, check_target

Target = Annotated[str, Meta(pattern=TARGET)]


class HaltSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """target: `key/ID`, `agent/ID`, `user/NAME`, `user/NAME@TENANT`, `tenant/ID`, `model/NAME` or `all`. reason: for the operators, who see
    it, and for the audit log; never for callers."""

    target: Target
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


class HaltView(msgspec.Struct, kw_only=True):
    """source: `store`, for every replica, or `file`, for this one alone."""

    target: str
    reason: str
    actor: str
    since: Timestamp | None
    source: Literal["store", "file"]


class HaltPage(msgspec.Struct):
    items: list[HaltView]
    cursor: str | None = None


class HaltDryRun(msgspec.Struct):
    result: HaltPage
    diff: list[dict[str, Any]]
    dry_run: bool = True


class Which(Written, forbid_unknown_fields=True, kw_only=True):
    """target: of the halt to take back."""

    target: Target


async def index(call: Call) -> Answer:
    found, cursor = portion(call.query, _port(call).views(), lambda one: f"{one.target}\n{one.source}")
    return Answer({"items": [_view(one) for one in found], "cursor": cursor})


async def create(call: Call) -> Answer:
    """Answers once it is in force in this process; with `?wait=`, in all of its workers."""
    wanted: HaltSettings = call.body
    call.target = f"halts/{wanted.target}"
    try:
        check_target(wanted.target)
        made = await _port(call).halt(wanted.target, wanted.reason, call.actor, dry_run=call.dry_run)
    except ConfigError as error:
        raise RequestError(error.message, param="target") from None
    except OSError as error:
        raise StoreUnavailable(f"neither the store nor the file of halts can be written: {error.strerror}") from None
    call.diff = [{"path": "target", "from": None, "to": wanted.target}, {"path": "reason", "from": None, "to": wanted.reason}]
    return _answer(call, [made], 201, location("halts", wanted.target))


async def delete(call: Call) -> Answer:
    path = call.path
    named = (path.get("target") or f"{path['kind']}/{path['name']}") if path else call.query.target
    call.target = f"halts/{named}"
    try:
        gone = await _port(call).unhalt(named, call.actor, dry_run=call.dry_run)
    except OSError as error:
        raise StoreUnavailable(f"the file of halts cannot be written: {error.strerror}") from None
    call.diff = [{"path": "target", "from": named, "to": None}]
    return _answer(call, gone, 200, None)


def _answer(call: Call, halts: list[Any], status: int, where: str | None) -> Answer:
    page = {"items": [_view(one) for one in halts], "cursor": None}
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": page})
    return Answer(page, status, location=where)


def _view(one: Any) -> dict[str, Any]:
    since = None if one.since is None else timestamp(one.since)
    return {"target": one.target, "reason": one.reason, "actor": one.actor, "since": since, "source": one.source}


def _port(call: Call) -> Any:
    if call.ports.halts is None:
        raise StoreUnavailable("This installation has nothing that can be halted.")
    return call.ports.halts


def operations() -> list[Operation]:
    either = (HaltPage, HaltDryRun)
    return [
        Operation("GET", "halts", "halts:read", "List what is halted", index, HaltPage, query=Paged),
        Operation("POST", "halts", "halts:create", "Halt", create, either, Written, HaltSettings, 201),
        Operation("DELETE", "halts", "halts:delete", "Take a halt back, by its target", delete, either, Which, finds=True),
        Operation("DELETE", "halts/{target}", "halts:delete", "Take a halt back", delete, either, Written, finds=True),
        Operation(
            "DELETE", "halts/{kind}/{name}", "halts:delete", "Take a halt back, by its two parts", delete, either, Written, finds=True
        ),
    ]
