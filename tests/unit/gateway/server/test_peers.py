"""Trusted proxies, and whom they forward for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.mtls_specs import CertificateMatchSpec, ForwardedCertificatesSpec, MtlsPrincipalSpec, MtlsSpec
from gateway.core.specs import IdentitySpec
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
        (b"203.0.113.5:4711", "203.0.113.5"),
        (b"[2001:db8::5]:4711", "2001:db8::5"),
        (b"[2001:db8::5]", "2001:db8::5"),
        (b"203.0.113.5:port", "10.0.0.1"),
        (b"203.0.113.5:471199", "10.0.0.1"),
        (b"[203.0.113.5", "10.0.0.1"),
        (b"fe80::1%eth0", "10.0.0.1"),
        (b"0x7f.1", "10.0.0.1"),
        (b"203.0.113.05", "10.0.0.1"),
        (b"6.6.6.6," + b" " * 100 + b"203.0.113.5", "10.0.0.1"),
        (b"6.6.6.6, " * 1000 + b"203.0.113.5", "203.0.113.5"),
        (b"203.0.113.5\t", "203.0.113.5"),
        (b"", "10.0.0.1"),
        (b"\xff", "10.0.0.1"),
        (None, "10.0.0.1"),
    ],
)
def test_the_last_address_is_the_one_that_the_proxy_added(value: bytes | None, expected: str) -> None:
    headers: Headers = {} if value is None else {b"x-forwarded-for": value}
    found = forwarded_peer(Peer("10.0.0.1", True), headers)
    assert (found.address, found.trusted) == (expected, True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"6.6.6.6, 203.0.113.5, 10.0.0.9", "203.0.113.5"),
        (b"6.6.6.6, 203.0.113.5, 10.0.0.9, 192.168.1.1", "203.0.113.5"),
        (b"203.0.113.5, 10.0.0.9:80, [fd00::1]:80", "203.0.113.5"),
        (b"10.9.9.9, 203.0.113.5, ::ffff:10.0.0.9", "203.0.113.5"),
        (b"10.0.0.7, 10.0.0.8, 10.0.0.9", "10.0.0.7"),
        (b"unknown, 10.0.0.9", "10.0.0.9"),
        (b"6.6.6.6, unknown, 10.0.0.9", "10.0.0.9"),
        (b", 10.0.0.9", "10.0.0.9"),
        (b"6.6.6.6, " + b"10.0.0.9, " * 1000 + b"10.0.0.8", "10.0.0.9"),
    ],
)
def test_behind_several_proxies_the_first_that_is_none_counts(value: bytes, expected: str) -> None:
    found = forwarded_peer(Peer("10.0.0.1", True), {b"x-forwarded-for": value}, ("10.0.0.0/8", "192.168.0.0/16", "fd00::/8"))
    assert (found.address, found.trusted) == (expected, True)


@given(st.binary(max_size=200), st.sampled_from([b"", b", "]))
def test_what_a_client_writes_changes_nothing(written: bytes, comma: bytes) -> None:
    """Whatever stands before the addresses that proxies added is not believed."""
    value = written + b"," + comma + b"203.0.113.5, 10.0.0.9"
    assert forwarded_peer(Peer("10.0.0.1", True), {b"x-forwarded-for": value}, ("10.0.0.0/8",)).address == "203.0.113.5"


def test_a_proxys_certificate_is_not_the_clients():
    proxy = Peer("10.0.0.1", True, b"the proxy's")
    assert forwarded_peer(proxy, {b"x-forwarded-for": b"203.0.113.5"}).certificate is None
    assert forwarded_peer(proxy, {}) is proxy


def test_only_a_proxy_that_may_asserts_a_certificate() -> None:
    entry = MtlsPrincipalSpec(match=CertificateMatchSpec(common_name="a"), tenant="t")
    logins = IdentitySpec(mtls=MtlsSpec(principals=(entry,), forwarded=ForwardedCertificatesSpec(peers=("10.0.0.1", "10.1.0.0/16"))))
    headers = {b"client-cert": b":AA==:", b"client-cert-chain": b":BB==:"}
    for address, counts in (("10.0.0.1", True), ("10.1.2.3", True), ("10.0.0.2", False)):
        proxy = Peer(address, True, b"the proxy's")
        for sent in (headers, {**headers, b"x-forwarded-for": b"203.0.113.5"}):
            found = forwarded_peer(proxy, sent, identity=logins)
            assert (found.asserted == (b":AA==:", b":BB==:")) is counts
            assert not counts or (found.certificate is None and found is not proxy and found.trusted)
    assert forwarded_peer(Peer("10.0.0.1", True), {b"client-cert": b"x"}, identity=logins).asserted == (b"x", None)
    assert forwarded_peer(Peer("10.0.0.1", True), {b"client-cert-chain": b"x"}, identity=logins).asserted is None
    assert forwarded_peer(Peer("10.0.0.1", True), headers).asserted is None


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
