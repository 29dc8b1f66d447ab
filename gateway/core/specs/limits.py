"""Settings of limits: how much of what, for whom, in which time (docs/limits.md). gateway.core.specs exports them with all others."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from gateway.core.specs.base import Amount, Name, Period, Positive, Rolling, Spec, Timeout

Per = Literal[
    "key", "user", "group", "tenant", "agent", "session", "model", "key_model", "tenant_model", "user_model", "operation", "global"
]
"""What has a bucket of its own."""
Weight = Annotated[float, Meta(ge=0, le=1000)]
COUNTED: Final = ("requests", "tokens")
"""Units of a budget that are no currency."""


class RateSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A token bucket: `rate` units in every `per` seconds, never more than `burst` (default: `rate`) at once."""

    rate: Amount
    per: Period = 1.0
    burst: Amount | None = None


class LimitMatchSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which requests a limit applies to; patterns with `*`. All must match.

    user, group: a name, in any tenant, or NAME@TENANT. group, role: one of the caller's fits. agent: who acts for the caller.
    """

    tenant: str = "*"
    model: str = "*"
    key: str = "*"
    user: str = "*"
    group: str = "*"
    agent: str = "*"
    operation: str = "*"
    role: str = "*"


class WeightsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a token of each kind counts. cached: of the prompt, where the engine had it already. reasoning: of the completion."""

    prompt: Weight = 1.0
    completion: Weight = 1.0
    cached: Weight | None = None
    reasoning: Weight | None = None


class RollingSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A window that ends now, at any time."""

    rolling: Rolling


class BudgetSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """So much in each window. unit: `tokens`, `requests` or a currency of the prices. timezone: where days, weeks (from Monday) and months
    begin, a name of the IANA database."""

    amount: Amount
    unit: Annotated[str, Meta(pattern=r"^(tokens|requests|[a-z]{3})$")] = "tokens"
    window: Literal["day", "week", "month"] | RollingSpec = "month"
    timezone: str = "UTC"


class LoopSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds on one session of an agent, from its first request to its last. tokens: weighted as the limit says.

    same_tool_calls: how often one conversation may hold the same call of a tool with the same arguments. depth: calls of tools in a row
    without a message of the user.
    """

    calls: Positive | None = None
    tokens: Positive | None = None
    wall_time: Timeout | None = None
    same_tool_calls: Positive | None = None
    depth: Positive | None = None


class LimitSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A limit with one bucket for each value of `per`; a request takes from all buckets that apply to it, or from none.

    bytes: of bodies of requests. elements: of tensors. queued: requests that wait for an engine at once. weights: of tokens, wherever
    this limit counts them. on_failure: what happens while the counter that is shared with other replicas cannot be reached. precision:
    whether shares of it may be taken in advance. enforce: without it nothing is refused, and what would have been is counted."""

    name: Name
    per: Per = "key"
    match: LimitMatchSpec = LimitMatchSpec()
    requests: RateSpec | None = None
    tokens: RateSpec | None = None
    bytes: RateSpec | None = None
    elements: RateSpec | None = None
    concurrent: Positive | None = None
    queued: Positive | None = None
    budget: BudgetSpec | None = None
    session: LoopSpec | None = None
    weights: WeightsSpec = WeightsSpec()
    on_failure: Literal["closed", "open", "local"] = "local"
    precision: Literal["exact", "leased"] = "exact"
    enforce: bool = True
