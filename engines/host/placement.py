"""Where a model's layers go: pure decisions from a file's metadata and the free memory of the device.

The supervisor asks `inspect` for the metadata and `plan` for the placement before it starts a sidecar, and passes `Plan.options()` on
in the sidecar's `options`; the same plan is what health shows. A model that does not fit is `InsufficientMemory` (507
`insufficient_memory`), before anything is loaded. All sizes are bytes.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from engines.environment import inherited
from engines.host.child import Child

MARGIN = 0.05
"""Share of the free memory that is left alone: drivers, fragmentation, the error of this estimate."""
DEVICE_OVERHEAD = 256 * 1024 * 1024
"""A GPU context and its libraries' workspaces."""
INSPECT_SECONDS = 20.0
CACHE_SHARES: Final[dict[str, float]] = {"f16": 1.0, "q8_0": 34 / 64, "q4_0": 18 / 64}
"""The KV memory with values of these types against 16 bits a value (llama.cpp: blocks of 32 values and a scale)."""


class Metadata(msgspec.Struct, frozen=True):
    """What placement needs to know about a model; a runtime's reader prints it (`engines.llamacpp.gguf`)."""

    architecture: str
    quantisation: str
    parameters: int
    layers: int
    width: int
    context: int
    vocabulary: int
    has_template: bool
    weights: int
    layer_sizes: tuple[int, ...]
    input_size: int
    output_size: int
    kv_per_token: tuple[int, ...]
    """Bytes of keys and values of one token at 16 bits, for each layer."""
    pooling: int = 0
    """llama.cpp's pooling type; models other than 0 make embeddings."""


class InvalidModel(Exception):
    """The file cannot be used; the message says why."""


async def inspect(reader: str, path: str) -> Metadata:
    """A model's metadata, as `python -m READER PATH` prints it in a process of its own. Raises InvalidModel."""
    process = Child((sys.executable, "-m", reader, path), line=None, environment=inherited(os.environ))
    try:
        async with asyncio.timeout(INSPECT_SECONDS):
            code = await process.wait()
    except TimeoutError:
        raise InvalidModel(f"{path}: could not be read within {INSPECT_SECONDS:.0f} s") from None
    finally:
        process.kill()
    if code != 0:
        lines = process.errors.decode("utf-8", "replace").strip().splitlines()
        raise InvalidModel(lines[-1] if lines else f"{path}: the reader ended with {code}")
    return msgspec.json.decode(process.output, type=Metadata)


