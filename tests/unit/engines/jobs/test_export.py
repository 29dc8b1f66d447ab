"""What PyTorch has exported is asked what the model was asked: a graph that answers otherwise is not packed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from engines.jobs.export import run
from engines.jobs.order import MAIN, Order
from engines.jobs.torch_export import GRAPH, MODEL, SAMPLE


def exported(path: Path, answer: Any, *, more: str = "") -> Order:
    """A graph that gives its input ids as numbers."""
    node = helper.make_node("Cast", ["input_ids"], ["logits"], to=TensorProto.FLOAT)
    ports = (
        (helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"]),),
        (helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s"]),),
    )
    model = helper.make_model(helper.make_graph([node], "g", *map(list, ports)), opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    made = path / "made"
    (made / MODEL / "1_Pooling").mkdir(parents=True)
    onnx.save(model, str(made / MODEL / GRAPH))
    for name in ("config.json", "1_Pooling/config.json", SAMPLE, "pytorch_model.bin"):
        (made / MODEL / name).write_text("{}")
    (made / MODEL / "tokenizer.json").symlink_to("/etc/hostname")
    sample = {"inputs": {"input_ids": [[1, 2], [3, 4]]}, "output": "logits", "answer": answer}
    (made / SAMPLE).write_text(more or json.dumps(sample))
    (path / "w").mkdir()
    return Order(
        kind="export", source=str(made), folder=str(path / "w"), target="out", options={}, threads=1, niceness=0,
        memory_bytes=1 << 30, output_bytes=1 << 30, seconds=60.0,
    )  # fmt: skip


def test_a_graph_that_answers_as_the_model_did_is_packed_with_what_belongs_to_it(tmp_path: Path) -> None:
    outcome = run(exported(tmp_path, [[1, 2], [3, 4.001]]))
    assert not outcome.problem and outcome.result["difference"] == pytest.approx(0.001, abs=1e-5)
    with tarfile.open(tmp_path / "w" / "out") as archive:
        names = archive.getnames()
    assert sorted(names) == sorted([GRAPH, "1_Pooling/config.json", "config.json", SAMPLE]), "no pickle, nothing through a link"
    assert (tmp_path / "w" / MAIN).read_bytes() == (tmp_path / "made" / MODEL / GRAPH).read_bytes()


@pytest.mark.parametrize(
    ("answer", "more", "reason"),
    [
        ([[1, 2], [3, 4.1]], "", "answers otherwise than the model: by 0.1"),
        ([[1, 2], [3, float("nan")]], "", "refuses"),
        ([1, 2, 3, 4], "", "shape"),
        (None, "{}", "refuses what was exported"),
        (None, '{"inputs": {"input_ids": [[1]]}, "output": "other", "answer": [[1]]}', "refuses what was exported"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, answer: Any, more: str, reason: str) -> None:
    outcome = run(exported(tmp_path, answer, more=more))
    assert reason in outcome.problem and not (tmp_path / "w" / "out").exists()
