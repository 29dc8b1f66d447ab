"""The ONNX Runtime sidecar: one process, one model, one device; embeddings, classification or tensors behind the shared shell."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort

from engines.onnx import classification, embeddings, rerank, spans
from engines.onnx.folder import ModelFolder, read_folder
from engines.onnx.offload import Offload
from engines.onnx.options import OnnxOptions, Task, read_options
from engines.onnx.prompts import prompts_of
from engines.onnx.session import DEVICE_ERRORS, NATIVE_ERRORS, RUNTIME_ERRORS, Loaded, load_session, out_of_memory, refusal, runtime_message
from engines.onnx.stats import Stats
from engines.onnx.tensors import Feeds, Infer, Schema, TensorRunner, rows_independent, warm_up
from engines.onnx.text import IDS, Grouping, TextReader, Tokens, choose_grouping
from engines.onnx.texttask import TextTask
from engines.onnx.tokens import TextTokenizer
from engines.sidecar.batcher import Batcher, BatchQueue, RunFailed
from engines.sidecar.loading import LoadError
from engines.sidecar.rerank import Rerank
from engines.sidecar.shell import ApiError, Handler, Request, Response
from engines.sidecar.tokens import TokenHandler
from gateway.core.clock import SystemClock
from gateway.core.errors import RequestError
from gateway.core.specs import SidecarSpec
from gateway.wire.oip import codec

TOLERANCE = 1e-5
"""How far a batch's float32 results may differ from those of single rows for a model to be batched."""
HALF_TOLERANCE = 5e-3
"""The same for models that compute with 16 bits."""
FIRST_RUNS = 600.0
"""Seconds that the runs to try a model may take, before it serves."""
HUNG_SECONDS = 120.0
"""A run that was to end and goes on for so long is within one node of the graph: only the end of the process ends it."""
SERVER_NAME = "gatehouse-onnx"
MODEL_PATHS = (
    "/v2/models/{a}",
    "/v2/models/{a}/{b}",
    "/v2/models/{a}/{b}/{c}",
    "/v2/models/{a}/{b}/{c}/{d}",
    "/v2/models/{a}/{b}/{c}/{d}/{e}",
)
"""Templates that cover a model's name (with or without a slash), its version and the action; codec.parse_path tells them apart."""

log = logging.getLogger("gatehouse.onnx")


