"""Settings of models that are pipelines: declared steps under one name (docs/pipelines.md)."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from gateway.core.specs.base import Name, Positive, Spec, Timeout

StepName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
PROMPT: Final = "prompt"
"""The text of the request's last message of a user."""
DOCUMENTS: Final = "documents"
"""The request's own documents."""
MESSAGES: Final = "messages"
"""The request's conversation as it is."""
MOST_STEPS: Final = 16


class ClassifyStep(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A classifier labels a text: the prompt, or what an earlier step generated."""

    model: Name
    input: StepName = PROMPT


class RankStep(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The documents that fit a text best, best first. documents: the request's, or those of an earlier step. min_score: those below are
    left out."""

    model: Name
    query: StepName = PROMPT
    documents: StepName = DOCUMENTS
    top: Annotated[int, Meta(ge=1, le=128)] = 3
    min_score: float | None = None


class CaseSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model for some labels, where the classifier is sure enough."""

    labels: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)]
    min_score: Annotated[float, Meta(ge=0, le=1)] = 0.0
    model: Name


class ChooseStep(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Chooses a model by an earlier classification: the first case that fits, else the default."""

    by: StepName
    cases: Annotated[tuple[CaseSpec, ...], Meta(min_length=1, max_length=64)]
    default: Name


class GenerateStep(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A chat. model, or choice: an earlier step that chooses one. input: the conversation, or one text as a user's message. documents: put
    before the last message of the user. system: put first. max_tokens: the most it generates; the last step takes the request's own."""

    model: Name | None = None
    choice: StepName | None = None
    input: StepName = MESSAGES
    documents: StepName | None = None
    system: Annotated[str, Meta(min_length=1, max_length=16384)] | None = None
    max_tokens: Positive | None = None


class StepSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One step: a name, and exactly one of the others. timeout: seconds for this step alone, within that of the pipeline."""

    name: StepName
    timeout: Timeout | None = None
    classify: ClassifyStep | None = None
    embed: RankStep | None = None
    rerank: RankStep | None = None
    choose: ChooseStep | None = None
    generate: GenerateStep | None = None


class PipelineSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """steps: in the order in which they run; the last one generates the answer. timeout: seconds for all of them. parallel: a step begins
    when those are over whose results it uses, beside others."""

    steps: Annotated[tuple[StepSpec, ...], Meta(min_length=1, max_length=MOST_STEPS)]
    timeout: Timeout = 60.0
    parallel: bool = False


def used_by(step: StepSpec) -> set[str]:
    """What a step works on, by name: results of steps, and what the request brings."""
    found: set[str | None] = set()
    if step.classify is not None:
        found = {step.classify.input}
    elif step.choose is not None:
        found = {step.choose.by}
    elif step.generate is not None:
        found = {step.generate.choice, step.generate.input, step.generate.documents}
    for ranks in (step.embed, step.rerank):
        if ranks is not None:
            found = {ranks.query, ranks.documents}
    return {name for name in found if name is not None}


def models_of(pipeline: PipelineSpec) -> list[tuple[str, str]]:
    """(path within the pipeline, name) of each model that a step may ask."""
    found: list[tuple[str, str]] = []
    for number, step in enumerate(pipeline.steps):
        path = f"steps[{number}]"
        for kind, one in (("classify", step.classify), ("embed", step.embed), ("rerank", step.rerank), ("generate", step.generate)):
            if one is not None and one.model is not None:
                found.append((f"{path}.{kind}.model", one.model))
        if step.choose is not None:
            found += [(f"{path}.choose.cases[{at}].model", case.model) for at, case in enumerate(step.choose.cases)]
            found.append((f"{path}.choose.default", step.choose.default))
    return found
