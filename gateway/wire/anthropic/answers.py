"""Answers in Anthropic's Messages API: their texts, their usage, and errors.

Every string of a block is a text, except names and what is in base64. Around the blocks, a client whose answers guardrails read gets only
the fields of ENVELOPE and the figures of `usage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.core.errors import ApprovalPending, EngineError, GatehouseError, Overloaded
from gateway.core.types import Usage
from gateway.core.wire import WholeAnswer
from gateway.wire.anthropic.fields import NO_THREADS
from gateway.wire.anthropic.views import ANSWER, CountsView
from gateway.wire.openai.answers import Place, choice_texts, is_name, only_figures, without_codes
from gateway.wire.openai.media import is_base64
from gateway.wire.openai.usage import MAX_FINISH, MAX_USAGE
from gateway.wire.unique import colons

ENVELOPE: Final = frozenset({"id", "type", "role", "model", "stop_reason"})
OVERLOADED: Final = 529
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_FINISH: Final = (b'"stop_reason":"', b'"stop_reason": "')
_OPAQUE: Final[dict[Any, str]] = {"thinking": "signature", "redacted_thinking": "data"}


# --- usage


def usage_from(view: CountsView | None) -> Usage | None:
    """An engine's token count. None where it reports none, or a number that cannot be true: then its tokens are estimated. The prompt is
    what was read anew, from the cache and into it."""
    if view is None or (view.input_tokens is None and view.output_tokens is None):
        return None
    counts = (view.input_tokens or 0, view.output_tokens or 0, view.cache_read_input_tokens or 0, view.cache_creation_input_tokens or 0)
    for count in counts:
        if not 0 <= count <= MAX_USAGE:
            return None
    fresh, generated, cached, written = counts
    return Usage(fresh + cached + written, generated, cached)


def usage_of(body: bytes) -> Usage | None:
    """The usage that an engine reports in a whole answer."""
    try:
        return usage_from(ANSWER.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def finish_in(data: bytes) -> str:
    """The last stop reason in whole events or an answer that is a word; "" without one."""
    for mark in _FINISH:
        found = data.rfind(mark)
        if found >= 0:
            begin = found + len(mark)
            end = data.find(b'"', begin, begin + MAX_FINISH + 1)
            if end <= begin:
                return ""
            word = data[begin:end]
            return word.decode() if word.isascii() and word.replace(b"_", b"").isalnum() else ""
    return ""


# --- texts


def block_texts(block: dict[str, Any]) -> list[Place]:
    """The places of all texts in one block, or in a piece of one."""
    opaque = _OPAQUE.get(block.get("type"), "")
    found = choice_texts(block)
    if opaque:
        found = [place for place in found if not (place[0] == (opaque,) and is_base64(place[1][opaque]))]
    return found


def decoded(body: bytes) -> dict[str, Any]:
    """A whole answer with its blocks. Raises EngineError for one that cannot be read in one way: it must not pass."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's answer is not valid JSON.") from None
    if document.__class__ is not dict or document.get("content").__class__ is not list:
        raise EngineError("The engine's answer has no list of blocks.")
    for block in document["content"]:
        if block.__class__ is not dict or block.get("type").__class__ is not str:
            raise EngineError("The engine's answer has a block that is not an object with a type.")
    found: dict[str, Any] = document
    return found


def trim(document: dict[str, Any]) -> bool:
    """Removes every field around the blocks that may hold a text that nobody reads; returns whether there was one."""
    removed = False
    for key in list(document):
        value = document[key]
        if key == "content" or (key in ENVELOPE and (value is None or (value.__class__ is str and is_name(value)))):
            continue
        if key == "stop_sequence" and (value is None or value.__class__ is str):
            continue
        if key == "usage" and value.__class__ is dict:
            removed |= only_figures(value, 0)
            continue
        del document[key]
        removed = True
    return removed


class MessagesAnswer(WholeAnswer):
    """A whole answer, decoded. inspected: guardrails read it."""

    __slots__ = ("_document",)

    def __init__(self, body: bytes, inspected: bool) -> None:
        super().__init__(body)
        document = decoded(body)
        changed = trim(document)
        if inspected:
            for block in document["content"]:
                changed |= without_codes(block)
        if changed:
            self.body = msgspec.json.encode(document)
        elif inspected:
            sent = msgspec.json.encode(document)
            if colons(body) != sent.count(b":"):  # a key that is there twice was read once
                self.body = sent
        self._document: dict[str, Any] = document
        self.texts = [holder[key] for _, holder, key in _places(document)]

    def replaced(self, texts: Sequence[str]) -> bytes:
        for (_, holder, key), text in zip(_places(self._document), texts, strict=True):
            holder[key] = text
        return msgspec.json.encode(self._document)


def _places(document: dict[str, Any]) -> list[Place]:
    found = [place for block in document["content"] for place in block_texts(block)]
    stop = document.get("stop_sequence")
    if stop.__class__ is str:
        found.append((("stop_sequence",), document, "stop_sequence"))
    return found


# --- errors


def status_of(error: GatehouseError) -> int:
    """Where a gateway or an engine is too busy, the API says 529."""
    return OVERLOADED if isinstance(error, Overloaded) else error.status


def error_document(error: GatehouseError, request_id: bytes) -> dict[str, Any]:
    """The error object. Besides `type` and `message` it has the gateway's own code, and the field that is wrong."""
    status = status_of(error)
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    inner: dict[str, Any] = {"type": kind, "message": error.message, "code": error.code}
    if error.param is not None:
        inner["param"] = error.param
    if isinstance(error, ApprovalPending):
        inner |= error.told()
    if error.code == NO_THREADS:
        inner["details"] = {"error_code": NO_THREADS, "unsupported": []}
    document: dict[str, Any] = {"type": "error", "error": inner}
    if request_id:
        document["request_id"] = request_id.decode()
    return document
