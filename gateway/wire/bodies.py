"""JSON bodies of any format: errors that name the field."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core import utf8
from gateway.core.errors import RequestError
from gateway.wire.surrogates import lone_surrogate

_AT_PATH: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


def decode_error(error: msgspec.DecodeError) -> RequestError:
    """The contract's error for a msgspec error."""
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


def unreadable(body: bytes, error: Exception) -> RequestError:
    """The error for a body that cannot be decoded."""
    if isinstance(error, msgspec.DecodeError):
        if not body or body.isspace():
            return RequestError("The body is empty; send a JSON object.", code="invalid_json")
        if not isinstance(error, msgspec.ValidationError) and (half := lone_surrogate(body)) is not None:
            reason, param = half
            return RequestError(f"{param or 'The body'}: {reason}.", param=param or None, code="invalid_json")
        return decode_error(error)
    problem = utf8.fault(body) or str(error)
    return RequestError(f"The body is not valid JSON: {problem}.", code="invalid_json")


def plain(raw: Raw, field: str) -> Any:
    """A field of a request as plain values. Raises RequestError for errors the first reading skipped, such as a number like 1e999."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error).partition(" - at `")[0]
        raise RequestError(f"{field} has a value that cannot be read: {problem}.", param=field) from None


def refuse_infinite(fields: dict[str, Raw], read: frozenset[str], settled: bool) -> None:
    """Refuses a number like 1e999, which is infinity to some readers and an error to others, in the fields that no view has read. settled:
    values with objects were decoded. Raises RequestError."""
    for name, value in fields.items():
        if name in read:
            continue
        first = memoryview(value)[0]
        if first == 45 or 48 <= first <= 57 or (first == 91 and not (settled and bytes(value).find(b"{") >= 0)):  # -, a digit, [
            plain(value, name)


_SETTINGS: Final = frozenset(
    {
        b'"auto"',
        b'"default"',
        b'"flex"',
        b'"priority"',
        b'"disabled"',
        b'"float"',
        b'"base64"',
        b'{"include_usage":true}',
        b'{"include_usage": true}',
        b'["reasoning.encrypted_content"]',
    }
)


def may_speak(raw: bytes) -> bool:
    """Whether a field's value may hold something that somebody wrote: no number, and none of the settings that requests often have."""
    return raw[:1] in (b'"', b"{", b"[") and raw not in _SETTINGS
