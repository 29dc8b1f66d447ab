"""The identifier of an engine's answer: found, and cut out, so that an answer that is given again gets one of its own.

It is the top-level `id`, in events of some formats that of `message` or `response`. An identifier in a text cannot be mistaken for it:
there its quotes are escaped.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from gateway.wire.sse import data_of

_PREFIX: Final = re.compile(rb'"([A-Za-z]{1,16}[-_])')
_LONGEST: Final = 256
"""Of an identifier. Longer ones stay."""
_FIRST: Final = 64 * 1024
"""Bytes of a stream in which its identifier is looked for."""


class _Inner(Struct):
    id: str = ""


class _Named(Struct):
    id: str = ""
    message: _Inner | None = None
    response: _Inner | None = None


_NAMED: Final = msgspec.json.Decoder(_Named)


def cut(body: bytes, stream: bool) -> tuple[list[bytes], bytes]:
    """The body cut at its identifier, each time with the quotes around it, and what the identifier begins with, such as `chatcmpl-`. The
    body in one piece where it has none."""
    quoted = _identifier(body, stream)
    if not quoted:
        return [body], b""
    pieces = re.split(rb'("id"\s{0,8}:\s{0,8})' + re.escape(quoted), body)
    parts = [pieces[index] + pieces[index + 1] for index in range(0, len(pieces) - 1, 2)]
    prefix = _PREFIX.match(quoted)
    return [*parts, pieces[-1]], b"" if prefix is None else prefix[1]


def _identifier(body: bytes, stream: bool) -> bytes:
    """The identifier as it is written, with its quotes; b"" if there is none, or one with escapes."""
    if not stream:
        return _named(body)
    for event in body[:_FIRST].replace(b"\r\n", b"\n").split(b"\n\n"):
        payload = data_of(event + b"\n\n")
        if payload and (found := _named(payload)):
            return found
    return b""


def _named(document: bytes) -> bytes:
    try:
        view = _NAMED.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    inner = view.message or view.response
    name = view.id or ("" if inner is None else inner.id)
    plain = 0 < len(name) <= _LONGEST and name.isascii() and name.isprintable() and '"' not in name and "\\" not in name
    return b'"%b"' % name.encode() if plain else b""
