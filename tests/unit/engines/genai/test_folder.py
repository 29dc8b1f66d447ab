"""A model's folder: what is read of it, and what is refused before native code sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from engines.demo import genai
from engines.genai.app import defaults
from engines.genai.folder import COPIES, read_folder
from engines.genai.inspect import facts, main
from engines.genai.options import GenaiSampling
from engines.sidecar.loading import LoadError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return genai.write(tmp_path / "m")


def change(model: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((model / "genai_config.json").read_text())
    edit(config)
    (model / "genai_config.json").write_text(json.dumps(config))


def test_what_is_read(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_folder(str(model))
    assert (found.architecture, found.context, found.vocabulary, found.layers, found.eos) == ("llama", 2048, 1536, 4, {2})
    assert (found.graph.name, found.bos_text, found.eos_text) == ("model.onnx", "<|endoftext|>", "<|im_end|>")
    assert found.kv_bytes == COPIES * 2 * 4 * 4 * 192
    assert main([str(model)]) == 0
    assert json.loads(capsys.readouterr().out) == {"context": 2048, "kv_bytes": found.kv_bytes}
    change(model, lambda config: config["model"]["decoder"].update(num_hidden_layers=1 << 31, num_key_value_heads=1 << 31))
    assert main([str(model)]) == 0
    assert json.loads(capsys.readouterr().out)["kv_bytes"] == 1 << 31
    assert main([str(model / "none")]) == 1
    assert "no such folder" in capsys.readouterr().err
    told = facts(model)
    assert (told.problem, told.task, told.template, told.graph) == (None, "chat", True, "model.onnx")


def test_keys_and_values_that_are_written_in_place_are_in_memory_once(model: Path) -> None:
    several = read_folder(str(model)).kv_bytes
    change(model, lambda config: config["search"].update(past_present_share_buffer=True))
    assert read_folder(str(model)).kv_bytes * COPIES == several


def test_a_template_may_be_a_file_or_one_of_several(model: Path) -> None:
    texts = json.loads((model / "tokenizer_config.json").read_text())
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    texts |= {"chat_template": several, "bos_token": {"content": "<s>"}}
    (model / "tokenizer_config.json").write_text(json.dumps(texts))
    found = read_folder(str(model))
    assert (found.template, found.bos_text) == ("D", "<s>")
    (model / "chat_template.jinja").write_text("J")
    assert read_folder(str(model)).template == "J"
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").unlink()
    assert facts(model).task == "completion"


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda c: c["model"]["decoder"]["session_options"].update(custom_ops_library="/tmp/x.so"), "a model may not load libraries"),
        (lambda c: c["model"]["decoder"]["session_options"].update(x=[{"ep_library_path": "x"}]), "a model may not load libraries"),
        (lambda c: c["model"]["decoder"]["session_options"].update(enable_profiling="/tmp/x"), "a model may not write files"),
        (lambda c: c["model"]["decoder"].update(filename="../model.onnx"), "must be a file in the folder"),
        (lambda c: c["model"]["decoder"].update(filename="/etc/passwd"), "must be a file in the folder"),
        (lambda c: c["model"]["decoder"].update(filename="other.onnx"), "no such file, though genai_config.json names it"),
        (lambda c: c["model"]["decoder"].update(pipeline=[]), "only models that are one decoder of text are served"),
        (lambda c: c["model"].update(vision={}), "only models that are one decoder of text are served"),
        (lambda c: c["model"].update(context_length=True), "context_length must be a whole number"),
        (lambda c: c.pop("model"), "model is missing"),
    ],
)
def test_what_is_refused(model: Path, edit: Callable[[dict[str, Any]], object], sentence: str) -> None:
    change(model, edit)
    with pytest.raises(LoadError, match=sentence):
        read_folder(str(model))
    assert sentence.partition(" ")[2] in (facts(model).problem or "")


def test_what_is_missing_or_no_json(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"tokenizer\.json: no such file"):
        read_folder(str(model))
    (model / "genai_config.json").write_text("[" * 100_000)
    with pytest.raises(LoadError, match="genai_config"):
        read_folder(str(model))
    with pytest.raises(LoadError, match="no such folder"):
        read_folder(str(tmp_path / "none"))


def test_depth_costs_nothing_and_weights_lie_in_the_folder(model: Path) -> None:
    config = (model / "genai_config.json").read_text().rstrip()
    deep = '{"a":' * 900 + "1" + "}" * 900
    (model / "genai_config.json").write_text(f'{config[:-1]}, "x": {deep}}}')
    assert read_folder(str(model)).layers == 4
    (model / "genai_config.json").write_text(config)
    graph = onnx.load(model / "model.onnx")
    weights = graph.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../secret")
    onnx.save(graph, model / "model.onnx")
    with pytest.raises(LoadError, match=r"lie outside the model's folder: '\.\./secret'"):
        read_folder(str(model))
    (model / "model.onnx").write_bytes(b"no protobuf")
    with pytest.raises(LoadError, match="not a whole ONNX protobuf"):
        read_folder(str(model))


def test_settings_of_requests_that_name_none(model: Path) -> None:
    folder = read_folder(str(model))
    assert (defaults(folder, None).temperature, defaults(folder, None).top_k, defaults(folder, None).min_p) == (0.8, 40, 0.0)
    assert defaults(folder, GenaiSampling(top_k=3)).top_k == 3
    change(model, lambda c: c["search"].update(do_sample=False))
    assert defaults(read_folder(str(model)), None).temperature == 0
    change(model, lambda c: c["search"].update(top_p="much", do_sample=True))
    assert defaults(read_folder(str(model)), None).top_p == 1.0
