"""The llama.cpp sidecar: checks and loads a GGUF file, and serves it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import llama_cpp
import msgspec
from msgspec import Meta, Struct

from engines import sidecar
from engines.llamacpp.batcher import Batcher
from engines.llamacpp.chat import ChatTemplate
from engines.llamacpp.engine import Engine, cores
from engines.llamacpp.gguf import GgufError, Metadata, describe, read
from engines.llamacpp.handlers import Handlers
from engines.llamacpp.native import Context, Model, NativeError, NativeLog
from engines.llamacpp.params import Defaults
from engines.sidecar import Handler, LoadError, Request, Response, Stream, verify_sha256
from gateway.core.specs import SidecarSpec

MAX_SEQUENCES = 256
"""llama.cpp's limit on sequences of one context."""


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """`options` of an engine with `runtime: llama.cpp`."""

    batch: Annotated[int, Meta(ge=32, le=8192)] = 512
    """Most tokens of one step."""
    cached_lines: Annotated[int, Meta(ge=0, le=255)] | None = None
    """Sequences kept for prefix reuse beside the slots; default: as many as slots."""
    gpu_layers: Annotated[int, Meta(ge=-1)] | None = None
    """Layers on the device, as placement computed them; default: all."""
    tensor_split: tuple[Annotated[float, Meta(ge=0)], ...] = ()
    """Each device's share of the layers, where there are several."""
    mmap: bool = True
    mlock: bool = False
    flash_attention: Literal["auto", "on", "off"] = "auto"
    stall: Annotated[float, Meta(ge=1.1, le=100)] = 2.5
    """How much longer than usual a step may become by prompts being read beside running streams."""
    sampling: Defaults | None = None
    template: str | None = None
    """A chat template (jinja) instead of the file's own."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = sidecar.DEFAULT_MAX_BODY


class LlamaRuntime:
    """`engines.sidecar.Runtime` for GGUF models."""

    def __init__(self, spec: SidecarSpec) -> None:
        self._spec = spec
        try:
            self._options = msgspec.convert(spec.options, Options)
        except msgspec.ValidationError as exc:
            raise ValueError(f"options of engine {spec.name}: {exc}") from None
        self._log: NativeLog | None = None
        self._engine: Engine | None = None
        self._handlers: Handlers | None = None
        self._sha256: str | None = None
        self._metadata: Metadata | None = None

    def load(self) -> None:
        """Check the file, load it, make the context. Raises LoadError."""
        spec, options = self._spec, self._options
        path = Path(spec.model)
        self._metadata = check_file(path)
        self._sha256 = verify_sha256(path, spec.sha256)
        self._check_memory(self._metadata)
        self._log = NativeLog()
        layers = self._gpu_layers(self._metadata)
        try:
            model = Model(
                str(path), self._log, gpu_layers=layers, use_mmap=options.mmap, use_mlock=options.mlock, split=options.tensor_split
            )  # fmt: skip
        except NativeError as exc:
            raise LoadError("model_invalid", f"{path}: {exc}") from None
        try:
            self._engine = self._build(model, self._log)
        except NativeError as exc:
            model.close()
            raise LoadError("insufficient_memory", f"{path}: {exc}") from None
        self._handlers = Handlers(self._engine)

    def _check_memory(self, metadata: Metadata) -> None:
        """Refuse what cannot fit into main memory before llama.cpp tries (devices are the supervisor's placement)."""
        spec = self._spec
        share = 0.0 if self._gpu_layers(metadata) > metadata.layers else 1 - self._gpu_layers(metadata) / (metadata.layers + 1)
        cells = min(spec.context, metadata.context) * spec.slots
        wanted = int(share * (metadata.weights + cells * sum(metadata.kv_per_token)))
        free = available_memory()
        if free is not None and wanted > free:
            raise LoadError("insufficient_memory", f"{spec.model}: {wanted >> 20} MiB of memory needed, {free >> 20} MiB available")

    def _gpu_layers(self, metadata: Metadata) -> int:
        """Layers on the device, the output counted as one more."""
        if self._spec.device == "cpu":
            return 0
        layers = self._options.gpu_layers
        return metadata.layers + 1 if layers is None or layers < 0 else min(layers, metadata.layers + 1)

    def _build(self, model: Model, log: NativeLog) -> Engine:
        spec, options = self._spec, self._options
        size = min(spec.context, model.n_ctx_train) if model.n_ctx_train > 0 else spec.context
        lines = min(MAX_SEQUENCES, spec.slots + (spec.slots if options.cached_lines is None else options.cached_lines))
        threads = spec.threads or cores()
        flash = {
            "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
            "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }[options.flash_attention]
        context = Context(
            model, log, cells=size * spec.slots, sequences=lines, batch=options.batch, micro_batch=min(512, options.batch),
            threads=threads, threads_batch=threads, flash=flash,
        )  # fmt: skip
        batcher = Batcher(model, context, slots=spec.slots, queue=spec.queue, batch=options.batch, lines=lines, stall=options.stall)
        source = options.template
        if source is None:
            raw = llama_cpp.llama_model_chat_template(model.handle, None)
            source = raw.decode("utf-8", "replace") if raw else None
        bos = model.special_piece(model.bos).decode("utf-8", "replace") if model.bos >= 0 else ""
        eos = model.special_piece(model.eos).decode("utf-8", "replace") if model.eos >= 0 else ""
        return Engine(
            name=spec.name, model=model, context=context, batcher=batcher, defaults=options.sampling or Defaults(),
            template=ChatTemplate(source, bos=bos, eos=eos) if source else None, bos_text=bos, context_size=size,
            created=int(time.time()), executor=ThreadPoolExecutor(2, "prepare"),
        )  # fmt: skip

    async def start(self) -> None:
        """Start the decode thread."""
        sys.setswitchinterval(0.0005)  # the decode thread waits for the interpreter no longer than this
        self._loaded().batcher.start()

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """The OpenAI paths."""
        return {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._complete,
            ("GET", "/v1/models"): self._models,
        }

    async def _chat(self, request: Request) -> Response | Stream:
        return await self._serving().chat(request)

    async def _complete(self, request: Request) -> Response | Stream:
        return await self._serving().complete(request)

    async def _models(self, request: Request) -> Response:
        return await self._serving().models(request)

    def health(self) -> dict[str, Any]:
        """Load and device figures; `state: failed` when the decode thread gave up."""
        engine = self._loaded()
        stats = engine.batcher.stats
        report: dict[str, Any] = {
            "sha256": self._sha256,
            "in_use": stats.in_use,
            "queue": stats.waiting,
            "kv_used": round(min(1.0, stats.cells_used / engine.context.cells), 4),
            "tokens_per_second": round(stats.rate_at(time.monotonic()), 1),
            "context": engine.context_size,
            "placement": self._placement(),
        }
        if engine.batcher.failed is not None:
            report |= {"state": "failed", "reason": engine.batcher.failed, "reason_code": "engine_failed"}
        return report

    def _placement(self) -> dict[str, Any]:
        """What is where: the plan the model was loaded by."""
        data = self._metadata
        if data is None:
            return {}
        return {
            "architecture": data.architecture, "quantisation": data.quantisation, "parameters": data.parameters,
            "layers": data.layers + 1, "device_layers": self._gpu_layers(data), "weights_bytes": data.weights,
            "kv_bytes_per_token": sum(data.kv_per_token), "split": list(self._options.tensor_split),
        }  # fmt: skip

    def metrics(self) -> str:
        """Counters of the decode thread."""
        stats = self._loaded().batcher.stats
        values = (
            ("prompt_tokens_total", "counter", stats.prompt_tokens),
            ("cached_prompt_tokens_total", "counter", stats.cached_tokens),
            ("generated_tokens_total", "counter", stats.generated_tokens),
            ("decode_steps_total", "counter", stats.steps),
            ("decode_seconds_total", "counter", round(stats.decode_seconds, 6)),
            ("sequences_total", "counter", stats.requests),
            ("cancelled_total", "counter", stats.cancelled),
            ("faults_total", "counter", stats.faults),
            ("slots_in_use", "gauge", stats.in_use),
            ("waiting", "gauge", stats.waiting),
            ("kv_cells_used", "gauge", stats.cells_used),
        )
        return "".join(f"# TYPE gatehouse_llamacpp_{name} {kind}\ngatehouse_llamacpp_{name} {value}\n" for name, kind, value in values)

    async def aclose(self) -> None:
        """End the decode thread and free the memory."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.batcher.close()
            engine.executor.shutdown(wait=False, cancel_futures=True)
            engine.context.close()
            engine.model.close()

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the model is not loaded")
        return self._engine

    def _serving(self) -> Handlers:
        if self._handlers is None:
            raise RuntimeError("the model is not loaded")
        return self._handlers


def check_file(path: Path) -> Metadata:
    """Check a file before anything native sees it. Raises LoadError naming what is wrong."""
    if not path.is_file():
        raise LoadError("model_missing", f"{path}: no such model file")
    try:
        return describe(read(path))
    except GgufError as exc:
        raise LoadError("model_invalid", f"{path}: {exc}") from None
    except OSError as exc:
        raise LoadError("model_missing", f"{path}: {exc.strerror}") from None


def available_memory() -> int | None:
    """Main memory that can be had without swapping, in bytes; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def main() -> int:
    """Entry point of the process."""
    return sidecar.run(LlamaRuntime)