class OnnxRuntime:
    """Implements engines.sidecar.shell.Runtime."""

    def __init__(self, spec: SidecarSpec) -> None:
        self.spec = spec
        self._clock = SystemClock()
        self._offload = Offload()
        self._stats = Stats()
        self._batcher: Batcher | None = None
        self._model: _Model | None = None

    # -- life --------------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Check, load, probe and warm up; blocking. Raises LoadError."""
        options = read_options(self.spec.options)
        folder = read_folder(self.spec.model, options)
        loaded = load_session(self.spec, folder.graph, options)
        if loaded.fallback:
            log.warning("engine %s runs on the CPU: %s", self.spec.name, loaded.fallback)
        try:
            with loaded.session.within(FIRST_RUNS):
                self._model = _Model(self.spec, options, folder, loaded)
        except RUNTIME_ERRORS as exc:
            raise refusal(f"{folder.graph}: the first run failed", exc, loaded.session.device) from None

    async def start(self) -> None:
        """Start the batcher's threads and bind the endpoints to them."""
        sys.setswitchinterval(0.0005)  # the longest that the event loop waits for a thread that tokenises
        model = self._loaded()
        queue = BatchQueue(self.spec.batching.max_delay_ms / 1000, max(1, self.spec.queue + self.spec.slots))
        halting = model.loaded.session.halting
        self._batcher = Batcher(queue, model.run, self._clock, self._stats.batch, model.instances, halting)
        self._batcher.start()
        model.serve(self._batcher, self._offload, self._stats)

    async def aclose(self) -> None:
        """End the threads and free the session."""
        if self._batcher is not None:
            await self._batcher.aclose()
        self._offload.close()
        self._model = None

    # -- endpoints ---------------------------------------------------------------------------------------------------------

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """Every path; what the loaded model does not do is refused when it is requested."""
        found: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/v1/embeddings/input_tokens"): self._count,
            **{("POST", path): self._classify for path in ("/v1/classify", "/classify")},
            ("POST", "/v1/rerank"): self._rerank,
            ("POST", "/v1/score"): self._score,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/v1/models"): self._models,
            ("GET", "/v2"): self._server,
            ("GET", "/v2/health/live"): self._live,
            ("GET", "/v2/health/ready"): self._ready,
        }
        for path in MODEL_PATHS:
            found["GET", path] = self._describe
            if path.count("{") > 1:
                found["POST", path] = self._infer
        return found

    async def _embeddings(self, request: Request) -> Response:
        return await _guarded(self._embedder().handle(request))

    async def _count(self, request: Request) -> Response:
        return await _guarded(self._embedder().count(request))

    def _embedder(self) -> embeddings.Embeddings:
        model = self._loaded()
        if model.embeddings is None:
            raise _unsupported("embeddings", model.task)
        return model.embeddings

    async def _tokenize(self, request: Request) -> Response:
        return await self._tokens().tokenize(request)

    async def _detokenize(self, request: Request) -> Response:
        return await self._tokens().detokenize(request)

    def _tokens(self) -> TokenHandler:
        model = self._loaded()
        if model.reader is None:
            raise _unsupported("tokens", model.task)
        return TokenHandler(TextTokenizer(model.reader))

    async def _classify(self, request: Request) -> Response:
        model = self._loaded()
        endpoint = model.classification or model.entities
        if endpoint is None:
            raise _unsupported("classification", model.task)
        return await _guarded(endpoint.handle(request))

    async def _rerank(self, request: Request) -> Response:
        return await _guarded(self._reranker().rerank(request))

    async def _score(self, request: Request) -> Response:
        return await _guarded(self._reranker().score(request))

    def _reranker(self) -> Rerank:
        model = self._loaded()
        if model.rerank is None:
            raise _unsupported("reranking", model.task)
        return model.rerank

    async def _models(self, request: Request) -> Response:
        item = {"id": self.spec.name, "object": "model", "created": 0, "owned_by": "gatehouse"}
        return Response(msgspec.json.encode({"object": "list", "data": [item]}))

    async def _server(self, request: Request) -> Response:
        return Response(codec.encode_server_metadata(SERVER_NAME, ort.get_version_string()))

    async def _live(self, request: Request) -> Response:
        return Response(b'{"live":true}')

    async def _ready(self, request: Request) -> Response:
        return Response(b'{"ready":true}')

    async def _describe(self, request: Request) -> Response:
        return await _protocol(self._described(request))

    async def _described(self, request: Request) -> Response:
        path = self._model_path(request)
        model = self._loaded()
        if path.action == "ready":
            return Response(msgspec.json.encode({"name": path.model, "ready": True}))
        if path.action == "infer":
            raise ApiError(405, "infer is asked for with POST", code="method_not_allowed", headers=((b"allow", b"POST"),))
        return Response(model.schema.metadata(path.model, model.version))

    async def _infer(self, request: Request) -> Response:
        return await _protocol(self._inferred(request))

    async def _inferred(self, request: Request) -> Response:
        path = self._model_path(request)
        model = self._loaded()
        if path.action != "infer" or model.infer is None:
            raise ApiError(404, f"no such path: POST {request.path[:200]}", code="not_found")
        return await model.infer.handle(request, path.model, model.version)

    def _model_path(self, request: Request) -> codec.ModelPath:
        """The model that the path names. Raises ApiError (404)."""
        path = codec.parse_path(request.path)
        if path is None:
            raise ApiError(404, f"no such path: {request.path[:200]}", code="not_found")
        model = self._loaded()
        if model.names and path.model not in model.names:
            raise ApiError(404, f"model {path.model[:128]!r} is not served here", code="model_not_found", param="model")
        if path.version not in ("", model.version):
            raise ApiError(
                404,
                f"model {path.model[:128]!r} has version {model.version}, not {path.version[:64]!r}",
                code="model_not_found",
                param="version",
            )
        return path

    def _loaded(self) -> _Model:
        if self._model is None:
            raise ApiError(503, "the model is not loaded", kind="engine_error", code="model_loading")
        return self._model

    # -- what is shown -----------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """The fields of `/health` that this runtime knows."""
        model, batcher = self._loaded(), self._batcher
        running = batcher.running if batcher else 0
        return {
            **(_hangs(batcher.stuck) if batcher and batcher.stuck > HUNG_SECONDS else {}),
            "device": model.loaded.session.device,
            "fallback_reason": model.loaded.fallback,
            "sha256": model.loaded.sha256,
            "task": model.task,
            "version": model.version,
            "batching": model.batching,
            "instances": model.instances,
            "execution_provider": model.loaded.session.provider,
            "max_length": model.reader.max_length if model.reader else None,
            "cached_graph": model.loaded.cached,
            "in_use": running,
            "queue": batcher.queue.jobs if batcher else 0,
            "tokens_per_second": round(self._stats.tokens_per_second(time.monotonic()), 1),
        }

    def metrics(self) -> str:
        """Counters in the Prometheus text format."""
        return self._stats.render(self._batcher.queue.jobs if self._batcher else 0)


