"""Trusted proxies, and whom they forward for."""

from __future__ import annotations

import pytest

from gateway.core.types import Headers, Peer
from gateway.server.peers import forwarded_peer, is_trusted, plain


@pytest.mark.parametrize(
    ("address", "trusted", "expected"),
    [
        ("10.1.2.3", (), False),
        ("10.1.2.3", ("10.1.2.3",), True),
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("10.1.2.3", ("10.1.2.4/24",), True),
        ("11.1.2.3", ("10.0.0.0/8", "192.0.2.0/24"), False),
        ("192.0.2.7", ("10.0.0.0/8", "192.0.2.0/24"), True),
        ("::1", ("10.0.0.0/8",), False),
        ("2001:db8::5", ("2001:db8::/32",), True),
        ("::ffff:10.1.2.3", ("10.0.0.0/8",), True),
        ("::FFFF:10.1.2.3", ("10.0.0.0/8",), True),
        ("::ffff:11.1.2.3", ("10.0.0.0/8",), False),
        ("::ffff:nonsense", ("10.0.0.0/8",), False),
        ("local", ("10.0.0.0/8",), False),
        ("", ("0.0.0.0/0",), False),
    ],
)
def test_who_is_trusted(address: str, trusted: tuple[str, ...], expected: bool) -> None:
    assert is_trusted(address, trusted) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"203.0.113.5", "203.0.113.5"),
        (b"6.6.6.6, 203.0.113.5", "203.0.113.5"),
        (b"6.6.6.6,203.0.113.5 ", "203.0.113.5"),
        (b"2001:DB8::5", "2001:db8::5"),
        (b"::ffff:203.0.113.5", "203.0.113.5"),
        (b"unknown", "10.0.0.1"),
        (b"203.0.113.5, ", "10.0.0.1"),
        (b"203.0.113.5:4711", "10.0.0.1"),
        (b"", "10.0.0.1"),
        (b"\xff", "10.0.0.1"),
        (None, "10.0.0.1"),
    ],
)
def test_the_last_address_is_the_one_that_the_proxy_added(value: bytes | None, expected: str) -> None:
    headers: Headers = {} if value is None else {b"x-forwarded-for": value}
    found = forwarded_peer(Peer("10.0.0.1", True), headers)
    assert (found.address, found.trusted) == (expected, True)


def test_a_proxys_certificate_is_not_the_clients():
    proxy = Peer("10.0.0.1", True, b"the proxy's")
    assert forwarded_peer(proxy, {b"x-forwarded-for": b"203.0.113.5"}).certificate is None
    assert forwarded_peer(proxy, {}) is proxy


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::ffff:a01:203", "10.1.2.3"),
        ("::ffff:0:0:1", "::ffff:0:0:1"),
        ("::1", "::1"),
        ("local", "local"),
    ],
)
def test_a_mapped_address_is_an_ipv4_address(address: str, expected: str) -> None:
    assert plain(address) == expected
