"""Limits on requests, tokens and concurrency. One whose `match.tenant` is a name belongs to that tenant, any other to all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from admin.operation import Answer, Call, Operation, Written
from admin.ports import LimitControl
from admin.resource import Collection, Paged, Shapes, Tenant, cursor_key, key_cursor, shapes_of
from admin.resources.policies import Supposed, principal_of
from gateway.core.errors import NotFound, RequestError
from gateway.core.specs import LimitSpec

AMOUNTS = ("requests", "tokens", "bytes", "elements", "concurrent", "budget", "session")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_PATTERN = re.compile(r"[A-Za-z0-9._:/*-]{1,128}")


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    limits: list[dict[str, Any]] = config["limits"]
    return limits


def tenant_of(body: dict[str, Any]) -> str:
    tenant = str(body.get("match", {}).get("tenant", "*"))
    return tenant if _NAME.fullmatch(tenant) else ""


async def check(call: Call, settings: LimitSpec, before: dict[str, Any] | None) -> None:
    if all(getattr(settings, name) is None for name in AMOUNTS):
        raise RequestError(f"A limit needs at least one of {', '.join(AMOUNTS[:-1])} and {AMOUNTS[-1]}.", param="requests")
    if not _PATTERN.fullmatch(settings.match.tenant):
        raise RequestError("match.tenant cannot match any tenant name.", param="match.tenant")
    await call.ports.check("limits", msgspec.to_builtins(settings))


class RateView(msgspec.Struct, kw_only=True):
    """A rate as it is shown. per: a duration such as `1m`."""

    rate: float
    per: str
    burst: float | None = None


class RollingView(msgspec.Struct):
    """A rolling window as it is shown: a duration such as `30d`."""

    rolling: str


class BudgetView(msgspec.Struct, kw_only=True):
    """A budget as it is shown."""

    amount: float
    unit: str
    window: Literal["day", "week", "month"] | RollingView
    timezone: str


class LoopView(msgspec.Struct, kw_only=True):
    """Bounds on sessions as they are shown. wall_time: a duration such as `1h`."""

    calls: int | None = None
    tokens: int | None = None
    wall_time: str | None = None
    same_tool_calls: int | None = None
    depth: int | None = None


_VIEWS = {**dict.fromkeys(("requests", "tokens", "bytes", "elements"), RateView), "budget": BudgetView, "session": LoopView}
LimitSettings = msgspec.defstruct(
    "LimitSettings",
    [
        (known.name, _VIEWS[known.name] | None if known.name in _VIEWS else known.type, msgspec.field(default=None))
        for known in msgspec.structs.fields(LimitSpec)
    ],
    kw_only=True,
    module=__name__,
)
"""LimitSpec as it is shown."""


class Limits(Collection[LimitSpec]):
    """Their answers have durations as texts."""

    def shapes(self) -> Shapes:
        return shapes_of(LimitSettings)


LIMITS = Limits("limits", "limit", LimitSpec, in_file, tenant_of, check)


class AmountState(msgspec.Struct, kw_only=True):
    """resets_in: seconds until it is full again, or its window ends; null where time alone does not tell. in_hand: of what is used, what
    the processes of this replica have taken in advance and may still give back."""

    amount: str
    unit: str
    most: float
    used: float
    left: float
    resets_in: float | None
    in_hand: float = 0


class BucketState(msgspec.Struct, kw_only=True):
    """scope: whose bucket, such as `tenant/kind/id`. left: of the amount that has least left, as a part of the whole. binds: of all that
    apply to a request, it has least left. in_use: requests under way, or with `queued` in queues."""

    limit: str
    per: str
    scope: str
    enforced: bool
    amounts: list[AmountState]
    concurrent: int | None
    queued: int | None = None
    in_use: int
    left: float
    binds: bool


class BucketPage(msgspec.Struct):
    items: list[BucketState]
    cursor: str | None = None


class Caller(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """key: an API key's id; or principal: a supposed caller. model, operation: of the request."""

    model: str = ""
    operation: str = "chat"
    key: Tenant | None = None
    principal: Supposed | None = None


class Reset(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """scope: of one bucket, as its state shows it; null: all buckets of the limit."""

    scope: Annotated[str, msgspec.Meta(max_length=2048)] | None = None


class WasReset(msgspec.Struct):
    """reset: how many buckets were not full."""

    limit: str
    scope: str | None
    reset: int


class ResetDryRun(msgspec.Struct):
    result: WasReset
    diff: list[dict[str, Any]]
    dry_run: bool = True


async def state(call: Call) -> Answer:
    """The buckets of one limit that were used; those of all tenants, so it takes the permission everywhere."""
    found, last = await _port(call).state(call.path["name"], call.query.limit, cursor_key(call.query.cursor))
    call.access.require("limits:read", "")
    return Answer({"items": found, "cursor": None if last is None else key_cursor(last)})


async def applying(call: Call) -> Answer:
    asked: Caller = call.body
    if (asked.key is None) == (asked.principal is None):
        raise RequestError("Say either 'key', the id of an API key, or 'principal', a supposed caller.", param="key")
    if asked.key is not None:
        principal, _ = await principal_of(call, asked.key)
        call.seen("limits:read", principal.tenant, "key", asked.key)
    else:
        assert asked.principal is not None
        principal = asked.principal.principal()
        call.access.require("limits:read", principal.tenant)
    return Answer({"items": await _port(call).applying(principal, asked.model, asked.operation), "cursor": None})


async def reset(call: Call) -> Answer:
    call.access.require("limits:update", "")
    name, wanted = call.path["name"], call.body
    call.target = f"limits/{name}"
    call.diff = [{"path": "used", "from": wanted.scope or "all", "to": 0}]
    done = {"limit": name, "scope": wanted.scope, "reset": await _port(call).reset(name, wanted.scope, dry_run=call.dry_run)}
    return Answer({"dry_run": True, "diff": call.diff, "result": done} if call.dry_run else done)


def _port(call: Call) -> LimitControl:
    if call.ports.limits is None:
        raise NotFound("This gateway counts no limits.")
    return call.ports.limits


def operations() -> list[Any]:
    return [
        *LIMITS.operations(),
        Operation("GET", "limits/{name}/state", "limits:read", "Show what is used of a limit", state, BucketPage, query=Paged),
        Operation(
            "POST", "limits/{name}/reset", "limits:update", "Make a limit full again", reset, (WasReset, ResetDryRun), Written, Reset,
        ),
        Operation(
            "POST", "limits:applying", "limits:read", "Show every limit that applies to a caller", applying, BucketPage, body=Caller,
            quiet=True, finds=True,
        ),
    ]  # fmt: skip
