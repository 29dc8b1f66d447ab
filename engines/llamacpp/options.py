"""The `options` of a llama.cpp engine. Imports nothing of the runtime: the gateway checks them before it starts a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta

from engines.chat.defaults import Defaults, Format
from engines.llamacpp.pacing import HOLD
from engines.llamacpp.scheduler import MIN_CHUNK, STALL
from engines.sidecar.loading import ShellOptions
from gateway.core.specs import Seconds, Spec

MAX_SEQUENCES: Final = 256
"""llama.cpp's limit on sequences of one context."""
MICRO_BATCH: Final = 512
"""Most tokens that llama.cpp computes at once: the size of its buffers."""
SCORED_CHUNK: Final = 32
"""Most prompt tokens of a step if each one's logits (the whole vocabulary) are wanted."""
_ENCODER_DECODERS: Final = frozenset({"t5", "t5encoder"})
"""Architectures for which llama.cpp reserves logits of every token of a batch, whatever it is told."""

CacheType = Literal["f16", "q8_0", "q4_0"]
CACHE_BYTES: Final[dict[str, float]] = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes of one value in the KV memory: llama.cpp's blocks hold 32 values and a scale."""


class Draft(Spec, frozen=True):
    """A small model that guesses a larger one's next tokens."""

    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,250}\.gguf$")]
    """A file in the model's folder; of a model in parts, the first."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")] | None = None


class Speculation(Spec, frozen=True):
    """Several tokens a step where the next ones can be guessed: what followed when the last tokens occurred before, in prompt or answer,
    or what a small model says."""

    tokens: Annotated[int, Meta(ge=1, le=64)] = 16
    """Most guessed tokens of one request in a step."""
    match: Annotated[int, Meta(ge=2, le=16)] = 3
    """How many last tokens must have occurred before."""
    draft: Draft | None = None
    """A small model of the same vocabulary, which guesses where nothing repeats itself."""


class Adapter(Spec, frozen=True):
    """A LoRA adapter that is loaded with the model."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """What follows the colon in the name of a model that uses it."""
    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,250}\.gguf$")]
    """A file in the model's folder."""
    scale: Annotated[float, Meta(ge=-100, le=100)] = 1.0
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")] | None = None


class LlamaOptions(ShellOptions, frozen=True):
    """The `options` of an engine with `runtime: llama.cpp`."""

    batch: Annotated[int, Meta(ge=32, le=8192)] = 512
    """Most tokens of one step."""
    cached_lines: Annotated[int, Meta(ge=0, le=255)] | None = None
    """Sequences kept for prefix reuse in addition to the slots; default: as many as slots."""
    gpu_layers: Annotated[int, Meta(ge=-1)] | None = None
    """Layers on the device, as placement computed them; default: all."""
    tensor_split: tuple[Annotated[float, Meta(ge=0)], ...] = ()
    """Each device's share of the layers, if there are several."""
    allow_partial: bool = False
    """Whether placement may leave layers in main memory if the device cannot hold them all."""
    mmap: bool = True
    mlock: bool = False
    flash_attention: Literal["auto", "on", "off"] = "auto"
    stall: Annotated[float, Meta(ge=1.1, le=100)] = STALL
    """How much longer than usual a step may take when it reads prompts beside running streams."""
    least_chunk: Annotated[int, Meta(ge=1, le=512)] = MIN_CHUNK
    """The fewest prompt tokens of a step that reads prompts beside running streams, even if they take longer than `stall` allows."""
    hold: Seconds = HOLD
    """Seconds that a stream's token may be held back, so that streams stay even while a prompt is read in large pieces; 0: never."""
    sampling: Defaults | None = None
    template: str | None = None
    """A chat template (jinja) instead of the file's own."""
    format: Format | None = None
    """How the model writes calls and reasoning; default: as its template tells."""
    pinned: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    """System prompts whose KV is computed at the start and never forgotten."""
    embeddings: bool | None = None
    """Serve `/v1/embeddings` instead of text; default: if the file names a pooling."""
    cache_type_k: CacheType = "f16"
    """How keys are kept in the KV memory."""
    cache_type_v: CacheType = "f16"
    """How values are kept in the KV memory; other than f16 only with flash attention."""
    adapters: Annotated[tuple[Adapter, ...], Meta(max_length=64)] = ()
    """LoRA adapters, chosen by a request's model: `base:adapter`."""
    speculation: Speculation | None = None
    """Guess tokens and check several in a step; default: never."""
    kv_unified: bool | None = None
    """Whether all sequences share one KV memory, which costs nothing to share prefixes in, instead of each having its own, whose
    attention skips those of others; default: on the CPU."""
    swa_full: bool = True
    """Whether layers with a sliding window keep the keys and values of the whole context, so that any beginning of a prompt can be reused;
    without, they keep the window, and only whole conversations are gone on with."""
    choosers: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Threads that choose the next tokens of streams; default: on GPUs up to 8, on the CPU one."""
    working_interval: Seconds = 5.0
    """Seconds between comments in a stream that is silent while the engine works or the request waits; 0: none."""


def is_unified(wanted: bool | None, device: str) -> bool:
    """Whether an engine on this device has one KV memory for all sequences. CUDA's attention skips nothing in it: every stream would look
    at everyone's tokens."""
    return device == "cpu" if wanted is None else wanted


