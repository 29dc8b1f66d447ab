"""Trusted proxies, and whom they forward for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.network import Networks
from gateway.core.specs import Forwarding, IdentitySpec
from gateway.core.specs.mtls import CertificateMatchSpec, ForwardedCertificatesSpec, MtlsPrincipalSpec, MtlsSpec
from gateway.core.types import Headers, Peer
from gateway.server.peers import FORWARDED, X_FORWARDED_FOR, forwarded_peer, is_trusted, plain, refusal


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
    for value in (b"unknown", b"unix:", b""):
        found = forwarded_peer(proxy, {b"x-forwarded-for": value})
        assert (found.address, found.certificate, found.thumbprint) == ("10.0.0.1", None, ""), "somebody whom it does not name"
        assert forwarded_peer(proxy, {b"forwarded": b"for=" + value}, by="forwarded").certificate is None
        assert forwarded_peer(proxy, {b"forwarded": value}, by="x-forwarded-for") is proxy, "a header that does not count"


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


PROXY = Peer("10.0.0.1", trusted=True)
TRUSTED = ("10.0.0.0/8",)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"for=203.0.113.5", "203.0.113.5"),
        (b"For=203.0.113.5;proto=https;by=10.0.0.1", "203.0.113.5"),
        (b'for="203.0.113.5:4711"', "203.0.113.5"),
        (b'for="[2001:DB8::5]:4711"', "2001:db8::5"),
        (b'for="[2001:db8::5]"', "2001:db8::5"),
        (b"proto=https;for=203.0.113.5", "203.0.113.5"),
        (b"for=6.6.6.6, for=203.0.113.5", "203.0.113.5"),
        (b"for=6.6.6.6,for=203.0.113.5 , for=10.1.2.3", "203.0.113.5"),
        (b'for=", for=203.0.113.5', "203.0.113.5"),
        (b'for="6.6.6.6;, for=203.0.113.5', "203.0.113.5"),
        (b"for=unknown", "10.0.0.1"),
        (b"for=_hidden", "10.0.0.1"),
        (b'for="203.0.113.5:_port"', "10.0.0.1"),
        (b"for=2001:db8::5", "10.0.0.1"),
        (b"for=6.6.6.6;for=203.0.113.5", "10.0.0.1"),
        (b"203.0.113.5", "10.0.0.1"),
        (b"for=203.0.113.5;", "10.0.0.1"),
        (b"for=203.0.113.5;;proto=https", "10.0.0.1"),
        (b"for = 203.0.113.5", "10.0.0.1"),
        (b"for=6.6.6.6, proto=https", "10.0.0.1"),
        (b'for=203.0.113.5;host="x;for=6.6.6.6"', "203.0.113.5"),
        (b'for=203.0.113.5;host="x,for=6.6.6.6"', "10.0.0.1"),
        (b'for=203.0.113.5;host="x\\",for=6.6.6.6;a=\\"b"', "10.0.0.1"),
        (b"for=203.0.113.5;host=" + b"x" * 600, "10.0.0.1"),
        (b"for=6.6.6.6, for=203.0.113.5, for=unknown", "10.0.0.1"),
        (b"for=6.6.6.6, for=unknown, for=10.1.2.3", "10.1.2.3"),
        (b"", "10.0.0.1"),
    ],
)
def test_the_client_in_forwarded(value: bytes, expected: str) -> None:
    """RFC 7239: the same rule as for X-Forwarded-For, over its elements."""
    found = forwarded_peer(PROXY, {FORWARDED: value}, TRUSTED, by="forwarded")
    assert found.address == expected and found.trusted
    assert forwarded_peer(PROXY, {FORWARDED: value}, TRUSTED) is PROXY, "it counts only where the settings say so"
    assert forwarded_peer(PROXY, {FORWARDED: value}, TRUSTED, by="either").address == expected


@pytest.mark.parametrize(
    ("by", "expected"), [("x-forwarded-for", "198.51.100.1"), ("forwarded", "203.0.113.5"), ("either", "198.51.100.1")]
)
def test_of_two_headers_that_contradict_each_other_the_set_one_counts_or_neither(by: Forwarding, expected: str) -> None:
    headers = {FORWARDED: b"for=203.0.113.5", X_FORWARDED_FOR: b"198.51.100.1"}
    peer = forwarded_peer(PROXY, headers, TRUSTED, by=by)
    assert peer.address == expected
    error = refusal(peer, headers, TRUSTED, by, None)
    assert (error is None) is (by != "either")
    for other in (b"for=unknown", b"", b"for=198.51.100.1, for=198.51.100.2"):
        assert (refusal(peer, {**headers, FORWARDED: other}, TRUSTED, by, None) is None) is (by != "either")
    same = {FORWARDED: b'for=6.6.6.6, for="198.51.100.1:99";proto=https', X_FORWARDED_FOR: b"198.51.100.1, 10.1.1.1"}
    assert refusal(peer, same, TRUSTED, by, None) is None
    rules = Networks().rules(("deny:198.51.100.0/24",))
    denied = refusal(Peer("198.51.100.1", True), same, TRUSTED, by, rules)
    assert denied is not None and (denied.status, denied.code) == (403, "network_denied")


@given(st.binary(max_size=200))
def test_what_stands_before_the_proxys_own_element_changes_nothing(theirs: bytes) -> None:
    found = forwarded_peer(PROXY, {FORWARDED: theirs + b", for=203.0.113.5;proto=https"}, TRUSTED, by="forwarded")
    assert found.address == "203.0.113.5"
