"""Types of the operations below /audit. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class AuditKey(TypedDict):
    """since: when it took the place of the one before it; null for the first. endorsement: what both signed then."""

    id: str
    algorithm: str
    pem: str
    current: NotRequired[bool]
    since: NotRequired[float | None]
    endorsement: NotRequired[dict[str, Any] | None]


class AuditKeyDryRun(TypedDict):
    """result: the key that signs now."""

    result: AuditKey
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class AuditKeys(TypedDict):
    items: list[AuditKey]
    cursor: NotRequired[str | None]


class Consistency(TypedDict):
    """first, second: the signed checkpoints. first_line: the first one as it is in the checkpoints file, the leaf of the tree.
    consistency, inclusion: the hashes of RFC 9162, sections 2.1.4 and 2.1.3. keys: as of proofs.
    """

    writer: str
    first: dict[str, Any]
    second: dict[str, Any]
    first_line: str
    consistency: list[str]
    inclusion: list[str]
    keys: NotRequired[list[dict[str, Any]]]


class Coverage(TypedDict):
    """Whose logs an answer covers. replica: the one that answered; "" where it has no id yet. missing: the others on the same store,
    whose logs it does not have; null where they are not known, because the store does not answer.
    """

    replica: str
    missing: list[Missing] | None


class DataKeyDryRun(TypedDict):
    result: DataKeyPage
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class DataKeyPage(TypedDict):
    items: list[DataKeyView]
    cursor: NotRequired[str | None]


class DataKeyView(TypedDict):
    """master: the id of the master key that wraps it. ended_at: when it was retired or shredded."""

    id: str
    tenant: str
    version: int
    state: Literal["active", "retired", "shredded"]
    master: str
    created_at: str
    ended_at: str | None


class DataKeysRotation(TypedDict):
    """tenant: whose keys; by default all that have one. master: instead of making new data keys, wrap those that a former master key has
    wrapped by the present one.
    """

    tenant: NotRequired[str | None]
    master: NotRequired[bool]


class Found(TypedDict):
    """A request, or an event. cost: in nano-units of the record's currency. records: the log's lines, where they were asked for.
    tenants: those that an event is about. unopened: why a record of it, encrypted as a whole, could not be opened, so that parts are
    missing.
    """

    time: str
    kind: Literal["event", "request"]
    writer: str
    request_id: NotRequired[str]
    tenant: NotRequired[str]
    principal: NotRequired[str]
    user: NotRequired[str]
    agent: NotRequired[str]
    session: NotRequired[str]
    method: NotRequired[str]
    peer: NotRequired[str]
    operation: NotRequired[str]
    model: NotRequired[str]
    endpoint: NotRequired[str]
    outcome: NotRequired[str]
    code: NotRequired[str]
    rule: NotRequired[str]
    decision: NotRequired[str]
    guardrail: NotRequired[str]
    event: NotRequired[str]
    actor: NotRequired[str]
    target: NotRequired[str]
    status: NotRequired[int]
    attempts: NotRequired[int]
    prompt_tokens: NotRequired[int]
    completion_tokens: NotRequired[int]
    cost: NotRequired[int]
    duration_ms: NotRequired[float]
    config: NotRequired[int]
    records: NotRequired[list[dict[str, Any]]]
    tenants: NotRequired[list[str]]
    unopened: NotRequired[str]


class FoundList(TypedDict):
    """unopened: how many requests and events may be wanted, too, but are encrypted as a whole and could not be opened; by the reason:
    `shredded`, `withheld` (written without who asked, because the key could not be had), or another. Of several pages each has its own.
    """

    items: list[Found]
    cursor: NotRequired[str | None]
    coverage: Coverage
    unopened: dict[str, int]


class HoldDryRun(TypedDict):
    result: HoldPage
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class HoldPage(TypedDict):
    items: list[HoldView]
    cursor: NotRequired[str | None]


class HoldSettings(TypedDict):
    """why: who ordered it and for what; it is shown and recorded."""

    tenant: str
    why: str


class HoldView(TypedDict):
    """everywhere: the store has it, so that every replica honours it; until then the replica that was asked does. released: when it was
    taken back, in the answer to that; null while it is in force.
    """

    tenant: str
    since: str
    why: str
    actor: str
    everywhere: bool
    released: NotRequired[str | None]


class Missing(TypedDict):
    """state: `lost` is one that has not been heard of for a while."""

    id: str
    state: Literal["lost", "serving"]


class Proof(TypedDict):
    """record: as in the log; line: its text, whose hash is the leaf. path: hashes that lead from the leaf to the tree's root. tree: what
    was signed of it. checkpoint: the signed statement about the chain. opened: of a record that is encrypted as a whole, its JSON and
    the salt with which that has the digest in the line.
    """

    record: dict[str, Any]
    line: str
    leaf_hash: str
    leaf_index: int
    path: list[str]
    tree: dict[str, Any]
    checkpoint: dict[str, Any]
    opened: NotRequired[dict[str, str] | None]


class Proofs(TypedDict):
    """keys: how the keys that sign the log followed one another (docs/audit.md); empty where there was only one."""

    request_id: str
    proofs: list[Proof]
    keys: NotRequired[list[dict[str, Any]]]


class Records(TypedDict):
    items: list[dict[str, Any]]
    cursor: NotRequired[str | None]


class Report(TypedDict):
    """accesses, callers, denials: requests of the period, the most first; of callers `not_ok` counts those that did not end well.
    logins: events of logins and refused ones. changes: the newest changes of configuration and policy. log: events of the log itself.
    integrity: as the verification found it; null where it was not asked for. unopened: how many requests and events of the period are
    encrypted as a whole and could not be opened, by the reason: the tables have only what is in the clear of them.
    """

    since: str
    until: str
    tenants: list[str] | None
    accesses: list[dict[str, Any]]
    callers: list[dict[str, Any]]
    denials: list[dict[str, Any]]
    logins: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    log: list[dict[str, Any]]
    integrity: dict[str, Any] | None
    coverage: Coverage
    unopened: dict[str, int]


class RevealDecision(TypedDict):
    reason: str


class RevealDryRun(TypedDict):
    result: RevealView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class RevealPage(TypedDict):
    items: list[RevealView]
    cursor: NotRequired[str | None]


class RevealSettings(TypedDict):
    """tenant: needed only where several tenants have requests of this id."""

    request_id: str
    reason: str
    tenant: NotRequired[str | None]


class RevealView(TypedDict):
    id: str
    state: Literal["approved", "denied", "expired", "pending", "used"]
    request_id: str
    tenant: str
    reason: str
    asked_by: str
    created_at: str
    expires_at: str
    decided_by: str
    decided_at: str | None
    decision_reason: str
    used_at: str | None


class Revealed(TypedDict):
    reveal: RevealView
    texts: list[TextView]


class RotatedKey(TypedDict):
    """The id and the raw public key (hex) of the key that signs from now on, and of the one before it, with the signatures of both."""

    time: float
    key: str
    public: str
    previous: str
    previous_public: str
    signature: str
    countersignature: str


class ShredDryRun(TypedDict):
    result: Shredded
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class Shredded(TypedDict):
    """keys: those that are (or would be) destroyed. held: why they may not be; "" if they may."""

    tenant: str
    keys: list[str]
    digest: str
    held: str


class Shredding(TypedDict):
    """confirm: the digest that the plan has (`GET audit/data-keys/shred?tenant=`)."""

    tenant: str
    reason: str
    confirm: str


class TextView(TypedDict):
    """kind: `intent` (the prompt) or `outcome` (the answer). state: `shredded` where its key was destroyed, `lost` where it does not
    open (`why`). text: `body` as it was sent; of a stream `texts` by their places; `cut` where it was longer than what is kept.
    """

    kind: str
    time: str
    state: Literal["lost", "shredded", "text"]
    key: str
    text: dict[str, Any] | None
    why: str


class Verification(TypedDict):
    """first_problem: the file, line, reason and writer of the first place that is not as it was written; line 0 means the file as a
    whole. writers: what was found of each writer's chain; `live` whether a process has it, `skipped` and `archived` what was not
    verified, `journal` what a journal holds.
    """

    ok: bool
    first_problem: dict[str, Any] | None
    writers: list[dict[str, Any]]