def sequences(slots: int, cached: int | None, pinned: int, *, unified: bool = True) -> int:
    """Lines of the KV memory: one for each slot and pinned prompt, and those that are kept. cached: how many of these; None: as many as
    slots, or where each line takes memory of its own, none."""
    kept = (slots if unified else 0) if cached is None else cached
    return min(MAX_SEQUENCES, slots + pinned + kept)


def most_outputs(batch: int, slots: int, lines: int, drafts: int = 0) -> int:
    """Rows of logits that one step may ask for: each slot's, with those of as many guesses (`drafts`), or with a chunk of a scored prompt.
    llama.cpp wants room for each line."""
    return max(lines, min(batch, slots + max(slots * drafts, SCORED_CHUNK)))


def draft_file(options: Mapping[str, Any]) -> str | None:
    """The file of the draft model that these options (not checked yet) name, which lies beside the model's."""
    guesses = options.get("speculation")
    draft = guesses.get("draft") if isinstance(guesses, dict) else None
    file = draft.get("file") if isinstance(draft, dict) else None
    return file if isinstance(file, str) and "/" not in file else None


class StepSize(NamedTuple):
    """What llama.cpp reserves buffers for. micro_batch: tokens of a step. outputs: rows of logits. lines: of the KV memory. partial: layers
    may stay in main memory. unified: the lines share their memory."""

    micro_batch: int
    outputs: int
    lines: int
    partial: bool
    unified: bool


def step_size(options: Mapping[str, Any], slots: int, architecture: str, device: str) -> StepSize:
    """What an engine with these options (not checked yet) reserves, before it is started."""
    default, guesses = LlamaOptions(), options.get("speculation")
    batch, cached, pinned = options.get("batch"), options.get("cached_lines"), options.get("pinned") or ()
    batch = batch if isinstance(batch, int) else default.batch
    unified = is_unified(options.get("kv_unified", default.kv_unified), device)
    lines = sequences(slots, cached if isinstance(cached, int) else None, len(pinned), unified=unified)
    drafts = guesses.get("tokens", Speculation().tokens) if isinstance(guesses, dict) else 0
    micro_batch = min(MICRO_BATCH, batch)
    outputs = micro_batch if architecture in _ENCODER_DECODERS else most_outputs(batch, slots, lines, drafts)
    return StepSize(micro_batch, outputs, lines, options.get("allow_partial", default.allow_partial) is True, unified)
