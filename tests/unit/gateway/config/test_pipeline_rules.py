"""Models that are pipelines: which steps fit together."""

from __future__ import annotations

import msgspec
import pytest

from gateway.config.load import parse
from gateway.core.errors import ConfigError
from gateway.core.specs.pipelines import PipelineSpec
from tests.unit.gateway.config.test_merge import merged, model

HEAD = f"""version: 1
identity: {{api_keys: {{static: [{{id: ci, key: {"k" * 40}, tenant: t, models: ['*']}}]}}}}
engines: [{{name: e, runtime: external, url: 'http://h:1'}}]
"""
POOLS = "{name: m, pool: [e]}, {name: c, pool: [e]}"
CLASSIFY = "{name: intent, classify: {model: c}}"
CHOOSE = "{name: route, choose: {by: intent, cases: [{labels: [a], model: m}], default: m}}"
ANSWER = "{name: answer, generate: {model: m}}"


def read(steps: str, more: str = "", models: str = POOLS) -> None:
    text = f"{HEAD}models: [{{name: p, pipeline: {{steps: [{steps}]}}{more}}}, {models}]"
    parse(text, file="c.yaml", environ={})


@pytest.mark.parametrize(
    "steps",
    [
        ANSWER,
        f"{CLASSIFY}, {CHOOSE}, {{name: answer, generate: {{choice: route}}}}",
        "{name: near, embed: {model: c}}, {name: best, rerank: {model: c, documents: near}}, "
        "{name: answer, generate: {model: m, documents: best}}",
        "{name: q, generate: {model: m, input: prompt}}, {name: near, embed: {model: c, query: q}}, "
        "{name: answer, generate: {model: m, documents: near}}",
        "{name: answer, generate: {model: m, documents: documents}}",
    ],
)
def test_steps_that_fit(steps: str) -> None:
    read(steps)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("", "steps"),
        (CLASSIFY, "models[0].pipeline.steps[0]: is the last step, which generates the answer"),
        ("{name: a}", "steps[0]: needs exactly one of classify, embed, rerank, choose, generate; it has none"),
        ("{name: a, classify: {model: c}, generate: {model: m}}", "it has classify and generate"),
        (f"{{name: prompt, classify: {{model: c}}}}, {ANSWER}", "steps[0].name: 'prompt' is the name of the request's own input"),
        (f"{ANSWER}, {ANSWER}", "steps[1].name: two steps are named 'answer'"),
        (f"{CLASSIFY}, {ANSWER}", "steps[0].name: nothing uses the result of 'intent'"),
        (f"{CHOOSE}, {CLASSIFY}, {ANSWER}", "steps[0].choose.by: 'intent' is no earlier step, and steps refer to earlier ones alone"),
        ("{name: a, generate: {model: m, input: a}}", "steps[0].generate.input: 'a' is no earlier step"),
        ("{name: a, generate: {model: m, input: b}}", "steps[0].generate.input: there is no step 'b'; write one of: messages, prompt"),
        (f"{CLASSIFY}, {{name: a, generate: {{model: m, input: intent}}}}", "the step 'intent' has another result than is needed here"),
        ("{name: a, generate: {}}", "steps[0].generate: needs exactly one of 'model' and 'choice'"),
        ("{name: a, generate: {model: p}}", "steps[0].generate.model: 'p' is the pipeline itself; steps ask models that have engines"),
        (f"{CLASSIFY}, {CHOOSE[:-1]}, timeout: 1}}, {ANSWER}", "steps[1].timeout: is for steps that ask a model"),
        ("{name: a, generate: {model: x}}", "steps[0].generate.model: there is no model 'x' in the file"),
        (f"{CLASSIFY}, {CHOOSE.replace('default: m', 'default: x')}, {ANSWER}", "steps[1].choose.default: there is no model 'x'"),
        (", ".join([f"{{name: a{n}, generate: {{model: m}}}}" for n in range(17)]), "steps"),
    ],
)
def test_steps_that_do_not(steps: str, expected: str) -> None:
    if expected.startswith(("steps[1].choose", "the step")):
        steps = steps.replace(ANSWER, "{name: answer, generate: {choice: route}}")
    with pytest.raises(ConfigError) as caught:
        read(steps)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("more", "models", "expected"),
    [
        (", pool: [e]", POOLS, "models[0].pool: is for models with engines; this one is a pipeline"),
        (", fallbacks: [m]", POOLS, "models[0].fallbacks: is for models with engines"),
        (", cache: {}", POOLS, "models[0].cache: is for models with engines"),
        ("", POOLS + ", {name: q, pool: [e], fallbacks: [p]}", "models[3].fallbacks[0]: 'p' is a pipeline; name a model that has engines"),
        ("", POOLS + ", {name: q, pool: [e], shadow: {model: p}}", "models[3].shadow.model: 'p' is a pipeline"),
        ("", POOLS + f", {{name: q, pipeline: {{steps: [{ANSWER.replace('m}', 'p}')}]}}}}", "'p' is a pipeline; steps ask models"),
    ],
)
def test_a_pipeline_stands_for_itself(more: str, models: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(ANSWER, more, models)
    assert expected in str(caught.value)


def test_models_of_the_store_are_no_pipelines() -> None:
    pipeline = msgspec.convert({"steps": [{"name": "a", "generate": {"model": "m"}}]}, PipelineSpec)
    found = merged(msgspec.structs.replace(model("q"), pool=(), pipeline=pipeline))
    assert str(found.left_out["models", "q"]) == "pipeline: is only for models of the configuration file"
