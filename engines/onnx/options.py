"""The `options` of an ONNX engine, checked before its process starts: a misspelt option fails the load and not a request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from engines.sidecar.loading import LoadError, ShellOptions
from gateway.core.specs import Natural, Positive

Task = Literal["embeddings", "classification", "entities", "rerank", "tensor"]
Pooling = Literal["mean", "cls", "last", "none"]


class OnnxOptions(ShellOptions, frozen=True):
    """Everything that `engines[].options` may say of an ONNX engine; `auto` and None mean: as the model says.

    task: what the model does. version, names: the version it answers to and the names it accepts in /v2 paths (empty: any, as
    one sidecar holds one model and the gateway has already routed). output: the graph output that a text task reads.

    pooling, normalize, max_length (tokens), dimensions (sizes a client may ask for, or "any"): embeddings. labels: of a
    classifier. truncate: cut longer texts (and report it) unless the request says otherwise.

    batching: `auto` batches when a probe at load shows that rows do not influence one another; max_batch_tokens bounds the
    padded size of a text batch. inter_op_threads, spinning, arena, arena_limit_bytes, arena_shrink, memory_pattern,
    deterministic, optimization, cache: ONNX Runtime's session settings. io_binding: keep tensors on the device (auto: on GPUs).
    gpu_memory_limit_bytes: of the CUDA provider. execution_provider: what computes instead of the device's own; provider: its
    options. instances: batches that run at once. checksums: file name -> SHA-256 of files in the model's folder.
    max_output_bytes: of the tensors that answer one infer request. memory_limit_bytes: of the process, on the CPU; None: most of what the
    machine or the container has.

    prompts, default_prompt: what goes before a text that is embedded, by name, and the name that counts where a request names none.
    """

    task: Literal["auto"] | Task = "auto"
    version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "1"
    names: tuple[str, ...] = ()
    output: str | None = None
    pooling: Literal["auto"] | Pooling = "auto"
    normalize: bool | None = None
    max_length: Annotated[int, Meta(ge=4, le=1 << 20)] | None = None
    dimensions: tuple[Positive, ...] | Literal["any"] = ()
    labels: tuple[str, ...] = ()
    truncate: bool = True
    batching: Literal["auto", "on", "off"] = "auto"
    max_batch_tokens: Positive = 16384
    inter_op_threads: Natural = 1
    spinning: bool = False
    arena: bool = True
    arena_limit_bytes: Natural = 0
    arena_shrink: bool = False
    memory_pattern: bool | None = None
    deterministic: bool = False
    optimization: Literal["all", "extended", "basic", "off"] = "all"
    cache: bool = True
    io_binding: Literal["auto", "on", "off"] = "auto"
    gpu_memory_limit_bytes: Natural = 0
    execution_provider: Literal["auto", "openvino"] = "auto"
    provider: dict[str, str | int | bool] = field(default_factory=dict)
    instances: Annotated[int, Meta(ge=1, le=64)] = 1
    prompts: dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")], Annotated[str, Meta(max_length=4096)]] = field(
        default_factory=dict
    )
    default_prompt: str | None = None
    checksums: dict[str, Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")]] = field(default_factory=dict)
    max_output_bytes: Positive = 256 * 1024 * 1024
    memory_limit_bytes: Annotated[int, Meta(ge=256 * 1024 * 1024)] | None = None


def read_options(options: dict[str, Any]) -> OnnxOptions:
    """Check the options of a spec. Raises LoadError (`invalid_options`)."""
    try:
        return msgspec.convert(options, type=OnnxOptions)
    except msgspec.ValidationError as exc:
        raise LoadError("invalid_options", f"options: {exc}") from None
