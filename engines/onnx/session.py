"""An ONNX Runtime session: made for one device from a checked file, with its optimised graph cached, and run with numpy arrays.

The runtime releases the GIL while it computes; `Session.run` is called from a thread of its own, never from the event loop.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as native

from engines.onnx.modelfile import ModelFile, check_model_file, external_files, read_model_file
from engines.onnx.options import OnnxOptions
from engines.sidecar.loading import LoadError, cache_folder, sha256_of, verify_sha256
from gateway.core.specs import SidecarSpec

Array = NDArray[Any]

DATATYPES = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32", "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32", "tensor(int64)": "INT64", "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16", "tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(string)": "BYTES",
}  # fmt: skip
"""ONNX Runtime's name of a tensor type -> the Open Inference Protocol's."""
NUMPY: dict[str, Any] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "BF16": np.uint16, "FP32": np.float32,
    "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip
"""Datatype -> the numpy type that holds it here; BF16 as its bits in uint16, BYTES as str objects."""

OPENVINO = "OpenVINOExecutionProvider"
ONNX_BFLOAT16 = 16
CACHE_LIMIT_BYTES = 1 << 30
"""Larger models are not cached in optimised form: the runtime would have to write a second file beside it."""
LEVELS = {
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
QUIET = 4
"""Log severity `fatal`: the runtime's messages quote tensor values, which must not be logged; errors reach us as exceptions."""

NATIVE_ERRORS: tuple[type[Exception], ...] = (
    native.Fail, native.InvalidArgument, native.NoSuchFile, native.NoModel, native.EngineError, native.RuntimeException,
    native.InvalidProtobuf, native.NotImplemented, native.InvalidGraph, native.EPFail, native.NotFound,
)  # fmt: skip
"""The runtime's own exceptions; they have no common base class."""
RUNTIME_ERRORS: tuple[type[Exception], ...] = (*NATIVE_ERRORS, RuntimeError, ValueError, TypeError, MemoryError)
"""Exceptions while a model is loaded: the runtime's Python layer raises built-in ones too."""
DEVICE_ERRORS: tuple[type[Exception], ...] = (native.EPFail, native.EngineError, native.NotImplemented)
MEMORY_WORDS = ("bad_alloc", "Failed to allocate", "out of memory", "Available memory of", "CUBLAS_STATUS_ALLOC_FAILED")


class Port(NamedTuple):
    """An input or output of a graph. A dimension is a size, a symbol's name, or None if unknown."""

    name: str
    datatype: str
    shape: tuple[int | str | None, ...]


