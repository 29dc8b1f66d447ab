"""The onnxruntime-genai sidecar: checks and loads a folder with an ONNX decoder, and serves text."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from engines.chat.conversation import Converser
from engines.chat.defaults import Defaults
from engines.chat.paths import TextPaths
from engines.chat.template import ChatTemplate
from engines.genai.constraints import Guidance
from engines.genai.engine import GenaiEngine
from engines.genai.folder import GenaiFolder, read_folder, weights
from engines.genai.native import GenaiModel
from engines.genai.options import GenaiOptions, GenaiSampling
from engines.genai.runner import Runner
from engines.genai.vocabulary import GenaiVocabulary
from engines.sidecar.loading import LoadError, verify_files, verify_sha256
from engines.sidecar.memory import available_memory
from engines.sidecar.shell import ApiError
from engines.sidecar.threads import thread_count
from gateway.core.specs import SidecarSpec


class GenaiRuntime(TextPaths):
    """`engines.sidecar.shell.Runtime` for folders of onnxruntime-genai's model builder."""

    def __init__(self, spec: SidecarSpec) -> None:
        super().__init__()
        self._spec = spec
        try:
            self._options = msgspec.convert(spec.options, GenaiOptions)
        except msgspec.ValidationError as exc:
            raise ValueError(f"options of engine {spec.name}: {exc}") from None
        self._folder: GenaiFolder | None = None
        self._engine: GenaiEngine | None = None
        self._sha256: str | None = None
        self._device = spec.device

    def load(self) -> None:
        """Check the folder, load the model, generate a token. Raises LoadError."""
        spec, options = self._spec, self._options
        folder = self._folder = read_folder(spec.model)
        self._sha256 = verify_sha256(folder.graph, spec.sha256)
        verify_files(folder.root, options.checksums)
        size = min(spec.context, folder.context)
        held = weights(folder.root)
        wanted, free = int(held * 1.5) + folder.kv_bytes * size * spec.slots, available_memory()
        if spec.device == "cpu" and free is not None and wanted > free:
            raise LoadError("insufficient_memory", f"{spec.model}: {wanted >> 20} MiB of memory needed, {free >> 20} MiB available")
        vocabulary = GenaiVocabulary(folder.root / "tokenizer.json", folder.vocabulary)
        template = _template(options, folder)
        model = self._model(folder, spec.threads or thread_count(held))
        runner = Runner(model, vocabulary, slots=spec.slots, queue=spec.queue, chunk=options.chunk, longest=size)
        try:
            runner.warm_up()
        except RuntimeError as exc:
            raise LoadError("model_invalid", f"{folder.graph}: the first run failed: {exc}") from None
        self._engine = GenaiEngine(
            name=spec.name, vocabulary=vocabulary, runner=runner, most=spec.slots + spec.queue, defaults=defaults(folder, options.sampling),
            converser=Converser(vocabulary, template, folder.bos_text, options.format, Guidance(vocabulary)), context_size=size,
            executor=ThreadPoolExecutor(2, "prepare"),
        )  # fmt: skip

    def _model(self, folder: GenaiFolder, threads: int) -> GenaiModel:
        """On the device that was asked for, or on the one to fall back to."""
        try:
            return GenaiModel(folder, self._spec.device, threads)
        except LoadError as error:
            if error.code != "device_unavailable" or self._spec.fallback is None:
                raise
            self._device = self._spec.fallback
            return GenaiModel(folder, self._device, threads)

    async def start(self) -> None:
        """Start the slots' threads."""
        sys.setswitchinterval(0.0005)  # the longest that a slot's thread waits for the interpreter
        self.generator().runner.start()

    def names(self) -> tuple[str, ...]:
        return (self._spec.name,)

    def generator(self) -> GenaiEngine:
        if self._engine is None:
            raise ApiError(503, "the model is not loaded", kind="engine_error", code="model_loading")
        return self._engine

    def health(self) -> dict[str, Any]:
        """Load figures; `state: failed` if sequence after sequence failed."""
        engine, folder = self.generator(), self._folder
        stats = engine.runner.stats
        report: dict[str, Any] = {
            "task": "generation",
            "sha256": self._sha256,
            "device": self._device,
            "architecture": folder.architecture if folder is not None else None,
            "in_use": stats.in_use,
            "queue": stats.waiting,
            "kv_used": round(min(1.0, stats.cells / (engine.context_size * self._spec.slots)), 4),
            "tokens_per_second": round(stats.rate_at(time.monotonic()), 1),
            "context": engine.context_size,
        }
        if self._device != self._spec.device:
            report["fallback_reason"] = "this package of onnxruntime-genai was built without support for the device"
        if engine.runner.failed is not None:
            report |= {"state": "failed", "reason": engine.runner.failed, "reason_code": "engine_failed"}
        return report

    def metrics(self) -> str:
        """Counters of the slots' threads."""
        values = self.generator().runner.stats.metrics()
        return "".join(f"# TYPE gatehouse_genai_{name} {kind}\ngatehouse_genai_{name} {value}\n" for name, kind, value in values)

    async def aclose(self) -> None:
        """End the threads."""
        if self._engine is not None:
            self._engine.runner.close()
            self._engine.executor.shutdown(wait=False, cancel_futures=True)


def defaults(folder: GenaiFolder, wanted: GenaiSampling | None) -> Defaults:
    """Sampling settings of requests that name none: of the options, else of `genai_config.json` if they are valid."""
    search, named = folder.search, wanted or GenaiSampling()
    found: dict[str, Any] = {"temperature": search.get("temperature", 1.0), "top_p": search.get("top_p", 1.0), "min_p": 0.0,
                             "top_k": search.get("top_k", 50), "repeat_penalty": search.get("repetition_penalty", 1.0)}  # fmt: skip
    if search.get("do_sample") is False:
        found["temperature"] = 0.0
    try:
        made = msgspec.convert(found, Defaults)
    except msgspec.ValidationError:
        made = Defaults(temperature=1.0, top_p=1.0, top_k=50, min_p=0.0)
    changes = {"temperature": named.temperature, "top_p": named.top_p, "top_k": named.top_k, "min_p": named.min_p,
               "repeat_penalty": named.repeat_penalty}  # fmt: skip
    return msgspec.structs.replace(made, **{name: value for name, value in changes.items() if value is not None})


def _template(options: GenaiOptions, folder: GenaiFolder) -> ChatTemplate | None:
    source = options.template or folder.template
    if source is None:
        return None
    made = ChatTemplate(source, bos=folder.bos_text, eos=folder.eos_text)
    if options.template is not None and made.error is not None:  # a broken one in the folder only makes chats fail
        raise LoadError("load_failed", f"options.template is broken: {made.error}")
    return made
