"""`options` of an engine, by the table of its runtime: what is wrong is named with path and line before anything is started."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engines.genai.options import GenaiOptions
from engines.llamacpp.options import LlamaOptions
from engines.onnx.options import OnnxOptions
from gateway.config.convert import PluginSchemas, plain_settings
from gateway.config.load import parse
from gateway.core.errors import ConfigError
from gateway.core.specs import Spec

SCHEMAS = PluginSchemas(engines={"llama.cpp": LlamaOptions, "genai": GenaiOptions, "onnx": OnnxOptions})
BASE = "version: 1\nidentity: {api_keys: {rely_on_store: true}}\n"
DEEP = json.loads("[" * 500 + "]" * 500)
WRONG: list[tuple[str, str, str, str]] = [
    ("llama.cpp", "stal: 1.5", "stal", "unknown key 'stal'; did you mean 'stall'?"),
    ("llama.cpp", "zzz: 1", "zzz", "unknown key 'zzz'; known: adapters, allow_partial, batch, cache_type_k, cache_type_v, cached_lines"),
    ("llama.cpp", "batch: 5", "batch", "'5' is not allowed; it must be a whole number of at least 32 and at most 8192"),
    ("llama.cpp", "flash_attention: maybe", "flash_attention", "it must be one of auto, off, on"),
    ("llama.cpp", "mlock: 1", "mlock", "it must be true or false"),
    ("llama.cpp", "tensor_split: [0.5, -1]", "tensor_split[1]", "it must be a number of at least 0"),
    ("llama.cpp", "sampling: {top_kk: 3}", "sampling.top_kk", "did you mean 'top_k'?"),
    ("genai", "chunk: 8", "chunk", "it must be a whole number of at least 16"),
    ("genai", "sampling: {top_kk: 3}", "sampling.top_kk", "did you mean 'top_k'?"),
    ("llama.cpp", "speculation: {draft: {file: ../d.gguf}}", "speculation.draft.file", "../d.gguf"),
    ("llama.cpp", "speculation: {draft: d.gguf}", "speculation.draft", "must be a mapping"),
    ("onnx", "poling: cls", "poling", "did you mean 'pooling'?"),
    ("onnx", "task: embedding", "task", "did you mean embeddings?"),
    ("onnx", "dimensions: all", "dimensions", "it must be any"),
    ("onnx", "arena_limit_bytes: 64 cats", "arena_limit_bytes", "64 cats"),
    ("onnx", "checksums: {vocab.txt: abc}", "checksums.vocab.txt", "it must be a SHA-256"),
]


def options(runtime: str, text: str, **environ: str) -> dict[str, Any]:
    engine = f"engines:\n  - name: e\n    runtime: {runtime}\n    model: m\n    options:\n      {text}\n"
    return parse(BASE + engine, file="c.yaml", environ=environ, schemas=SCHEMAS).engines[0].options


@pytest.mark.parametrize(("runtime", "text", "path", "words"), WRONG)
def test_what_a_runtime_does_not_take_is_named_with_its_line(runtime: str, text: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(runtime, text)
    assert str(caught.value).startswith(f"c.yaml:8: engines[0].options.{path}: ") and words in caught.value.message


@pytest.mark.parametrize(
    ("runtime", "text", "expected"),
    [
        ("llama.cpp", "{stall: 3, flash_attention: on, pinned: [a, b], gpu_layers: -1, template: ~}",
         {"stall": 3.0, "flash_attention": "on", "pinned": ["a", "b"], "gpu_layers": -1, "template": None}),
        ("llama.cpp", "{max_body_bytes: 1MiB, sampling: {top_k: 7}}", {"max_body_bytes": 1 << 20, "sampling": {"top_k": 7}}),
        ("onnx", "{task: embeddings, pooling: auto, dimensions: any}", {"task": "embeddings", "pooling": "auto", "dimensions": "any"}),
        ("onnx", "{task: auto, pooling: cls, dimensions: [64, 128]}", {"task": "auto", "pooling": "cls", "dimensions": [64, 128]}),
        ("onnx", "{provider: {a: 1, b: true, c: x, d: '2'}, arena_limit_bytes: 64MiB}",
         {"provider": {"a": 1, "b": True, "c": "x", "d": "2"}, "arena_limit_bytes": 64 << 20}),
    ],
)  # fmt: skip
def test_what_a_runtime_takes_stays_as_it_was_written(runtime: str, text: str, expected: dict[str, Any]) -> None:
    found = options(runtime, text)
    assert found == expected and {key: type(value) for key, value in found.items()} == {k: type(v) for k, v in expected.items()}
    assert msgspec.convert(found, SCHEMAS.engines[runtime]) is not None
    assert plain_settings(found, SCHEMAS.engines[runtime], "options") == found


def test_a_runtime_that_is_not_known_here_keeps_its_options() -> None:
    text = BASE + "engines: [{name: e, runtime: onnx, model: m, options: {x: {y: [1, no]}}}]\n"
    assert parse(text, file="c.yaml", environ={}).engines[0].options == {"x": {"y": [1, "no"]}}


def test_an_external_engine_has_no_options() -> None:
    text = BASE + "engines: [{name: e, runtime: external, url: 'http://h', options: {stall: 2}}]\n"
    with pytest.raises(ConfigError, match=r"engines\[0\]\.options: is only for engines that Gatehouse starts"):
        parse(text, file="c.yaml", environ={}, schemas=SCHEMAS)


def test_what_came_out_of_a_reference_is_no_reference() -> None:
    """A text is resolved once, whatever its type: an escape stays what it stands for, a secret may hold `${`."""
    environ = {"A": "${env:B}", "B": "never"}
    assert options("llama.cpp", "{template: '$${env:B}', pinned: ['${env:A}']}", **environ) == {
        "template": "${env:B}",
        "pinned": ["${env:B}"],
    }
    text = BASE + "engines: [{name: e, runtime: onnx, model: '$${env:B}', sha256: ~, options: {x: '$${env:B}', y: ['${env:A}']}}]\n"
    engine = parse(text, file="c.yaml", environ=environ).engines[0]
    assert (engine.model, engine.options) == ("${env:B}", {"x": "${env:B}", "y": ["${env:B}"]})


# --- settings that were written nowhere


@pytest.mark.parametrize(
    ("values", "schema", "path", "words"),
    [
        ({"stal": 1}, LlamaOptions, "options.stal", "did you mean 'stall'?"),
        ({"stall": "fast"}, LlamaOptions, "options.stall", "'fast' is not allowed; it must be a number"),
        ({"stall": "2"}, LlamaOptions, "options.stall", "(without quotes)"),
        ({"mlock": 1}, LlamaOptions, "options.mlock", "it must be true or false"),
        ({"template": DEEP}, LlamaOptions, "options", "nested more than 32 levels deep"),
        ({"sampling": [1]}, LlamaOptions, "options.sampling", "must be a mapping"),
        ({"pinned": ["a"] * 17}, LlamaOptions, "options.pinned", "16"),
        ({"labels": {"a": 1}}, OnnxOptions, "options.labels", "must be a list"),
        ({"memory_limit_bytes": "1MiB"}, OnnxOptions, "options.memory_limit_bytes", "at least 256MiB"),
        ({"gpu_memory_limit_bytes": "1 cat"}, OnnxOptions, "options.gpu_memory_limit_bytes", "1 cat"),
    ],
)
def test_plain_values_are_read_by_the_same_rules(values: dict[str, Any], schema: type[Spec], path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plain_settings(values, schema, "options")
    assert caught.value.path == path and words in caught.value.message


def test_plain_texts_refer_to_nothing() -> None:
    texts = ["${env:HOME}", "$${env:HOME}", "$$${file:/etc/passwd}", "${", "$", "~", "null", "no"]
    for text in texts:
        assert plain_settings({"template": text}, LlamaOptions, "options") == {"template": text}
    assert plain_settings({"pinned": texts}, LlamaOptions, "options") == {"pinned": texts}
    assert plain_settings({"max_body_bytes": "2MiB", "stall": 1e1}, LlamaOptions, "options") == {"max_body_bytes": 2 << 20, "stall": 10.0}
