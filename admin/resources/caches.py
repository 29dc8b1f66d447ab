"""Caches of answers: their statistics, and purges (docs/caches.md)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin.context import CacheControl
from admin.operation import Answer, Call, Operation, Written
from gateway.core.caching import Purge
from gateway.core.errors import NotFound

Named = Annotated[str, Meta(min_length=1, max_length=128)]


class CacheView(msgspec.Struct, kw_only=True):
    """The cache of one model, in all processes of this gateway. entries, bytes: held now; the others are counted since the processes began.
    misses: requests for which an engine was asked. joined: requests that shared such a call. bypassed: requests whose clients wanted no
    cache. refused: answers that were too large, or from before a purge."""

    model: str
    entries: int
    bytes: int
    hits: int
    misses: int
    joined: int
    bypassed: int
    stored: int
    refused: int
    evicted: int
    expired: int
    purged: int


class CachePage(msgspec.Struct):
    items: list[CacheView]
    cursor: str | None = None


class Which(Written, forbid_unknown_fields=True, kw_only=True):
    """Answers that match all that is given; without any, all. model: the model that gave them. tenant: whose they are. key: of one answer,
    `cache_key` in the audit record's detail."""

    model: Named | None = None
    tenant: Named | None = None
    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None


class Purged(msgspec.Struct):
    """purged: how many answers were, or would be, forgotten. silent: workers that have not confirmed it within some seconds."""

    purged: int
    silent: list[str]
    dry_run: bool = False


async def index(call: Call) -> Answer:
    statistics = await _port(call).statistics()
    return Answer({"items": [{"model": model, **counts} for model, counts in statistics.items()], "cursor": None})


async def purge(call: Call) -> Answer:
    """Also answers that an engine is giving at the moment are not kept. Counts in this gateway with its workers, not on other replicas."""
    wanted: Which = call.query
    chosen = {name: value for name in ("model", "tenant", "key") if (value := getattr(wanted, name)) is not None}
    call.target = "caches" + "".join(f"/{name}={value}" for name, value in chosen.items())
    if wanted.tenant is not None:
        call.tenants.add(wanted.tenant)
    forgotten, silent = await _port(call).purge(Purge(wanted.model, wanted.tenant, wanted.key, call.dry_run))
    call.diff = [{"path": "answers", "from": forgotten, "to": 0}]
    found: dict[str, Any] = {"purged": forgotten, "silent": silent, "dry_run": call.dry_run}
    return Answer(found)


def _port(call: Call) -> CacheControl:
    if call.ports.caches is None:
        raise NotFound("This process has no caches.")
    return call.ports.caches


def operations() -> list[Operation]:
    return [
        Operation("GET", "caches", "caches:read", "Show the caches of answers", index, CachePage),
        Operation("DELETE", "caches", "caches:purge", "Forget answers that are kept", purge, Purged, Which),
    ]
