"""How much memory a model needs where: weights, KV, compute buffers. Pure arithmetic on a file's metadata; all sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from engines.llamacpp.gguf import Metadata

MARGIN = 0.05
"""Share of the free memory that is left alone (drivers, fragmentation, the error of this estimate)."""
DEVICE_OVERHEAD = 256 * 1024 * 1024
"""A GPU context and its libraries' workspaces."""


@dataclass(frozen=True, slots=True)
class Need:
    """What `layers` layers on the device take there, and what stays in main memory."""

    layers: int
    device: int
    host: int


def compute_buffer(metadata: Metadata, micro_batch: int, sequences: int) -> int:
    """Activations of one micro-batch: about eight rows of the model's width in 32 bits a token, and the logits."""
    return 4 * (micro_batch * metadata.width * 8 + max(sequences, 1) * metadata.vocabulary)


def need(metadata: Metadata, layers: int, *, cells: int, micro_batch: int, sequences: int) -> Need:
    """Memory with the last `layers` layers on the device; `layers + 1` of all layers puts the output there too (llama.cpp's count).

    `cells` is the number of tokens the KV memory holds. llama.cpp offloads from the last layer backwards and keeps the
    input embedding in main memory.
    """
    total = metadata.layers
    output = layers > total
    layers = min(layers, total)
    per_layer = [size + cells * kv for size, kv in zip(metadata.layer_sizes, metadata.kv_per_token, strict=True)]
    buffer = compute_buffer(metadata, micro_batch, sequences)
    device = sum(per_layer[total - layers :])
    host = sum(per_layer[: total - layers]) + metadata.input_size
    if output:
        device += metadata.output_size or metadata.input_size  # tied weights are copied
    else:
        host += metadata.output_size
    if layers or output:
        device += buffer + DEVICE_OVERHEAD
    return Need(layers + output, device, host + buffer)
