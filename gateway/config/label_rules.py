"""Checks of data labels: the names that engines, guardrails and labels themselves use, and actions that need a label."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gateway.config.convert import nearest, quoted
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, GuardrailSpec

ErrorAt = Callable[[str, str], ConfigError]
"""(path, message) -> the error with its file and line."""
ACTION = "label"
MOST = 64
"""Labels of one configuration."""


def check(spec: ConfigSpec, error: ErrorAt) -> None:
    """Raises ConfigError for the first contradiction."""
    if len(spec.labels) > MOST:
        raise error("labels", f"has {len(spec.labels)} labels; the maximum is {MOST}")
    for index, engine in enumerate(spec.engines):
        for place, label in enumerate(engine.clearance or ()):
            if label != "*":
                known(label, spec.labels, f"engines[{index}].clearance[{place}]", error)
    for index, guardrail in enumerate(spec.guardrails):
        check_guardrail(guardrail, spec.labels, f"guardrails[{index}]", error)


def known(label: str, labels: Collection[str], path: str, error: ErrorAt) -> None:
    """Raises ConfigError for a label that is not declared."""
    if label not in labels:
        hint = nearest(label, labels) if labels else "name it under 'labels'"
        raise error(path, f"there is no label {quoted(label)}; {hint}")


def check_guardrail(spec: GuardrailSpec, labels: Collection[str], path: str, error: ErrorAt) -> None:
    """Raises ConfigError for an action `label` without a label, and for the opposite."""
    labelling = acts(spec)
    if spec.label is None:
        if labelling:
            raise error(f"{path}.label", "is missing: the action 'label' needs the name of one")
        return
    known(spec.label, labels, f"{path}.label", error)
    if "response" in spec.on:
        raise error(f"{path}.on", "must be [request]: a label is given to a request, before an engine has seen it")


def acts(spec: GuardrailSpec) -> bool:
    """Whether a guardrail has the action `label`."""
    entities = spec.settings.get("entities")
    return spec.settings.get("action") == ACTION or (isinstance(entities, dict) and ACTION in entities.values())
