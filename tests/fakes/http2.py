"""Frames of HTTP/2 (RFC 9113) for gRPC, as no library would send them."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK, PADDED = 1, 4, 1, 8
NO_WINDOW = struct.pack(">HI", 4, 0)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack(">I", len(payload) if length is None else length)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


OPENED = PREFACE + frame(SETTINGS, 0, 0)
"""How a connection begins. The settings of the other side are never acknowledged."""


def literal(name: str, value: str, how: bytes = b"\0") -> bytes:
    """A header field that is not indexed (RFC 7541, 6.2.2), or is from now on (`how`: b"\\x40")."""
    return how + b"".join(integer(len(each), 7) + each.encode() for each in (name, value))


def integer(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    found, value = bytearray((most,)), value - most
    while value >= 128:
        found.append(value % 128 + 128)
        value //= 128
    return bytes((*found, value))


def head(path: str, **more: str) -> bytes:
    """The header fields of a call."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    fields |= {"content-type": "application/grpc", **more}
    return b"".join(literal(name, value) for name, value in fields.items())


def message(content: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(content)) + content