class Session:
    """A loaded graph. `inputs` and `outputs` are in the graph's order; `hidden` are outputs that are not tensors."""

    def __init__(self, native_session: Any, device: str, io_binding: bool, shrink: bool) -> None:
        self._session = native_session
        self.device = device
        self.provider = str(native_session.get_providers()[0])
        """The execution provider that computes what it can, in ONNX Runtime's words."""
        self.inputs = tuple(_port(node) for node in native_session.get_inputs())
        outputs = native_session.get_outputs()
        self.outputs = tuple(_port(node) for node in outputs if node.type in DATATYPES)
        self.hidden = tuple(node.name for node in outputs if node.type not in DATATYPES)
        self._types = {port.name: port.datatype for port in (*self.inputs, *self.outputs)}
        self._bound = io_binding and "BYTES" not in self._types.values()
        self._values = "BF16" in self._types.values()
        self._shrunk = "" if not shrink else "cpu:0" if device == "cpu" else f"cpu:0;gpu:{device.partition(':')[2]}"
        self._options = self._run_options()
        self._own = threading.local()

    def _run_options(self) -> Any:
        made = ort.RunOptions()
        made.log_severity_level = QUIET
        if self._shrunk:
            made.add_run_config_entry("memory.enable_memory_arena_shrinkage", self._shrunk)
        return made

    @contextmanager
    def halting(self) -> Iterator[Callable[[], None]]:
        """Around runs of this thread. What it gives ends them, on any thread: between two nodes of the graph, not within one."""
        options = self._own.options = self._run_options()

        def halt() -> None:
            options.terminate = True

        try:
            yield halt
        finally:
            del self._own.options

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Ends the runs inside when the time is over: a graph may have a loop without an end. Raises LoadError then (`load_timeout`)."""
        over = threading.Event()

        def end() -> None:
            over.set()
            self._options.terminate = True

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except RUNTIME_ERRORS:
            if not over.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()  # from here on nothing ends a run
        if over.is_set():
            message = f"its first runs did not end within {seconds:g} s (options.batching: off makes fewer of them)"
            raise LoadError("load_timeout", message)

    def run(self, feeds: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        """Compute the outputs `names`. Arrays have the types of NUMPY. Raises one of RUNTIME_ERRORS."""
        options = getattr(self._own, "options", self._options)
        if self._values:
            return self._run_values(feeds, names, options)
        if self._bound:
            return self._run_bound(feeds, names, options)
        found: list[Array] = self._session.run(list(names), dict(feeds), options)
        return found

    def _run_values(self, feeds: Mapping[str, Array], names: Sequence[str], options: Any) -> list[Array]:
        """Compute with BF16, which numpy lacks: its bits go in and come out as uint16."""
        values: dict[str, Any] = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ONNX_BFLOAT16) if self._types[name] == "BF16" else array
            for name, array in feeds.items()
        }
        if "BF16" not in {self._types[name] for name in names}:
            found: list[Array] = self._session.run(list(names), values, options)
            return found
        for name, array in feeds.items():
            if self._types[name] != "BF16":
                values[name] = ort.OrtValue.ortvalue_from_numpy(array)
        results = self._session.run_with_ort_values(list(names), values, options)
        return [_bits(value) if self._types[name] == "BF16" else value.numpy() for name, value in zip(names, results, strict=True)]

    def _run_bound(self, feeds: Mapping[str, Array], names: Sequence[str], options: Any) -> list[Array]:
        """With inputs and outputs bound to the device: one copy in, one out, none in between."""
        kind, _, index = self.device.partition(":")
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, kind, int(index or 0)))
        for name in names:
            binding.bind_output(name, kind, int(index or 0))
        self._session.run_with_iobinding(binding, options)
        found: list[Array] = binding.copy_outputs_to_cpu()
        return found


def _port(node: Any) -> Port:
    shape = tuple(dimension if isinstance(dimension, int | str) else None for dimension in node.shape)
    return Port(node.name, DATATYPES.get(node.type, node.type), shape)


def _bits(value: Any) -> Array:
    """The bits of a BF16 value on the CPU."""
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    raw = ctypes.string_at(value.data_ptr(), 2 * count) if count else b""
    return np.frombuffer(raw, np.uint16).reshape(shape)


def supported_opsets() -> dict[str, int]:
    """Operator domain -> the newest version this runtime knows."""
    found: dict[str, int] = {}
    for schema in native.get_all_operator_schema():
        found[schema.domain] = max(found.get(schema.domain, 0), schema.since_version)
    for domain in ("com.microsoft", "ai.onnx.ml"):
        found.setdefault(domain, 1)
    found["ai.onnx.training"] = found["ai.onnx.preview.training"] = 1  # named by exporters, although no operator of theirs is used
    return found


class Loaded(NamedTuple):
    """A session with what health shows about it. `fallback` says why the CPU is used instead of the requested device."""

    session: Session
    sha256: str | None
    cached: bool
    fallback: str | None


def load_session(spec: SidecarSpec, graph: Path, options: OnnxOptions) -> Loaded:
    """Check the file, then load it on the spec's device, or on the CPU if the spec allows it. Raises LoadError."""
    sha256 = verify_sha256(graph, spec.sha256)
    model = read_model_file(graph)
    check_model_file(model, supported_opsets())
    if options.arena_limit_bytes:
        limit_arena(options.arena_limit_bytes)
    check_provider(options)
    if spec.device.startswith("cuda") or options.execution_provider != "auto":
        check_packages()
    if spec.device.startswith("cuda"):
        preload()
    device, fallback = choose_device(spec.device, ort.get_available_providers(), spec.fallback)
    if options.execution_provider == "openvino":
        options, lacking = choose_openvino(spec, options, device, ort.get_available_providers())
        fallback = fallback or lacking
    try:
        session, cached = _open(spec, model, sha256, device, options)
    except LoadError as error:
        if device == "cpu" or spec.fallback != "cpu":
            raise
        device, fallback = "cpu", str(error)
        session, cached = _open(spec, model, sha256, device, options)
    bound = options.io_binding == "on" or (options.io_binding == "auto" and device != "cpu")
    found = Session(session, device, bound, options.arena_shrink and options.arena)
    odd = [port for port in found.inputs if port.datatype not in NUMPY]
    if odd:
        raise LoadError("model_invalid", f"{graph}: input {odd[0].name!r} is {odd[0].datatype}, not a tensor")
    if any(port.datatype == "BYTES" for port in found.inputs) and any(port.datatype == "BF16" for port in found.outputs):
        raise LoadError("model_invalid", f"{graph}: a graph with BYTES inputs and BF16 outputs cannot be run from here")
    if not found.outputs:
        raise LoadError("model_invalid", f"{graph}: no output is a tensor (there are {', '.join(found.hidden)})")
    return Loaded(found, sha256, cached, fallback)


