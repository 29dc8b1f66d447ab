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
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from engines.environment import inherited
from engines.host.child import Child
from engines.windows import window_cells

MARGIN = 0.05
"""Share of the free memory that is left alone: drivers, fragmentation, the error of this estimate."""
DEVICE_OVERHEAD = 256 * 1024 * 1024
"""Bytes of a GPU context with its libraries' workspaces, where nothing was measured (engines.host.memory)."""
INSPECT_SECONDS = 20.0
_PIPELINES = 4
_HALVINGS = 20
"""Steps in which `spread` looks for the most even distribution: to a millionth of a device."""
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
    """Bytes of keys and values of one token for each layer, at 16 bits unless `with_cache` says otherwise."""
    kv_copied: int = 0
    """Bytes of a token of which a GPU makes a copy at 16 bits while it works on a layer, whose keys and values have fewer."""
    pooling: int = 0
    """llama.cpp's pooling type; models other than 0 make embeddings."""
    feed_forward: int = 0
    """The feed-forward's width, of all experts that a token uses together; 0 if the file does not say."""
    heads: int = 0
    window: int = 0
    """Tokens that layers with a sliding window look back; 0: there are none."""
    windowed: tuple[bool, ...] = ()
    """Which layers have the window; empty where nothing is known."""


class Kept(msgspec.Struct, frozen=True):
    """What is planned of a model that fits as a whole or not at all, beside its files; a runtime's reader prints it. context: tokens that a
    sequence holds at most. kv_bytes: of the keys and values of each."""

    context: int
    kv_bytes: int


class InvalidModel(Exception):
    """The file cannot be used; the message says why."""


async def inspect(reader: str, path: str) -> Metadata:
    """A model's metadata, as `python -m READER PATH` prints it in a process of its own. Raises InvalidModel."""
    return msgspec.json.decode(await _printed(reader, path), type=Metadata)


async def inspect_kept(reader: str, path: str) -> Kept:
    """The same for a model whose memory is not planned in detail. Raises InvalidModel."""
    return msgspec.json.decode(await _printed(reader, path), type=Kept)


async def _printed(reader: str, path: str) -> bytes:
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
    return process.output


class InsufficientMemory(Exception):
    """The model does not fit. `needed` and `free` are bytes of all devices together; `hint` says what else could be done."""

    def __init__(self, device: str, needed: int, free: int, hint: str = "") -> None:
        super().__init__(f"{device}: {mebibytes(needed)} MiB needed, {mebibytes(free)} MiB free{hint and '; '}{hint}")
        self.device = device
        self.needed = needed
        self.free = free
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one llama.cpp context, which its memory depends on. cells: tokens that the KV memory holds; seen: how many of them a
    sequence attends to, if not all. micro_batch: tokens of a step. outputs: rows of logits that a step may ask for. sequences: lines of the
    KV memory. flash: flash attention. copies: of a step's inputs, 4 if several devices work on steps in turn (llama.cpp's pipelines).
    overhead: bytes on each GPU for its context."""

    cells: int
    micro_batch: int
    outputs: int
    sequences: int
    flash: bool = True
    copies: int = 1
    seen: int | None = None
    overhead: int = DEVICE_OVERHEAD


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes by where they go. layers: of each one that is offloaded, in order, the output last if it is among them. fixed: on every device
    that has a layer. host: in main memory."""

    layers: tuple[int, ...]
    fixed: int
    host: int

    @property
    def device(self) -> int:
        """Bytes on one device that holds all of them."""
        return sum(self.layers) + self.fixed if self.layers else 0


def activations(metadata: Metadata, work: Work) -> int:
    """Bytes of a step's intermediate results, as llama.cpp reserves them for the largest micro-batch.

    Measured over its compute buffers: the larger of four rows of the feed-forward's width and eight of the model's in 32 bits a token, and
    the attention mask, 16 bits a token and cell. Without flash attention the mask has 32 bits, and every head has its scores beside it.
    """
    wide = max(8 * metadata.width, 4 * (metadata.feed_forward or 2 * metadata.width))
    mask, scores = (2, 0) if work.flash else (4, 4 * max(metadata.heads, 1))
    seen = work.cells if work.seen is None else work.seen
    return work.micro_batch * (4 * wide + seen * (mask * work.copies + scores))


