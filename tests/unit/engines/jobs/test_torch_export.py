"""What an export refuses before PyTorch reads anything, and how it is asked in a Python without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.jobs import elsewhere
from engines.jobs.torch_export import Refused, _checked, _fits, _kind


def folder(path: Path, config: dict[str, Any], **files: Any) -> Path:
    path.mkdir()
    for name, content in {"config": config, "tokenizer": {}, **files}.items():
        if content is not None:
            (path / f"{name}.json").write_text(json.dumps(content))
    (path / "model.safetensors").write_bytes(b"weights")
    return path


@pytest.mark.parametrize(
    ("architecture", "modules", "kind"),
    [
        ("BertModel", None, ("AutoModel", "last_hidden_state")),
        ("XLMRobertaForMaskedLM", None, ("AutoModel", "last_hidden_state")),
        ("BertForSequenceClassification", None, ("AutoModelForSequenceClassification", "logits")),
        ("DistilBertForTokenClassification", None, ("AutoModelForTokenClassification", "logits")),
        ("Qwen3ForCausalLM", [{"type": "x.Transformer"}, {"type": "x.Pooling"}], ("AutoModel", "last_hidden_state")),
    ],
)  # fmt: skip
def test_what_the_graph_gives_follows_from_the_architecture(tmp_path: Path, architecture: str, modules: Any, kind: tuple[str, str]) -> None:
    source = folder(tmp_path / "m", {"architectures": [architecture]}, modules=modules)
    assert _kind(source, _checked(source)) == kind


@pytest.mark.parametrize(
    ("config", "files", "reason"),
    [
        ({"auto_map": {"AutoModel": "modeling_x.X"}}, {}, "no code of a model's folder runs"),
        ({"quantization_config": {"bits": 4}}, {}, "quantised already"),
        ({"architectures": ["LlamaForCausalLM"]}, {}, "`convert` makes a GGUF file"),
        ({"architectures": []}, {}, "names the architecture ''"),
        ({"architectures": ["T5Model"], "is_encoder_decoder": True}, {}, "a decoder"),
        ({}, {"adapter_config": {}}, "adapter"),
        ({"transformers_weights": "x.safetensors.index.json"}, {}, "another file of weights"),
        ({}, {"model.safetensors.index": {"weight_map": {"a": "a.safetensors", "b": "evil.bin"}}}, "names 'evil.bin'"),
        ({}, {"model.safetensors.index": {"weight_map": {"a": "../a.safetensors"}}}, "beside it"),
        ({}, {"model.safetensors.index": {"weight_map": {"a": ["a.safetensors"]}}}, "no weight_map of names"),
        ({}, {"model.safetensors.index": {"weight_map": {"a": 1}}}, "no weight_map of names"),
        ({}, {"model.safetensors.index": []}, "no weight_map of names"),
        ({}, {"tokenizer": None}, "tokenizer.json"),
        ({"architectures": ["BertModel"]}, {"modules": [{"type": "sentence_transformers.models.Dense"}]}, "a module Dense"),
    ],
)
def test_what_the_runtime_would_run_otherwise_is_refused(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], reason: str
) -> None:
    source = folder(tmp_path / "m", config, **files)
    with pytest.raises(Refused, match=reason):
        _kind(source, _checked(source))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    source = folder(tmp_path / "m", {"architectures": ["BertModel"]})
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(Refused, match="pickles"):
        _checked(source)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        ({"model": {"vocab": {"a": 0, "b": 9}}}, None),
        ({"model": {"vocab": [["a", -1.5], ["b", -2.0]]}, "added_tokens": [{"id": 2, "content": "[X]"}]}, None),
        ({"model": {"vocab": {"a": 0, "b": 10}}}, "gives 'b' the id 10, and the model has 10 embeddings"),
        ({"model": {"vocab": [["a", 0.0]] * 11}}, "the id 10"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 2**70, "content": "[X]"}]}, "gives '\\[X\\]' the id"),
        ({"model": {"vocab": {}}}, "the id -1"),
        ({"model": {"vocab": {"a": "0", "b": 1}}}, "no vocabulary"),
        ({"model": {"vocab": 5}}, "no vocabulary"),
        ({"model": {"vocab": {"a": None}}}, "no vocabulary"),
        ([], "no vocabulary"),
    ],
)
def test_a_tokenizer_has_no_more_tokens_than_the_model_knows(tokenizer: Any, reason: str | None) -> None:
    if reason is None:
        return _fits(tokenizer, 10)
    with pytest.raises(Refused, match=reason):
        _fits(tokenizer, 10)


def test_in_a_python_without_pytorch_it_says_what_is_missing(tmp_path: Path) -> None:
    """By its path and isolated, as the gateway starts it: it needs nothing but Python, and finds nothing that lies beside it."""
    order = {"kind": "export", "source": str(tmp_path), "folder": str(tmp_path), "threads": 1, "niceness": 0, "memory_bytes": 1 << 30}
    line = json.dumps({**order, "output_bytes": 1 << 20, "seconds": 9.0, "target": "", "options": {}}).encode() + b"\n"
    python = [sys.executable, "-I", "-S", str(Path(elsewhere.__file__).resolve())]  # -S: without what is installed
    subprocess.run(python, input=line, check=True, timeout=60, env={}, capture_output=True)
    assert json.loads((tmp_path / "outcome.json").read_bytes())["problem"].endswith("jobs.export_python: torch")
