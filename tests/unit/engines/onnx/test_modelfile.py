"""What is read of an ONNX file before it is loaded, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from engines.onnx import modelfile
from engines.onnx.modelfile import MAX_INPUTS, check_model_file, external_files, read_model_file
from engines.onnx.session import supported_opsets
from engines.sidecar.loading import LoadError
from tests.unit.engines.onnx import models

SUPPORTED = {"": 21, "com.microsoft": 1}


def refused(path: Path, supported: dict[str, int] | None = None) -> LoadError:
    with pytest.raises(LoadError) as caught:
        check_model_file(read_model_file(path), supported or SUPPORTED)
    assert str(path) in str(caught.value), "the message names the file"
    return caught.value


def with_external(path: Path, location: str, offset: int = 0, length: int = 16) -> onnx.ModelProto:
    """A model whose only weight lies in another file."""
    model = models.affine()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return model


def test_a_whole_file(tmp_path: Path) -> None:
    found = read_model_file(models.save(models.affine(), tmp_path / "m.onnx"))
    assert (found.ir_version, found.producer, dict(found.opsets), found.nodes, found.external) == (9, "tests", {"": 17}, 2, ())
    check_model_file(found, SUPPORTED)
    check_model_file(found, supported_opsets())


def test_an_absent_and_an_empty_file(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent.onnx").code == "model_missing"
    (tmp_path / "empty.onnx").touch()
    assert refused(tmp_path / "empty.onnx").code == "model_invalid"


@pytest.mark.parametrize(
    "content", [b"garbage", b"GGUF" + bytes(100), b"\x00" * 50, b"\xff" * 50, b"<html></html>", b"PK\x03\x04" + bytes(60)]
)
def test_foreign_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert refused(path).code == "model_invalid"


def test_a_file_cut_at_any_byte_is_refused_or_whole(tmp_path: Path) -> None:
    whole = models.affine().SerializeToString()
    path = tmp_path / "m.onnx"
    for end in range(1, len(whole)):
        path.write_bytes(whole[:end])
        try:
            check_model_file(read_model_file(path), SUPPORTED)
        except LoadError as error:
            assert error.code == "model_invalid"
        else:
            pytest.fail(f"cut at {end} of {len(whole)} it was taken for whole")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(max_size=300), st.integers(0, 200), st.integers(0, 255))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, place: int, value: int) -> None:
    path = tmp_path / "m.onnx"
    damaged = bytearray(models.identity("FP32").SerializeToString())
    damaged[place % len(damaged)] = value
    for data in (content or b"x", bytes(damaged)):
        path.write_bytes(data)
        try:
            check_model_file(read_model_file(path), SUPPORTED)
        except LoadError as error:
            assert error.code in ("model_invalid", "model_missing")


@pytest.mark.parametrize(
    ("domain", "version", "words"),
    [
        ("", 22, "opset ai.onnx 22, this runtime has 1 to 21"),
        ("", 0, "opset ai.onnx 0"),
        ("com.acme", 1, "operator domain com.acme is unknown"),
    ],
)
def test_opsets(tmp_path: Path, domain: str, version: int, words: str) -> None:
    model = models.identity("FP32")
    model.opset_import.append(helper.make_opsetid(domain, version))
    path = models.save(model, tmp_path / "m.onnx")
    error = refused(path)
    assert error.code == "model_invalid"
    assert words in str(error)


def test_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with_external(path, "weights.bin", 8, 48)
    assert refused(path).code == "model_missing"
    (tmp_path / "weights.bin").write_bytes(bytes(55))
    assert "reach to byte 56 of weights.bin, which has 55" in str(refused(path))
    (tmp_path / "weights.bin").write_bytes(bytes(56))
    found = read_model_file(path)
    check_model_file(found, SUPPORTED)
    assert external_files(found) == (tmp_path / "weights.bin",)


@pytest.mark.parametrize("location", ["w\0.bin", "a" * 5000, "a/" * 3000 + "x", "*/_ORT_MEM_ADDR_/*"])
def test_external_data_without_a_name(tmp_path: Path, location: str) -> None:
    with_external(tmp_path / "m.onnx", location)
    (tmp_path / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (tmp_path / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(bytes(64))
    error = refused(tmp_path / "m.onnx")
    assert error.code == "model_invalid" and "is no name of a file" in str(error) and len(str(error)) < 600


def test_external_data_in_functions_and_without_its_flag(tmp_path: Path) -> None:
    tensor = with_external(tmp_path / "m.onnx", "../w.bin").graph.initializer[0]
    constant = helper.make_node("Constant", [], ["k"])
    constant.attribute.append(onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=tensor))
    model = models.affine()
    model.functions.append(helper.make_function("d", "f", ["a"], ["k"], [constant], [helper.make_opsetid("", 17)]))
    models.save(model, tmp_path / "m.onnx")
    assert "outside the model's folder: '../w.bin'" in str(refused(tmp_path / "m.onnx"))
    model = with_external(tmp_path / "m.onnx", "../w.bin")
    model.graph.initializer[0].ClearField("data_location")
    models.save(model, tmp_path / "m.onnx")
    assert "outside the model's folder: '../w.bin'" in str(refused(tmp_path / "m.onnx"))


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "a/../../secret", "", "link"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(100))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    path = folder / "m.onnx"
    with_external(path, location)
    assert "outside the model's folder" in str(refused(path))


def test_external_data_with_negative_or_absurd_numbers(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    (tmp_path / "w").write_bytes(bytes(100))
    for offset, length in ((-1, 5), (0, -5), (2**62, 1), (0, 2**70)):
        with_external(path, "w", offset, length)
        assert refused(path).code == "model_invalid"


def test_external_data_in_a_nested_graph_is_found(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros(2, np.float32), "inner")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="missing.bin")
    out = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])
    branch = helper.make_graph([], "branch", [], [out], [tensor])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    path = tmp_path / "m.onnx"
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    path.write_bytes(model.SerializeToString())
    assert "missing.bin, which does not exist" in str(refused(path))


def test_fields_and_inputs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.affine()
    model.graph.input.extend(helper.make_tensor_value_info(f"i{number}", TensorProto.FLOAT, [1]) for number in range(MAX_INPUTS))
    path = models.save(model, tmp_path / "m.onnx")
    assert f"has {MAX_INPUTS + 1} inputs, at most {MAX_INPUTS}" in str(refused(path))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "i0"))
    models.save(model, path)
    read_model_file(path)  # a weight among the inputs, as older files have it
    monkeypatch.setattr(modelfile, "MAX_FIELDS", 1000)
    assert "more than 1000 fields" in str(refused(path))
