"""Sessions: the device, the cached graph, every type in and out, errors in words."""

from __future__ import annotations

import stat
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engines.onnx import session as module
from engines.onnx.options import OnnxOptions
from engines.onnx.session import (
    NUMPY,
    Loaded,
    check_packages,
    choose_device,
    choose_openvino,
    load_session,
    out_of_memory,
    provider_list,
    runtime_message,
)
from engines.sidecar.loading import LoadError, sha256_of
from gateway.core.specs import SidecarSpec
from tests.unit.engines.onnx import models


def spec(tmp_path: Path, **settings: Any) -> SidecarSpec:
    return SidecarSpec(name="e", runtime="onnx", model=str(tmp_path), socket="unused", state_dir=str(tmp_path / "state"), **settings)


def load(tmp_path: Path, model: onnx.ModelProto, options: OnnxOptions | None = None, **settings: Any) -> Loaded:
    path = models.save(model, tmp_path / "model.onnx")
    return load_session(spec(tmp_path, **settings), path, options or OnnxOptions())


SAMPLES: dict[str, list[Any]] = {"BOOL": [True, False, True], "BYTES": ["", "gr\u00fc\u00df\u0000e", "x"], "FP16": [0.5, -2, 65504]}


def test_every_type_goes_through_unchanged(tmp_path: Path) -> None:
    session = load(tmp_path, models.every_type()).session
    assert {port.datatype for port in session.inputs} == set(NUMPY) - {"BF16"}
    feeds = {port.name: np.array(SAMPLES.get(port.datatype, [0, 1, 100]), NUMPY[port.datatype]) for port in session.inputs}
    results = session.run(feeds, [port.name for port in session.outputs])
    for port, result in zip(session.outputs, results, strict=True):
        assert result.dtype == NUMPY[port.datatype]
        assert (result == feeds[port.name.replace("out_", "in_")]).all()


def test_bfloat16(tmp_path: Path) -> None:
    session = load(tmp_path, models.brain()).session
    bits = np.array([0x3F80, 0xC000, 0], np.uint16)
    same, wide = session.run({"x": bits}, ["same", "wide"])
    assert same.tolist() == bits.tolist()
    assert wide.tolist() == [1.0, -2.0, 0.0]
    assert session.run({"x": bits}, ["wide"])[0].tolist() == [1.0, -2.0, 0.0]
    assert session.run({"x": bits[:0]}, ["same"])[0].shape == (0,)


def test_io_binding_gives_the_same(tmp_path: Path) -> None:
    plain = load(tmp_path, models.convolution())
    bound = load(tmp_path, models.convolution(), OnnxOptions(io_binding="on"))
    pixels = np.arange(2 * 3 * 5 * 4, dtype=np.uint8).reshape(2, 3, 5, 4)
    (one,), (two,) = plain.session.run({"pixels": pixels}, ["features"]), bound.session.run({"pixels": pixels}, ["features"])
    assert one.shape == (2, 2, 5, 4)
    np.testing.assert_array_equal(one, two)
    strings = load(tmp_path, models.named(), OnnxOptions(io_binding="on")).session
    assert strings.run({"count": np.array([2]), "name": np.array(["a"], object)}, ["name_out"])[0].tolist() == ["a"], (
        "strings cannot be bound"
    )


def test_the_optimised_graph_is_cached_and_checked(tmp_path: Path) -> None:
    assert not load(tmp_path, models.affine()).cached
    (cache,) = (tmp_path / "state" / "engine-cache").rglob("*.onnx")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    again = load(tmp_path, models.affine())
    assert again.cached
    (result,) = again.session.run({"x": np.ones((1, 4), np.float32)}, ["y"])
    assert result.tolist() == [[19.0, 23.0, 27.0]]
    cache.write_bytes(cache.read_bytes()[:-9])
    assert not load(tmp_path, models.affine()).cached, "a damaged cache is not used"
    assert load(tmp_path, models.affine()).cached, "but written anew"
    assert not load(tmp_path, models.affine(), OnnxOptions(optimization="basic")).cached, "other settings, another file"
    assert not load(tmp_path, models.mixing()).cached
    assert not list((tmp_path / "state" / "engine-cache").rglob("*.tmp"))


