"""A small GET to an endpoint of a model, outside the pipeline: the metadata calls of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.core.errors import EngineError, GatehouseError
from gateway.core.ports import Attempt, AttemptResult
from gateway.core.snapshot import ModelEntry
from gateway.core.types import InferenceRequest, Principal, ResponseHead
from gateway.core.waiting import Signal, as_future

MAX_BYTES = 1024 * 1024
TIMEOUT = 10.0


class Answer:
    """Receives a small answer; `done` completes with it."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.done: Signal[None] = Signal()

    def on_head(self, head: ResponseHead) -> None:
        self.head = head

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_BYTES:
            raise EngineError("The engine's answer is too large.")

    def on_end(self) -> None:
        self.done.set(None)

    def on_failed(self, error: Exception) -> None:
        self.done.fail(error)


async def fetch(entry: ModelEntry, principal: Principal, path: bytes, request_id: bytes, deadline: float) -> tuple[int, bytes]:
    """(status, body) of GET `path` at one of the model's endpoints. Needs a task; raises GatehouseError."""
    attempt = await _acquired(entry, principal, path, deadline)
    answer = Answer()
    call = attempt.client.send(
        b"GET %b%b HTTP/1.1\r\nx-request-id: %b\r\n%b" % (attempt.client.base_path, path, request_id, attempt.request_headers),
        b"",
        answer,
        TIMEOUT,
        TIMEOUT,
    )
    try:
        await as_future(answer.done)
    except GatehouseError:
        attempt.close(AttemptResult.FAILURE)
        raise
    finally:
        call.cancel()
        attempt.close(AttemptResult.SUCCESS)
    return (answer.head.status if answer.head is not None else 502), answer.body


async def _acquired(entry: ModelEntry, principal: Principal, path: bytes, deadline: float) -> Attempt:
    request = InferenceRequest("metadata", path, entry.name, {}, None)
    attempt = entry.route.acquire(request, principal, None, (), deadline)
    if not isinstance(attempt, Awaitable):
        return attempt
    try:
        return await as_future(attempt)  # type: ignore[arg-type]
    except BaseException:
        entry.route.abandon(attempt)
        raise
