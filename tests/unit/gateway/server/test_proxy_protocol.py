"""Headers of the PROXY protocol: what is one, what is only the beginning of one, what is none."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.proxy_protocol import MAX_LENGTH, MAX_LINE, SIGNATURE, BadHeader, Header, Incomplete, parse


def binary(command: int, family: int, addresses: bytes, extensions: bytes = b"", *, version: int = 2, length: int | None = None) -> bytes:
    extent = len(addresses) + len(extensions) if length is None else length
    return SIGNATURE + struct.pack("!BBH", version << 4 | command, family, extent) + addresses + extensions


def packed(source: str, target: str = "192.0.2.2") -> bytes:
    first, second = ipaddress.ip_address(source), ipaddress.ip_address(target)
    return first.packed + second.packed + struct.pack("!HH", 4711, 443)


FOUR = binary(1, 0x11, packed("203.0.113.7"))
SIX = binary(1, 0x21, packed("2001:db8::7", "2001:db8::1"))
LONGEST = b"PROXY TCP6 " + b" ".join([b"ffff:" * 7 + b"ffff"] * 2 + [b"65535"] * 2) + b"\r\n"
GOOD = [
    (b"PROXY TCP4 203.0.113.7 192.0.2.2 4711 443\r\n", "203.0.113.7", False),
    (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", "255.255.255.255", False),
    (b"PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n", "0.0.0.0", False),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n", "2001:db8::7", False),
    (b"PROXY TCP6 ::ffff:203.0.113.7 ::1 1 2\r\n", str(ipaddress.IPv6Address("::ffff:203.0.113.7")), False),
    (LONGEST, str(ipaddress.IPv6Address(":".join(["ffff"] * 8))), False),
    (b"PROXY UNKNOWN\r\n", None, False),
    (b"PROXY UNKNOWN " + b"f" * (MAX_LINE - 16) + b"\r\n", None, False),
    (FOUR, "203.0.113.7", False),
    (SIX, "2001:db8::7", False),
    (binary(1, 0x11, packed("203.0.113.7"), b"\x20" * 200), "203.0.113.7", False),
    (binary(1, 0x31, b"/run/client.sock".ljust(108, b"\0") + b"/run/server.sock".ljust(108, b"\0")), None, False),
    (binary(1, 0x00, b""), None, False),
    (binary(1, 0x00, b"x" * 40), None, False),
    (binary(0, 0x00, b""), None, True),
    (binary(0, 0x11, packed("203.0.113.7")), None, True),
    (binary(1, 0x11, packed("203.0.113.7"), b"e" * (MAX_LENGTH - 12)), "203.0.113.7", False),
]


@pytest.mark.parametrize(("data", "address", "own"), GOOD, ids=range(len(GOOD)))
def test_a_header_is_read_to_its_end_and_no_further(data: bytes, address: str | None, own: bool) -> None:
    assert parse(data) == Header(len(data), address, own)
    for rest in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", data, b"\r\n"):
        assert parse(data + rest) == Header(len(data), address, own)


@pytest.mark.parametrize(("data", "address", "own"), GOOD, ids=range(len(GOOD)))
def test_every_beginning_of_a_header_is_only_a_beginning(data: bytes, address: str | None, own: bool) -> None:
    for end in range(len(data)):
        found = parse(data[:end])
        assert isinstance(found, Incomplete) and end < found.needed <= len(data)


BAD = [
    b"PROXY \r\n",
    b"PROXY TCP4\r\n",
    b"PROXY TCP4 203.0.113.7 192.0.2.2 4711\r\n",
    b"PROXY TCP4 203.0.113.7 192.0.2.2 4711 443 1\r\n",
    b"PROXY TCP4  203.0.113.7 192.0.2.2 4711 443\r\n",
    b"PROXY TCP4 203.0.113.7 192.0.2.2 4711 443 \r\n",
    b"PROXY TCP4 203.0.113.07 192.0.2.2 4711 443\r\n",
    b"PROXY TCP4 203.0.113.7/8 192.0.2.2 4711 443\r\n",
    b"PROXY TCP4 203.0.113 192.0.2.2 4711 443\r\n",
    b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n",
    b"PROXY TCP6 203.0.113.7 192.0.2.2 4711 443\r\n",
    b"PROXY TCP6 2001:db8::7 192.0.2.2 4711 443\r\n",
    b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
    b"PROXY TCP4 203.0.113.7 192.0.2.2 65536 443\r\n",
    b"PROXY TCP4 203.0.113.7 192.0.2.2 01 443\r\n",
    b"PROXY TCP4 203.0.113.7 192.0.2.2 -1 443\r\n",
    b"PROXY TCP4 203.0.113.7 192.0.2.2 +1 443\r\n",
    "PROXY TCP4 203.0.113.7 192.0.2.2 ١ 443\r\n".encode(),
    b"PROXY tcp4 203.0.113.7 192.0.2.2 4711 443\r\n",
    b"PROXY UDP4 203.0.113.7 192.0.2.2 4711 443\r\n",
    b"PROXY UNKNOWNX\r\n",
    b"PROXY TCP4 203.0.113.7 192.0.2.2 4711 443\n".ljust(MAX_LINE),
    b"PROXY UNKNOWN ".ljust(MAX_LINE, b"x"),
    b"PROXY UNKNOWN ".ljust(MAX_LINE - 1, b"x") + b"\r\n",
    b"PROXY " + b"A" * 102,
    binary(1, 0x11, packed("203.0.113.7")[:-1]),
    binary(1, 0x21, packed("203.0.113.7")),
    binary(1, 0x31, b"x" * 215),
    binary(1, 0x12, packed("203.0.113.7")),
    binary(1, 0x41, packed("203.0.113.7")),
    binary(1, 0x10, packed("203.0.113.7")),
    binary(2, 0x11, packed("203.0.113.7")),
    binary(1, 0x11, packed("203.0.113.7"), version=1),
    binary(1, 0x11, packed("203.0.113.7"), version=3),
    binary(1, 0x11, b"", length=MAX_LENGTH + 1),
    binary(0, 0x00, b"", length=65535),
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_anything_else_that_begins_as_a_header_is_an_error(data: bytes) -> None:
    with pytest.raises(BadHeader):
        parse(data)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", b"POST /", b"PUT", b"PROXYS", b"PRI * HTTP/2.0", b"\x16\x03\x01", b"\r\n\r\nGET", b"proxy "]
)
def test_other_bytes_are_no_header(data: bytes) -> None:
    assert parse(data) is None


@given(st.binary(max_size=200), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11\x00"]))
def test_no_bytes_upset_the_reader_and_none_are_asked_for_without_end(data: bytes, before: bytes) -> None:
    whole = before + data
    try:
        found = parse(whole)
    except BadHeader:
        return
    if isinstance(found, Incomplete):
        assert len(whole) < found.needed <= 16 + MAX_LENGTH
    elif found is not None:
        assert 0 < found.length <= len(whole)


@given(st.sampled_from(GOOD), st.binary(max_size=40))
def test_what_a_part_shows_is_what_the_whole_shows(case: tuple[bytes, str | None, bool], rest: bytes) -> None:
    """Bytes that come in any number of parts are read as if they came at once."""
    data = case[0] + rest
    for end in range(len(data) + 1):
        found = parse(data[:end])
        assert isinstance(found, Incomplete if end < len(case[0]) else Header)
