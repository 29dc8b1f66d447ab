"""The header that a proxy of TCP connections sends ahead of a client's bytes, to say whose they are: the PROXY protocol, versions 1 and 2
(haproxy.org/download/3.0/doc/proxy-protocol.txt).

Strict where the text leaves a choice: a header that is not exactly one of the forms below ends the connection. Extensions (TLVs) are
skipped, with a bound on their length. Nothing here decides who may send such a header.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
"""The beginning of a header of version 2. No request begins so."""
FIRST: Final = b"PROXY "
"""The beginning of a header of version 1."""
MAX_LINE: Final = 107
"""Bytes of a header of version 1, its end of line included (section 2.1)."""
FIXED: Final = 16
"""Bytes of a header of version 2 before its addresses."""
MAX_LENGTH: Final = 4096
"""Bytes of addresses and extensions in a header of version 2. A client's certificate among the extensions fits; more is refused."""
_ADDRESSES: Final = {0x11: 12, 0x21: 36, 0x31: 216}
"""Bytes of the addresses of TCP over IPv4, over IPv6, and of streams of Unix sockets (section 2.2)."""


class BadHeader(ValueError):
    """What the proxy sent is no header of the PROXY protocol, or one that is not accepted. Its text is for the log."""


@dataclass(frozen=True)
class Incomplete:
    """Only the beginning has come. needed: how many bytes there must be before it is worth looking again."""

    needed: int


@dataclass(frozen=True)
class Header:
    """A whole header. length: bytes it takes. address: the client's, or None where the proxy does not say (`UNKNOWN`, a Unix socket).
    own: the connection is the proxy's own, such as a health check (`LOCAL`)."""

    length: int
    address: str | None
    own: bool = False


def parse(data: bytes) -> Header | Incomplete | None:
    """The header with which `data` begins; None if it begins with something else. Raises BadHeader."""
    if data.startswith(SIGNATURE):
        return _binary(data)
    if data.startswith(FIRST):
        return _line(data)
    if SIGNATURE.startswith(data) or FIRST.startswith(data):
        return Incomplete(len(data) + 1)
    return None


def _line(data: bytes) -> Header | Incomplete:
    end = data.find(b"\r\n", 0, MAX_LENGTH)
    if end < 0:
        if len(data) >= MAX_LINE:
            raise BadHeader(f"a header of version 1 without an end in its first {MAX_LINE} bytes")
        return Incomplete(len(data) + 1)
    length = end + 2
    if length > MAX_LINE:
        raise BadHeader(f"a header of version 1 of {length} bytes; at most {MAX_LINE} are allowed")
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return Header(length, None)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise BadHeader("a header of version 1 that is neither TCP4, TCP6 nor UNKNOWN with two addresses and two ports")
    source, _ = (_address(word, words[1] == b"TCP6") for word in words[2:4])
    for port in words[4:]:
        if not port.isdigit() or len(port) > 5 or int(port) > 65535 or (port[:1] == b"0" and port != b"0"):
            raise BadHeader("a header of version 1 with an invalid port")
    return Header(length, source)


def _address(word: bytes, six: bool) -> str:
    try:
        text = word.decode("ascii")
        if six and "%" not in text:
            return str(ipaddress.IPv6Address(text))
        if not six:
            return str(ipaddress.IPv4Address(text))
    except ValueError:
        pass
    raise BadHeader(f"a header of version 1 with an address that is not {'TCP6' if six else 'TCP4'}")


def _binary(data: bytes) -> Header | Incomplete:
    if len(data) < FIXED:
        return Incomplete(FIXED)
    version, command, family = data[12] >> 4, data[12] & 0x0F, data[13]
    extent = int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise BadHeader(f"a header of version 2 with the version {version} and the command {command}")
    if extent > MAX_LENGTH:
        raise BadHeader(f"a header of version 2 with {extent} bytes of addresses and extensions; at most {MAX_LENGTH} are allowed")
    if command == 1 and family != 0 and (family not in _ADDRESSES or extent < _ADDRESSES[family]):
        raise BadHeader(f"a header of version 2 of the family 0x{family:02x} with {extent} bytes")
    length = FIXED + extent
    if len(data) < length:
        return Incomplete(length)
    if command == 0:
        return Header(length, None, own=True)
    if family == 0x11:
        return Header(length, str(ipaddress.IPv4Address(data[16:20])))
    if family == 0x21:
        return Header(length, str(ipaddress.IPv6Address(data[16:32])))
    return Header(length, None)
