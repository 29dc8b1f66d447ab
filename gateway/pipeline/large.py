"""Whole answers of many MiB, such as the vectors of two thousand texts: what takes long is done in turns of the loop, or in a thread that
lets go of the interpreter, so that nothing is left of it for the step that sends them."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.core.slices import Steps
from gateway.core.snapshot import ModelEntry
from gateway.core.wire import WholeAnswer
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.stream import AnswerRelay
from gateway.wire.openai.answers import OpenAiAnswer, decoding
from gateway.wire.openai.usage import usage_of
from gateway.wire.skimming import skimmed

LARGE_ANSWER: Final = 4 * 1024 * 1024
"""Bytes of an answer. One of fewer is decoded in 5 ms, and hashed in 3."""
VECTORS: Final = "embeddings"
"""The operation whose answers are so large, with nothing in them but numbers."""


async def read_ahead(x: Exchange, relay: AnswerRelay, entry: ModelEntry, body: bytes) -> None:
    """Finds what an answer of vectors has cost, and what guardrails are to read of it; of one that passes as it is, the hash for the audit
    record. Raises EngineError."""
    request = x.request
    assert request is not None
    inspected = bool(entry.response_guardrails) or bool(x.layers)
    if request.operation == VECTORS:
        await x.plane.turns.run(_reading(relay, body, inspected))
    changes = inspected or entry.response_tools or x.shapes or request.api.describes or (request.stream and request.api.generates)
    if not changes:  # the hash is made without the interpreter
        x.answer_hash = await asyncio.get_running_loop().run_in_executor(None, x.snapshot.audit.hash_body, body)


def _reading(relay: AnswerRelay, body: bytes, inspected: bool) -> Steps[None]:
    less = yield from skimmed(body)
    relay.counted = usage_of(less)
    if inspected:
        decoded, keys = yield from decoding(body)
        yield
        relay.whole = OpenAiAnswer(body, False, True, decoded, keys)
        yield


def known(x: Exchange, body: bytes, inspected: bool) -> WholeAnswer | None:
    """The answer as it has been read already, once; None where it is to be read now."""
    relay = x.relay
    if len(body) < LARGE_ANSWER or not inspected or not isinstance(relay, AnswerRelay):
        return None
    found, relay.whole = relay.whole, None
    return found
