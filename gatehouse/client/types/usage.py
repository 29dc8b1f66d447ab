"""Types of the operations below /usage. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class CentreReport(TypedDict):
    month: str
    items: list[CentreSum]


class CentreSum(TypedDict):
    """What one cost centre pays in one currency. currency: empty for what has no price."""

    cost_centre: str
    currency: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    unknown: int
    cost: str


class EngineReport(TypedDict):
    since: str
    until: str
    items: list[EngineSum]


class EngineSum(TypedDict):
    """An engine with a rate. begins: from when on it counts within the days asked for. hours: since then. busy_hours: those that
    requests held, as of the whole engine. cost: of these. idle_cost: of the rest, by the same rate. whole_cost: of all hours.
    """

    engine: str
    currency: str
    devices: int
    requests: int
    begins: str
    hours: float
    busy_hours: float
    prefill_hours: float
    decode_hours: float
    cost: str
    idle_cost: str
    whole_cost: str


class NotCompared(TypedDict):
    limit: str
    reason: str


class Reconciled(TypedDict):
    """A line of a reconciliation. unit: what is counted; costs are in `nano-CURRENCY`."""

    scope: str
    unit: str
    from_audit: int
    charged: int
    difference: int


class ReconciledBudget(TypedDict):
    """One amount of a budget's bucket in its present window, or of a rate over more than a minute. charged: by its counter, of a window
    of the calendar and of budgets in Redis what this replica took. in_hand: of that, what this gateway has taken in advance and not
    used. under_way: what requests have reserved that have no outcome yet. lost: what a killed worker had in hand, which comes back once
    nothing is under way; in Redis, what came back just now of what killed processes had reserved. difference: charged without all these,
    less what the log says; of a rate, only what is less than that.
    """

    limit: str
    scope: str
    amount: str
    unit: str
    from_audit: int
    charged: int
    in_hand: int
    under_way: int
    lost: int
    difference: int


class ReconciledWriter(TypedDict):
    """up_to: the last line that both sides count. complete_from: the first day that is compared, where older segments are gone."""

    writer: str
    up_to: int
    complete_from: NotRequired[str | None]


class Reconciliation(TypedDict):
    """difference: the sum of all differences of the scopes, without their signs. budgets: apart from it, with rates over more than a
    minute. not_compared: those of which the log cannot say enough. unopened: outcomes that are not in `from_audit`, because they were
    encrypted as a whole and their tenant's keys were destroyed.
    """

    scopes: list[Reconciled]
    difference: int
    unopened: NotRequired[int]
    writers: NotRequired[list[ReconciledWriter]]
    budgets: NotRequired[list[ReconciledBudget]]
    not_compared: NotRequired[list[NotCompared]]


class SessionReport(TypedDict):
    items: list[SessionSum]
    cursor: NotRequired[str | None]


class SessionSum(TypedDict):
    """What a session used. key, user, agent: of its last request. day: the last one."""

    tenant: str
    session: str
    currency: str
    key: str
    user: str
    agent: str
    day: str
    last: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    unknown: int
    cost: str


class UsageReport(TypedDict):
    items: list[UsageSum]
    cursor: NotRequired[str | None]


class UsageSum(TypedDict):
    """cost: a decimal number in `currency`; both null where costs are in several currencies. unknown: requests whose process was killed,
    which were charged what they had reserved.
    """

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    unknown: int
    cost: NotRequired[str | None]
    currency: NotRequired[str | None]
    tenant: NotRequired[str | None]
    key: NotRequired[str | None]
    user: NotRequired[str | None]
    agent: NotRequired[str | None]
    model: NotRequired[str | None]
    operation: NotRequired[str | None]
    day: NotRequired[str | None]
