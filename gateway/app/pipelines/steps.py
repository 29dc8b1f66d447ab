"""Models that are pipelines. To the phases of a request a pipeline is an engine: its route gives every chat an attempt at once, and what
the attempt sends is not put on a connection but answered by the steps (gateway.app.pipelines.calls).

So the pipeline's own request passes what every request does, and so does the request of each step, as the same caller's. Nothing of this is
on the way of a request to a model that has engines: what a model is was decided when its Snapshot was built.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from math import inf
from time import perf_counter
from typing import Any, Final

import msgspec

from gateway.app.pipelines.calls import TRACE, StepCalls, of_step
from gateway.app.pipelines.data import ask, chat_of, documents_of, labelled, nearest, prompt_of, ranked, said, with_documents
from gateway.core.errors import EngineError, GatehouseError, InternalError, RequestError
from gateway.core.ports import Attempt, AttemptResult, Call, Receiver
from gateway.core.prices import SlotTime
from gateway.core.snapshot import ModelEntry
from gateway.core.specs import ModelSpec
from gateway.core.specs.pipelines import (
    DOCUMENTS,
    MESSAGES,
    PROMPT,
    ChooseStep,
    GenerateStep,
    PipelineSpec,
    RankStep,
    StepSpec,
    models_of,
    used_by,
)
from gateway.core.types import InferenceRequest, Principal, Usage
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.telemetry.steps import CANCELLED, FAILED, OK, REFUSED, StepMeters

log = logging.getLogger("gatehouse.pipelines")
CHAT, CLASSIFY, EMBED, RERANK = b"/v1/chat/completions", b"/v1/classify", b"/v1/embeddings", b"/v1/rerank"
IN_TIME: Final = 4 * SWEEP_SECONDS
"""Seconds before the deadline of the whole request at which a step's comes, so that the error names the step."""


class StepsRoute:
    """The way to a pipeline: see gateway.core.ports.Route. models: of the Snapshot, by name; filled in once they are built."""

    counts_prompts = True
    """Its own request has no tokens: gateway.pipeline.counting sees to that."""
    backlog = 0

    def __init__(self, spec: ModelSpec, models: Mapping[str, ModelEntry]) -> None:
        assert spec.pipeline is not None
        self.model, self._models = spec.name, models
        self._asks = sorted({name for _, name in models_of(spec.pipeline)})

    def acquire(
        self, request: InferenceRequest, principal: Principal, session: bytes | None, tried: tuple[str, ...], deadline: float, wait: bool
    ) -> StepsAttempt:
        if request.operation != "chat" or not request.api.generates:
            raise RequestError(f"model: {self.model} is a pipeline, which answers chats alone.", param="model")
        return StepsAttempt(_Nowhere(self.model))

    def abandon(self, waiting: Any) -> None:
        """Nobody waits for a pipeline."""

    def may_retry(self, error: Exception, attempts: int) -> float | None:
        return None  # its steps have been tried again where that is safe

    def full(self, endpoint: str, retry_after: float | None, labels: frozenset[str]) -> None:
        """Each step has told the route of its own model."""

    def may_move(self, attempts: int, labels: frozenset[str]) -> bool:
        return False

    def may_leave(self, endpoint: str, attempts: int, labels: frozenset[str]) -> bool:
        return False

    def counter(self, labels: frozenset[str]) -> None:
        """No engine reads its prompt."""

    def uncounted(self) -> None:
        """No engine reads its prompt."""

    def cleared(self, labels: frozenset[str]) -> None:
        """Each step asks the route of its own model."""

    def serves(self, labels: frozenset[str]) -> bool:
        return self.ready

    @property
    def ready(self) -> bool:
        return all(self._models[name].route.ready for name in self._asks)


class StepsAttempt:
    """The one attempt at a pipeline. See gateway.core.ports.Attempt."""

    endpoint_name, endpoint_header = "", b""
    upstream_model: str | None = None
    request_headers = b""
    first_byte_timeout = idle_timeout = total_timeout = inf
    """The steps have a deadline of their own, and engines' limits."""
    salting = "none"
    apis: tuple[str, ...] = ()
    device: SlotTime | None = None

    def __init__(self, client: Any) -> None:
        self.client = client

    def answering(self) -> None:
        """It has no breaker."""

    def close(self, result: AttemptResult) -> None:
        """It has no slot."""


