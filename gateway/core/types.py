"""Types passed between phases: the classes of gateway.core.values, and msgspec Structs for data that is encoded or never changes."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from gateway.core.values import MOST_FINDINGS, Acting, Finding, Headers, Login, Peer, Principal, Priority, ResponseHead, Scope, Usage
from gateway.core.wire import InferenceRequest

__all__ = [
    "ALLOW",
    "MOST_FINDINGS",
    "NARROWED",
    "Acting",
    "AuditRecord",
    "Decision",
    "DecisionFacts",
    "EventRecord",
    "Finding",
    "Headers",
    "InferenceRequest",
    "IntentRecord",
    "Login",
    "OutcomeRecord",
    "Peer",
    "Principal",
    "Priority",
    "ResponseHead",
    "Scope",
    "Trial",
    "Usage",
    "Verdict",
]


class Decision(Struct, frozen=True):
    """The outcome of authorisation. `reason` is for the caller (never the policy's text), `rule` for the audit log."""

    allow: bool
    reason: str
    rule: str


NARROWED: Final = Decision(False, "The token's scope does not cover this request.", "scope")
"""The caller may do this, but not with this token."""


class Verdict(Struct, frozen=True):
    """A guardrail's verdict on texts: allow, annotate (pass, but the record says what was found), rewrite (with `texts`, one for each that
    was read), block or hold. error: it failed (only the failure boundary says so). findings: what led to it. usage: what a model cost that
    was asked; it is charged to the caller if the verdict refuses. label: what was found gives the request the guardrail's label."""

    action: Literal["allow", "annotate", "rewrite", "block", "hold", "error"]
    guardrail: str = ""
    reason: str = ""
    texts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    usage: Usage | None = None
    label: bool = False


ALLOW = Verdict("allow")


class Trial(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request that is only supposed. source: the caller's address. bytes: of the body. tools: names. label: of its data. certificate:
    SHA-256 of the connection's client certificate, in hex. time: when it comes, in seconds since the epoch; None: now."""

    model: str
    operation: str = "chat"
    version: str = ""
    source: str = "192.0.2.1"
    max_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    bytes: Annotated[int, Meta(ge=0, le=2**40)] = 0
    stream: bool = False
    tools: Annotated[tuple[str, ...], Meta(max_length=1024)] = ()
    label: str = ""
    certificate: str = ""
    time: Annotated[float, Meta(ge=0, le=253402300799)] | None = None


class DecisionFacts(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a decision was made on besides the record's own fields (gateway.core.decided).

    model: the name asked for, if it is not the record's. stream, bytes: of a request without an intent. certificate: SHA-256 of the
    connection's client certificate in hex. unrecorded: the names of facts that are too long to be kept, or could not be read.
    """

    model: str = ""
    version: str = ""
    max_tokens: int = 0
    tools: tuple[str, ...] = ()
    label: str = ""
    certificate: str = ""
    stream: bool = False
    bytes: int = 0
    unrecorded: tuple[str, ...] = ()


class IntentRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """Audit: the intent, written before anything is forwarded. Times in seconds since the epoch.

    principal: the key's id, or the subject. credential: the kind of login. user, agent, session: whose key it is or who logged in, who acts
    for them, in which session. reserved_prompt, reserved_completion: tokens that the request may cost; reserved_cost: in nano-units of
    `currency`, by the version `price` of the price. They are charged if the outcome is never known. rule: what allowed it. caller, facts:
    what that was decided on (gateway.core.decided); caller is JSON, absent in records of earlier versions. labels: of its data, by which
    engines were chosen. text: the prompt where a policy
    keeps it, encrypted once it is written (gateway.audit.sealing).
    """

    time: float
    request_id: str
    tenant: str
    principal: str
    credential: str
    peer: str
    operation: str
    model: str
    stream: bool
    bytes: int
    body_hash: str = ""
    rule: str = ""
    config: int = 0
    user: str = ""
    agent: str = ""
    session: str = ""
    reserved_prompt: int = 0
    reserved_completion: int = 0
    reserved_cost: int = 0
    currency: str = ""
    price: str = ""
    caller: Any = None
    facts: DecisionFacts | None = None
    labels: tuple[str, ...] = ()
    detail: dict[str, Any] | None = None
    text: Any = None


class OutcomeRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """Audit: how it ended. A denial before an intent has the intent's fields here.

    outcome: ok, denied, failed, cancelled, timeout; unknown where the process ended before the request did: then the tokens and the cost
    are what was reserved. cost: in nano-units of `currency` (10^-9 USD, for instance), by the version `price` of the price. basis: empty
    for a price by tokens, `device_time` for one by the time of the engine's devices. prefill_us, decode_us, slots: for how many
    microseconds the request held one of so many slots that share the devices, where the engine has a rate.
    charged: whether it counts as a request of the limits that applied, and not only by its tokens: refusals by policy do, failures do not.
    sent_ms, first_ms: milliseconds until the request went to the last engine that was asked, and until its stream began. finish: why the
    engine stopped generating, in its words. route: what else befell it on its way, such as `queued`, `queued retried`, `fallback`.
    decision, rule: without an intent, whether policy would have allowed it (`allow`, `deny`) and by which rule; credential, caller, facts:
    what that was decided on, as in an intent. text: the answer, likewise.
    """

    time: float
    request_id: str
    outcome: str
    status: int
    code: str = ""
    tenant: str = ""
    principal: str = ""
    peer: str = ""
    operation: str = ""
    model: str = ""
    endpoint: str = ""
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    image_tokens: int = 0
    audio_tokens: int = 0
    estimated: bool = False
    charged: bool = False
    cost: int = 0
    currency: str = ""
    price: str = ""
    basis: str = ""
    prefill_us: int = 0
    decode_us: int = 0
    slots: int = 0
    bytes: int = 0
    body_hash: str = ""
    duration_ms: float = 0.0
    sent_ms: float = 0.0
    first_ms: float = 0.0
    finish: str = ""
    route: str = ""
    guardrail: str = ""
    user: str = ""
    agent: str = ""
    session: str = ""
    decision: str = ""
    rule: str = ""
    credential: str = ""
    caller: Any = None
    facts: DecisionFacts | None = None
    detail: dict[str, Any] | None = None
    text: Any = None


class EventRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """Audit: an event that is not a request: an administrative write, a start, a reload, a breaker, a flood of failed logins.

    tenants: those that it is about, `*` for all (gateway.audit.event_tenants adds what the details name)."""

    time: float
    event: str
    actor: str = ""
    target: str = ""
    outcome: str = "ok"
    detail: dict[str, Any] | None = None
    tenants: tuple[str, ...] = ()


AuditRecord = IntentRecord | OutcomeRecord | EventRecord
