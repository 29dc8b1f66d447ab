"""Types of the operations below /limits. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class AmountState(TypedDict):
    """resets_in: seconds until it is full again, or its window ends; null where time alone does not tell. in_hand: of what is used, what
    the processes of this replica have taken in advance and may still give back.
    """

    amount: str
    unit: str
    most: float
    used: float
    left: float
    resets_in: float | None
    in_hand: NotRequired[float]


class BucketPage(TypedDict):
    items: list[BucketState]
    cursor: NotRequired[str | None]


class BucketState(TypedDict):
    """scope: whose bucket, such as `tenant/kind/id`. left: of the amount that has least left, as a part of the whole. binds: of all that
    apply to a request, it has least left. in_use: requests under way, or with `queued` in queues.
    """

    limit: str
    per: str
    scope: str
    enforced: bool
    amounts: list[AmountState]
    concurrent: int | None
    queued: NotRequired[int | None]
    in_use: int
    left: float
    binds: bool


class BudgetSpec(TypedDict):
    """So much in each window. unit: `tokens`, `requests` or a currency of the prices. timezone: where days, weeks (from Monday) and
    months begin, a name of the IANA database.
    """

    amount: float
    unit: NotRequired[str]
    window: NotRequired[Literal["day", "month", "week"] | RollingSpec]
    timezone: NotRequired[str]


class BudgetView(TypedDict):
    """A budget as it is shown."""

    amount: float
    unit: str
    window: Literal["day", "month", "week"] | RollingView
    timezone: str


class LimitDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: LimitView


class LimitMatchSpec(TypedDict):
    """Which requests a limit applies to; patterns with `*`. All must match. user, group: a name, in any tenant, or NAME@TENANT. group,
    role: one of the caller's fits. agent: who acts for the caller.
    """

    tenant: NotRequired[str]
    model: NotRequired[str]
    key: NotRequired[str]
    user: NotRequired[str]
    group: NotRequired[str]
    agent: NotRequired[str]
    operation: NotRequired[str]
    role: NotRequired[str]


class LimitPage(TypedDict):
    items: list[LimitView]
    cursor: str | None


class LimitPatch(TypedDict):
    name: NotRequired[str]
    per: NotRequired[
        Literal[
            "agent", "global", "group", "key", "key_model", "model", "operation", "session", "tenant", "tenant_model", "user", "user_model"
        ]
        | None
    ]
    match: NotRequired[LimitMatchSpec | None]
    requests: NotRequired[RateSpec | None]
    tokens: NotRequired[RateSpec | None]
    bytes: NotRequired[RateSpec | None]
    elements: NotRequired[RateSpec | None]
    concurrent: NotRequired[int | None]
    queued: NotRequired[int | None]
    budget: NotRequired[BudgetSpec | None]
    session: NotRequired[LoopSpec | None]
    weights: NotRequired[WeightsSpec | None]
    on_failure: NotRequired[Literal["closed", "local", "open"] | None]
    precision: NotRequired[Literal["exact", "leased"] | None]
    enforce: NotRequired[bool | None]


class LimitSpec(TypedDict):
    """A limit with one bucket for each value of `per`; a request takes from all buckets that apply to it, or from none. bytes: of bodies
    of requests. elements: of tensors. queued: requests that wait for an engine at once. weights: of tokens, wherever this limit counts
    them. on_failure: what happens while the counter that is shared with other replicas cannot be reached. precision: whether shares of
    it may be taken in advance. enforce: without it nothing is refused, and what would have been is counted.
    """

    name: str
    per: NotRequired[
        Literal[
            "agent", "global", "group", "key", "key_model", "model", "operation", "session", "tenant", "tenant_model", "user", "user_model"
        ]
    ]
    match: NotRequired[LimitMatchSpec]
    requests: NotRequired[RateSpec | None]
    tokens: NotRequired[RateSpec | None]
    bytes: NotRequired[RateSpec | None]
    elements: NotRequired[RateSpec | None]
    concurrent: NotRequired[int | None]
    queued: NotRequired[int | None]
    budget: NotRequired[BudgetSpec | None]
    session: NotRequired[LoopSpec | None]
    weights: NotRequired[WeightsSpec]
    on_failure: NotRequired[Literal["closed", "local", "open"]]
    precision: NotRequired[Literal["exact", "leased"]]
    enforce: NotRequired[bool]


class LimitView(TypedDict):
    source: Literal["file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
    name: NotRequired[str | None]
    per: NotRequired[
        Literal[
            "agent", "global", "group", "key", "key_model", "model", "operation", "session", "tenant", "tenant_model", "user", "user_model"
        ]
        | None
    ]
    match: NotRequired[LimitMatchSpec | None]
    requests: NotRequired[RateView | None]
    tokens: NotRequired[RateView | None]
    bytes: NotRequired[RateView | None]
    elements: NotRequired[RateView | None]
    concurrent: NotRequired[int | None]
    queued: NotRequired[int | None]
    budget: NotRequired[BudgetView | None]
    session: NotRequired[LoopView | None]
    weights: NotRequired[WeightsSpec | None]
    on_failure: NotRequired[Literal["closed", "local", "open"] | None]
    precision: NotRequired[Literal["exact", "leased"] | None]
    enforce: NotRequired[bool | None]


class LimitsCaller(TypedDict):
    """key: an API key's id; or principal: a supposed caller. model, operation: of the request."""

    model: NotRequired[str]
    operation: NotRequired[str]
    key: NotRequired[str | None]
    principal: NotRequired[Supposed | None]