class _Nowhere:
    """The client of an attempt that belongs to no exchange: what a guardrail asks has no caller, as whom the steps could be run."""

    base_path = b""

    def __init__(self, model: str) -> None:
        self._model = model

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float, source: Any = None
    ) -> Call:
        error = EngineError(f"{self._model} is a pipeline: only requests of callers are put to it.")
        asyncio.get_running_loop().call_soon(receiver.on_failed, error)
        return _Ended()

    def forsake(self) -> None:
        """There is no engine."""

    async def aclose(self) -> None:
        """There is no connection."""


class _Ended:
    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cancel(self) -> None: ...


class Pipelines:
    """The pipeline of one model, as configured. Implements gateway.core.rollouts.Watch, to see whose attempt it is. meters: count its
    steps."""

    def __init__(self, plane: DataPlane, model: ModelSpec, meters: StepMeters) -> None:
        assert model.pipeline is not None
        self.plane, self.name, self.spec, self.meters = plane, model.name, model.pipeline, meters

    def watched(self, exchange: Exchange, attempt: Attempt) -> Attempt:
        """The request has been admitted: from here on its steps are counted, and it counts as one request without tokens. It must not hold
        a place of its caller's that its own steps need."""
        exchange.usage = Usage()
        if exchange.costs is None:
            exchange.costs = {}
        if exchange.spent is not None:
            exchange.spent = Usage()
        if exchange.reservation is not None:
            exchange.reservation.settle(exchange.usage)
        return StepsAttempt(_StepsClient(self, exchange))


class _StepsClient(_Nowhere):
    """The way to the steps of one request."""

    def __init__(self, pipelines: Pipelines, exchange: Exchange) -> None:
        super().__init__(pipelines.name)
        self._pipelines, self._exchange = pipelines, exchange

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float, source: Any = None
    ) -> Call:
        pipelines, exchange = self._pipelines, self._exchange
        until = min(pipelines.plane.now + pipelines.spec.timeout, exchange.deadline - IN_TIME)
        _, _, rest = head.partition(TRACE + b": ")
        calls = StepCalls(exchange, pipelines.name, until, rest.partition(b"\r\n")[0] or None)
        return Run(pipelines, calls, body, receiver)


