"""From settings to who answers /v1/moderations, and a check of the models that guardrails ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from gateway.app.configuration.parts import PartsBuilder
from gateway.config.convert import nearest
from gateway.core.errors import ConfigError
from gateway.core.moderation import Moderations, Moderator
from gateway.core.slices import Steps, portions
from gateway.core.specs import ConfigSpec, GuardrailSpec
from gateway.pipeline.guarded import Guarded


def moderation_steps(spec: ConfigSpec, guardrails: Iterable[tuple[int, GuardrailSpec, Guarded]], parts: PartsBuilder) -> Steps[Moderations]:
    """guardrails: those that ask models, with their numbers. Raises ConfigError for one whose model is not there or cannot answer."""
    names = {name: model.name for model in spec.models for name in (model.name, *model.aliases)}
    pipelines = {model.name for model in spec.models if model.pipeline is not None}
    found: dict[str, Moderator] = {}
    for number, settings, guarded in guardrails:
        row = parts.row(settings)
        moderator = cast(Moderator, guarded.guardrail)
        if moderator.model not in names:
            raise ConfigError(
                f"there is no model {moderator.model!r}; {nearest(moderator.model, names)}", path=f"guardrails[{number}].settings.model"
            )
        if names[moderator.model] in pipelines:
            raise ConfigError(
                f"{moderator.model!r} is a pipeline, which answers callers alone", path=f"guardrails[{number}].settings.model"
            )
        if row.moderates:
            found[settings.name] = _Named(moderator, names[moderator.model])
    default = None
    if (wanted := spec.moderation.guardrail) is not None:
        if wanted not in found:
            known = ", ".join(found) or "none"
            raise ConfigError(f"there is no guardrail {wanted!r} that judges texts by a model; known: {known}", path="moderation.guardrail")
        default = found[wanted]
    others: dict[str, Moderator] = {}
    for moderator in found.values():
        others.setdefault(moderator.model, moderator)
    external: set[str] = set()
    for some in portions(spec.engines):
        external.update([engine.name for engine in some if engine.runtime == "external"])
        yield
    passed_on = [
        model.name
        for model in spec.models
        if model.name not in others and any((each if isinstance(each, str) else each.engine) in external for each in model.pool)
    ]
    return Moderations(default, others, spec.moderation.names, passed_on)


class _Named:
    """A moderator with its model's own name, which its settings may name by an alias."""

    def __init__(self, moderator: Moderator, model: str) -> None:
        self.name, self.model, self.moderate = moderator.name, model, moderator.moderate