def choose_device(device: str, providers: Sequence[str], fallback: str | None) -> tuple[str, str | None]:
    """(device to use, why it is not the requested one). Raises LoadError if it is unavailable and no fallback is allowed."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return "cpu", None
    if "," in device:
        message = f"device {device}: an ONNX model runs on one device; make an engine for each of them, in one model's pool"
        raise LoadError("device_unavailable", message)
    if kind == "cuda" and "CUDAExecutionProvider" in providers:
        return device, None
    reason = f"device {device}: this onnxruntime has {', '.join(providers)} (a CUDA device needs the package onnxruntime-gpu)"
    if fallback == "cpu":
        return "cpu", reason
    raise LoadError("device_unavailable", reason)


def choose_openvino(spec: SidecarSpec, options: OnnxOptions, device: str, providers: Sequence[str]) -> tuple[OnnxOptions, str | None]:
    """(options to load with, why OpenVINO is not used). Raises LoadError if it is not there and no fallback is allowed."""
    if device != "cpu":
        message = f"options.execution_provider: openvino computes on the processor, and the engine has device {spec.device}"
        raise LoadError("invalid_options", message)
    if OPENVINO in providers:
        return options, None
    reason = f"this onnxruntime has {', '.join(providers)} (OpenVINO needs the package onnxruntime-openvino: scripts/install --openvino)"
    if spec.fallback != "cpu":
        raise LoadError("device_unavailable", reason)
    return msgspec.structs.replace(options, execution_provider="auto", provider={}), reason


def check_provider(options: OnnxOptions) -> None:
    """Refuse provider options that this engine cannot keep. Raises LoadError."""
    graph = options.provider.get("enable_cuda_graph", False)
    if str(graph).lower() not in ("0", "false"):
        message = "options.provider.enable_cuda_graph: a captured graph uses the same buffers each time, but requests bring their own"
        raise LoadError("invalid_options", message)


def check_packages(installed: Callable[[str], str] = version) -> None:
    """Refuse several packages of ONNX Runtime side by side: the one for the CPU hides the others' providers. Raises LoadError."""
    found = [name for name in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino") if _has(name, installed)]
    if len(found) > 1:
        message = f"{' and '.join(found)} are all installed, and one hides the others' providers; install one of them (scripts/install)"
        raise LoadError("device_unavailable", message)


def _has(name: str, installed: Callable[[str], str]) -> bool:
    try:
        return bool(installed(name))
    except PackageNotFoundError:
        return False


def preload() -> None:
    """Load the CUDA and cuDNN libraries that came as Python packages, before the provider looks for them."""
    load = getattr(ort, "preload_dlls", None)
    if load is not None:
        load()


def provider_list(device: str, options: OnnxOptions, threads: int) -> list[tuple[str, dict[str, str]]]:
    """ONNX Runtime's execution providers for a device, in order, with their options. threads: 0 for as many as the provider chooses."""
    cpu: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})
    if options.execution_provider == "openvino":
        # Without a precision OpenVINO computes with 16 bits where the processor can, and answers would depend on the machine.
        settings = {"device_type": "CPU", "precision": "FP32", "num_streams": str(options.instances)}
        if threads:
            settings["num_of_threads"] = str(threads * options.instances)
        settings.update({name: str(value) for name, value in options.provider.items()})
        return [(OPENVINO, settings), cpu]
    if device == "cpu":
        return [cpu]
    settings = {"device_id": device.partition(":")[2] or "0", "arena_extend_strategy": "kSameAsRequested"}
    if options.gpu_memory_limit_bytes:
        settings["gpu_mem_limit"] = str(options.gpu_memory_limit_bytes)
    settings.update({name: str(int(value) if isinstance(value, bool) else value) for name, value in options.provider.items()})
    return [("CUDAExecutionProvider", settings), cpu]


def session_options(spec: SidecarSpec, options: OnnxOptions, dynamic: bool) -> Any:
    """The runtime's session options. `dynamic`: input sizes vary, so memory patterns (one kept per shape) would pile up."""
    made = ort.SessionOptions()
    made.log_severity_level = QUIET
    made.intra_op_num_threads = spec.threads
    made.inter_op_num_threads = options.inter_op_threads
    made.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL if options.inter_op_threads <= 1 else ort.ExecutionMode.ORT_PARALLEL
    made.graph_optimization_level = LEVELS[options.optimization]
    made.enable_cpu_mem_arena = options.arena
    made.enable_mem_pattern = (not dynamic) if options.memory_pattern is None else options.memory_pattern
    made.use_deterministic_compute = options.deterministic
    spin = "1" if options.spinning else "0"
    made.add_session_config_entry("session.intra_op.allow_spinning", spin)
    made.add_session_config_entry("session.inter_op.allow_spinning", spin)
    if options.arena_limit_bytes:
        made.add_session_config_entry("session.use_env_allocators", "1")
    return made