class _Model:
    """A loaded model with what its task needs; `embeddings`, `classification`, `entities`, `rerank` and `infer` exist
    once it serves."""

    def __init__(self, spec: SidecarSpec, options: OnnxOptions, folder: ModelFolder, loaded: Loaded) -> None:
        self.loaded, self.version, self.names = loaded, options.version, frozenset(options.names)
        self.instances = options.instances
        self.schema = Schema(loaded.session)
        self.task: Task = find_task(options, folder, loaded)
        self.embeddings: embeddings.Embeddings | None = None
        self.classification: classification.Classification | None = None
        self.entities: spans.Entities | None = None
        self.rerank: Rerank | None = None
        self.infer: Infer | None = None
        self.reader: TextReader | None = None
        self.batching = "off"
        self._options, self._folder, self._spec = options, folder, spec
        self._head: embeddings.Embedder | classification.Classifier | spans.Tagger | rerank.Scorer | None = None
        self._grouping: Grouping | None = None
        self._width = 0
        self._labels: tuple[str, ...] = ()
        half = any(port.datatype in ("FP16", "BF16") for port in loaded.session.outputs)
        self._tolerance = HALF_TOLERANCE if half else TOLERANCE
        self._tensors = TensorRunner(loaded.session)
        if self.task != "tensor":
            self._prepare_text()
        self._tensor_batch = self._prepare_tensors(spec.batching.max_batch)

    def _prepare_text(self) -> None:
        options, folder, session = self._options, self._folder, self.loaded.session
        if folder.tokenizer is None:
            raise LoadError("model_missing", f"{folder.root / 'tokenizer.json'}: no such file, though the task is {self.task}")
        self.reader = TextReader(folder.tokenizer, session, options.max_length or folder.max_length)
        if self.task == "embeddings":
            output = embeddings.find_output(session, options.output)
            if output is None:
                raise LoadError("invalid_options", f"{folder.graph}: which output is the embedding? Name it in options.output")
            pooling = (folder.pooling or "auto") if options.pooling == "auto" else options.pooling
            if len(output.shape) == 2 and options.pooling == "auto":
                pooling = "none"  # the graph does its own pooling
            normalize = folder.normalize if options.normalize is None else options.normalize
            prompts_of(options, folder)  # refuses, while the model loads, a default that does not exist
            self._head = embeddings.Embedder(session, self.reader, output, pooling, normalize)
        elif self.task == "entities":
            self._head = spans.Tagger(session, self.reader, spans.find_output(session, options.output))
        elif self.task == "rerank":
            self._head = rerank.Scorer(session, self.reader, classification.find_output(session, options.output))
        else:
            self._head = classification.Classifier(
                session, self.reader, classification.find_output(session, options.output), folder.multi_label
            )
        self._width = self._head.run([self.reader.read("a", True, "warm-up")])[0].shape[-1]
        if self.task == "rerank" and self._width != 1:
            raise LoadError("model_invalid", f"{folder.root}: a reranker has one score for a pair, and this one {self._width}")
        if self.task in ("classification", "entities", "rerank"):
            self._labels = options.labels or folder.labels or tuple(f"LABEL_{index}" for index in range(self._width))
            if len(self._labels) != self._width:
                raise LoadError("model_invalid", f"{folder.root}: {len(self._labels)} labels for {self._width} scores")
        self._grouping = self._choose_grouping(self._head.run)
        self.batching = self._grouping.mode

    def _choose_grouping(self, run: Callable[[Sequence[Tokens]], Any]) -> Grouping:
        assert self.reader is not None
        most, tokens = self._spec.batching.max_batch, self._options.max_batch_tokens
        if self._options.batching == "off" or most == 1:
            return Grouping("off", 1, tokens)
        if self._options.batching == "on":
            return Grouping("padded", most, tokens)
        return choose_grouping(run, self.reader, most, tokens, self._tolerance)

    def _prepare_tensors(self, most: int) -> int:
        """How many rows an infer batch may have; 1 for a graph whose rows depend on one another."""
        wanted, random = self._options.batching, np.random.default_rng(0)
        if self.task == "tensor":
            warm_up(self.loaded.session, self.schema, random)
        if wanted == "off" or most == 1 or self.schema.batch_axis() is None:
            return 1
        if wanted == "auto" and not rows_independent(self.loaded.session, self.schema, self._tolerance, random):
            return 1
        if self.task == "tensor":
            self.batching = "rows"
        return most

    def serve(self, batcher: Batcher, offload: Offload, stats: Stats) -> None:
        """Make the endpoints of this model's task."""
        options, folder, name = self._options, self._folder, self._spec.name
        self.infer = Infer(self.schema, batcher, offload, self._tensor_batch, options.max_output_bytes, stats.elements)
        if self.reader is None or self._grouping is None:
            return
        task = TextTask(self.reader, self._grouping, batcher, offload, options.truncate)
        if isinstance(self._head, embeddings.Embedder):
            allowed = options.dimensions or folder.dimensions
            prompts = prompts_of(options, folder)
            self.embeddings = embeddings.Embeddings(task, offload, self._width, allowed, self._head.normalize, name, prompts)
        elif isinstance(self._head, spans.Tagger):
            self.entities = spans.Entities(task, batcher, self._grouping, offload, self._labels, name)
        elif isinstance(self._head, rerank.Scorer):
            self.rerank = Rerank(rerank.OnnxPairs(task, raw=folder.raw_scores), name)
            self.classification = classification.Classification(task, self._labels, name, logits=True)
        else:
            self.classification = classification.Classification(task, self._labels, name)

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        """Compute one batch, on one of the batcher's threads: all texts or all tensor requests, as their key says."""
        if isinstance(batch[0], Feeds):
            return self._tensors.run(batch)
        assert self._head is not None
        return self._head.run(batch)


