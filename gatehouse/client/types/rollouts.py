"""Types of the operations below /rollouts. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class CanaryView(TypedDict):
    """An engine on trial. withdrawn: it gets no more requests, for this reason, until it is put back. canary_side, other_side: what it
    and the model's other engines answered in the last `window` seconds of this gateway with its workers.
    """

    engine: str
    withdrawn: bool
    reason: str | None
    since: str | None
    window: float
    min_requests: int
    canary_side: SideView
    other_side: SideView


class Resumed(TypedDict):
    """What the engine had been withdrawn for."""

    model: str
    engine: str
    reason: str
    dry_run: NotRequired[bool]


class RolloutPage(TypedDict):
    """silent: workers that have not told their figures within some seconds."""

    items: list[RolloutView]
    silent: NotRequired[list[str]]
    cursor: NotRequired[str | None]


class RolloutView(TypedDict):
    model: str
    shadow: NotRequired[ShadowView | None]
    canary: NotRequired[CanaryView | None]


class ShadowView(TypedDict):
    """Mirrored requests of one model, in all processes of this gateway since they began. sampled: those that were to be mirrored.
    dropped, skipped: of these, by reason: there was no room or time, or they must not be. likeness: of the pairs of answers that were
    compared, 0 to 1, on average; likeness_tenths: how many of them are from 0 to 0.1, from 0.1 to 0.2, and so on.
    """

    candidate: str
    sampled: int
    mirrored: int
    dropped: dict[str, int]
    skipped: dict[str, int]
    waiting: int
    running: int
    compared: int
    likeness: float | None
    likeness_tenths: list[int]
    model_side: SideView
    candidate_side: SideView


class SideView(TypedDict):
    """How one side answered the mirrored requests. errors: no answer, or one with status 429 or 5xx. refusals: another 4xx, or the model
    refused or a filter stopped it. Durations in seconds, at most 19% too high; first_token: of streams.
    """

    answers: int
    errors: int
    refusals: int
    prompt_tokens: int
    completion_tokens: int
    tokens_per_second: float | None
    latency_p50: float | None
    latency_p95: float | None
    first_token_p50: float | None
    first_token_p95: float | None
