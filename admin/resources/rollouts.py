"""Candidates that are tried on real traffic (docs/rollouts.md)."""

from __future__ import annotations

from typing import Any

import msgspec

from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, Operation, Written
from gateway.core.errors import NotFound
from gateway.core.rollouts import RolloutControl


class SideView(msgspec.Struct, kw_only=True):
    """How one side answered the mirrored requests. errors: no answer, or one with status 429 or 5xx. refusals: another 4xx, or the model
    refused or a filter stopped it. Durations in seconds, at most 19% too high; first_token: of streams."""

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


class ShadowView(msgspec.Struct, kw_only=True):
    """Mirrored requests of one model, in all processes of this gateway since they began. sampled: those that were to be mirrored. dropped,
    skipped: of these, by reason: there was no room or time, or they must not be. likeness: of the pairs of answers that were compared,
    0 to 1, on average; likeness_tenths: how many of them are from 0 to 0.1, from 0.1 to 0.2, and so on."""

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


class CanaryView(msgspec.Struct, kw_only=True):
    """An engine on trial. withdrawn: it gets no more requests, for this reason, until it is put back. canary_side, other_side: what it and
    the model's other engines answered in the last `window` seconds of this gateway with its workers."""

    engine: str
    withdrawn: bool
    reason: str | None
    since: Timestamp | None
    window: float
    min_requests: int
    canary_side: SideView
    other_side: SideView


class RolloutView(msgspec.Struct, kw_only=True):
    model: str
    shadow: ShadowView | None = None
    canary: CanaryView | None = None


class Resumed(msgspec.Struct, kw_only=True):
    """What the engine had been withdrawn for."""

    model: str
    engine: str
    reason: str
    dry_run: bool = False


class RolloutPage(msgspec.Struct):
    """silent: workers that have not told their figures within some seconds."""

    items: list[RolloutView]
    silent: list[str] = []
    cursor: str | None = None


async def index(call: Call) -> Answer:
    items, silent = await _rollouts(call)
    return Answer({"items": items, "silent": silent, "cursor": None})


async def show(call: Call) -> Answer:
    items, _ = await _rollouts(call)
    name = call.path["name"]
    for item in items:
        if item["model"] == name:
            return Answer(item)
    raise NotFound(f"Nothing is tried on the traffic of a model {name!r}.")


async def _rollouts(call: Call) -> tuple[list[dict[str, Any]], list[str]]:
    port: RolloutControl | None = call.ports.rollouts
    if port is None:
        raise NotFound("This process has no models.")
    shadows, silent = await port.of_shadows()
    canaries = port.of_canaries()
    for canary in canaries.values():
        canary["since"] = timestamp(canary["since"])
    names = sorted(shadows.keys() | canaries.keys())
    return [{"model": name, "shadow": shadows.get(name), "canary": canaries.get(name)} for name in names], silent


async def resume(call: Call) -> Answer:
    """Puts an engine on trial back that was withdrawn; what was held against it is forgotten."""
    if call.ports.rollouts is None:
        raise NotFound("This process has no models.")
    name = call.path["name"]
    call.target = f"rollouts/{name}"
    gone = await call.ports.rollouts.resume(name, call.actor, dry_run=call.dry_run)
    call.diff = [{"path": "withdrawn", "from": gone["engine"], "to": None}]
    return Answer({"model": name, "engine": gone["engine"], "reason": gone["reason"], "dry_run": call.dry_run})


def operations() -> list[Operation]:
    return [
        Operation("GET", "rollouts", "rollouts:read", "List the candidates that are tried on real traffic", index, RolloutPage),
        Operation("POST", "rollouts/{name}/resume", "rollouts:resume", "Put a withdrawn engine back", resume, Resumed, Written),
        Operation("GET", "rollouts/{name}", "rollouts:read", "Show what is tried on a model's traffic", show, RolloutView),
    ]
