"""Counts a prompt with the tokenizer of the engine that will read it, where a limit counts tokens or money and little of it is left.

A guess by bytes can be a quarter of the truth: a text may be written so that nearly every byte is a token. As long as each limit stays half
full even then, a token per byte is reserved (gateway.limits.bucket.bounded), and no engine is asked. Otherwise a guess is reserved first
and raised to what the engine counts before the request is recorded and sent, so that concurrent callers cannot exceed a budget by their
prompts. This comes after the guardrails, so an engine sees nothing here that it would not see anyway. Counting takes no slot. If the engine
does not answer, the most tokens that the prompt can have are reserved.
"""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError, EngineTimeout, GatehouseError, LimitExceeded
from gateway.core.ports import Counter, Reservation
from gateway.core.snapshot import ModelEntry
from gateway.core.types import InferenceRequest, Principal, ResponseHead, Usage
from gateway.core.waiting import WAITS, Completion, Signal
from gateway.core.wire import WireApi
from gateway.pipeline.exchange import Exchange

SECONDS: Final = 1.0
"""Seconds for the engine's answer. After that a token is counted for each byte of the prompt; hardly any text has more."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of an answer: some engines list every token."""
MOST: Final = 1_000_000_000
ADDED: Final = 256
"""Tokens that a template of chats may add beyond the bytes of their JSON: the model's own instructions, and those for tools."""
COUNTED: Final = frozenset({"chat", "completions", "messages", "responses", "embeddings", "classify", "rerank", "score"})
"""Operations whose prompts are texts."""
MEDIA: Final = (b"image", b"audio", b"video", b"file")
SHORT: Final = ("tokens_exceeded", "insufficient_quota", "session_exceeded")
"""Codes of limits that may count tokens or money."""
CHAT, COMPLETIONS, EMBEDDINGS = b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"
KEPT: Final = {
    CHAT: (
        "model",
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "mm_processor_kwargs",
    ),
    COMPLETIONS: ("model", "prompt", "add_special_tokens"),
    EMBEDDINGS: ("model", "prompt", "add_special_tokens"),
}
"""The fields of a request that vLLM's `/tokenize` takes, by the request's path."""
CANNOT: Final = (404, 405, 501)
"""Statuses of an engine that does not have the path at all."""

log = logging.getLogger("gatehouse.pipeline")


class _Answer(msgspec.Struct):
    input_tokens: int = 0
    count: int = 0