def test_a_cache_with_a_right_checksum_that_does_not_load_is_replaced(tmp_path: Path) -> None:
    load(tmp_path, models.affine())
    (cache,) = (tmp_path / "state" / "engine-cache").rglob("*.onnx")
    cache.write_bytes(b"garbage")
    cache.with_suffix(".sha256").write_text(sha256_of(cache))
    assert not load(tmp_path, models.affine()).cached
    assert load(tmp_path, models.affine()).cached


@pytest.mark.parametrize("options", [OnnxOptions(cache=False), OnnxOptions(optimization="off")])
def test_no_cache_when_not_wanted(tmp_path: Path, options: OnnxOptions) -> None:
    load(tmp_path, models.affine(), options)
    assert not list(tmp_path.rglob("*-cache/*"))


def test_session_settings(tmp_path: Path) -> None:
    options = OnnxOptions(
        arena=False, arena_shrink=True, memory_pattern=True, deterministic=True, inter_op_threads=2, spinning=True, optimization="extended"
    )
    made = module.session_options(spec(tmp_path, threads=3), options, dynamic=True)
    assert (made.intra_op_num_threads, made.inter_op_num_threads, made.enable_cpu_mem_arena, made.enable_mem_pattern) == (3, 2, False, True)
    assert made.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert made.use_deterministic_compute
    assert not module.session_options(spec(tmp_path), OnnxOptions(), dynamic=True).enable_mem_pattern
    (result,) = load(tmp_path, models.affine(), options).session.run({"x": np.zeros((2, 4), np.float32)}, ["y"])
    assert result.tolist() == [[1.0] * 3] * 2


def test_the_arena_is_bounded(tmp_path: Path) -> None:
    session = load(tmp_path, models.affine(), OnnxOptions(arena_limit_bytes=1 << 20)).session
    assert session.run({"x": np.zeros((2, 4), np.float32)}, ["y"])[0].shape == (2, 3)
    with pytest.raises(module.NATIVE_ERRORS) as caught:
        session.run({"x": np.zeros((1_000_000, 4), np.float32)}, ["y"])
    assert out_of_memory(caught.value)
    assert session.run({"x": np.zeros((2, 4), np.float32)}, ["y"])[0].shape == (2, 3), "and goes on"


def test_checksum(tmp_path: Path) -> None:
    path = models.save(models.affine(), tmp_path / "model.onnx")
    assert load(tmp_path, models.affine(), sha256=sha256_of(path)).sha256 == sha256_of(path)
    with pytest.raises(LoadError) as caught:
        load(tmp_path, models.affine(), sha256="0" * 64)
    assert caught.value.code == "checksum_mismatch"


def test_a_graph_the_runtime_refuses(tmp_path: Path) -> None:
    model = models.affine()
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(LoadError, match="NoSuchOperator") as caught:
        load(tmp_path, model)
    assert caught.value.code == "model_invalid"
    assert "[ONNXRuntimeError]" not in str(caught.value)


def test_the_device() -> None:
    gpu = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert choose_device("cpu", gpu, None) == ("cpu", None)
    assert choose_device("cuda:1", gpu, None) == ("cuda:1", None)
    for device, providers in (("cuda:0", ["CPUExecutionProvider"]), ("metal", gpu), ("rocm:0", gpu)):
        with pytest.raises(LoadError) as caught:
            choose_device(device, providers, None)
        assert caught.value.code == "device_unavailable"
        used, why = choose_device(device, providers, "cpu")
        assert used == "cpu"
        assert device in (why or "")


@pytest.mark.parametrize("fallback", [None, "cpu"])
def test_several_devices_are_refused(fallback: str | None) -> None:
    with pytest.raises(LoadError, match="runs on one device; make an engine for each"):
        choose_device("cuda:0,1", ["CUDAExecutionProvider", "CPUExecutionProvider"], fallback)


@pytest.mark.parametrize("value", [True, 1, "1", "true"])
def test_a_captured_graph_is_refused(tmp_path: Path, value: str | int | bool) -> None:
    with pytest.raises(LoadError, match="enable_cuda_graph: a captured graph uses the same buffers") as caught:
        load(tmp_path, models.affine(), OnnxOptions(provider={"enable_cuda_graph": value}))
    assert caught.value.code == "invalid_options"


