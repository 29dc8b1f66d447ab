"""Asks a model of this gateway on behalf of a guardrail or a cache: slots, queue, breakers and retries are those of a client's request.

Such a question is no exchange: it has no caller to authenticate, limit or record, and guardrails do not read it. What it costs is counted
for the model it asks (operation `guardrail`, or `cache`); a guardrail's is charged to the caller where it leads to a refusal.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec

from gateway.core.asking import GUARDRAIL, Answered
from gateway.core.deadlines import within
from gateway.core.errors import EngineError, EngineTimeout, GatehouseError
from gateway.core.ports import Attempt, AttemptResult
from gateway.core.snapshot import ModelEntry
from gateway.core.types import InferenceRequest, Principal, ResponseHead, Usage
from gateway.core.values import UNLABELLED
from gateway.core.waiting import Signal, as_future
from gateway.pipeline.attempt import MOST_LOST, engine_error, note_full, result_of
from gateway.pipeline.flights import FULL
from gateway.pipeline.plane import DataPlane

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
GATEWAY: Final = Principal("guardrails", "gatehouse", "internal", ("*",), "interactive")
"""The principal for which guardrails wait for slots. It is not the caller, as requests of all callers wait for verdicts."""


class _Reply:
    """Receives one whole answer."""

    def __init__(self) -> None:
        self.head = ResponseHead(502, [])
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts: list[bytes] = []
        self._size = 0

    def body(self) -> bytes:
        return b"".join(self._parts)

    def on_head(self, head: ResponseHead) -> None:
        self.head = head

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise EngineError("The engine's answer is too large.")
        self._parts.append(data)

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_failed(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def stranded(self) -> bool:
        return True


class ModelAsker:
    """Implements gateway.core.asking.Asker with the Snapshot in force when a question is asked."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    async def ask(
        self,
        model: str,
        path: bytes,
        question: dict[str, Any],
        seconds: float,
        principal: Principal | None = None,
        labels: frozenset[str] = UNLABELLED,
        operation: str = GUARDRAIL,
    ) -> Answered:
        """See the port."""
        snapshot = self._plane.current()
        entry = snapshot.models.get(model)
        if entry is None:
            raise EngineError(f"There is no model {model!r} to ask.")
        standing = self._plane.standing
        if standing.active and standing.of_model(entry.name) is not None:
            raise EngineError(f"The model {model!r} has been stopped.")
        request = snapshot.parse(path, msgspec.json.encode({"model": entry.name, **question}), {})
        request.labels = labels if snapshot.labels is None else labels | snapshot.labels.of_model(entry.name)
        began = time.perf_counter()
        usage: Usage | None = None
        status, outcome = 504, "timeout"
        try:
            async with within(seconds):
                body, usage = await self._answer(entry, request, principal or GATEWAY, time.monotonic() + seconds)
            status, outcome = 200, "ok"
        except TimeoutError:
            raise EngineTimeout(f"The model {model!r} did not answer within {seconds:g} s.") from None
        except GatehouseError as error:
            status, outcome = error.status, "failed"
            raise
        finally:
            if principal is None:  # else it is a request of its own, which is counted as such
                entry.meter.record(operation, status, outcome, 0.0, time.perf_counter() - began, usage)
        return Answered(body, usage)

    async def _answer(self, entry: ModelEntry, request: InferenceRequest, principal: Principal, deadline: float) -> tuple[bytes, Usage]:
        tried: tuple[str, ...] = ()
        lost = 0
        while True:
            attempt = await granted(entry, request, principal, tried, deadline)
            try:
                reply = await self._sent(attempt, request, principal, deadline)
            except EngineError as error:
                attempt.close(AttemptResult.REFUSED if error.refused else AttemptResult.FAILURE)
                tried = (*tried, attempt.endpoint_name)
                lost += error.lost
                pause = None if lost >= MOST_LOST else entry.route.may_retry(error, len(tried))
                if pause is None:
                    raise
                entry.meter.retries += 1
                await asyncio.sleep(pause)
                continue
            except BaseException:
                attempt.close(AttemptResult.NEUTRAL)
                raise
            attempt.close(result_of(reply.head))
            body = reply.body()
            if reply.head.status in FULL:
                tried = (*tried, attempt.endpoint_name)
                note_full(entry, attempt.endpoint_name, reply.head, request.labels)
                if lost < MOST_LOST and entry.route.may_move(len(tried), request.labels):
                    entry.meter.retries += 1
                    continue
            if reply.head.status != 200:
                raise engine_error(reply.head, body, sent=attempt.request_headers)
            body = request.api.received(request, body)
            return body, _usage(entry, attempt, request, body)

    async def _sent(self, attempt: Attempt, request: InferenceRequest, principal: Principal, deadline: float) -> _Reply:
        path, body = request.api.target(request, attempt.upstream_model)
        head = b"POST %b%b HTTP/1.1\r\n%bx-request-id: %b\r\nx-gatehouse-priority: %b\r\nx-gatehouse-deadline-ms: %d\r\n%b" % (
            attempt.client.base_path,
            path,
            request.content,
            self._plane.next_id(),
            principal.priority.encode(),
            max(1, int((deadline - time.monotonic()) * 1000)),
            attempt.request_headers,
        )
        reply = _Reply()
        call = attempt.client.send(head, body, reply, attempt.total_timeout, attempt.total_timeout)
        try:
            await reply.done
        finally:
            call.cancel()
        return reply


async def granted(entry: ModelEntry, request: InferenceRequest, principal: Principal, tried: tuple[str, ...], deadline: float) -> Attempt:
    """An attempt at a model, now or after its turn in the queue. Raises Overloaded, EngineError, PermissionDenied."""
    given: Any = entry.route.acquire(request, principal, None, tried, deadline, True)
    if not isinstance(given, Signal):
        attempt: Attempt = given
        return attempt
    try:
        waited: Attempt = await as_future(given)
        return waited
    except BaseException:
        entry.route.abandon(given)
        raise


def _usage(entry: ModelEntry, attempt: Attempt, request: InferenceRequest, body: bytes) -> Usage:
    usage = request.api.answer_usage(request, body) or Usage()
    if attempt.device is not None:
        attempt.device.end()
        usage.device = attempt.device
    price = None if entry.prices is None else entry.prices.at(time.time())
    if price is not None:
        usage.cost, usage.currency = price.cost(usage), price.currency
    return usage
