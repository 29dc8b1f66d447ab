"""Types of the operations below /guardrails. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class Evaluation(TypedDict):
    """verdict: allow, rewrite, block or hold. text: what would pass; null if nothing would. labels: the data labels that a request with
    this text would get from these guardrails. guardrails: in order, up to one that blocks.
    """

    verdict: str
    text: str | None
    labels: list[str]
    guardrails: list[Step]


class GuardrailDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: GuardrailView


class GuardrailPage(TypedDict):
    items: list[GuardrailView]
    cursor: str | None


class GuardrailPatch(TypedDict):
    name: NotRequired[str]
    type: NotRequired[str]
    on: NotRequired[list[Literal["request", "response"]] | None]
    models: NotRequired[list[str] | None]
    tenants: NotRequired[list[str] | None]
    roles: NotRequired[list[str] | None]
    mode: NotRequired[Literal["enforce", "monitor"] | None]
    budget: NotRequired[float | None]
    fail_mode: NotRequired[Literal["closed", "open"] | None]
    label: NotRequired[str | None]
    settings: NotRequired[dict[str, Any] | None]


class GuardrailSpec(TypedDict):
    """type: a file of policies/guardrails or gateway/guardrails. tenants, roles: of the callers whose requests it reads. mode: `monitor`
    counts and records, and does nothing. budget: seconds that one request, answer or piece of a stream may take; more is a failure.
    label: what the action `label` gives to a request.
    """

    name: str
    type: str
    on: NotRequired[list[Literal["request", "response"]]]
    models: NotRequired[list[str]]
    tenants: NotRequired[list[str]]
    roles: NotRequired[list[str]]
    mode: NotRequired[Literal["enforce", "monitor"]]
    budget: NotRequired[float]
    fail_mode: NotRequired[Literal["closed", "open"]]
    label: NotRequired[str | None]
    settings: NotRequired[dict[str, Any]]


class GuardrailView(TypedDict):
    source: Literal["file", "store"]
    version: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
    name: str
    type: str
    on: NotRequired[list[Literal["request", "response"]] | None]
    models: NotRequired[list[str] | None]
    tenants: NotRequired[list[str] | None]
    roles: NotRequired[list[str] | None]
    mode: NotRequired[Literal["enforce", "monitor"] | None]
    budget: NotRequired[float | None]
    fail_mode: NotRequired[Literal["closed", "open"] | None]
    label: NotRequired[str | None]
    settings: NotRequired[dict[str, Any] | None]


class Span(TypedDict):
    """A place in the text as the guardrail read it, in characters."""

    offset: int
    length: int
    entity: str
    score: float | None


class Step(TypedDict):
    """One guardrail. verdict: what it found. action: what would be done. label: what a request with this text would get. milliseconds:
    of the clock; cpu_milliseconds: of the processor. held: the most characters that a stream with this text would hold, of its first
    4,096; null: all of it. longest_hold: the most that any text can make it hold, where that is known.
    """

    guardrail: str
    mode: str
    verdict: str
    action: str
    label: str | None
    why: str
    spans: list[Span]
    milliseconds: float
    cpu_milliseconds: float
    held: int | None
    longest_hold: int | None


class Tried(TypedDict):
    """A text to run through the guardrails in force. on: whether it is taken for a request's or an answer's. model: those of this model,
    if given. guardrails: only these.
    """

    text: str
    on: NotRequired[Literal["request", "response"]]
    model: NotRequired[str | None]
    guardrails: NotRequired[list[str]]