class InsufficientMemory(Exception):
    """The model does not fit. `needed` and `free` are bytes."""

    def __init__(self, device: str, needed: int, free: int) -> None:
        super().__init__(f"{device}: {_mib(needed)} MiB needed, {_mib(free)} MiB free")
        self.device = device
        self.needed = needed
        self.free = free


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that `layers` layers take on the device, and bytes that stay in main memory."""

    layers: int
    device: int
    host: int


def need(metadata: Metadata, layers: int, *, cells: int, micro_batch: int, sequences: int) -> Need:
    """Memory with the last `layers` layers on the device; one more than all of them puts the output there too (llama.cpp's count).

    `cells` is the number of tokens the KV memory holds. llama.cpp offloads from the last layer backwards and keeps the
    input embedding in main memory. Activations: about eight rows of the model's width in 32 bits for each token of a
    micro-batch, and the logits of each sequence.
    """
    total = metadata.layers
    output = layers > total
    layers = min(layers, total)
    per_layer = [size + cells * kv for size, kv in zip(metadata.layer_sizes, metadata.kv_per_token, strict=True)]
    buffer = 4 * (micro_batch * metadata.width * 8 + max(sequences, 1) * metadata.vocabulary)
    device = sum(per_layer[total - layers :])
    host = sum(per_layer[: total - layers]) + metadata.input_size + buffer
    if output:
        device += metadata.output_size or metadata.input_size  # tied weights are copied
    else:
        host += metadata.output_size
    if layers or output:
        device += buffer + DEVICE_OVERHEAD
    return Need(layers + output, device, host)


def with_cache(metadata: Metadata, *kinds: object) -> Metadata:
    """The metadata with the KV memory that these types of keys and values take (None: 16 bits); where they differ, the larger counts."""
    share = max((CACHE_SHARES.get(kind, 1.0) if isinstance(kind, str) else 1.0 for kind in kinds), default=1.0)
    return (
        metadata
        if share == 1
        else msgspec.structs.replace(metadata, kv_per_token=tuple(math.ceil(size * share) for size in metadata.kv_per_token))
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement. `gpu_layers` of `layers` (the output counts as one more) run on the device; `split` is each device's share.

    `device_bytes` and `host_bytes` are what is needed there in all; `weights_bytes` and `kv_bytes` of them are the file's tensors
    and the KV memory of `slots` times `context` tokens.
    """

    device: str
    gpu_layers: int
    layers: int
    context: int
    slots: int
    device_bytes: int
    host_bytes: int
    weights_bytes: int
    kv_bytes: int
    split: tuple[float, ...] = ()

    def options(self) -> dict[str, Any]:
        """The `options` that tell the sidecar about the plan."""
        if self.device == "cpu":
            return {"gpu_layers": 0}
        options: dict[str, Any] = {"gpu_layers": self.gpu_layers}
        if len(self.split) > 1:
            options["tensor_split"] = list(self.split)
        return options

    def report(self) -> dict[str, Any]:
        """The plan as operators see it."""
        return {
            "device": self.device, "gpu_layers": self.gpu_layers, "layers": self.layers, "context": self.context,
            "weights_bytes": self.weights_bytes, "kv_bytes": self.kv_bytes, "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes, "split": list(self.split),
        }  # fmt: skip


def plan(
    metadata: Metadata, device: str, free_bytes: int | Sequence[int] | None, context: int, slots: int, *, host_free: int | None = None,
    micro_batch: int = 512, partial: bool = True, layers: int | None = None,
) -> Plan:  # fmt: skip
    """Plans the placement of a model.

    metadata: from `inspect`. device: `cpu`, `cuda:0`, `cuda:0,1` ... free_bytes: free memory of the device, one number for each GPU
    (for `cpu`: of the machine); None if unknown, and then unchecked. context: tokens of one slot. slots: sequences at once. host_free:
    free main memory, if it is to be checked beside a GPU's. partial: whether layers may stay in main memory if not all fit; otherwise
    a GPU must hold the whole model. layers: offload exactly this many, fit or not (an operator's decision).

    Offloads as many layers as fit, the last first, as llama.cpp does. Raises InsufficientMemory.
    """
    size = min(context, metadata.context)
    frees = [] if free_bytes is None else [free_bytes] if isinstance(free_bytes, int) else list(free_bytes)
    cells = size * slots

    def sized(layers: int) -> tuple[int, int]:
        wanted = need(metadata, layers, cells=cells, micro_batch=micro_batch, sequences=slots)
        return wanted.device, wanted.host

    everything = metadata.layers + 1
    if device == "cpu":
        host_free, layers = min(frees, default=None), 0
    elif layers is not None or not frees:
        layers = everything if layers is None else min(layers, everything)
    else:
        usable = sum(int(free * (1 - MARGIN)) for free in frees)
        layers = everything
        while layers > 0 and sized(layers)[0] + (len(frees) - 1) * _extra(metadata, micro_batch, slots) > usable:
            layers -= 1
        if layers == 0 or (layers < everything and not partial):
            raise InsufficientMemory(device, sized(everything if not partial else 1)[0], sum(frees))
    on_device, host = sized(layers)
    if host_free is not None:
        _fits("cpu" if device == "cpu" else "main memory", host, host_free)
    split = tuple(round(free / max(sum(frees), 1), 4) for free in frees) if device != "cpu" and len(frees) > 1 else ()
    return Plan(device, layers, everything, size, slots, on_device, host, metadata.weights, cells * sum(metadata.kv_per_token), split)


def _extra(metadata: Metadata, micro_batch: int, slots: int) -> int:
    """What every further GPU costs beyond its share: its own buffers."""
    return need(metadata, 1, cells=0, micro_batch=micro_batch, sequences=slots).device - metadata.layer_sizes[-1]


def _fits(device: str, needed: int, free: int) -> None:
    if needed > free * (1 - MARGIN):
        raise InsufficientMemory(device, needed, free)


def _mib(size: int) -> int:
    return -(-size // (1024 * 1024))
