"""Reads the OpenAI API's requests and answers through typed views. What is forwarded is the client's own bytes; policy reads the views."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from gateway.core.errors import RequestError
from gateway.core.types import InferenceRequest, Usage
from gateway.wire.openai.answers import Place, choice_texts
from gateway.wire.openai.passages import READ, Passages, plain
from gateway.wire.openai.views import (
    AnswerView,
    ChatRequest,
    ChunkView,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    Message,
    RerankRequest,
    StreamOptions,
    UsageView,
)

OPERATIONS: dict[bytes, tuple[str, type[Struct]]] = {
    b"/v1/chat/completions": ("chat", ChatRequest),
    b"/v1/completions": ("completions", CompletionRequest),
    b"/v1/embeddings": ("embeddings", EmbeddingRequest),
    b"/v1/classify": ("classify", ClassifyRequest),
    b"/v1/rerank": ("rerank", RerankRequest),
}
_DECODERS: Final = {path: (operation, msgspec.json.Decoder(view)) for path, (operation, view) in OPERATIONS.items()}
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_WITH_USAGE: Final = Raw(b'{"include_usage":true}')
_FORBIDDEN = ("api_base", "base_url", "api_key", "api_version", "extra_headers")
MAX_USAGE: Final = 1_000_000_000
"""Tokens that one request can be charged for. An engine's number is put into limits and the store's sums, which have 64 bits."""
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""Strings and brackets. A string without end reaches to the end of the body: looked at again and again it would cost the square."""
_AT_PATH: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


def check_depth(body: bytes, limit: int) -> None:
    """Refuses JSON nested deeper than `limit`. Exact; the common case is two bounded counts, because depth cannot exceed the brackets.

    To split counts with the processor's search for a byte; `bytes.count` looks at one after the other.
    """
    if len(body.split(b"{", limit + 1)) + len(body.split(b"[", limit + 1)) - 2 <= limit:
        return
    depth = 0
    for match in _BRACKETS.finditer(body):
        mark = match[0]
        if mark in (b"{", b"["):
            depth += 1
            if depth > limit:
                raise RequestError(f"The body is nested deeper than {limit} levels.", code="invalid_json")
        elif mark in (b"}", b"]"):
            depth -= 1


def decode_error(error: msgspec.DecodeError) -> RequestError:
    """The contract's error for what msgspec found wrong."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return RequestError(f"The body is not valid JSON: {text}.", code="invalid_json")
    match = _AT_PATH.search(text)
    param = match[1] if match and match[1] else None
    problem = text[: match.start()] if match else text
    missing = re.search(r"missing required field `([^`]+)`", problem)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return RequestError(f"{param} is required.", param=param, code="missing_required_parameter")
    place = f"{param or 'body'}: {problem}"
    return RequestError(f"{place}.", param=param, code="invalid_value")


def parse(path: bytes, body: bytes, max_depth: int = 64) -> InferenceRequest:
    """The typed view of a request to one of OPERATIONS' paths. Raises RequestError.

    What is forwarded is the top-level object written anew, each key once and unescaped, each value the client's own bytes: a
    key given twice or spelled with escapes could be read differently by an engine than it was here. The same dictionary of
    raw values makes every change of the body cheap.
    """
    operation, decoder = _DECODERS[path]
    lists = body.count(b"[")
    if body.count(b"{") + lists > max_depth:
        check_depth(body, max_depth)
    try:
        view: Any = decoder.decode(body)
        fields: dict[str, Raw] = _FIELDS.decode(body)
        if not body.isascii():
            _check_unread(operation, fields)
    except msgspec.DecodeError as error:
        if not body or body.isspace():
            raise RequestError("The body is empty; send a JSON object.", code="invalid_json") from None
        raise decode_error(error) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if (
        view.api_base is not UNSET
        or view.base_url is not UNSET
        or view.api_key is not UNSET
        or view.api_version is not UNSET
        or view.extra_headers is not UNSET
    ):
        for name in _FORBIDDEN:
            fields.pop(name, None)
    stream = include_usage = False
    wanted = 0
    if lists > 1 and "messages" in fields:  # without a second list no message has parts
        _check_media(fields)
    if operation == "chat":
        # two names of one bound: which of them an engine keeps to is not known here
        stream, wanted = view.stream is True, max(view.max_completion_tokens or 0, view.max_tokens or 0) * (view.n or 1)
    elif operation == "completions":
        stream, wanted = view.stream is True, (view.max_tokens or 0) * max(view.n or 1, view.best_of or 1)
        if wanted and isinstance(view.prompt, list):
            wanted *= prompts_in(view.prompt)
    if stream:
        options = view.stream_options
        include_usage = options is not UNSET and options is not None and options.include_usage is True
        if not include_usage:
            fields["stream_options"] = _asking_for_usage(fields["stream_options"]) if isinstance(options, StreamOptions) else _WITH_USAGE
    return InferenceRequest(operation, path, view.model, fields, view, stream, include_usage, len(body) >> 2, wanted)


def _check_unread(operation: str, fields: dict[str, Raw]) -> None:
    """Fields that no view reads have not been looked at, and must be UTF-8 too. Texts are not decoded twice: that costs as much as the rest
    of the reading. Raises UnicodeDecodeError."""
    read = READ[operation]
    for name, raw in fields.items():
        if name not in read:
            value = bytes(raw)
            if not value.isascii():
                value.decode()


def prompts_in(prompt: list[Any]) -> int:
    """How many prompts a list is: token ids that stand in it by themselves are one, every text and every list of ids is one."""
    return max(1, sum(not isinstance(item, int) for item in prompt))


def _asking_for_usage(options: Raw) -> Raw:
    """The client's stream options and the wish for usage; what else they say is kept."""
    try:
        return Raw(msgspec.json.encode({**_FIELDS.decode(options), "include_usage": True}))
    except msgspec.DecodeError as error:
        raise decode_error(error) from None


