"""Settings of the cache of a model's answers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.specs.base import Name, Positive, Spec, Timeout
from gateway.core.specs.redis import RedisSpec

CacheOperation = Literal["chat", "completions", "embeddings", "rerank", "score", "classify"]
CACHED: tuple[CacheOperation, ...] = ("chat", "completions", "embeddings", "rerank", "score", "classify")


class SemanticSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether an answer may be given to a similar request: of tenants that ask for it (`caches.semantic`), the last question's words apart
    the same. model: the public name of the embedding model that says how similar. threshold: the least cosine. words: `same`: the words
    with content must be the same, in their order; `free`: only numbers, negations, names and the like. max_entries: of one isolation
    domain. timeout: how long a request waits for the embedding model.
    """

    model: Name
    threshold: Annotated[float, Meta(ge=0.8, le=1.0)] = 0.95
    words: Literal["same", "free"] = "same"
    max_entries: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    timeout: Timeout = 0.1


class CacheSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which answers of a model are kept, where and for how long.

    policy: which answer goes first where there is no room: the one that was used longest ago, least often, or stored first. max_entries,
    max_bytes: of the process's memory; workers have equal shares. max_answer_bytes: of one answer. compress_above: bytes from which an
    answer is kept compressed; 0: never. temperature: `zero` for requests that say `temperature: 0`, `any` for all. sharing: who gets an
    answer that somebody else caused; null: as the model's `prefix_sharing`, within a tenant at most. charge: whether an answer from the
    cache costs what the engine's did. deduplicate: whether requests that ask the same at the same time share one engine call. also_in:
    where answers are kept besides the memory of a process; null: nowhere. semantic: null: only the same request gets an answer again.
    """

    ttl: Timeout = 3600.0
    policy: Literal["lru", "lfu", "fifo"] = "lru"
    max_entries: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    max_bytes: Positive = 64 * 1024 * 1024
    max_answer_bytes: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 1024 * 1024
    compress_above: Annotated[int, Meta(ge=0, le=1 << 40)] = 4096
    operations: tuple[CacheOperation, ...] = CACHED
    temperature: Literal["zero", "any"] = "zero"
    sharing: Literal["key", "tenant"] | None = None
    charge: bool = True
    deduplicate: bool = True
    also_in: Literal["disk", "redis"] | None = None
    semantic: SemanticSpec | None = None


class DiskCacheSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers on this machine's disk. directory: null: `caches` in the state directory. max_entries, max_bytes: of all models together.
    policy: which goes first where there is no room. timeout: how long a request waits for it."""

    directory: Annotated[str, Meta(min_length=1)] | None = None
    max_entries: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    max_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 1024 * 1024 * 1024
    policy: Literal["lru", "lfu", "fifo"] = "lru"
    timeout: Timeout = 0.02


class RedisCacheSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers in Redis. server: null: the Redis that limits use. max_entries, max_bytes: of all models and replicas together. policy: which
    goes first where there is no room. timeout: how long a request waits for it."""

    server: RedisSpec | None = None
    max_entries: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    max_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 1024 * 1024 * 1024
    policy: Literal["lru", "lfu", "fifo"] = "lru"
    timeout: Timeout = 0.005


class SemanticTenantsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """tenants: those that have asked for answers to similar requests, each by its name; no pattern."""

    tenants: tuple[Name, ...] = ()


class CachesSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where answers may be kept besides memory, and which tenants want those to similar requests."""

    disk: DiskCacheSpec | None = None
    redis: RedisCacheSpec | None = None
    semantic: SemanticTenantsSpec = SemanticTenantsSpec()
