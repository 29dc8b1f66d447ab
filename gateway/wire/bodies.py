"""JSON bodies of any format: how deep they may nest, and errors that name the field."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import RequestError

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


def plain(raw: Raw, field: str) -> Any:
    """A field of a request as plain values. Raises RequestError for what the first reading passed over, such as a number like 1e999."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error).partition(" - at `")[0]
        raise RequestError(f"{field} has a value that cannot be read: {problem}.", param=field) from None
