"""What an engine counted, from the `usage` object of an answer or of a chunk."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.core.types import Usage
from gateway.wire.openai.views import AnswerView, UsageView

MAX_USAGE: Final = 1_000_000_000
"""Tokens that one request can be charged for. An engine's number is put into limits and the store's sums, which have 64 bits."""
_ANSWER: Final = msgspec.json.Decoder(AnswerView)


def usage_from(view: UsageView | None) -> Usage | None:
    """What an engine counted. A number that no request can have used says nothing: it counts as 0, or as the largest that one can."""
    if view is None or (view.prompt_tokens is None and view.completion_tokens is None):
        return None
    details = view.prompt_tokens_details
    cached = _count(details.cached_tokens) if details is not None else 0
    return Usage(_count(view.prompt_tokens), _count(view.completion_tokens), cached)


def _count(reported: int | None) -> int:
    return 0 if reported is None or reported < 0 else min(reported, MAX_USAGE)


def usage_of(body: bytes) -> Usage | None:
    """The usage an engine reports in a whole answer; None when it reports none or the answer is not JSON."""
    try:
        return usage_from(_ANSWER.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