class _Asked:
    """Receives the engine's answer; `done` completes with it. Nobody is charged for it."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.head: ResponseHead | None = None
        self.body = bytearray()
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

    def stranded(self) -> bool:
        return True

    def error_event(self, error: GatehouseError) -> bytes:
        return b""

    def finish(self) -> str:
        return ""

    def tick(self, now: float) -> float:
        return self._exchange.until

    def usage(self) -> Usage | None:
        return None


def most(request: InferenceRequest, entry: ModelEntry) -> int:
    """The most tokens that the prompt can have: one for each byte, and what a template adds. 0: it has none."""
    guess = request.prompt_tokens
    if guess <= 0 or request.operation not in COUNTED:
        return 0
    if entry.spec.count_prompts is True and _may_have_media(request):
        return MOST
    return 4 * guess + 3 + (ADDED if request.api.generates else 0)


def _may_have_media(request: InferenceRequest) -> bool:
    """Whether there may be images or sounds, whose tokens do not depend on their bytes."""
    raw = bytes(request.fields.get("messages") or request.fields.get("input") or b"")
    return any(word in raw for word in MEDIA)


async def reserved(x: Exchange, entry: ModelEntry) -> Reservation | None:
    """Phase 5 for a model whose engines count: if there is plenty, reserves the most that the prompt can have; otherwise a guess, and the
    prompt must then be counted. Raises LimitExceeded, Overloaded."""
    request: InferenceRequest = x.request  # type: ignore[assignment]
    if entry.spec.pipeline is not None:
        return await _reserved_one(x, request)
    request.most = most(request, entry)
    await _reserve(x, request.model)
    return x.reservation


async def _reserved_one(x: Exchange, request: InferenceRequest) -> Reservation:
    """Reserves for a pipeline: one request without tokens, since each step reserves its own."""
    request.prompt_tokens = request.guess = request.max_tokens = 0
    one = InferenceRequest(WireApi(request.operation), request.path, request.model, {}, None)
    found: Any = x.snapshot.limiter.reserve(x.principal, one)  # type: ignore[arg-type]
    reservation: Reservation = await found if isinstance(found, WAITS) else found
    return reservation


async def renewed(x: Exchange, asked: ModelEntry, fallback: ModelEntry) -> bool:
    """Reserves anew for a fallback, which has another price and may have another tokenizer. Returns whether the limits, which are those of
    the model that was asked for, have room."""
    request: InferenceRequest = x.request  # type: ignore[assignment]
    held = x.reservation
    if held is not None and not held.counts_tokens:
        return True
    request.prompt_tokens, request.counted, request.cautious = request.guess, 0, False
    request.most = most(request, fallback) if fallback.counts_prompts else 0
    _give_back(x)
    try:
        await _reserve(x, asked.name)
        if request.unsure:
            await counted(x, fallback, asked.name)
    except GatehouseError as error:
        log.debug("the fallback %s does not take this request (%s)", fallback.name, error.code)
        return False
    return True


def _give_back(x: Exchange) -> None:
    held, x.reservation = x.reservation, None
    if held is not None:
        held.settle(None)


async def _reserve(x: Exchange, name: str) -> None:
    """name: the model whose limits count. Raises LimitExceeded, Overloaded."""
    request: InferenceRequest = x.request  # type: ignore[assignment]
    error = await _tried(x, name)
    if error is not None and request.most and not (request.unsure or request.cautious or request.counted) and error.code in SHORT:
        # There was less than was known here: the guess may fit.
        request.prompt_tokens, request.most, bound = request.guess, MOST, request.most
        error = await _tried(x, name)
        request.most = bound
    if error is not None:
        raise error


async def _tried(x: Exchange, name: str) -> LimitExceeded | None:
    request: InferenceRequest = x.request  # type: ignore[assignment]
    principal: Principal = x.principal  # type: ignore[assignment]
    request.unsure = False
    model, request.model = request.model, name
    try:
        found: Any = x.snapshot.limiter.reserve(principal, request)
    except LimitExceeded as error:
        return error
    finally:
        request.model = model
    try:
        x.reservation = await found if isinstance(found, WAITS) else found
    except LimitExceeded as error:
        return error
    return None


async def counted(x: Exchange, entry: ModelEntry, name: str = "") -> None:
    """Raises what the exchange has reserved to what its prompt needs. name: the model whose limits count, if not that of the request.

    Raises LimitExceeded or Overloaded if the rest is not available; then nothing is reserved.
    """
    request: InferenceRequest = x.request  # type: ignore[assignment]
    request.unsure = False
    counter = entry.route.counter(request.labels)
    if counter is None and entry.spec.count_prompts is True:
        return  # engines elsewhere cannot count, or none works
    question = None if counter is None else _question(request, counter)
    found = None if counter is None or question is None else await _asked(x, entry, counter, *question)
    if found == 0:
        return
    if found is not None and found <= request.prompt_tokens:
        request.prompt_tokens = request.counted = found
        return
    _give_back(x)
    request.prompt_tokens, request.counted, request.cautious = request.guess, found or 0, found is None
    await _reserve(x, name or request.model)
    x.clock.mark("reserve")


def _question(request: InferenceRequest, counter: Counter) -> tuple[bytes, bytes] | None:
    """The path and the body that ask for the tokens of a prompt; None for a request of which this cannot be asked."""
    request.foreign = request.api.dialect != ""
    try:
        path, body = request.api.target(request, counter.upstream_model)
    except GatehouseError:
        return None  # it has something that only engines of its own format take
    finally:
        request.foreign = False  # each attempt decides that for its endpoint
    if counter.counting == "input_tokens":
        return (path + b"/input_tokens", body) if path in KEPT else None
    kept = KEPT.get(path)
    if kept is None:
        return None
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if path == EMBEDDINGS and "input" in fields:
        fields["prompt"] = fields["input"]
    if path != CHAT and not bytes(fields.get("prompt", b"")).startswith(b'"'):
        return None  # several prompts, or tokens
    return b"/tokenize", msgspec.json.encode({name: fields[name] for name in kept if name in fields})


async def _asked(x: Exchange, entry: ModelEntry, counter: Counter, path: bytes, body: bytes) -> int | None:
    """The tokens of the prompt, as the engine counts them; None where it does not say, 0 where a server that is not ours cannot count at
    all."""
    client, answer = counter.counts_with, _Asked(x)
    head = b"POST %b%b HTTP/1.1\r\ncontent-type: application/json\r\nx-request-id: %b\r\n%b" % (
        client.base_path,
        path,
        x.request_id,
        counter.request_headers,
    )
    began = perf_counter_ns()
    x.relay, x.until = answer, x.plane.now + SECONDS
    x.wake_at = min(x.deadline, x.until)
    x.call = client.send(head, body, answer, SECONDS, SECONDS)
    try:
        if not answer.done.done:
            await Completion(answer.done)
    finally:
        x.call.cancel()
        x.call = x.relay = None
        x.until = x.wake_at = x.deadline
        x.engine_ns += perf_counter_ns() - began
    error, status = answer.done.error, 0 if answer.head is None else answer.head.status
    if counter.counting != "tokenize":
        pass
    elif status in CANNOT or (error is not None and not isinstance(error, EngineTimeout)):
        why = f"status {status}" if error is None else str(error)
        log.warning("an engine of %s does not count prompts (%s): they are guessed for a while", entry.name, why)
        entry.route.uncounted()
        return 0
    return _read(answer.body) if error is None and status == 200 else None


def _read(body: bytearray) -> int | None:
    try:
        found = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    count = max(found.input_tokens, found.count)
    return count if 0 < count <= MOST else None
