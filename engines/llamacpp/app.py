"""The llama.cpp sidecar: checks and loads a GGUF file, and serves it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import msgspec

from engines.chat.conversation import Converser, Gbnf
from engines.chat.defaults import Defaults
from engines.chat.paths import TextPaths
from engines.chat.template import ChatTemplate
from engines.chat.tokens import VocabularyTokenizer
from engines.llamacpp import ggml
from engines.llamacpp.adapters import check_adapters
from engines.llamacpp.batcher import Batcher
from engines.llamacpp.choosing import thread_count as choosing_threads
from engines.llamacpp.cursor import GgufError
from engines.llamacpp.drafting import Drafter, check_draft, check_pair
from engines.llamacpp.embedder import Embedder, EmbeddingHandler
from engines.llamacpp.engine import Engine
from engines.llamacpp.gguf import Metadata, describe, files_of, read_model
from engines.llamacpp.native import Context, LoraAdapter, Model, NativeError, NativeLog
from engines.llamacpp.nvml import GpuMeter, GpuUse, meter
from engines.llamacpp.options import CACHE_BYTES, MAX_SEQUENCES, MICRO_BATCH, LlamaOptions, is_unified, most_outputs, sequences
from engines.llamacpp.reranker import LlamaPairs, PairReader
from engines.llamacpp.scheduler import StepCosts
from engines.sidecar import shell as sidecar
from engines.sidecar.loading import LoadError, verify_sha256
from engines.sidecar.memory import available_memory
from engines.sidecar.rerank import Rerank
from engines.sidecar.shell import ApiError, Handler, Request, Response
from engines.sidecar.threads import thread_count
from engines.sidecar.tokens import TokenHandler
from engines.windows import window_cells
from gateway.core.specs import SidecarSpec

_FLASH = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
TRIAL = "a text <s> é \0 日本 \n"
"""Characters of several kinds: a vocabulary may lack what it needs for one."""


class LlamaRuntime(TextPaths):
    """`engines.sidecar.shell.Runtime` for GGUF models."""

    def __init__(self, spec: SidecarSpec) -> None:
        super().__init__()
        self._spec = spec
        try:
            self._options = msgspec.convert(spec.options, LlamaOptions)
        except msgspec.ValidationError as exc:
            raise ValueError(f"options of engine {spec.name}: {exc}") from None
        self._log: NativeLog | None = None
        self._model: Model | None = None
        self._context: Context | None = None
        self._engine: Engine | None = None
        self._embedder: Embedder | None = None
        self._reranker: Rerank | None = None
        self._sha256: str | None = None
        self._metadata: Metadata | None = None
        self._gpu: GpuMeter | ggml.DeviceMeter | None = None
        self._pinned: list[list[int]] = []
        self._adapter_files: list[Path] = []
        self._draft_file: tuple[Path, Metadata] | None = None
        self._draft: tuple[Model, Context] | None = None

    def load(self) -> None:
        """Check the file, load it, make the context. Raises LoadError."""
        spec, options = self._spec, self._options
        path = Path(spec.model)
        self._metadata, files = check_file(path)
        self._sha256 = verify_sha256(path, spec.sha256, files[1:])
        self._adapter_files = check_adapters(options.adapters, path, self._metadata.architecture)
        if options.speculation is not None and options.speculation.draft is not None:
            self._draft_file = check_draft(options.speculation.draft, path)
        self._check_memory(self._metadata)
        self._log = NativeLog()
        layers = self._gpu_layers(self._metadata)
        if spec.device != "cpu" and not llama_cpp.llama_supports_gpu_offload():
            why = "llama-cpp-python was built without support for it, or finds no such device"
            raise LoadError("device_unavailable", f"{spec.device}: {why}")
        self._gpu = meter(spec.device) or (ggml.DeviceMeter() if spec.device.partition(":")[0] in ("vulkan", "rocm") else None)
        try:
            self._model = Model(
                str(path), self._log, gpu_layers=layers, use_mmap=options.mmap, use_mlock=options.mlock,
                split=options.tensor_split, several="," in spec.device,
            )  # fmt: skip
        except NativeError as exc:
            raise LoadError("model_invalid", f"{path}: {exc}") from None
        try:
            embeds = self._metadata.pooling > 0 if options.embeddings is None else options.embeddings
            self._check_abilities(self._model, embeds)
            if embeds:
                self._embedder = self._build_embedder(self._model, self._log)
            else:
                self._engine = self._build(self._model, self._log)
        except NativeError as exc:
            raise LoadError("insufficient_memory", f"{path}: {exc}") from None
        except ApiError as exc:
            raise LoadError("model_invalid", f"options.pinned: {exc}") from None
        self._try(self._model)

    def _try(self, model: Model) -> None:
        """Tokenizes a text, and embeds it if the model embeds (a generating model has run a step already). A file that crashes llama.cpp
        then does so now, while it is being loaded, and not with every request."""
        try:
            tokens = model.tokenize(TRIAL, add_special=True, parse_special=True)
            model.detokenize([*tokens, 0, model.n_vocab - 1])
            if self._embedder is not None and tokens:
                self._embedder.warm_up(tokens)
        except NativeError as exc:
            raise LoadError("model_invalid", f"{self._spec.model}: the first text failed: {exc}") from None

    def _check_abilities(self, model: Model, embeds: bool) -> None:
        """Refuse what this model cannot do: guesses that cannot be taken back, adapters and guesses where nothing is generated."""
        if embeds and self._options.adapters:
            raise LoadError("load_failed", "options.adapters: not with this model, it makes embeddings; leave the option out")
        if self._options.speculation is None:
            return
        windows = not self._options.swa_full and self._metadata is not None and self._metadata.window > 0
        if embeds or windows or not model.partial_memory:
            why = "it makes embeddings" if embeds else "its memory cannot forget single tokens (recurrent layers)"
            if windows:
                why = "with swa_full: false its memory cannot forget single tokens"
            raise LoadError("load_failed", f"options.speculation: not with this model, {why}; leave the option out")

    def _check_memory(self, metadata: Metadata) -> None:
        """Refuse what cannot fit into main memory before llama.cpp tries. Devices are planned by the supervisor."""
        spec = self._spec
        share = 0.0 if self._gpu_layers(metadata) > metadata.layers else 1 - self._gpu_layers(metadata) / (metadata.layers + 1)
        cells = min(spec.context, metadata.context) * spec.slots
        wanted = int(share * (metadata.weights + self._kv_bytes(metadata, cells) * self._kv_share()))
        wanted += sum(file.stat().st_size for file in self._adapter_files)
        if self._draft_file is not None and spec.device == "cpu":
            draft = self._draft_file[1]
            wanted += draft.weights + cells * sum(draft.kv_per_token)
        free = available_memory()
        if free is not None and wanted > free:
            raise LoadError("insufficient_memory", f"{spec.model}: {wanted >> 20} MiB of memory needed, {free >> 20} MiB available")

    def _kv_bytes(self, metadata: Metadata, cells: int) -> int:
        """Bytes of the KV memory at 16 bits a value."""
        if self._options.swa_full or not metadata.window or not metadata.windowed:
            return cells * sum(metadata.kv_per_token)
        unified = is_unified(self._options.kv_unified, self._spec.device)
        lines = sequences(self._spec.slots, self._options.cached_lines, len(self._options.pinned), unified=unified)
        few = window_cells(cells, metadata.window, lines, min(MICRO_BATCH, self._options.batch), unified=unified)
        return sum((few if window else cells) * kv for kv, window in zip(metadata.kv_per_token, metadata.windowed, strict=True))

    def _kv_share(self) -> float:
        """The KV memory's size against 16 bits a value."""
        return max(CACHE_BYTES[self._options.cache_type_k], CACHE_BYTES[self._options.cache_type_v]) / CACHE_BYTES["f16"]

    def _gpu_layers(self, metadata: Metadata) -> int:
        """Layers on the device; the output counts as one more."""
        if self._spec.device == "cpu":
            return 0
        layers = self._options.gpu_layers
        return metadata.layers + 1 if layers is None or layers < 0 else min(layers, metadata.layers + 1)

    def _context_size(self, model: Model) -> int:
        return min(self._spec.context, model.n_ctx_train) if model.n_ctx_train > 0 else self._spec.context

    def _build(self, model: Model, log: NativeLog) -> Engine:
        spec, options = self._spec, self._options
        size = self._context_size(model)
        converser = _converser(model, options)
        self._pinned = [tokens for text in options.pinned if (tokens := converser.beginning(text)[:size])]
        most = MAX_SEQUENCES - len(self._pinned)
        if spec.slots > most:
            raise LoadError("load_failed", f"slots: {spec.slots} are wanted, llama.cpp runs at most {most} beside the pinned prompts")
        unified = is_unified(options.kv_unified, spec.device)
        lines = sequences(spec.slots, options.cached_lines, len(self._pinned), unified=unified)
        drafts = options.speculation.tokens if options.speculation is not None else 0
        outputs = most_outputs(options.batch, spec.slots, lines, drafts)
        threads = spec.threads or thread_count(model.size)
        cells = size * spec.slots + sum(map(len, self._pinned)) if unified else size * lines
        self._context = Context(
            model, log, cells=cells, sequences=lines, batch=options.batch, micro_batch=min(MICRO_BATCH, options.batch), threads=threads,
            threads_batch=threads, outputs=outputs, unified=unified,
            flash=_FLASH[options.flash_attention], cache_types=(options.cache_type_k, options.cache_type_v), swa_full=options.swa_full,
        )  # fmt: skip
        batcher = Batcher(
            model, self._context, slots=spec.slots, queue=spec.queue, batch=options.batch, lines=lines, outputs=outputs,
            costs=StepCosts(options.stall, options.least_chunk), drafts=drafts, adapters=self._load_adapters(model, log),
            choosers=choosing_threads(options.choosers, spec.device), drafter=self._drafter(model, log, cells, lines),
            hold=options.hold,
        )  # fmt: skip
        if not model.has_encoder:
            batcher.warm_up()
        return Engine(
            name=spec.name, vocabulary=model, model=model, context=self._context, batcher=batcher, most=spec.slots + spec.queue,
            defaults=self._defaults(), converser=converser, context_size=size, executor=ThreadPoolExecutor(2, "prepare"),
            speculation=options.speculation, adapters=tuple(adapter.name for adapter in options.adapters),
        )  # fmt: skip

    def _drafter(self, model: Model, log: NativeLog, cells: int, lines: int) -> Drafter | None:
        """The draft model of the options, whose file has been checked, with as much KV memory as the model and room for its guesses. On
        GPUs it is wholly on the first. Raises LoadError where it cannot guess for this model."""
        spec, options = self._spec, self._options
        if self._draft_file is None or options.speculation is None:
            return None
        path, metadata = self._draft_file
        try:
            draft = Model(
                str(path), log, gpu_layers=0 if spec.device == "cpu" else metadata.layers + 1, use_mmap=options.mmap,
                use_mlock=options.mlock,
            )  # fmt: skip
        except NativeError as exc:
            raise LoadError("model_invalid", f"options.speculation.draft: {path}: {exc}") from None
        check_pair(model, draft, path)
        unified = is_unified(options.kv_unified, spec.device)
        threads = spec.threads or thread_count(draft.size)
        context = Context(
            draft, log, cells=cells + (spec.slots * options.speculation.tokens if unified else 0), sequences=lines, batch=options.batch,
            micro_batch=min(MICRO_BATCH, options.batch), threads=threads, threads_batch=threads, outputs=lines, unified=unified,
            flash=_FLASH[options.flash_attention],
        )  # fmt: skip
        self._draft = draft, context
        return Drafter(draft, context, batch=options.batch, lines=lines, vocabulary=model.n_vocab, longest=draft.n_ctx_train)

    def _load_adapters(self, model: Model, log: NativeLog) -> dict[str, LoraAdapter]:
        """The adapters of the options, whose files have been checked. Raises LoadError for one whose tensors do not fit the model."""
        loaded = {}
        for adapter, path in zip(self._options.adapters, self._adapter_files, strict=True):
            try:
                loaded[adapter.name] = LoraAdapter(model, str(path), adapter.scale, log)
            except NativeError as exc:
                raise LoadError("model_invalid", f"options.adapters: {adapter.name}: {path}: {exc}") from None
        return loaded

    def _defaults(self) -> Defaults:
        """Sampling settings of requests that name none: those of the options, else the file's if they are valid, else llama.cpp's."""
        if self._options.sampling is not None or self._metadata is None:
            return self._options.sampling or Defaults()
        try:
            return msgspec.convert(self._metadata.sampling, Defaults)
        except msgspec.ValidationError:
            return Defaults()

    def _build_embedder(self, model: Model, log: NativeLog) -> Embedder:
        """A text must fit into one micro-batch: models that attend in both directions cannot split it."""
        spec = self._spec
        batch = max(self._context_size(model), 512)
        threads = spec.threads or thread_count(model.size)
        pooling = -1 if self._metadata is not None and self._metadata.pooling > 0 else llama_cpp.LLAMA_POOLING_TYPE_MEAN
        self._context = Context(
            model, log, cells=batch, sequences=min(spec.slots, MAX_SEQUENCES), batch=batch, micro_batch=batch, threads=threads,
            threads_batch=threads, flash=_FLASH[self._options.flash_attention], embeddings=True, pooling=pooling,
        )  # fmt: skip
        sequences, queue = min(spec.slots, MAX_SEQUENCES), spec.slots + spec.queue
        if self._context.pooling != llama_cpp.LLAMA_POOLING_TYPE_RANK:
            return Embedder(model, self._context, sequences=sequences, batch=batch, queue=queue)
        made = Embedder(model, self._context, sequences=sequences, batch=batch, queue=queue, raw=True)
        yes_or_no = self._metadata is not None and self._metadata.architecture.startswith("qwen3")  # llama.cpp gives P(yes), P(no)
        if self._context.width != (2 if yes_or_no else 1):
            raise LoadError("model_invalid", f"{spec.model}: a reranker has one score for a pair, and this one {self._context.width}")
        self._reranker = Rerank(LlamaPairs(PairReader(model), made, probabilities=yes_or_no), spec.name)
        return made

    async def start(self) -> None:
        """Start the thread that runs llama.cpp."""
        sys.setswitchinterval(0.0005)  # the longest that the decode thread waits for the interpreter
        if self._engine is not None:
            self._engine.batcher.start()
            await self._engine.batcher.pin(self._pinned)
        if self._embedder is not None:
            self._embedder.start()

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """The OpenAI paths."""
        return {
            **super().routes(),
            ("POST", "/v1/embeddings"): self._embed,
            ("POST", "/v1/embeddings/input_tokens"): self._count_input,
            ("POST", "/v1/rerank"): self._rerank,
            ("POST", "/v1/score"): self._score,
        }

    async def _embed(self, request: Request) -> Response:
        return await self._embeddings().embeddings(request)

    async def _count_input(self, request: Request) -> Response:
        return await self._embeddings().count(request)

    def _embeddings(self) -> EmbeddingHandler:
        if self._embedder is None or self._model is None or self._reranker is not None:
            raise _unsupported(self._task, "embeddings")
        return EmbeddingHandler(self._model, self._embedder, self._spec.name)

    async def _rerank(self, request: Request) -> Response:
        return await self._scoring().rerank(request)

    async def _score(self, request: Request) -> Response:
        return await self._scoring().score(request)

    def tokens(self) -> TokenHandler:
        if self._model is None:
            raise _unsupported(self._task, "tokens")
        engine = self._engine
        longest = engine.context_size if engine is not None else self._embedder.limit if self._embedder is not None else 0
        return TokenHandler(VocabularyTokenizer(self._model, engine, longest))

    def _scoring(self) -> Rerank:
        if self._reranker is None:
            raise _unsupported(self._task, "scores")
        return self._reranker

    @property
    def _task(self) -> str:
        return "rerank" if self._reranker is not None else "generation" if self._embedder is None else "embeddings"

    def names(self) -> tuple[str, ...]:
        return self._spec.name, *(f"{self._spec.name}:{adapter.name}" for adapter in self._options.adapters)

    def generator(self) -> Engine:
        if self._engine is None:
            raise _unsupported(self._task, "text")
        return self._engine

    def health(self) -> dict[str, Any]:
        """Load and device figures; `state: failed` if the decode thread gave up."""
        gpu = self._gpu.read() if self._gpu is not None else GpuUse()
        report: dict[str, Any] = {
            "task": self._task,
            "sha256": self._sha256, "placement": self._placement(), "vram_bytes": gpu.used, "vram_free_bytes": gpu.free,
            "gpu_busy": gpu.busy,
        }  # fmt: skip
        if self._embedder is not None:
            embedder = self._embedder
            return report | {"in_use": embedder.running, "queue": embedder.waiting, "context": embedder.limit}
        engine = self.generator()
        stats = engine.batcher.stats
        report |= {
            "in_use": stats.in_use,
            "queue": stats.waiting,
            "kv_used": round(min(1.0, stats.cells_used / engine.context.cells), 4),
            "kv_held": round(min(1.0, stats.cells_held / engine.context.cells), 4),
            "tokens_per_second": round(stats.rate_at(time.monotonic()), 1),
            "context": engine.context_size,
        }
        failed = engine.batcher.failed or ("a grammar has no end" if engine.batcher.stuck() else None)
        if failed is not None:
            report |= {"state": "failed", "reason": failed, "reason_code": "engine_failed"}
        return report

    def _placement(self) -> dict[str, Any]:
        """Where the model's parts are, by the plan it was loaded with."""
        data = self._metadata
        if data is None:
            return {}
        return {
            "architecture": data.architecture, "quantisation": data.quantisation, "parameters": data.parameters,
            "layers": data.layers + 1, "device_layers": self._gpu_layers(data), "weights_bytes": data.weights,
            "kv_bytes_per_token": int(sum(data.kv_per_token) * self._kv_share()), "split": list(self._options.tensor_split),
        }  # fmt: skip

    def metrics(self) -> str:
        """Counters of the thread that runs llama.cpp."""
        if self._embedder is not None:
            return metric_lines([("embedded_tokens_total", "counter", self._embedder.tokens)])
        lines = metric_lines(self.generator().batcher.stats.metrics())
        if self._gpu is None:
            return lines
        gpu = self._gpu.read()
        values = (("vram_bytes", gpu.used), ("vram_free_bytes", gpu.free), ("gpu_busy_ratio", gpu.busy))
        return lines + metric_lines((name, "gauge", value) for name, value in values)

    async def aclose(self) -> None:
        """End the thread and free the memory."""
        if self._engine is not None:
            self._engine.batcher.close()
            self._engine.executor.shutdown(wait=False, cancel_futures=True)
        if self._embedder is not None:
            await self._embedder.aclose()
        for resource in (*reversed(self._draft or ()), self._context, self._model):
            if resource is not None:
                resource.close()


