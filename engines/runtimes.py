"""The table of engine runtimes: everything that the gateway needs to know about each kind of sidecar, one row a kind.

A row is data. Whatever is heavy or parses a model is named, not imported: `python -m MODULE` starts the sidecar, and `MODULE:FUNCTION` is
imported by the inspector's process. So the gateway's process loads this table without llama.cpp, ONNX Runtime or numpy.

`runtime: external` has no row: Gatehouse starts nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final

from engines.command.options import CommandOptions
from engines.genai.options import GenaiOptions
from engines.llamacpp.options import LlamaOptions, StepSize, draft_file, step_size
from engines.onnx.options import OnnxOptions
from gateway.core.plugins import Row, Table
from gateway.core.specs import EngineSpec

MIB: Final = 1024 * 1024
DEVICE_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "vulkan": "GGML_VK_VISIBLE_DEVICES"}
)
"""The environment variable that limits a process to some devices of a kind."""
DEVICE_READER: Final = "engines.llamacpp.ggml"
"""`python -m` of it prints the GPUs that a process sees: name, free and all bytes of each, as a JSON line."""
Ask = tuple[str, str, dict[str, Any] | None]
"""(method, path, JSON body) of a request."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Memory planned layer by layer. reader: `python -m READER FILE` prints `engines.host.placement.Metadata` as one JSON line.
    step: what a step of an engine with these options, slots, architecture and device takes. draft: the file beside the model's with a
    second model, which is wholly on the first device, if the options name one."""

    reader: str
    step: Callable[[Mapping[str, Any], int, str, str], StepSize]
    draft: Callable[[Mapping[str, Any]], str | None]


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Memory estimated from the size of the model's files in bytes: `factor` times that and `overhead`; with a `reader`, the keys and
    values of all slots beside that: `python -m READER MODEL` prints `engines.host.placement.Kept` as one JSON line."""

    factor: float = 1.0
    overhead: int = 0
    reader: str = ""


@dataclass(frozen=True, slots=True)
class Declared:
    """Memory that the operator has declared in an option, in bytes on each device; without it, what main memory it took the last time."""

    option: str


def ask_readiness(spec: EngineSpec) -> Ask:
    """Asks a sidecar of the Open Inference Protocol whether it is ready."""
    return "GET", "/v2/health/ready", None


def ask_health(spec: EngineSpec) -> Ask:
    """Asks a server that a command has started for its health."""
    return "GET", str(spec.options.get("health", "/health")), None


def ask_completion(spec: EngineSpec) -> Ask:
    """Asks for a few tokens of text."""
    body = {"model": spec.name, "prompt": spec.warmup.prompt, "max_tokens": spec.warmup.max_tokens, "temperature": 0}
    return "POST", "/v1/completions", body


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeRow(Row):
    """A kind of sidecar. `settings` is the schema of an engine's `options`.

    module: `python -m MODULE` is the sidecar. It follows the contract of engines/sidecar/shell.py: a `SidecarSpec` on standard input, HTTP
    on the Unix socket that it names.
    inspect: `MODULE:FUNCTION` takes the Path of a model and returns its `engines.facts.Facts`; raises OSError. Needed where `suffixes` are.
    suffixes: of a model that is one file. folder_files: where a model's folder may have its main file; else a folder is a model if it
    holds exactly one file with such a suffix.
    memory: how placement learns what a model needs. warmup: the first request to a new process whose task is neither embeddings nor
    classification. devices: the variable that hides other devices from the process, by kind. leads: the process starts others: it leads a
    group that ends with it, and may say in its health at which `address` requests are served.
    """

    kind: ClassVar[str] = "runtime"
    module: str
    inspect: str = ""
    suffixes: tuple[str, ...] = ()
    folder_files: tuple[str, ...] = ()
    memory: Layers | FileSizes | Declared = field(default_factory=FileSizes)
    warmup: Callable[[EngineSpec], Ask] = ask_readiness
    devices: Mapping[str, str] = field(default_factory=lambda: DEVICE_VARIABLES)
    leads: bool = False


RUNTIMES: Final = Table(
    RuntimeRow,
    (
        RuntimeRow(
            name="llama.cpp",
            settings=LlamaOptions,
            module="engines.llamacpp",
            inspect="engines.llamacpp.inspect:facts",
            suffixes=(".gguf",),
            memory=Layers("engines.llamacpp.gguf", step_size, draft_file),
            warmup=ask_completion,
        ),
        RuntimeRow(  # before `onnx`, which would take its folders for models of tensors
            name="genai",
            settings=GenaiOptions,
            module="engines.genai",
            inspect="engines.genai.inspect:facts",
            folder_files=("genai_config.json",),
            memory=FileSizes(1.5, 128 * MIB, "engines.genai.inspect"),
            warmup=ask_completion,
        ),
        RuntimeRow(
            name="onnx",
            settings=OnnxOptions,
            module="engines.onnx",
            inspect="engines.onnx.inspect:facts",
            suffixes=(".onnx",),
            folder_files=("model.onnx", "onnx/model.onnx", "1/model.onnx"),
            memory=FileSizes(1.5, 64 * MIB),  # ONNX Runtime reads the weights and keeps a packed copy of most; its arena
        ),
        RuntimeRow(
            name="command",
            settings=CommandOptions,
            module="engines.command",
            memory=Declared("memory_bytes"),
            warmup=ask_health,
            leads=True,
        ),
    ),
)


WEIGHTS: Final = RuntimeRow(name="weights", settings=CommandOptions, module="", inspect="engines.convert.inspect:facts")
"""Not a runtime: a folder with weights that a job converts. The catalogue lists it, and no engine can have it."""


def row_of(name: str, runtimes: Table[RuntimeRow]) -> RuntimeRow:
    """The row of what the catalogue has found."""
    return WEIGHTS if name == WEIGHTS.name else runtimes[name]


def runtime_of_file(name: str, runtimes: Table[RuntimeRow]) -> RuntimeRow | None:
    """The runtime whose model is a file of this name."""
    return next((row for row in runtimes if row.suffixes and name.endswith(row.suffixes)), None)
