"""Tensors of absurd sizes that a graph makes out of nothing are refused from the file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from engines.onnx.constants import MOST_ELEMENTS
from engines.onnx.modelfile import read_model_file
from engines.sidecar.loading import LoadError
from tests.unit.engines.onnx import models


def save(path: Path, operator: str, inputs: dict[str, Any], *, constant: bool = False, **attributes: Any) -> Path:
    """y = x + the sum of what the operator makes of its inputs. constant: the inputs are nodes, not initializers."""
    nodes = [helper.make_node("Constant", [], [name], value_ints=list(np.ravel(value))) for name, value in inputs.items() if constant]
    nodes += [
        helper.make_node(operator, list(inputs), ["made"], **attributes),
        helper.make_node("Cast", ["made"], ["real"], to=1),
        helper.make_node("ReduceSum", ["real"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    return models.save(models.graph(nodes, [("x", "FP32", ["n"])], [("y", "FP32", ["n"])], {} if constant else inputs), path)


@pytest.mark.parametrize(
    ("operator", "inputs", "more", "elements"),
    [
        ("ConstantOfShape", {"s": np.array([2, 1 << 30])}, {}, "2147483648"),
        ("ConstantOfShape", {"s": np.array([1 << 40, 1 << 40])}, {}, r"more than 10\^18"),
        ("ConstantOfShape", {"s": np.array([1 << 31])}, {"constant": True}, "2147483648"),
        ("Expand", {"v": np.float32([1]), "s": np.array([1 << 16, 1 << 16])}, {}, "4294967296"),
        ("Range", {"a": np.int64(0), "b": np.int64(-(1 << 40)), "c": np.int64(-2)}, {}, "549755813888"),
        ("Range", {"a": np.int32(0), "b": np.int32((1 << 31) - 1), "c": np.int32(1)}, {}, "2147483647"),
        ("RandomNormal", {}, {"shape": [1 << 31]}, "2147483648"),
    ],
)
def test_absurd_sizes(tmp_path: Path, operator: str, inputs: dict[str, Any], more: dict[str, Any], elements: str) -> None:
    with pytest.raises(LoadError, match=f"{operator} makes a tensor of {elements} elements, at most {MOST_ELEMENTS} are taken"):
        read_model_file(save(tmp_path / "m.onnx", operator, inputs, **more))


@pytest.mark.parametrize(
    ("operator", "inputs", "more"),
    [
        ("ConstantOfShape", {"s": np.array([1 << 20, 1 << 10])}, {}),
        ("ConstantOfShape", {"s": np.array([], np.int64)}, {}),
        ("Expand", {"v": np.float32([1]), "s": np.array([-1, 0, 1 << 40])}, {}),
        ("Range", {"a": np.int64(0), "b": np.int64(1 << 40), "c": np.int64(0)}, {}),
        ("Range", {"a": np.float32(0), "b": np.float32(9), "c": np.float32(1)}, {}),
        ("RandomUniform", {}, {"shape": [4, 4]}),
    ],
)
def test_usual_sizes(tmp_path: Path, operator: str, inputs: dict[str, Any], more: dict[str, Any]) -> None:
    assert read_model_file(save(tmp_path / "m.onnx", operator, inputs, **more)).nodes == 4


def framed(path: Path, length: Any = None, window: Any = None, where: str = "graph") -> Path:
    """An STFT named `spectrum` of the input, in the graph itself or in a branch of an If."""
    constants = {"step": np.int64(1)}
    constants |= {} if window is None else {"window": np.ones(window, np.float32)}
    nodes, last = [], ""
    if length == "computed":
        nodes, last = (
            [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("ReduceMin", ["shape"], ["length"], keepdims=0)],
            "length",
        )
    elif length == "node":
        nodes, last = [helper.make_node("Constant", [], ["length"], value_int=0)], "length"
    elif length is not None:
        constants["length"], last = length, "length"
    inputs = ["x", "step", "" if window is None else "window", last]
    stft = helper.make_node("STFT", inputs if last else inputs[:3], ["y"], name="spectrum")
    if where == "branch":
        branches = {name: helper.make_graph([stft], name, [], [models_output()]) for name in ("then_branch", "else_branch")}
        constants["yes"] = np.bool_(True)
        stft = helper.make_node("If", ["yes"], ["y"], **branches)
    return models.save(models.graph([*nodes, stft], [("x", "FP32", [1, "n", 1])], [("y", "FP32", [1, "a", "b", 2])], constants), path)


def models_output() -> Any:
    return helper.make_tensor_value_info("y", 1, [1, "a", "b", 2])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"length": np.int64(0)}, "STFT 'spectrum': its frame_length has 0 samples; 1 or more are possible"),
        ({"length": np.int32(0)}, "its frame_length has 0 samples"),
        ({"length": np.int64(-4)}, "its frame_length has -4 samples"),
        ({"length": np.int64(0), "window": 4}, "its frame_length has 0 samples"),
        ({"length": np.int64(0), "where": "branch"}, "its frame_length has 0 samples"),
        ({"length": "node"}, "its frame_length has 0 samples"),
        ({"window": 0}, "its window has 0 samples"),
        ({"length": "computed"}, "the file does not state its frame_length; make it a constant of 1 or more"),
        ({}, "the file does not state its frame_length"),
    ],
)
def test_frames_of_no_length(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """They end ONNX Runtime: it divides by the length."""
    with pytest.raises(LoadError, match=words):
        read_model_file(framed(tmp_path / "m.onnx", **given))


@pytest.mark.parametrize(
    "given", [{"length": np.int64(4)}, {"length": np.int32(4), "window": 4}, {"window": 4}, {"length": np.int64(4), "where": "branch"}]
)
def test_usual_frames(tmp_path: Path, given: dict[str, Any]) -> None:
    assert read_model_file(framed(tmp_path / "m.onnx", **given)).nodes in (1, 3)