def _check_media(fields: dict[str, Raw]) -> None:
    """No engine is made to fetch what a user names. Where a message may name an address, the messages are read whole and
    written anew: an address that stands there twice could be one thing here and another for the engine."""
    raw = bytes(fields["messages"])
    if b'url"' not in raw and (b"\\" not in raw or b"\\u00" not in raw):
        return
    messages = plain(fields["messages"], "messages")
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            for name, media in part.items() if isinstance(part, dict) else ():
                address = media.get("url") if isinstance(media, dict) else media
                if name.endswith("url") and isinstance(address, str) and not address.startswith("data:"):
                    param = f"messages[{i}].content[{j}].{name}"
                    raise RequestError(f"{param}: remote media are not fetched; send a data: URL.", param=param)
    fields["messages"] = Raw(msgspec.json.encode(messages))


def with_texts(request: InferenceRequest, passages: Passages) -> None:
    """Writes the fields that hold texts anew from what was decoded here: rewritten by a guardrail, or only to be unambiguous
    inside too (a key given twice in a message). All other fields keep what the client sent."""
    view, fields = request.view, request.fields
    for name in READ[request.operation]:
        if name != "messages" and name in fields:
            fields[name] = Raw(msgspec.json.encode(getattr(view, name)))
    if isinstance(view, ChatRequest):
        for target, message in zip(passages.messages, view.messages, strict=True):
            _replace_message(target, message)
        fields["messages"] = Raw(msgspec.json.encode(passages.messages))
    passages.write()


def _replace_message(target: dict[str, Any], message: Message) -> None:
    if isinstance(message.content, str):
        target["content"] = message.content
    elif message.content:
        for there, part in zip(target["content"], message.content, strict=True):
            if part.text is not None:
                there["text"] = part.text
    for there, call in zip(target.get("tool_calls") or (), message.tool_calls or (), strict=True):
        if call.function and call.function.arguments:
            there["function"]["arguments"] = call.function.arguments


# --- answers


_ANSWER: Final = msgspec.json.Decoder(AnswerView)
CHUNK: Final = msgspec.json.Decoder(ChunkView)


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


def answer_texts(document: dict[str, Any]) -> list[str]:
    """The texts of a whole answer: contents, reasoning, tool calls and whatever else each choice says, in order."""
    return [holder[key] for _, holder, key in _answer_places(document)]


def replace_answer_texts(document: dict[str, Any], texts: list[str]) -> None:
    """Puts one text in the place of each that `answer_texts` gave. Log probabilities go: they hold the old text, token by token."""
    for (_, holder, key), text in zip(_answer_places(document), texts, strict=True):
        holder[key] = text
    for choice in document["choices"]:
        if isinstance(choice, dict) and choice.get("logprobs") is not None:
            choice["logprobs"] = None


def _answer_places(document: dict[str, Any]) -> list[Place]:
    choices = document.get("choices")
    return [
        place for choice in (choices if isinstance(choices, list) else ()) if isinstance(choice, dict) for place in choice_texts(choice)
    ]
