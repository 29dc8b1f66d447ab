"""Checks of models that are pipelines. A step refers to the request and to earlier steps alone, and asks models that have engines, so
that no pipeline leads back to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gateway.config.convert import nearest, quoted
from gateway.core.errors import ConfigError
from gateway.core.specs import ModelSpec
from gateway.core.specs.pipelines import DOCUMENTS, MESSAGES, PROMPT, GenerateStep, PipelineSpec, RankStep, StepSpec, models_of

ErrorAt = Callable[[str, str], ConfigError]
RESERVED: Final = (PROMPT, DOCUMENTS, MESSAGES)
KINDS: Final = ("classify", "embed", "rerank", "choose", "generate")
WITHOUT: Final = ("pool", "fallbacks", "upstream_model", "routing", "prefix_sharing", "cache", "shadow", "canary", "hedge", "count_prompts")
"""Settings of models that concern a pool of engines."""
_PLAIN: Final = ModelSpec(name="x")


def check(model: ModelSpec, path: str, models: Mapping[str, ModelSpec], error: ErrorAt) -> None:
    """models: by name. Raises ConfigError for the first thing that is wrong."""
    pipeline = model.pipeline
    assert pipeline is not None
    for name in WITHOUT:
        if getattr(model, name) != getattr(_PLAIN, name):
            raise error(f"{path}.{name}", "is for models with engines; this one is a pipeline, whose steps ask other models")
    path = f"{path}.pipeline"
    _Steps(pipeline, path, error).check()
    for where, name in models_of(pipeline):
        other = models.get(name)
        if other is None:
            raise error(f"{path}.{where}", f"there is no model {quoted(name)} in the file; {nearest(name, models)}")
        if other.pipeline is not None:
            which = "the pipeline itself" if name == model.name else "a pipeline"
            raise error(
                f"{path}.{where}", f"{quoted(name)} is {which}; steps ask models that have engines, so that none goes round in a circle"
            )


def pipeline_fault(name: str, models: Mapping[str, ModelSpec]) -> str:
    """Why a model cannot be a fallback or a candidate of another one; "" where it can, or is not there."""
    other = models.get(name)
    return f"{quoted(name)} is a pipeline; name a model that has engines" if other is not None and other.pipeline is not None else ""


class _Steps:
    """The steps of one pipeline. results: the kind of each step so far, by name."""

    def __init__(self, pipeline: PipelineSpec, path: str, error: ErrorAt) -> None:
        self._pipeline, self._path, self._error = pipeline, path, error
        self._results: dict[str, str] = {}
        self._used: set[str] = set()

    def check(self) -> None:
        steps = self._pipeline.steps
        for number, step in enumerate(steps):
            where = f"{self._path}.steps[{number}]"
            kinds = [kind for kind in KINDS if getattr(step, kind) is not None]
            if len(kinds) != 1:
                raise self._error(where, f"needs exactly one of {', '.join(KINDS)}; it has {' and '.join(kinds) or 'none'}")
            if step.name in RESERVED:
                raise self._error(
                    f"{where}.name", f"{quoted(step.name)} is the name of the request's own input; give the step another name"
                )
            if step.name in self._results:
                raise self._error(f"{where}.name", f"two steps are named {quoted(step.name)}")
            if step.choose is not None and step.timeout is not None:
                raise self._error(f"{where}.timeout", "is for steps that ask a model; one with 'choose' asks nobody")
            self._step(step, f"{where}.{kinds[0]}")
            self._results[step.name] = kinds[0]
        if steps[-1].generate is None:
            raise self._error(f"{self._path}.steps[{len(steps) - 1}]", "is the last step, which generates the answer: it needs 'generate'")
        for number, step in enumerate(steps[:-1]):
            if step.name not in self._used:
                raise self._error(f"{self._path}.steps[{number}].name", f"nothing uses the result of {quoted(step.name)}; leave it out")

    def _step(self, step: StepSpec, where: str) -> None:
        if step.classify is not None:
            self._refers(step.classify.input, f"{where}.input", ("generate",), (PROMPT,))
        elif step.choose is not None:
            self._refers(step.choose.by, f"{where}.by", ("classify",), ())
        elif step.generate is not None:
            self._generate(step.generate, where)
        else:
            ranks: RankStep = step.embed or step.rerank  # type: ignore[assignment]
            self._refers(ranks.query, f"{where}.query", ("generate",), (PROMPT,))
            self._refers(ranks.documents, f"{where}.documents", ("embed", "rerank"), (DOCUMENTS,))

    def _generate(self, step: GenerateStep, where: str) -> None:
        if (step.model is None) == (step.choice is None):
            raise self._error(where, "needs exactly one of 'model' and 'choice', a step that chooses one")
        if step.choice is not None:
            self._refers(step.choice, f"{where}.choice", ("choose",), ())
        self._refers(step.input, f"{where}.input", ("generate",), (MESSAGES, PROMPT))
        if step.documents is not None:
            self._refers(step.documents, f"{where}.documents", ("embed", "rerank"), (DOCUMENTS,))

    def _refers(self, name: str, where: str, kinds: tuple[str, ...], given: tuple[str, ...]) -> None:
        """kinds: of the steps whose results fit. given: what the request brings."""
        self._used.add(name)
        if name in given or self._results.get(name) in kinds:
            return
        fitting = [*given, *(step for step, kind in self._results.items() if kind in kinds)]
        known = f"write one of: {', '.join(fitting)}" if fitting else f"a step with {' or '.join(kinds)} must come before"
        if name in self._results:
            raise self._error(where, f"the step {quoted(name)} has another result than is needed here; {known}")
        if any(step.name == name for step in self._pipeline.steps):
            raise self._error(where, f"{quoted(name)} is no earlier step, and steps refer to earlier ones alone; {known}")
        raise self._error(where, f"there is no step {quoted(name)}; {known}")
