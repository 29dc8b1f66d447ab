"""Settings of how a new model or engine is tried on real traffic."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.core.specs.base import EngineName, Name, Period, Spec, Timeout

Share = Annotated[float, Meta(gt=0, le=1)]


class ShadowSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A sample of a model's requests is also put to another model, whose answers nobody gets.

    model: the candidate. share, key: of the requests; those with the same key are mirrored together, as in `routing.key`; `request`: each
    by itself. timeout: seconds from the end of the request to the end of the candidate's answer. concurrency, queue: mirrored requests that
    run and wait at once, of the process; workers have equal shares. spare: the share of the candidate's slots that they leave free.
    compare: whether texts are compared.
    """

    model: Name
    share: Share = 0.01
    key: Annotated[str, Meta(pattern=r"^(request|prefix|session|tenant|key|header:[A-Za-z0-9-]+)$")] = "prefix"
    timeout: Timeout = 60.0
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 4
    queue: Annotated[int, Meta(ge=1, le=4096)] = 64
    spare: Annotated[float, Meta(ge=0, lt=1)] = 0.25
    compare: bool = True


class CanarySpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine of a model's pool is on trial: it gets nothing more when it fares worse than allowed, until a person puts it back.

    engine: of the pool. window: seconds that are looked back on. min_requests: in the window at each side, below which nothing is judged.
    max_errors: share of failed requests; errors_over: the same above the other engines' share. max_first_token: seconds, the 95th
    percentile of streams; first_token_factor: the same as a multiple of the others'. min_tokens_per_second: of one request, on average;
    tokens_factor: the same as a multiple of the others'. null: not looked at.
    """

    engine: EngineName
    window: Period = 300.0
    min_requests: Annotated[int, Meta(ge=5, le=1_000_000)] = 50
    max_errors: Annotated[float, Meta(gt=0, le=1)] | None = 0.1
    errors_over: Annotated[float, Meta(gt=0, le=1)] | None = 0.05
    max_first_token: Timeout | None = None
    first_token_factor: Annotated[float, Meta(gt=1, le=1000)] | None = 3.0
    min_tokens_per_second: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    tokens_factor: Annotated[float, Meta(gt=0, lt=1)] | None = 0.33