def test_both_packages_side_by_side_are_refused() -> None:
    there = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}

    def installed(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    with pytest.raises(LoadError, match="onnxruntime and onnxruntime-gpu are all installed, and one hides"):
        check_packages(installed)
    del there["onnxruntime"]
    check_packages(installed)
    check_packages()


def test_provider_options() -> None:
    assert provider_list("cpu", OnnxOptions(), 2) == [("CPUExecutionProvider", {})]
    found = OnnxOptions(gpu_memory_limit_bytes=1 << 30, provider={"cudnn_conv_algo_search": "HEURISTIC", "enable_cuda_graph": False})
    (name, settings), cpu = provider_list("cuda:1", found, 0)
    assert (name, cpu[0]) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert settings == {
        "device_id": "1", "arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": str(1 << 30), "cudnn_conv_algo_search": "HEURISTIC",
        "enable_cuda_graph": "0",
    }  # fmt: skip


def test_openvino_is_named_and_computes_with_32_bits() -> None:
    options = OnnxOptions(execution_provider="openvino", instances=2, provider={"num_streams": 1})
    (name, settings), cpu = provider_list("cpu", options, 3)
    assert (name, cpu[0]) == ("OpenVINOExecutionProvider", "CPUExecutionProvider")
    assert settings == {"device_type": "CPU", "precision": "FP32", "num_of_threads": "6", "num_streams": "1"}


def test_openvino_that_is_not_installed_is_refused_or_told(tmp_path: Path) -> None:
    options = OnnxOptions(execution_provider="openvino", provider={"num_streams": 1})
    with pytest.raises(LoadError, match="OpenVINO needs the package onnxruntime-openvino") as caught:
        load(tmp_path, models.affine(), options)
    assert caught.value.code == "device_unavailable"
    loaded = load(tmp_path, models.affine(), options, fallback="cpu")
    assert loaded.session.provider == "CPUExecutionProvider" and "onnxruntime-openvino" in (loaded.fallback or "")
    spec = SidecarSpec(name="e", runtime="onnx", model="m", socket="s", state_dir="d", device="cuda:0")
    with pytest.raises(LoadError, match="openvino computes on the processor, and the engine has device cuda:0"):
        choose_openvino(spec, options, "cuda:0", ["OpenVINOExecutionProvider"])


def test_fallback_is_explicit_and_shown(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cuda:0"):
        load(tmp_path, models.affine(), device="cuda:0")
    loaded = load(tmp_path, models.affine(), device="cuda:0", fallback="cpu")
    assert loaded.session.device == "cpu"
    assert "cuda:0" in (loaded.fallback or "")


def test_errors_in_words(tmp_path: Path) -> None:
    session = load(tmp_path, models.lookup()).session
    with pytest.raises(module.NATIVE_ERRORS) as caught:
        session.run({"index": np.array([[99]])}, ["y"])
    text = runtime_message(caught.value)
    assert "out of data bounds" in text
    assert not text.startswith("[")
    assert len(runtime_message(ValueError("x" * 1000))) < 310
    assert not out_of_memory(caught.value)
    assert out_of_memory(RuntimeError("Failed to allocate memory for requested buffer of size 123"))
    assert out_of_memory(MemoryError())


def test_the_runtime_writes_no_values_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    session = load(tmp_path, models.lookup()).session
    with pytest.raises(module.NATIVE_ERRORS):
        session.run({"index": np.array([[424242]])}, ["y"])
    captured = capfd.readouterr()
    assert "424242" not in captured.err + captured.out


@pytest.mark.gpu
def test_cuda(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" not in module.ort.get_available_providers():
        pytest.skip("no CUDA in this onnxruntime")
    loaded = load(tmp_path, models.convolution(), device="cuda:0")
    assert loaded.session.device == "cuda:0"
    pixels = np.arange(60, dtype=np.uint8).reshape(1, 3, 5, 4)
    (found,) = loaded.session.run({"pixels": pixels}, ["features"])
    (expected,) = load(tmp_path, models.convolution()).session.run({"pixels": pixels}, ["features"])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_a_run_is_halted_and_the_next_one_is_not(tmp_path: Path) -> None:
    path = models.save(models.endless(), tmp_path / "model.onnx")
    session = load_session(spec(tmp_path), path, OnnxOptions()).session
    feeds = {"x": np.zeros(2, np.float32)}
    with session.halting() as halt, pytest.raises(module.RUNTIME_ERRORS, match="terminate"):
        timer = threading.Timer(0.05, halt)
        timer.start()
        session.run(feeds, ["y"])
    fine = load(tmp_path / "fine", models.affine()).session
    with fine.halting():
        assert fine.run({"x": np.zeros((1, 4), np.float32)}, ["y"])[0].shape == (1, 3)
