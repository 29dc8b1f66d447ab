"""Types of the operations below /caches. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class CachePage(TypedDict):
    items: list[CacheView]
    cursor: NotRequired[str | None]


class CacheView(TypedDict):
    """The cache of one model, in all processes of this gateway. entries, bytes: held now; the others are counted since the processes
    began. misses: requests for which an engine was asked. joined: requests that shared such a call. bypassed: requests whose clients
    wanted no cache. refused: answers that were too large, or from before a purge.
    """

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


class Purged(TypedDict):
    """purged: how many answers were, or would be, forgotten. silent: workers that have not confirmed it within some seconds."""

    purged: int
    silent: list[str]
    dry_run: NotRequired[bool]
