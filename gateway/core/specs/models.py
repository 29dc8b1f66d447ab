"""Settings of models: their pools, and how these are used. gateway.core.specs exports them with all others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.core.specs.base import EngineName, Name, Natural, Positive, Seconds, Spec
from gateway.core.specs.caches import CacheSpec
from gateway.core.specs.hedging import HedgeSpec
from gateway.core.specs.pipelines import PipelineSpec
from gateway.core.specs.rollouts import CanarySpec, ShadowSpec


class BreakerSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Circuit breaker of every endpoint: opens after consecutive failures, for longer each time."""

    failures: Annotated[int, Meta(ge=1, le=5)] = 5
    open_for: Seconds = 1.0
    open_max: Seconds = 30.0
    max_ejected: Annotated[float, Meta(ge=0, le=1)] = 0.5


class QueueSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Admission beyond the engines' slots: a bounded queue per pool, a deadline for each entry, shares by the tenants' weights."""

    size: Natural = 256
    timeout: Seconds = 30.0
    weights: dict[Name, Annotated[float, Meta(gt=0, le=1000)]] = {}


class RetrySpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Retries before the first byte, within a budget: a share of the requests in flight."""

    attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    budget: Annotated[float, Meta(ge=0, le=1)] = 0.2
    backoff: Seconds = 0.025


class RoutingSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a model's pool is used: which selector with which settings, over which key, with which bound on the load."""

    policy: str = "consistent_hash"
    settings: dict[str, Any] = {}
    key: Annotated[str, Meta(pattern=r"^(prefix|session|tenant|key|header:[A-Za-z0-9-]+)$")] = "prefix"
    bound: Annotated[float, Meta(ge=1.0, le=10.0)] = 1.25
    breaker: BreakerSpec = BreakerSpec()
    queue: QueueSpec = QueueSpec()
    retry: RetrySpec = RetrySpec()


class PoolMemberSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One member of a pool: an engine, its weight, and its own name for the model if that differs."""

    engine: EngineName
    weight: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    model: str | None = None


class ModelSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A public model name and what is behind it: a pool of engines, or a pipeline of steps that ask other models."""

    name: Name
    pool: tuple[str | PoolMemberSpec, ...] = ()
    pipeline: PipelineSpec | None = None
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    upstream_model: str | None = None
    routing: RoutingSpec = RoutingSpec()
    max_tokens: Positive | None = None
    prefix_sharing: Literal["key", "tenant", "global"] = "tenant"
    created: Natural = 0
    owned_by: str = "gatehouse"
    unknown_fields: Literal["refuse", "drop", "forward"] = "refuse"
    engine_tools: tuple[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}(:[!-~]{1,128})?$")], ...] = ()
    cache: CacheSpec | None = None
    shadow: ShadowSpec | None = None
    canary: CanarySpec | None = None
    hedge: HedgeSpec | None = None
    count_prompts: bool | Literal["auto"] = "auto"