class LoopSpec(TypedDict):
    """Bounds on one session of an agent, from its first request to its last. tokens: weighted as the limit says. same_tool_calls: how
    often one conversation may hold the same call of a tool with the same arguments. depth: calls of tools in a row without a message of
    the user.
    """

    calls: NotRequired[int | None]
    tokens: NotRequired[int | None]
    wall_time: NotRequired[float | None]
    same_tool_calls: NotRequired[int | None]
    depth: NotRequired[int | None]


class LoopView(TypedDict):
    """Bounds on sessions as they are shown. wall_time: a duration such as `1h`."""

    calls: NotRequired[int | None]
    tokens: NotRequired[int | None]
    wall_time: NotRequired[str | None]
    same_tool_calls: NotRequired[int | None]
    depth: NotRequired[int | None]


class RateSpec(TypedDict):
    """A token bucket: `rate` units in every `per` seconds, never more than `burst` (default: `rate`) at once."""

    rate: float
    per: NotRequired[float]
    burst: NotRequired[float | None]


class RateView(TypedDict):
    """A rate as it is shown. per: a duration such as `1m`."""

    rate: float
    per: str
    burst: NotRequired[float | None]


class Reset(TypedDict):
    """scope: of one bucket, as its state shows it; null: all buckets of the limit."""

    scope: NotRequired[str | None]


class ResetDryRun(TypedDict):
    result: WasReset
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class RollingSpec(TypedDict):
    """A window that ends now, at any time."""

    rolling: float


class RollingView(TypedDict):
    """A rolling window as it is shown: a duration such as `30d`."""

    rolling: str


class Supposed(TypedDict):
    """A caller that is only supposed: what its credential would say. kind: how it would have logged in. strength, issuer, acr, amr,
    auth_time: see Login in gateway.core.values; without a strength, that which logins of this kind have at least.
    """

    tenant: str
    id: NotRequired[str]
    kind: NotRequired[str]
    models: NotRequired[list[str]]
    operations: NotRequired[list[str]]
    roles: NotRequired[list[str]]
    user: NotRequired[str]
    groups: NotRequired[list[str]]
    scopes: NotRequired[list[str]]
    agent: NotRequired[str]
    session: NotRequired[str]
    strength: NotRequired[Literal["", "certificate", "key", "mfa", "password", "token"]]
    issuer: NotRequired[str]
    acr: NotRequired[str]
    amr: NotRequired[list[str]]
    auth_time: NotRequired[str | float | None]


class WasReset(TypedDict):
    """reset: how many buckets were not full."""

    limit: str
    scope: str | None
    reset: int


class WeightsSpec(TypedDict):
    """What a token of each kind counts. cached: of the prompt, where the engine had it already. reasoning: of the completion."""

    prompt: NotRequired[float]
    completion: NotRequired[float]
    cached: NotRequired[float | None]
    reasoning: NotRequired[float | None]
