"""Types of the operations below /policies. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.limits import Supposed


class BindingSpec(TypedDict):
    """Who has a role, or (effect `deny`) from whom its permissions are taken; where the condition `when` (CEL) is true. role: one of
    `roles`, or a built-in one of the admin listener. subjects: `key/ID`, `user/NAME`, `group/NAME`, `tenant/NAME`, `agent/NAME`,
    `principal/ID`; names are patterns with `*`. tenant: of the callers that it applies to. name: as the audit log names it.
    """

    role: str
    subjects: list[str]
    effect: NotRequired[Literal["allow", "deny"]]
    when: NotRequired[str | None]
    tenant: NotRequired[str]
    name: NotRequired[str | None]


class Case(TypedDict):
    """A question, and the decision that is expected of it. name: for the result. rule: the one that should decide; null: any."""

    request: Trial
    key: NotRequired[str | None]
    principal: NotRequired[Supposed | None]
    expect: Literal["allow", "deny"]
    name: NotRequired[str]
    rule: NotRequired[str | None]


class CaseResult(TypedDict):
    """case: its name, or its place in the list. passed: whether the decision, and the rule if one was expected, are those of the case."""

    case: str
    expect: str
    allow: bool
    reason: str
    rule: str
    passed: bool


class CaseResults(TypedDict):
    """passed: whether all are as expected."""

    passed: bool
    items: list[CaseResult]


class Cases(TypedDict):
    cases: list[Case]


class Comparison(TypedDict):
    """roles, bindings: as in the configuration; in place of the file's, or (beside) beside those of the file and the store, as if they
    were applied to the store. last: so many of the newest decisions; since: none before this moment; tenant: of this tenant alone.
    """

    roles: NotRequired[dict[str, RoleSpec]]
    bindings: NotRequired[list[BindingSpec]]
    beside: NotRequired[bool]
    last: NotRequired[int]
    since: NotRequired[str | float | None]
    tenant: NotRequired[str | None]


class Considered(TypedDict):
    """A rule that concerns the request. when: its condition. holds: whether it counts for this request."""

    rule: str
    effect: str
    when: str | None
    holds: bool


class Difference(TypedDict):
    """decisions: those looked at, from `first` to `last`; replayed: those made again. allowed, denied: requests that would be from now
    on. other_rule: those that another rule would decide in the same way. decided_otherwise_then: those that the policies in force decide
    otherwise than those of their time did. complete: false where time ran out. left_out: changes beyond those that are listed.
    """

    decisions: int
    replayed: int
    first: str | None
    last: str | None
    complete: bool
    allowed: int
    denied: int
    other_rule: int
    decided_otherwise_then: int
    not_replayed: list[Lacking]
    changes: list[ReplaysChange]
    left_out: int


class Explanation(TypedDict):
    """rule: the one that decided. rules: all that concern the request. limits, guardrails: the names of those that would apply. labels:
    of the data, before a guardrail has read it. engines: those of the model that are cleared for them.
    """

    tenant: str
    model: str
    operation: str
    allow: bool
    reason: str
    rule: str
    rules: list[Considered]
    limits: list[str]
    guardrails: list[str]
    labels: NotRequired[list[str]]
    engines: NotRequired[list[str]]


class Lacking(TypedDict):
    """Decisions that could not be made again, as their records lack this fact. `older`: records of earlier versions, which have none;
    `unreadable`: those whose facts cannot be read.
    """

    fact: str
    decisions: int


class PastDecision(TypedDict):
    """allow, rule, config: as they were recorded. facts: what the decision was made on, by the names of conditions and what the
    credential said itself; unrecorded: facts that the record does not have (`caller`: none of the caller's). now: what the policies in
    force decide about the same facts, unless they read one that is `lacking`; rules: those that concern it, as they are now.
    """

    request_id: str
    time: str
    tenant: str
    principal: str
    credential: str
    user: str
    agent: str
    session: str
    model: str
    operation: str
    allow: bool
    rule: str
    config: int
    facts: dict[str, Any]
    unrecorded: list[str]
    now: Side | None
    lacking: str
    rules: list[Considered]


class Question(TypedDict):
    """key: an API key's id; or principal: a supposed caller. request: what it asks for."""

    request: Trial
    key: NotRequired[str | None]
    principal: NotRequired[Supposed | None]


class ReplaysChange(TypedDict):
    """Requests of one caller to one model that would be decided otherwise. before: by the policies in force; after: by the candidate's.
    request_id: the newest of them.
    """

    tenant: str
    principal: str
    user: str
    agent: str
    model: str
    operation: str
    before: Side
    after: Side
    requests: int
    first: str
    last: str
    request_id: str


class RoleSpec(TypedDict):
    """What its holders may do: permissions such as `infer:chat:model/demo-*` and `admin:keys:read`. confined: on the admin listener,
    what belongs to a tenant is reached in the holder's own tenant only.
    """

    permissions: list[str]
    description: NotRequired[str]
    confined: NotRequired[bool]


class Side(TypedDict):
    allow: bool
    rule: str
    reason: str


class Trial(TypedDict):
    """A request that is only supposed. source: the caller's address. bytes: of the body. tools: names. label: of its data. certificate:
    SHA-256 of the connection's client certificate, in hex. time: when it comes, in seconds since the epoch; None: now.
    """

    model: str
    operation: NotRequired[str]
    version: NotRequired[str]
    source: NotRequired[str]
    max_tokens: NotRequired[int]
    bytes: NotRequired[int]
    stream: NotRequired[bool]
    tools: NotRequired[list[str]]
    label: NotRequired[str]
    certificate: NotRequired[str]
    time: NotRequired[float | None]
