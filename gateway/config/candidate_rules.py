"""Checks of shadows and trials: candidates that are tried on a model's traffic."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.convert import nearest, quoted
from gateway.config.pipeline_rules import pipeline_fault
from gateway.core.specs import ModelSpec


def canary_fault(model: ModelSpec) -> str:
    """What is wrong with the engine of a model that is on trial; "" where nothing is."""
    if model.canary is None:
        return ""
    if model.hedge is not None:
        return "cannot be measured where the model hedges: slow attempts are cancelled before their time is known"
    pool = [member if isinstance(member, str) else member.engine for member in model.pool]
    if model.canary.engine not in pool:
        return f"{quoted(model.canary.engine)} is not in the model's pool; {nearest(model.canary.engine, pool)}"
    return "" if len(pool) > 1 else "is the only engine of the pool: there would be nothing left without it"


def shadow_fault(model: ModelSpec, models: Mapping[str, ModelSpec]) -> str:
    """What is wrong with the candidate of a model's shadow traffic, where these models exist; "" where nothing is."""
    candidate = model.shadow.model if model.shadow is not None else ""
    if candidate == model.name:
        return "is the model itself; name another one"
    if candidate not in models:
        return f"there is no model {quoted(candidate)}; {nearest(candidate, models)}"
    return pipeline_fault(candidate, models)
