"""Inputs and outputs read from the file are those that the `onnx` package wrote."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from engines.onnx.protobuf import Broken
from engines.onnx.signature import KINDS, Port, Signature, _signature, read_signature
from engines.sidecar.loading import LoadError


def saved(tmp_path: Path, *, weights_as_inputs: bool = False) -> Path:
    ports = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 7, None]),
        helper.make_tensor_value_info("scalar", TensorProto.FLOAT16, []),
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None)),
    ]
    sequence = onnx.ValueInfoProto(name="several", type=ports.pop())
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    extra = [helper.make_tensor_value_info("w", TensorProto.FLOAT, [1])] if weights_as_inputs else []
    graph = helper.make_graph([], "g", [*ports, sequence, *extra], [helper.make_tensor_value_info("out", TensorProto.BOOL, None)], [weight])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


@pytest.mark.parametrize("older", [False, True])
def test_ports_have_names_types_and_shapes(tmp_path: Path, older: bool) -> None:
    found = read_signature(saved(tmp_path, weights_as_inputs=older))
    inputs = (Port("ids", "int64", ("batch", 7, None)), Port("scalar", "float16", ()), Port("several", "other", ()))
    assert found == Signature(inputs, (Port("out", "bool", ()),))


def test_the_types_are_numbered_as_onnx_numbers_them() -> None:
    for name, ours in (("FLOAT", "float32"), ("STRING", "string"), ("DOUBLE", "float64"), ("BFLOAT16", "bfloat16"), ("UINT64", "uint64")):
        assert KINDS[TensorProto.DataType.Value(name)] == ours


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello")
    for name in ("empty", "text", "absent"):
        with pytest.raises(LoadError):
            read_signature(tmp_path / name)


@given(st.data())
def test_damage_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = bytearray(saved(tmp_path_factory.mktemp("damaged")).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        _signature(memoryview(bytes(whole[: data.draw(st.integers(1, len(whole)))])))
    except Broken as error:
        assert str(error)