class Run:
    """The steps of one request, and its Call. They run in a task of the plane."""

    def __init__(self, pipelines: Pipelines, calls: StepCalls, body: bytes, receiver: Receiver) -> None:
        self._spec: PipelineSpec = pipelines.spec
        self._tasks, self._meters = pipelines.plane.tasks, pipelines.meters
        self._calls, self._body, self._receiver = calls, body, receiver
        self._cancelled = False
        self._results: dict[str, Any] = {}
        self._fields: dict[str, msgspec.Raw] = {}
        self._task = self._tasks.spawn(self._run(), name=f"steps of {pipelines.name}")

    # --- Call

    def pause(self) -> None:
        self._calls.pause()

    def resume(self) -> None:
        self._calls.resume()

    def cancel(self) -> None:
        """Tells the receiver nothing more."""
        self._cancelled = True
        self._calls.end()
        self._task.cancel()

    # --- the steps

    async def _run(self) -> None:
        error: GatehouseError | None = None
        try:
            await self._steps()
        except GatehouseError as failed:
            error = failed
        except asyncio.CancelledError:
            self._tell(EngineError("The gateway stops."))
            raise
        except Exception:  # boundary: a defect of the steps ends the request, and nothing else
            log.exception("a pipeline has failed")
            error = InternalError("The pipeline failed.")
        self._tell(error)

    def _tell(self, error: GatehouseError | None) -> None:
        if self._cancelled:
            return
        try:
            if error is None:
                self._receiver.on_end()
                return
        except GatehouseError as failed:  # the answer is not whole, or may not pass
            error = failed
        self._receiver.on_failed(error)

    async def _steps(self) -> None:
        self._fields = chat_of(self._body)
        results = self._results
        results[PROMPT] = prompt_of(self._fields)
        results[DOCUMENTS] = documents_of(self._fields)
        if self._uses_documents():
            self._fields.pop(DOCUMENTS, None)
        if self._spec.parallel:
            await self._beside()
        else:
            for step in self._spec.steps:
                await self._step(step)

    async def _beside(self) -> None:
        """Each step begins when those are over whose results it uses. The first one that fails ends the others. The last one uses, by
        itself or through others, the results of all (gateway.config.pipeline_rules)."""
        waiting, running = list(self._spec.steps), dict[asyncio.Task[None], int]()
        try:
            while waiting or running:
                known = {MESSAGES, *self._results}
                for step in [one for one in waiting if used_by(one) <= known]:
                    waiting.remove(step)
                    running[self._tasks.spawn(self._step(step), name=f"step {step.name}")] = self._spec.steps.index(step)
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                over = sorted(done, key=running.__getitem__)
                for task in over:
                    del running[task]
                for task in over:
                    task.result()
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _step(self, step: StepSpec) -> None:
        """Runs one step, and counts it where it asks a model."""
        began, result = perf_counter(), CANCELLED
        try:
            await self._work(step)
            result = OK
        except GatehouseError as error:
            result = REFUSED if error.status < 500 else FAILED
            raise
        finally:
            if step.choose is None and any(told["step"] == step.name for told in self._calls.told):
                self._meters.count(step.name, result, perf_counter() - began)

    async def _work(self, step: StepSpec) -> None:
        name, results = step.name, self._results
        try:
            if step.classify is not None:
                text = {"model": step.classify.model, "input": self._text(step.classify.input)}
                label, score = labelled(await self._calls.asked(name, step.classify.model, CLASSIFY, ask(text), timeout=step.timeout))
                self._calls.told[-1] |= {"label": label, "score": round(score, 4)}
                results[name] = (label, score)
            elif step.choose is not None:
                results[name] = chosen(step.choose, *results[step.choose.by])
                self._calls.tell(step=name, model=results[name])
            elif step.generate is not None:
                results[name] = await self._generated(step, step.generate)
            elif step.embed is not None:
                results[name] = await self._near(step, step.embed)
            elif step.rerank is not None:
                results[name] = await self._reranked(step, step.rerank)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise of_step(name, EngineError("The engine's answer cannot be read.")) from None

    def _uses_documents(self) -> bool:
        kinds = [kind for step in self._spec.steps for kind in (step.embed, step.rerank, step.generate) if kind is not None]
        return any(kind.documents == DOCUMENTS for kind in kinds)

    def _text(self, name: str) -> str:
        text: str = self._results[name]
        if not text:
            what = "the request has no text of a user" if name == PROMPT else f"the step {name!r} has generated nothing"
            raise RequestError(f"messages: {what}, which this model needs.", param="messages")
        return text

    async def _near(self, of: StepSpec, step: RankStep) -> list[str]:
        documents: list[str] = self._results[step.documents]
        if not documents:
            return []
        question = ask({"model": step.model, "input": [self._text(step.query), *documents]})
        return await nearest(await self._calls.asked(of.name, step.model, EMBED, question, timeout=of.timeout), documents, step)

    async def _reranked(self, of: StepSpec, step: RankStep) -> list[str]:
        documents: list[str] = self._results[step.documents]
        if not documents:
            return []
        question = ask({"model": step.model, "query": self._text(step.query), "documents": documents})
        return ranked(await self._calls.asked(of.name, step.model, RERANK, question, timeout=of.timeout), documents, step)

    async def _generated(self, of: StepSpec, step: GenerateStep) -> str:
        """The text; "" of the last step, whose answer goes on as it comes."""
        last = of is self._spec.steps[-1]
        model = step.model or self._results[step.choice]  # type: ignore[index]
        documents: list[str] = [] if step.documents is None else self._results[step.documents]
        fields = dict(self._fields) if last else {}
        text = None if step.input == MESSAGES else self._text(step.input)
        fields["messages"] = with_documents(self._fields, text, documents, step.system)
        if step.max_tokens is not None and not (last and fields.keys() & {"max_tokens", "max_completion_tokens"}):
            fields["max_tokens"] = msgspec.Raw(b"%d" % step.max_tokens)
        fields["model"] = msgspec.Raw(ask(model))
        answer = await self._calls.asked(of.name, model, CHAT, ask(fields), self._receiver if last else None, of.timeout)
        return "" if last else said(answer)


def chosen(step: ChooseStep, label: str, score: float) -> str:
    """The model of the first case that fits."""
    return next((case.model for case in step.cases if label in case.labels and score >= case.min_score), step.default)
