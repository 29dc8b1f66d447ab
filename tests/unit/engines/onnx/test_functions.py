"""Functions that would fill the memory or the stack of the runtime are refused from the file alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from engines.onnx.functions import MOST_DEPTH
from engines.onnx.modelfile import read_model_file
from engines.sidecar.loading import LoadError
from tests.unit.engines.onnx import models

DOMAIN = "com.microsoft"


def save(path: Path, functions: Mapping[str, Sequence[str]]) -> Path:
    """A graph that calls `f0`. functions: what each calls, one after the other."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    branch = helper.make_graph([helper.make_node("f0", ["x"], ["z"], domain=DOMAIN)], "b", [], [ports[1]])
    graph = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for name, calls in functions.items():
        nodes = [helper.make_node(call, [f"v{at}"], [f"v{at + 1}"], domain=DOMAIN) for at, call in enumerate(calls)]
        model.functions.append(helper.make_function(DOMAIN, name, ["v0"], [f"v{len(calls)}"], nodes, opsets))
    return models.save(model, path)


def refused(path: Path) -> str:
    with pytest.raises(LoadError) as caught:
        read_model_file(path)
    assert caught.value.code == "model_invalid" and str(path) in str(caught.value)
    return str(caught.value)


def test_usual_functions(tmp_path: Path) -> None:
    found = read_model_file(save(tmp_path / "m.onnx", {"f0": ["f1", "f1", "Relu"], "f1": ["Relu"], "never": ["never"]}))
    assert found.nodes == 3 + 3 + 1 + 1


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    assert "function 'f0' calls itself" in refused(save(tmp_path / "m.onnx", {"f0": ["f0"]}))
    assert "calls itself" in refused(save(tmp_path / "m.onnx", {"f0": ["f1"], "f1": ["Relu", "f0"]}))


def test_functions_that_double_and_chains(tmp_path: Path) -> None:
    doubles = {f"f{at}": [f"f{at + 1}"] * 2 for at in range(50)}
    assert "its functions make more than 10^12 nodes" in refused(save(tmp_path / "m.onnx", doubles))
    doubles = {f"f{at}": [f"f{at + 1}"] * 2 for at in range(18)}
    assert "at most 100000 are taken" in refused(save(tmp_path / "m.onnx", doubles))
    chain = {f"f{at}": [f"f{at + 1}"] for at in range(MOST_DEPTH + 1)}
    assert f"in a row of more than {MOST_DEPTH}" in refused(save(tmp_path / "m.onnx", chain))
    from_its_end = {
        "f0": [f"f{at}" for at in range(MOST_DEPTH + 1, 0, -1)],
        **{name: calls for name, calls in chain.items() if name != "f0"},
    }
    assert f"in a row of more than {MOST_DEPTH}" in refused(save(tmp_path / "m.onnx", from_its_end))
    short = {f"f{at}": [f"f{at + 1}"] for at in range(MOST_DEPTH)}
    assert read_model_file(save(tmp_path / "m.onnx", short)).nodes == MOST_DEPTH + 3
