"""The model's folder and the engine's options."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from engines.onnx.folder import read_folder
from engines.onnx.options import OnnxOptions, read_options
from engines.sidecar.loading import LoadError
from tests.unit.engines.onnx import models


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def refused(folder: Path, **options: Any) -> LoadError:
    with pytest.raises(LoadError) as caught:
        read_folder(str(folder), OnnxOptions(**options))
    return caught.value


def test_a_bare_graph(tmp_path: Path) -> None:
    path = models.save(models.affine(), tmp_path / "anything.onnx")
    for model in (path, tmp_path):
        found = read_folder(str(model), OnnxOptions())
        assert found.graph == path
        assert (found.tokenizer, found.task, found.pooling, found.max_length, found.labels) == (None, None, None, None, ())


def test_which_graph(tmp_path: Path) -> None:
    assert refused(tmp_path).code == "model_missing"
    assert refused(tmp_path / "absent").code == "model_missing"
    models.save(models.affine(), tmp_path / "a.onnx")
    models.save(models.affine(), tmp_path / "b.onnx")
    assert "which of a.onnx, b.onnx" in str(refused(tmp_path))
    models.save(models.affine(), tmp_path / "onnx" / "model.onnx")
    assert read_folder(str(tmp_path), OnnxOptions()).graph == tmp_path / "onnx" / "model.onnx"
    models.save(models.affine(), tmp_path / "model.onnx")
    assert read_folder(str(tmp_path), OnnxOptions()).graph == tmp_path / "model.onnx"


def test_sentence_transformers(tmp_path: Path) -> None:
    models.embedding_folder(tmp_path, config={"max_position_embeddings": 512, "matryoshka_dimensions": [4, 8]})
    write(tmp_path / "1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    write(tmp_path / "sentence_bert_config.json", {"max_seq_length": 128})
    write(tmp_path / "tokenizer_config.json", {"model_max_length": 1e30})
    write(tmp_path / "modules.json", [{"type": "sentence_transformers.models.Pooling"}])
    found = read_folder(str(tmp_path), OnnxOptions())
    assert (found.pooling, found.max_length, found.normalize, found.dimensions) == ("cls", 128, False, (4, 8))
    write(tmp_path / "modules.json", [{"type": "sentence_transformers.models.Normalize"}])
    assert read_folder(str(tmp_path), OnnxOptions()).normalize
    write(tmp_path / "1_Pooling/config.json", {"pooling_mode_max_tokens": True})
    assert "pooling_mode_max_tokens" in str(refused(tmp_path))


def test_prompts(tmp_path: Path) -> None:
    models.embedding_folder(tmp_path)
    assert read_folder(str(tmp_path), OnnxOptions()).prompts == {}
    path = tmp_path / "config_sentence_transformers.json"
    write(path, {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"})
    found = read_folder(str(tmp_path), OnnxOptions())
    assert (found.prompts, found.default_prompt) == ({"query": "query: ", "document": ""}, "query")
    for broken in ({"prompts": ["a"]}, {"prompts": {"query": 1}}, {"prompts": {}, "default_prompt_name": "query"}):
        write(path, broken)
        assert "config_sentence_transformers.json" in str(refused(tmp_path))
    write(path, {"prompts": {"query": "query: "}})
    write(tmp_path / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    assert "without the prompt's tokens" in str(refused(tmp_path))


def test_labels(tmp_path: Path) -> None:
    models.classifier_folder(tmp_path, problem_type="multi_label_classification")
    found = read_folder(str(tmp_path), OnnxOptions())
    assert (found.task, found.labels, found.multi_label) == ("classification", ("cats", "dogs"), True)
    for broken in ({"0": "a", "2": "b"}, {"x": "a"}):
        write(tmp_path / "config.json", {"id2label": broken})
        assert "id2label" in str(refused(tmp_path))


@pytest.mark.parametrize("content", ["{", "[]", "nan", "[" * 100_000])
def test_broken_configuration(tmp_path: Path, content: str) -> None:
    models.embedding_folder(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert "config.json" in str(refused(tmp_path))


def test_checksums_of_other_files(tmp_path: Path) -> None:
    models.embedding_folder(tmp_path)
    right = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert read_folder(str(tmp_path), OnnxOptions(checksums={"tokenizer.json": right})).tokenizer == tmp_path / "tokenizer.json"
    assert refused(tmp_path, checksums={"tokenizer.json": "0" * 64}).code == "checksum_mismatch"
    assert refused(tmp_path, checksums={"absent": "0" * 64}).code == "model_missing"
    assert refused(tmp_path, checksums={"../x": "0" * 64}).code == "invalid_options"


@pytest.mark.parametrize(
    "options",
    [
        {"tsak": "embeddings"},
        {"task": "chat"},
        {"pooling": "max"},
        {"max_length": 1},
        {"dimensions": "some"},
        {"checksums": {"a": "b"}},
        {"version": "a b"},
    ],
)
def test_options_are_strict(options: dict[str, Any]) -> None:
    with pytest.raises(LoadError) as caught:
        read_options(options)
    assert caught.value.code == "invalid_options"
    assert next(iter(options)) in str(caught.value)


def test_options_defaults_and_values() -> None:
    assert read_options({}) == OnnxOptions()
    found = read_options({"dimensions": [64, 128], "provider": {"cudnn_conv_use_max_workspace": True}})
    assert (found.dimensions, found.provider) == ((64, 128), {"cudnn_conv_use_max_workspace": True})
