"""Types of the operations below /caches. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class BehindView(TypedDict):
    """The disk or Redis behind the memory. up: whether it is asked now. entries, bytes: of all who share it; null where it does not say.
    The others are counted by the processes of this gateway since they began. late: look-ups not answered in time. skipped: look-ups not
    made, as it was away or failing, or the tenant's key was not at hand. foreign: entries that did not open: changed, moved, purged,
    expired or of a key that is gone. dropped: answers not kept because too many were on their way, or it failed. failed: errors.
    """

    name: str
    up: bool
    entries: int | None
    bytes: int | None
    hits: NotRequired[int]
    misses: NotRequired[int]
    late: NotRequired[int]
    skipped: NotRequired[int]
    foreign: NotRequired[int]
    stored: NotRequired[int]
    refused: NotRequired[int]
    dropped: NotRequired[int]
    evicted: NotRequired[int]
    failed: NotRequired[int]


class CachePage(TypedDict):
    items: list[CacheView]
    behind: list[BehindView]
    cursor: NotRequired[str | None]


class CacheView(TypedDict):
    """The cache of one model, in all processes of this gateway. entries, bytes: held now; the others are counted since the processes
    began. misses: requests for which an engine was asked. joined: requests that shared such a call. semantic: requests that got the
    answer to a similar one. unembedded: requests whose question got no vector in time. bypassed: requests whose clients wanted no cache.
    refused: answers that were too large, or from before a purge.
    """

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


class Purged(TypedDict):
    """purged: how many answers were, or would be, forgotten, in memory, on disk and in Redis. silent: who has not confirmed it within
    some seconds: workers, `disk`, `redis`; `replicas` where others could not be told.
    """

    purged: int
    silent: list[str]
    dry_run: NotRequired[bool]