def _hangs(seconds: float) -> dict[str, Any]:
    """For health: the supervisor ends a process that has failed, and starts it again."""
    reason = f"a run that nobody waits for any more has not ended for {seconds:.0f} s after it was told to"
    return {"state": "failed", "reason": reason, "reason_code": "run_hangs"}


def find_task(options: OnnxOptions, folder: ModelFolder, loaded: Loaded) -> Task:
    """The stated task, else what the folder's configuration and the graph suggest, else `tensor`."""
    if options.task != "auto":
        return options.task
    text = folder.tokenizer is not None and any(port.name == IDS for port in loaded.session.inputs)
    if not text:
        return "tensor"
    if folder.task is not None:
        return folder.task
    if any(port.name == "logits" and len(port.shape) == 2 for port in loaded.session.outputs):
        return "classification"
    if any(port.name == "logits" and len(port.shape) == 3 for port in loaded.session.outputs) and spans.OUTSIDE in folder.labels:
        return "entities"
    return "embeddings" if embeddings.find_output(loaded.session, options.output) is not None else "tensor"


def _unsupported(wanted: str, task: str) -> ApiError:
    return ApiError(400, f"this model does {task}, not {wanted}", code="unsupported_operation", param="model")


async def _guarded(work: Awaitable[Response]) -> Response:
    """Turn what the runtime raises for this request's data into an answer."""
    try:
        return await work
    except RunFailed as failed:
        raise runtime_error(failed.cause) from failed.cause


async def _protocol(work: Awaitable[Response]) -> Response:
    """The same, and errors in the Open Inference Protocol's own shape."""
    try:
        return await _guarded(work)
    except RequestError as error:
        return Response(codec.encode_error(error.message, code=error.code, param=error.param), status=error.status)
    except ApiError as error:
        return Response(codec.encode_error(error.message, code=error.code, param=error.param), status=error.status, headers=error.headers)


def runtime_error(cause: Exception) -> Exception:
    """The answer to a failed run: memory (507), the device (502), values that the graph cannot take (400).

    Any other error is our fault and returned unchanged, for the shell to log and answer with 500.
    """
    if out_of_memory(cause):
        return ApiError(507, "the device has not enough memory for this request", kind="engine_error", code="insufficient_memory")
    if isinstance(cause, DEVICE_ERRORS):
        return ApiError(502, f"the device failed: {runtime_message(cause)}", kind="engine_error", code="engine_failed")
    if isinstance(cause, NATIVE_ERRORS):
        return ApiError(400, f"the model refused the input: {runtime_message(cause)}", code="invalid_tensor")
    return cause
