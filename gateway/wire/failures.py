"""Reads an engine's error body, in any of the formats that engines use."""

from __future__ import annotations

import re
from typing import Any

import msgspec

MAX_MESSAGE = 1000
"""Characters of an engine's text that are passed to the client."""
_WORD = re.compile(r"[!-~]{1,64}").fullmatch
_PLACE = re.compile(r"[ -~]{1,64}").fullmatch
_TOO_LONG = re.compile(
    r"context length|context window|maximum model length"  # OpenAI, vLLM of every age, SGLang, Ollama
    r"|available context size|prompt is too long"  # llama.cpp's server, Anthropic
    r"|`inputs` tokens \+ `max_new_tokens` must be|`inputs` must have less than",  # text-generation-inference
    re.IGNORECASE,
).search
"""How engines say that a request does not fit into the context. Most have no code for it."""


def engine_says(body: bytes) -> tuple[str, str | None, str | None]:
    """Message, code and param of an error body: OpenAI's (also without its frame, as vLLM has had it), the Open Inference Protocol's, or
    FastAPI's `detail`. ("", None, None) for anything else."""
    try:
        document = msgspec.json.decode(body)
        error: Any = document.get("error", document)
        if isinstance(error, str):  # the Open Inference Protocol: a string, with the rest beside it
            error = {**document, "message": error}
        message, code, param = error.get("message", error.get("detail")), error.get("code"), error.get("param")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return "", None, None
    if error.get("type") == "exceed_context_size_error" or (isinstance(message, str) and _TOO_LONG(message, 0, MAX_MESSAGE)):
        code = "context_length_exceeded"  # the type is llama.cpp's
    if not isinstance(message, str):  # `detail` may quote what the client sent
        message = "" if message is None else msgspec.json.encode(message).decode()
    # what is longer than such names are would have to be kept in records and metrics
    return (
        message[:MAX_MESSAGE],
        code if isinstance(code, str) and _WORD(code) else None,
        param if isinstance(param, str) and _PLACE(param) else None,
    )
