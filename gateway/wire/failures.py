"""Reads an engine's error body, in any of the formats that engines use."""

from __future__ import annotations

import re
from typing import Any

import msgspec

MAX_MESSAGE = 1000
"""Characters of an engine's text that are passed to the client."""
_WORD = re.compile(r"[!-~]{1,64}").fullmatch
_PLACE = re.compile(r"[ -~]{1,64}").fullmatch


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
    if not isinstance(message, str):
        message = "" if message is None else msgspec.json.encode(message).decode()
    if error.get("type") == "exceed_context_size_error" or "maximum context length" in message:  # llama.cpp's server, vLLM
        code = "context_length_exceeded"
    # what is longer than such names are would have to be kept in records and metrics
    return (
        message[:MAX_MESSAGE],
        code if isinstance(code, str) and _WORD(code) else None,
        param if isinstance(param, str) and _PLACE(param) else None,
    )