def need(metadata: Metadata, layers: int, work: Work) -> Need:
    """Memory with the last `layers` layers on the device; one more than all of them puts the output there too (llama.cpp's count).

    llama.cpp offloads from the last layer backwards and keeps the input embedding in main memory. The logits are computed where the output
    is, `outputs` rows of the vocabulary's size in 32 bits, and copied to main memory, a row for each sequence.
    """
    total, row = metadata.layers, 4 * metadata.vocabulary
    output = layers > total
    layers = min(layers, total)
    each = [size + work.cells * kv for size, kv in zip(metadata.layer_sizes, metadata.kv_per_token, strict=True)]
    logits = min(work.outputs, work.micro_batch) * row
    buffer = activations(metadata, work)
    host = sum(each[: total - layers]) + metadata.input_size + buffer + max(work.sequences, 1) * row
    offloaded = each[total - layers :]
    if output:
        offloaded.append((metadata.output_size or metadata.input_size) + logits)  # tied weights are copied
    else:
        host += metadata.output_size + logits
    return Need(tuple(offloaded), buffer + work.overhead + work.cells * metadata.kv_copied, host)


def spread(need: Need, usable: Sequence[int]) -> tuple[int, ...] | None:
    """How many of the layers each device gets, in order, all of them as full as the others if that can be; None if they do not fit.

    llama.cpp gives the devices consecutive layers, the first device the first of them.
    """

    def fill(share: float) -> tuple[int, ...] | None:
        counts, at = [], 0
        for room in usable:
            left, start = room * share - need.fixed, at
            while at < len(need.layers) and need.layers[at] <= left:
                left -= need.layers[at]
                at += 1
            counts.append(at - start)
        return tuple(counts) if at == len(need.layers) else None

    best = fill(1.0)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS if best is not None and len(usable) > 1 else 0):
        middle = (low + high) / 2
        found = fill(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def with_cache(metadata: Metadata, *kinds: object) -> Metadata:
    """The metadata with the KV memory that these types of keys and values take (None: 16 bits); where they differ, the larger counts."""
    share = max((CACHE_SHARES.get(kind, 1.0) if isinstance(kind, str) else 1.0 for kind in kinds), default=1.0)
    return (
        metadata
        if share == 1
        else msgspec.structs.replace(
            metadata,
            kv_per_token=tuple(math.ceil(size * share) for size in metadata.kv_per_token),
            kv_copied=max(metadata.kv_per_token, default=0),
        )
    )


def with_window(metadata: Metadata, context: int, slots: int, lines: int | None, micro_batch: int, *, unified: bool) -> Metadata:
    """The metadata with the KV memory of layers that keep their window only (`swa_full: false`); the arguments are those of `plan`."""
    if not metadata.window or len(metadata.windowed) != metadata.layers:
        return metadata
    sequences = max(lines or slots, 1)
    cells = min(context, metadata.context) * (slots if unified else sequences)
    share = window_cells(cells, metadata.window, sequences, micro_batch, unified=unified) / cells
    kept = zip(metadata.kv_per_token, metadata.windowed, strict=True)
    return msgspec.structs.replace(metadata, kv_per_token=tuple(math.ceil(size * share) if window else size for size, window in kept))


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement. `gpu_layers` of `layers` (the output counts as one more) run on the device; `split` are the layers of each of several.

    `device_bytes` and `host_bytes` are what is needed there in all, `each` what each device gets of the former; `weights_bytes` and
    `kv_bytes` of them are the file's tensors and the KV memory of `slots` times `context` tokens.
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
    each: tuple[int, ...] = ()

    def beside(self, draft: Plan) -> Plan:
        """This plan with what a draft model takes on the first device and in main memory."""
        each = (self.each[0] + draft.device_bytes, *self.each[1:]) if self.each else ()
        return replace(
            self, device_bytes=self.device_bytes + draft.device_bytes, host_bytes=self.host_bytes + draft.host_bytes, each=each,
            weights_bytes=self.weights_bytes + draft.weights_bytes, kv_bytes=self.kv_bytes + draft.kv_bytes,
        )  # fmt: skip

    def on_each(self, count: int) -> tuple[int, ...]:
        """Bytes on each of `count` devices; what is not known for each is taken to be even."""
        return self.each if len(self.each) == count else (self.device_bytes // max(count, 1),) * count

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
            "host_bytes": self.host_bytes, "split": list(self.split), "each_device_bytes": list(self.each),
        }  # fmt: skip


def plan(
    metadata: Metadata, device: str, free_bytes: int | Sequence[int] | None, context: int, slots: int, *, host_free: int | None = None,
    micro_batch: int = 512, outputs: int | None = None, lines: int | None = None, flash: bool = True, unified: bool = True,
    partial: bool = False, layers: int | None = None, overhead: int = DEVICE_OVERHEAD,
) -> Plan:  # fmt: skip
    """Plans the placement of a model.

    metadata: from `inspect`. device: `cpu`, `cuda:0`, `cuda:0,1` ... free_bytes: free memory of the device, one number for each GPU
    (for `cpu`: of the machine); None if unknown, and then unchecked. context: tokens of one slot. slots: sequences at once. host_free:
    free main memory, if it is to be checked beside a GPU's. micro_batch, outputs (default: as many), lines (default: the slots), flash: see
    `Work`. unified: the lines share cells for the slots; else each has its own.
    overhead: of each GPU's context.
    partial: whether layers may stay in main memory if not all fit; otherwise the GPUs must hold the whole model. layers: offload
    exactly this many, fit or not (an operator's decision).

    Offloads as many layers as fit, the last first, as llama.cpp does, and of several GPUs gives each what fits there. Raises
    InsufficientMemory.
    """
    size = min(context, metadata.context)
    frees = [] if free_bytes is None else [free_bytes] if isinstance(free_bytes, int) else list(free_bytes)
    sequences, copies = max(lines or slots, 1), _PIPELINES if len(frees) > 1 else 1
    cells = size * (slots if unified else sequences)
    work = Work(
        cells, micro_batch, micro_batch if outputs is None else outputs, sequences, flash, copies, None if unified else size, overhead
    )
    everything = metadata.layers + 1
    split: tuple[int, ...] = ()
    if device == "cpu":
        host_free, layers = min(frees, default=None), 0
    elif layers is not None or not frees:
        layers = everything if layers is None else min(layers, everything)
    else:
        layers, split = _fitting(metadata, device, frees, work, partial)
    wanted = need(metadata, layers, work)
    if host_free is not None:
        _fits("cpu" if device == "cpu" else "main memory", wanted.host, host_free)
    each = _each(wanted, split)
    return Plan(
        device, layers, everything, size, slots, sum(each) if each else wanted.device, wanted.host, metadata.weights,
        work.cells * sum(metadata.kv_per_token), split if len(split) > 1 else (), each,
    )  # fmt: skip


def _fitting(metadata: Metadata, device: str, frees: list[int], work: Work, partial: bool) -> tuple[int, tuple[int, ...]]:
    """(how many layers fit on the devices, how many of them on each). Raises InsufficientMemory."""
    usable = [int(free * (1 - MARGIN)) for free in frees]
    everything = metadata.layers + 1
    for layers in range(everything, 0, -1):
        split = spread(need(metadata, layers, work), usable)
        if split is None:
            continue
        if layers == everything or partial:
            return layers, split
        hint = f"{layers} of {everything} layers would fit: with 'allow_partial: true' in its options the others stay in main memory"
        break
    else:
        hint = "" if len(frees) == 1 else "no layer fits on any of them"
    whole = need(metadata, 1 if partial else everything, work)
    needed = whole.device + (0 if partial else (len(frees) - 1) * whole.fixed)
    raise InsufficientMemory(device, needed, sum(frees), hint)


def _each(need: Need, split: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes of each device with so many of the layers."""
    found, at = [], 0
    for count in split:
        found.append(sum(need.layers[at : at + count]) + (need.fixed if count else 0))
        at += count
    return tuple(found)


def _fits(device: str, needed: int, free: int) -> None:
    if needed > free * (1 - MARGIN):
        raise InsufficientMemory(device, needed, free)


def mebibytes(size: int) -> int:
    """Bytes in MiB, rounded up."""
    return -(-size // (1024 * 1024))
