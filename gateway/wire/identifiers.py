"""The identifier of an engine's answer: found, and cut out, so that an answer that is given again gets one of its own.

It is the top-level `id`, in events of some formats that of `message` or `response`. An identifier in a text cannot be mistaken for it:
there its quotes are escaped.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from gateway.core.slices import Steps, at_once
from gateway.wire.skimming import skimmed
from gateway.wire.sse import data_of

_PREFIX: Final = re.compile(rb'"([A-Za-z]{1,16}[-_])')
_LONGEST: Final = 256
"""Of an identifier. Longer ones stay."""
_FIRST: Final = 64 * 1024
"""Bytes of a stream in which its identifier is looked for."""
_PORTION: Final = 256 * 1024
"""Bytes in which it is looked for in one step."""
_MARK: Final = re.compile(rb'"id"\s{0,8}:\s{0,8}("[^"\\]{1,%d}")' % _LONGEST)
_LONGEST_MARK: Final = 4 + 8 + 1 + 8 + _LONGEST + 2


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
    return at_once(cut_steps(body, stream))


def cut_steps(body: bytes, stream: bool) -> Steps[tuple[list[bytes], bytes]]:
    """The same in slices. In one step it reads what is not vectors of an answer that is no stream: 1.3 ms for each MiB."""
    if stream or len(body) <= _PORTION:
        quoted = _identifier(body, stream)
    else:
        quoted = _named((yield from skimmed(body)))
    if not quoted:
        return [body], b""
    parts: list[bytes] = []
    size, at, done = len(body), 0, 0
    while at < size:
        if at:
            yield
        for match in _MARK.finditer(body, at, min(size, at + _PORTION + _LONGEST_MARK)):
            if match[1] == quoted:
                parts.append(body[done : match.start(1)])
                done = match.end()
        at = max(at + _PORTION, done)
    prefix = _PREFIX.match(quoted)
    return [*parts, body[done:]], b"" if prefix is None else prefix[1]


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