def limit_arena(limit: int) -> None:
    """Give the process one CPU arena of at most `limit` bytes, shared by all its sessions."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"max_mem": limit, "arena_extend_strategy": 1}))


def _open(spec: SidecarSpec, model: ModelFile, sha256: str | None, device: str, options: OnnxOptions) -> tuple[Any, bool]:
    """(native session, whether it came from the cache)."""
    made = session_options(spec, options, dynamic=True)
    cache = _cache_path(spec, model, sha256, device, options)
    if cache is not None and _intact(cache):
        made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return _native(cache, made, device, options, spec.threads), True
        except LoadError:
            made.graph_optimization_level = LEVELS[options.optimization]  # a cache that does not load is written again
    if cache is None:
        return _native(model.path, made, device, options, spec.threads), False
    fresh = cache.with_suffix(f".{os.getpid()}.tmp")
    made.optimized_model_filepath = str(fresh)
    try:
        session = _native(model.path, made, device, options, spec.threads)
        _commit(fresh, cache)
    finally:
        fresh.unlink(missing_ok=True)
    return session, False


def _native(path: Path, made: Any, device: str, options: OnnxOptions, threads: int) -> Any:
    try:
        session = ort.InferenceSession(str(path), made, providers=provider_list(device, options, threads))
    except RUNTIME_ERRORS as exc:
        raise refusal(str(path), exc, device) from None
    session.disable_fallback()
    # if CUDA's libraries do not load, the runtime falls back to the CPU; that is for the configuration to decide
    if session.get_providers()[0] == "CPUExecutionProvider" and (device != "cpu" or options.execution_provider != "auto"):
        name = "CUDA" if device != "cpu" else "OpenVINO"
        raise LoadError("device_unavailable", f"device {device}: the {name} provider did not start (are its libraries installed?)")
    return session


def _cache_path(spec: SidecarSpec, model: ModelFile, sha256: str | None, device: str, options: OnnxOptions) -> Path | None:
    """Where the optimised graph of this model, runtime and processor is cached; None if it is not to be cached."""
    files = external_files(model)
    size = model.path.stat().st_size + sum(file.stat().st_size for file in files)
    if not options.cache or device != "cpu" or options.optimization == "off" or files or size > CACHE_LIMIT_BYTES:
        return None
    if options.execution_provider != "auto":
        return None  # what OpenVINO has compiled cannot be written as a graph
    parts = (sha256 or sha256_of(model.path), ort.get_version_string(), options.optimization, platform.machine(), _processor())
    folder = cache_folder(spec.state_dir, spec.name)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise LoadError("state_dir", f"{folder}: {exc.strerror}") from None
    return folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.onnx"


def _processor() -> str:
    """The processor's model and features: an optimised graph may hold layouts for one of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "|".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


def _commit(fresh: Path, cache: Path) -> None:
    """Put a complete file in place, its checksum beside it. A cache that cannot be written is not an error."""
    try:
        fresh.chmod(0o600)
        cache.with_suffix(".sha256").write_text(sha256_of(fresh))
        fresh.replace(cache)
    except OSError:
        cache.unlink(missing_ok=True)


def _intact(cache: Path) -> bool:
    try:
        return cache.with_suffix(".sha256").read_text() == sha256_of(cache)
    except OSError:
        return False


def out_of_memory(exc: BaseException) -> bool:
    """Whether an error of the runtime means that memory ran out."""
    return isinstance(exc, MemoryError) or any(word in str(exc) for word in MEMORY_WORDS)


def refusal(where: str, exc: BaseException, device: str) -> LoadError:
    """Why a model that the runtime cannot run is not loaded. On the CPU it asked for more than the process may have, whatever else runs:
    unloading other engines would not help it."""
    said = f"{where}: {runtime_message(exc)}"
    if not out_of_memory(exc):
        return LoadError("model_invalid", said)
    if device != "cpu":
        return LoadError("insufficient_memory", said)
    return LoadError(
        "memory_limit", f"{where}: it asks for more memory than the process may have (options.memory_limit_bytes): {runtime_message(exc)}"
    )


def runtime_message(exc: BaseException) -> str:
    """The runtime's message without its prefix and its source locations, cut to a line."""
    text = str(exc).replace("\n", " ").strip()
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text if len(text) <= 300 else f"{text[:300]}..."