def metric_lines(values: Iterable[tuple[str, str, float]]) -> str:
    """(name, kind, value) in the Prometheus text format."""
    return "".join(f"# TYPE gatehouse_llamacpp_{name} {kind}\ngatehouse_llamacpp_{name} {value}\n" for name, kind, value in values)


def _unsupported(task: str, wanted: str) -> ApiError:
    made = {"generation": "text", "embeddings": "embeddings", "rerank": "scores"}[task]
    return ApiError(400, f"this model makes {made}, no {wanted}", param="model", code="unsupported_operation")


def _converser(model: Model, options: LlamaOptions) -> Converser:
    template = configured = options.template
    if template is None:
        raw = llama_cpp.llama_model_chat_template(model.handle, None)
        template = raw.decode("utf-8", "replace") if raw else None
    bos = model.special_piece(model.bos).decode("utf-8", "replace") if model.bos >= 0 else ""
    eos = model.special_piece(model.eos).decode("utf-8", "replace") if model.eos >= 0 else ""
    compiled = ChatTemplate(template, bos=bos, eos=eos) if template else None
    if (
        configured is not None and compiled is not None and compiled.error is not None
    ):  # a broken template in the file only makes chats fail
        raise LoadError("load_failed", f"options.template is broken: {compiled.error}")
    return Converser(model, compiled, bos, options.format, Gbnf())


def check_file(path: Path) -> tuple[Metadata, list[Path]]:
    """Check a model's files before native code sees them. Raises LoadError that names what is wrong."""
    if not path.is_file():
        raise LoadError("model_missing", f"{path}: no such model file")
    try:
        model = read_model(path)
        return describe(model), files_of(path, model)
    except GgufError as exc:
        raise LoadError("model_invalid", f"{path}: {exc}") from None
    except OSError as exc:
        raise LoadError("model_missing", f"{path}: {exc.strerror}") from None


def main() -> int:
    """Entry point of the process."""
    return sidecar.run(LlamaRuntime)
