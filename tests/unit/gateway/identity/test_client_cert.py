"""Certificates in headers (RFC 9440): only what is exactly one, and leads to an authority, counts."""

from __future__ import annotations

import time
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography import x509

from gateway.identity.client_cert import MAX_BYTES, Malformed, Verifier, parse
from tests.pki import DAY, SERVER, Authority, now


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def header(*ders: bytes) -> bytes:
    return b", ".join(b":" + b64encode(der) + b":" for der in ders)


def test_both_headers_are_parsed(authority: Authority) -> None:
    leaf, other = authority.issue().der, authority.issue().der
    assert parse(header(leaf), None) == (leaf, [])
    assert parse(b" " + header(leaf) + b"\t", header(other, leaf)) == (leaf, [other, leaf])
    assert parse(header(leaf), b"") == (leaf, [])


def test_anything_else_is_malformed(authority: Authority) -> None:
    leaf = authority.issue().der
    good = header(leaf)
    for value in (
        b"",
        b":",
        b"::x",
        good[:-1],
        good[1:],
        good[:-2] + b":",
        good + b", " + good,
        good + b";a=1",
        b":" + b64encode(leaf).replace(b"A", b"-", 1) + b":",
        b":====:",
        b":" + b"A" * MAX_BYTES + b":",
        b"-----BEGIN CERTIFICATE-----",
        b"\xff\x00",
    ):
        with pytest.raises(Malformed):
            parse(value, None)
    for chain in (b"x", good + b",", header(*[leaf] * 7), b":" + b"A" * MAX_BYTES + b":"):
        with pytest.raises(Malformed):
            parse(good, chain)


def test_only_what_leads_to_an_authority_counts(authority: Authority, tmp_path: Path) -> None:
    verifier, at = Verifier([authority.certificate], require_eku=True), time.time()
    leaf = authority.issue(uris=["spiffe://example/a"])
    assert verifier.verify(leaf.der, [], at) == (leaf.certificate.not_valid_after_utc.timestamp(), (authority.der,))
    between = Authority(tmp_path / "between", "between", parent=authority)
    below = between.issue()
    assert verifier.verify(below.der, [between.der], at)
    assert verifier.verify(below.der, [leaf.der, between.der], at)[1] == (between.der, authority.der)
    stranger = Authority(tmp_path / "stranger")
    self_signed = Authority(tmp_path / "self", "self")
    constrained = Authority(tmp_path / "constrained", "constrained", parent=authority, permitted=[x509.DNSName("good.example")])
    assert verifier.verify(constrained.issue(dns=["a.good.example"]).der, [constrained.der], at)
    for der, chain in (
        (below.der, []),
        (stranger.issue().der, []),
        (stranger.issue().der, [stranger.der]),
        (self_signed.der, []),
        (authority.issue(expires=now() - DAY / 2).der, []),
        (authority.issue(begins=now() + DAY / 2).der, []),
        (authority.issue(usage=[SERVER]).der, []),
        (authority.issue(usage=None).der, []),
        (authority.issue(critical=True).der, []),
        (constrained.issue(dns=["a.evil.example"]).der, [constrained.der]),
        (leaf.der[:-5], []),
        (leaf.der + b"\0", []),
        (b"", []),
        (leaf.der, [b"junk"]),
        (authority.issue().der[:40] + b"\0" * 200, []),
    ):
        with pytest.raises(Malformed):
            verifier.verify(der, chain, at)
    with pytest.raises(Malformed):
        verifier.verify(leaf.der, [], at + 3 * 86400)
    assert Verifier([authority.certificate], require_eku=False).verify(authority.issue(usage=None).der, [], at)
    with pytest.raises(Malformed):
        Verifier([authority.certificate], require_eku=False).verify(authority.issue(usage=[SERVER]).der, [], at)


def test_a_leaf_is_no_authority(authority: Authority, tmp_path: Path) -> None:
    """A client's own certificate signs another one: nothing that leads over it counts."""
    leaf = authority.issue()
    forger = Authority(tmp_path / "forger")
    forger.private, forger.name = leaf.private, leaf.certificate.subject
    forged = forger.issue("admin")
    with pytest.raises(Malformed):
        Verifier([authority.certificate], require_eku=True).verify(forged.der, [leaf.der], time.time())
