"""Limits on requests, tokens and concurrency. One whose `match.tenant` is a name belongs to that tenant, any other to all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from admin.operation import Call
from admin.resource import Collection, Shapes, shapes_of
from gateway.core.errors import RequestError
from gateway.core.specs import LimitSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_PATTERN = re.compile(r"[A-Za-z0-9._:/*-]{1,128}")


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    limits: list[dict[str, Any]] = config["limits"]
    return limits


def tenant_of(body: dict[str, Any]) -> str:
    tenant = str(body.get("match", {}).get("tenant", "*"))
    return tenant if _NAME.fullmatch(tenant) else ""


async def check(call: Call, settings: LimitSpec, before: dict[str, Any] | None) -> None:
    if settings.requests is None and settings.tokens is None and settings.concurrent is None:
        raise RequestError("A limit needs at least one of requests, tokens and concurrent.", param="requests")
    if not _PATTERN.fullmatch(settings.match.tenant):
        raise RequestError("match.tenant cannot match any tenant name.", param="match.tenant")
    await call.ports.check("limits", msgspec.to_builtins(settings))


class RateView(msgspec.Struct, kw_only=True):
    """A rate as it is shown. per: a duration such as `1m`."""

    rate: float
    per: str
    burst: float | None = None


LimitSettings = msgspec.defstruct(
    "LimitSettings",
    [
        (known.name, RateView | None if known.name in ("requests", "tokens") else known.type, msgspec.field(default=None))
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


def operations() -> list[Any]:
    return LIMITS.operations()
