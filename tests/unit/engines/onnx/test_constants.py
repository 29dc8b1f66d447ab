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
