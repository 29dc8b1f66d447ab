"""Answers in the Responses API: their items with all texts in them, and their usage.

Every string of an item is a text, except names and what is in base64. Around the items, a client whose answers guardrails read gets only
names, figures and what its request says itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.core.errors import EngineError
from gateway.core.types import Usage
from gateway.core.wire import Memory, WholeAnswer
from gateway.wire.openai.answers import Place, choice_texts, is_name, only_figures, without_codes
from gateway.wire.openai.media import is_media
from gateway.wire.openai.usage import MAX_USAGE
from gateway.wire.responses.views import ANSWER, CountsView, ResponseView

ENVELOPE: Final = frozenset({"id", "object", "status", "model", "previous_response_id", "service_tier"})
FIGURES: Final = frozenset({"created_at", "completed_at", "background", "store"})
REASONS: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}
_OPAQUE: Final[dict[Any, str]] = {"reasoning": "encrypted_content", "image_generation_call": "result", "compaction": "encrypted_content"}


# --- usage


def usage_from(view: CountsView | None) -> Usage | None:
    """An engine's token count. None where it reports none, or a number that cannot be true: then its tokens are estimated."""
    if view is None or (view.input_tokens is None and view.output_tokens is None):
        return None
    read, said = view.input_tokens or 0, view.output_tokens or 0
    asked, answered = view.input_tokens_details, view.output_tokens_details
    cached = (asked.cached_tokens if asked is not None else None) or 0
    thought = (answered.reasoning_tokens if answered is not None else None) or 0
    for count in (read, said, cached, thought):
        if not 0 <= count <= MAX_USAGE:
            return None
    return Usage(read, said, cached, False, thought)


def viewed(body: bytes) -> ResponseView | None:
    """What settling reads of a whole answer; None for what is none."""
    try:
        found: ResponseView = ANSWER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def usage_of(body: bytes) -> Usage | None:
    view = viewed(body)
    return None if view is None else usage_from(view.usage)


def finish_of(view: ResponseView | None) -> str:
    """Why it ended, in the words of a chat."""
    if view is None or view.status is None:
        return ""
    if view.status == "completed":
        return "stop"
    if view.status == "incomplete" and view.incomplete_details is not None:
        return REASONS.get(view.incomplete_details.reason or "", "")
    return ""


# --- texts


def decoded(body: bytes) -> dict[str, Any]:
    """A whole answer with its items. Raises EngineError for one that cannot be read in one way: it must not pass."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's answer is not valid JSON.") from None
    if document.__class__ is not dict:
        raise EngineError("The engine's answer is not a JSON object.")
    items_of(document)
    found: dict[str, Any] = document
    return found


def items_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a response. Raises EngineError."""
    items = document.get("output")
    if items.__class__ is not list:
        raise EngineError("The engine's answer has no list of items.")
    for item in items:
        if item.__class__ is not dict or item.get("type").__class__ is not str:
            raise EngineError("The engine's answer has an item that is not an object with a type.")
    found: list[dict[str, Any]] = items
    return found


def item_texts(item: dict[str, Any]) -> list[Place]:
    """The places of all texts in one item."""
    opaque = _OPAQUE.get(item.get("type"), "")
    found = choice_texts(item)
    if opaque:
        found = [place for place in found if not (place[0] == (opaque,) and is_media(place[1][opaque]))]
    return found


def without_scores(item: dict[str, Any]) -> bool:
    """Removes log probabilities and lists of numbers, which say an item's texts again; returns whether there were any."""
    removed = without_codes(item)
    content = item.get("content")
    for part in content if content.__class__ is list else ():
        if part.__class__ is dict and part.get("logprobs"):
            part["logprobs"] = []
            removed = True
    return removed


def trim(document: dict[str, Any], echoed: dict[str, Any]) -> None:
    """Removes every field around the items that may hold a text that nobody reads. echoed: what the response repeats of its request, which
    is put in as the request says it."""
    for key in list(document):
        value = document[key]
        if key == "output" or (key in ENVELOPE and (value is None or (value.__class__ is str and is_name(value)))):
            continue
        if key in FIGURES and value.__class__ not in (str, list, dict):
            continue
        if key == "usage" and value.__class__ is dict:
            only_figures(value, 0)
            continue
        if key == "incomplete_details" and value.__class__ is dict:
            reason = value.get("reason")
            document[key] = {"reason": reason if reason.__class__ is str and is_name(reason) else None}
            continue
        if value is not None:
            del document[key]
    for key, value in echoed.items():
        document[key] = value
    document.setdefault("error", None)


def branded(document: dict[str, Any], memory: Memory) -> None:
    """Says in a response what is kept of it here."""
    document["store"], document["previous_response_id"] = memory.keeps, memory.previous or None
    if memory.keeps:
        document["id"] = memory.identity


class ResponsesAnswer(WholeAnswer):
    """A whole answer, decoded. echoed: see `trim`; None where no guardrail reads it."""

    __slots__ = ("_document",)

    def __init__(self, body: bytes, echoed: dict[str, Any] | None) -> None:
        super().__init__(body)
        document = decoded(body)
        if echoed is not None:
            trim(document, echoed)
            for item in document["output"]:
                without_scores(item)
            self.body = msgspec.json.encode(document)
        self._document: dict[str, Any] = document
        self.texts = [holder[key] for _, holder, key in _places(document)]

    def replaced(self, texts: Sequence[str]) -> bytes:
        for (_, holder, key), text in zip(_places(self._document), texts, strict=True):
            holder[key] = text
        return msgspec.json.encode(self._document)


def _places(document: dict[str, Any]) -> list[Place]:
    return [place for item in document["output"] for place in item_texts(item)]


def contents(body: bytes) -> Sequence[str]:
    """The text of a whole answer; none where it calls a tool or refuses. Raises EngineError."""
    texts: list[str] = []
    for item in decoded(body)["output"]:
        if item["type"] == "message":
            content = item.get("content")
            for part in content if content.__class__ is list else ():
                if part.__class__ is not dict or part.get("type") == "refusal":
                    return ()
                texts.append(str(part.get("text") or ""))
        elif item["type"] != "reasoning":
            return ()
    return ["".join(texts)]
