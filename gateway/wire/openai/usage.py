"""Reads an engine's token counts from the `usage` object of an answer or chunk."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.core.types import Usage
from gateway.wire.openai.views import AnswerView, UsageView

MAX_USAGE: Final = 1_000_000_000
"""Most tokens that one request can be charged for: engines' numbers go into limits and the store's sums, which have 64 bits."""
_ANSWER: Final = msgspec.json.Decoder(AnswerView)


def usage_from(view: UsageView | None) -> Usage | None:
    """An engine's token count. An impossible number counts as 0, or as the most a request can use."""
    if view is None or (view.prompt_tokens is None and view.completion_tokens is None):
        return None
    details = view.prompt_tokens_details
    cached = _count(details.cached_tokens) if details is not None else 0
    return Usage(_count(view.prompt_tokens), _count(view.completion_tokens), cached)


def _count(reported: int | None) -> int:
    return 0 if reported is None or reported < 0 else min(reported, MAX_USAGE)


def usage_of(body: bytes) -> Usage | None:
    """The usage that an engine reports in a whole answer; None when it reports none or the answer is not JSON."""
    try:
        return usage_from(_ANSWER.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
