"""Counts a prompt with the tokenizer of the engine that will read it, where a model has `count_prompts` and a limit counts tokens or money.

A guess by bytes can be a quarter of the truth: a text may be written so that nearly each of its bytes is a token. So what a guess has
reserved is made up to what the engine counts, before the request is recorded and sent: callers at the same time cannot go beyond a budget
by their prompts. This comes after the guardrails, so an engine is shown here what it will be shown anyway; it takes no slot.
"""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError, EngineTimeout, GatehouseError
from gateway.core.ports import Counter
from gateway.core.snapshot import ModelEntry
from gateway.core.types import InferenceRequest, Principal, ResponseHead, Usage
from gateway.core.waiting import WAITS, Completion, Signal
from gateway.pipeline.exchange import Exchange

SECONDS: Final = 1.0
"""For the engine's answer. Then the prompt counts a token for each byte of the question: hardly any text has more."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of an answer: some list each token."""
MOST: Final = 1_000_000_000
CHAT, COMPLETIONS = b"/v1/chat/completions", b"/v1/completions"
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
}
"""What vLLM's `/tokenize` takes of a request, by its path."""
CANNOT: Final = (404, 405, 501)
"""Statuses of an engine that does not have the path at all."""

log = logging.getLogger("gatehouse.pipeline")


class _Answer(msgspec.Struct):
    input_tokens: int = 0
    count: int = 0


class _Asked:
    """Receives the engine's answer; `done` completes with it. What it costs is nobody's."""

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


async def counted(x: Exchange, entry: ModelEntry, guess: int) -> None:
    """Makes up what the exchange has reserved to what its prompt has. guess: at the prompt, before anything that was learned corrected it.

    Raises LimitExceeded, Overloaded where the rest is not to be had; then nothing is reserved.
    """
    request: InferenceRequest = x.request  # type: ignore[assignment]
    held = x.reservation
    if held is None or not request.api.generates or not held.counts_tokens:
        return
    counter = entry.route.counter(request.labels)
    question = None if counter is None else _question(request, counter)
    if counter is None or question is None:
        return
    found = await _asked(x, entry, counter, *question)
    if found <= request.prompt_tokens:
        return
    x.reservation = None
    held.settle(None)
    request.prompt_tokens, request.counted = guess, found
    principal: Principal = x.principal  # type: ignore[assignment]
    again: Any = x.snapshot.limiter.reserve(principal, request)
    x.reservation = await again if isinstance(again, WAITS) else again
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
    kept = KEPT.get(path)
    if kept is None:
        return None
    if counter.counting == "input_tokens":
        return path + b"/input_tokens", body
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if path == COMPLETIONS and not bytes(fields.get("prompt", b"")).startswith(b'"'):
        return None  # several prompts, or tokens
    return b"/tokenize", msgspec.json.encode({name: fields[name] for name in kept if name in fields})


async def _asked(x: Exchange, entry: ModelEntry, counter: Counter, path: bytes, body: bytes) -> int:
    """The tokens of the prompt, as the engine counts them: a token for each byte where it does not say, 0 where it cannot count at all."""
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
    if status in CANNOT or (error is not None and not isinstance(error, EngineTimeout)):
        why = f"status {status}" if error is None else str(error)
        log.warning("an engine of %s does not count prompts (%s): they are guessed for a while", entry.name, why)
        entry.route.uncounted()
        return 0
    return _read(answer.body, len(body)) if error is None and status == 200 else len(body)


def _read(body: bytearray, size: int) -> int:
    try:
        found = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, RecursionError):
        return size
    count = max(found.input_tokens, found.count)
    return count if 0 < count <= MOST else size
