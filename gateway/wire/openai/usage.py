"""Reads an engine's token counts from the `usage` object of an answer or chunk."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UnsetType

from gateway.core.types import Usage
from gateway.wire.openai.views import AnswerView, ErrorView, PlainUsage, UsageView

MAX_USAGE: Final = 100_000_000
"""Most tokens that an engine is believed to have used for one request: its numbers go into limits, costs and sums."""
MAX_FINISH: Final = 32
"""Characters of a finish reason."""
_FINISHES: Final = (b'"finish_reason":"', b'"finish_reason": "')
_KNOWN: Final = {b"stop": "stop", b"length": "length", b"tool_calls": "tool_calls", b"content_filter": "content_filter"}
"""The reasons that the API names."""
_ANSWER: Final = msgspec.json.Decoder(AnswerView)
_TOLD: Final = msgspec.json.Decoder(ErrorView)
_ERROR: Final = b'"error"'
_FRONT: Final = 256
"""Bytes of an answer among which an error begins."""


def usage_from(view: UsageView | PlainUsage | None) -> Usage | None:
    """An engine's token count. None where it reports none, or a number that cannot be true: then its tokens are estimated."""
    if view is None:
        return None
    prompt, completion = view.prompt_tokens, view.completion_tokens
    if not (isinstance(prompt, int) or isinstance(completion, int)):
        return None
    if not (0 <= (prompt or 0) <= MAX_USAGE and 0 <= (completion or 0) <= MAX_USAGE):
        return None
    asked, answered = view.prompt_tokens_details or None, view.completion_tokens_details or None
    cached = _count(asked.cached_tokens) if asked is not None else 0
    reasoning = _count(answered.reasoning_tokens) if answered is not None else 0
    usage = Usage(_count(prompt), _count(completion), cached, False, reasoning)
    image = asked.image_tokens if asked is not None else None
    heard = asked.audio_tokens if asked is not None else None
    spoken = answered.audio_tokens if answered is not None else None
    if image or heard or spoken:
        usage.of_media(_count(image), _count(heard), _count(spoken))
    return usage


def _count(reported: int | UnsetType | None) -> int:
    """Parts of the whole; a wrong one is bounded, as the whole is what counts."""
    return min(max(reported, 0), MAX_USAGE) if isinstance(reported, int) else 0


def usage_of(body: bytes) -> Usage | None:
    """The usage that an engine reports in a whole answer; None when it reports none or the answer is not JSON."""
    try:
        return usage_from(_ANSWER.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def tells_error(body: bytes) -> bool:
    """Whether an answer with the status 200 is only an engine's error, an object or a text: some vendors answer so."""
    found = body.find(_ERROR, 0, _FRONT)
    if found < 0 or body[found + 7 : found + 13].lstrip(b": ").startswith(b"null"):  # as every response says
        return False
    try:
        view = _TOLD.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    told = bytes(view.error)
    return bytes(view.choices) == b"null" and len(told) > 2 and told[:1] in (b"{", b'"')


def finish_in(data: bytes) -> str:
    """The last finish reason in whole events or an answer that is a word; "" without one. A text cannot hold such a key: its quotes would
    be escaped."""
    for mark in _FINISHES:
        found = data.rfind(mark)
        if found >= 0:
            begin = found + len(mark)
            end = data.find(b'"', begin, begin + MAX_FINISH + 1)
            if end <= begin:
                return ""
            word = data[begin:end]
            known = _KNOWN.get(word)
            if known is not None:
                return known
            return word.decode() if word.isascii() and word.replace(b"_", b"").isalnum() else ""
    return ""
