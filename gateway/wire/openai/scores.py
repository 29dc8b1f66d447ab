"""Log probabilities of a whole answer that guardrails read: they pass where they only repeat the text that is read."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.wire.openai.views import Scores

LOGPROBS: Final = "logprobs"
LARGE: Final = 256 * 1024
"""Bytes of an answer from which it is looked whether it has alternatives."""
_ALTERNATIVES: Final = b'"top_logprobs"'
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_CHOICES: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_SCORES: Final = msgspec.json.Decoder(Scores | None)


def without_alternatives(body: bytes) -> Any:
    """An answer, decoded but for the alternatives of its tokens, which `narrow` removes: twenty for each of four thousand tokens are ten
    megabytes and a million objects. Raises what msgspec raises for one that is no JSON."""
    if len(body) < LARGE or body.find(_ALTERNATIVES) < 0:
        return msgspec.json.decode(body)
    try:
        fields: dict[str, Any] = _FIELDS.decode(body)
        choices: list[dict[str, Any]] = _CHOICES.decode(fields.get("choices", b"null"))
        for choice in choices:
            for key, raw in choice.items():
                choice[key] = msgspec.to_builtins(_SCORES.decode(raw)) if key == LOGPROBS else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # of another form, or none: then this says so
        return msgspec.json.decode(body)
    return {key: choices if key == "choices" else msgspec.json.decode(raw) for key, raw in fields.items()}


def narrow(choice: dict[str, Any]) -> bool:
    """Keeps the log probabilities of a choice's tokens as far as these spell its text from its beginning. Removes alternatives, which
    nobody reads, and everything else in there; returns whether something was removed."""
    given = choice[LOGPROBS]
    kept: dict[str, Any] | None = None
    if given.__class__ is dict:
        message = choice.get("message")
        if message.__class__ is dict:
            kept = _of_chat(given.get("content"), message.get("content"))
        else:
            kept = _of_completion(given, choice.get("text"))
    choice[LOGPROBS] = kept
    changed: bool = kept != given
    return changed


def _of_chat(scores: Any, text: Any) -> dict[str, Any] | None:
    if scores.__class__ is not list or text.__class__ is not str:
        return None
    whole, place = text.encode("utf-8", "surrogatepass"), 0
    kept: list[dict[str, Any]] = []
    for one in scores:
        token = one.get("token") if one.__class__ is dict else None
        if token.__class__ is not str:
            break
        data = _bytes(one.get("bytes"), token)
        if data is None or whole[place : place + len(data)] != data:
            break
        place += len(data)
        kept.append({"token": token, "logprob": _number(one.get("logprob")), "bytes": list(data), "top_logprobs": []})
    return {"content": kept, "refusal": None} if kept else None


def _bytes(given: Any, token: str) -> bytes | None:
    """The bytes of a token; None where the two say different things. A token that is a part of a character has bytes alone."""
    if given is None:
        return token.encode("utf-8", "surrogatepass")
    try:
        data = bytes(given) if given.__class__ is list else b""
    except (TypeError, ValueError):
        return None
    return data if data.decode("utf-8", "replace") == token else None


def _of_completion(given: dict[str, Any], text: Any) -> dict[str, Any] | None:
    tokens, scores, offsets = given.get("tokens"), given.get("token_logprobs"), given.get("text_offset")
    if tokens.__class__ is not list or text.__class__ is not str:
        return None
    count = place = 0
    for token in tokens:
        if token.__class__ is not str or not text.startswith(token, place):
            break
        place += len(token)
        count += 1
    if not count:
        return None
    return {
        "tokens": tokens[:count],
        "token_logprobs": [_number(score) for score in scores[:count]] if scores.__class__ is list else None,
        "top_logprobs": None,
        "text_offset": [_number(offset) for offset in offsets[:count]] if offsets.__class__ is list else None,
    }


def _number(value: Any) -> Any:
    return value if value.__class__ is int or value.__class__ is float else None
