"""A JSON string said as content while it comes: escapes decoded, surrogate pairs joined."""

from __future__ import annotations

import json

from engines.chat.formats.jsontext import Scanner, whole
from engines.chat.formats.source import Malformed, Reading, Source

_HIGH = 12
"""Characters of an escaped surrogate pair."""


def said(source: Source) -> Reading:
    """Consume a JSON string and say what it means. Raises Malformed where it breaks."""
    if (yield from source.ahead()) != '"':
        raise Malformed("a string")
    scanner = Scanner()
    pending = ""
    first = True
    while True:
        out, source.at = scanner.feed(source.text, source.at)
        pending += out[1:] if first and out else out
        first = first and not out
        if scanner.done:
            source.say("content", _decoded(pending[:-1]))
            return
        cut = _certain(pending)
        source.say("content", _decoded(pending[:cut]))
        pending = pending[cut:]
        if scanner.broken or source.ended:
            source.say("content", _decoded(pending))
            raise Malformed("a string")
        yield


def _certain(text: str) -> int:
    """How much may be decoded: not a high surrogate whose other half may follow."""
    at = text.rfind("\\u", max(0, len(text) - _HIGH))
    high = at >= 0 and len(text) - at == 6 and 0xD800 <= int(text[at + 2 :], 16) < 0xDC00
    return at if high else len(text)


def _decoded(text: str) -> str:
    return whole(json.loads(f'"{text}"')) if text else ""
