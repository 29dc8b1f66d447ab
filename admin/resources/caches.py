"""Caches of answers: their statistics, and purges (docs/caches.md)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin.operation import Answer, Call, Operation, Written
from admin.ports import CacheControl
from gateway.core.caching import Purge
from gateway.core.errors import NotFound

Named = Annotated[str, Meta(min_length=1, max_length=128)]


class CacheView(msgspec.Struct, kw_only=True):
    """The cache of one model, in all processes of this gateway. entries, bytes: held now; the others are counted since the processes began.
    misses: requests for which an engine was asked. joined: requests that shared such a call. semantic: requests that
    got the answer to a similar one. unembedded: requests whose question got no vector in time. bypassed: requests whose clients wanted no
    cache. refused: answers that were too large, or from before a purge."""

    model: str
    entries: int
    bytes: int
    hits: int
    misses: int
    joined: int
    semantic: int
    unembedded: int
    bypassed: int
    stored: int
    refused: int
    evicted: int
    expired: int
    purged: int


class BehindView(msgspec.Struct, kw_only=True):
    """The disk or Redis behind the memory. up: whether it is asked now. entries, bytes: of all who share it; null where it does not say.
    The others are counted by the processes of this gateway since they began. late: look-ups not answered in time. skipped: look-ups not
    made, as it was away or failing, or the tenant's key was not at hand. foreign: entries that did not open: changed, moved, purged,
    expired or of a key that is gone. dropped: answers not kept because too many were on their way, or it failed. failed: errors."""

    name: str
    up: bool
    entries: int | None
    bytes: int | None
    hits: int = 0
    misses: int = 0
    late: int = 0
    skipped: int = 0
    foreign: int = 0
    stored: int = 0
    refused: int = 0
    dropped: int = 0
    evicted: int = 0
    failed: int = 0


class CachePage(msgspec.Struct):
    items: list[CacheView]
    behind: list[BehindView]
    cursor: str | None = None


class Which(Written, forbid_unknown_fields=True, kw_only=True):
    """Answers that match all that is given; without any, all. model: the model that gave them. tenant: whose they are. key: of one answer,
    `cache_key` in the audit record's detail."""

    model: Named | None = None
    tenant: Named | None = None
    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None


class Purged(msgspec.Struct):
    """purged: how many answers were, or would be, forgotten, in memory, on disk and in Redis. silent: who has not confirmed it within some
    seconds: workers, `disk`, `redis`; `replicas` where others could not be told."""

    purged: int
    silent: list[str]
    dry_run: bool = False


async def index(call: Call) -> Answer:
    statistics = await _port(call).statistics()
    items = [{"model": model, **counts} for model, counts in statistics.items()]
    return Answer({"items": items, "behind": await _port(call).behind(), "cursor": None})


async def purge(call: Call) -> Answer:
    """Also answers that an engine is giving at the moment are not kept. Other replicas follow as soon as they hear of it."""
    wanted: Which = call.query
    chosen = {name: value for name in ("model", "tenant", "key") if (value := getattr(wanted, name)) is not None}
    call.target = "caches" + "".join(f"/{name}={value}" for name, value in chosen.items())
    if wanted.tenant is not None:
        call.tenants.add(wanted.tenant)
    forgotten, silent = await _port(call).purge(Purge(wanted.model, wanted.tenant, wanted.key, call.dry_run), call.actor)
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
