"""What certificates say, and the patterns that are matched against it."""

from __future__ import annotations

import pytest

from gateway.core.specs.mtls import CertificateMatchSpec
from gateway.identity.certificate import Names, Pattern, Unacceptable, filled, read, unknown_placeholders
from tests.pki import SERVER, Authority, Issued


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def names(issued: Issued, **options: bool) -> Names:
    return read(issued.der, issued.sha256, **{"require_eku": True, **options})


def test_what_a_certificate_says(authority: Authority) -> None:
    issued = authority.issue(
        "Alice", uris=["spiffe://example/ns/a/sa/b"], dns=["API.Example"], emails=["Alice@Example.ORG"], organisation="Acme"
    )
    found = names(issued)
    assert found.san_uri == ("spiffe://example/ns/a/sa/b",)
    assert found.san_dns == ("api.example",)
    assert found.san_email == ("Alice@example.org",)
    assert found.common_name == ("Alice",)
    assert (found.subject, found.issuer) == ("O=Acme,CN=Alice", "CN=test CA")
    assert found.serial == issued.certificate.serial_number
    assert found.expires == issued.certificate.not_valid_after_utc.timestamp()


def test_what_is_no_clients_certificate(authority: Authority) -> None:
    for bad in (
        authority.issue(usage=[SERVER]),
        authority.issue(ca=True),
        authority.issue(usage=None),
        authority.issue(uris=["spiffe://example/a", "https://example/b"]),
        authority.issue(dns=[f"h{number}.example" for number in range(65)]),
    ):
        with pytest.raises(Unacceptable):
            names(bad)
    assert names(authority.issue(usage=None), require_eku=False).common_name == ("client",)
    with pytest.raises(Unacceptable):
        names(authority.issue(usage=[SERVER]), require_eku=False)
    good = authority.issue()
    for der in (b"", b"\x30\x82", good.der[:-1], good.der + b"\0", b"\x00" * 100):
        with pytest.raises(Unacceptable):
            read(der, "", require_eku=True)


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://example/ns/web/sa/api?x=1",
        "spiffe://example/ns/web/sa/api#x",
        "spiffe://example/ns/../sa/api",
        "spiffe://example/ns/./sa/api",
        "spiffe://example/ns/web/sa/..",
        "spiffe://example/ns//sa/api",
        "spiffe://example/ns/web/sa/api/",
        "spiffe://example/ns/web/sa/%61pi",
        "spiffe://example/ns/web/sa/a pi",
        "spiffe://example:8443/ns/web/sa/api",
        "spiffe://user@example/ns/web/sa/api",
        "spiffe://Example/ns/web/sa/api",
        "SPIFFE://example/ns/web/sa/api",
        "spiffe:///ns/web/sa/api",
        "spiffe:example",
    ],
)
def test_a_spiffe_id_that_the_standard_forbids_is_no_name(authority: Authority, uri: str) -> None:
    with pytest.raises(Unacceptable, match="SPIFFE ID"):
        names(authority.issue(uris=[uri]))


@pytest.mark.parametrize("uri", ["spiffe://example", "spiffe://a-b_c.example/x/.../..y/_Z-9", "https://example/a?b#c/../%61", "urn:a:b"])
def test_other_uris_are_names_as_they_are(authority: Authority, uri: str) -> None:
    assert names(authority.issue(uris=[uri])).san_uri == (uri,)


@pytest.mark.parametrize("host", ["a b.example", " ", "a..example", ".example", "a.example ", "a/b", "x" * 64 + ".example"])
def test_what_is_no_dns_name_is_no_name(authority: Authority, host: str) -> None:
    with pytest.raises(Unacceptable, match="DNS name"):
        names(authority.issue(dns=["good.example", host]))


def test_names_that_name_several_or_cannot_be_written_are_left_out(authority: Authority) -> None:
    found = names(authority.issue("a\nb", dns=["*.example", "one.example"], uris=["urn:" + "x" * 300]))
    assert found.san_dns == ("one.example",) and found.san_uri == () and found.common_name == ()


URI = "spiffe://example/ns/web/sa/api"


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ({"san_uri": URI}, True),
        ({"san_uri": "spiffe://example/ns/*/sa/*"}, True),
        ({"san_uri": "spiffe://example/*"}, False),
        ({"san_uri": "spiffe://example/ns/*/sa"}, False),
        ({"san_uri": "SPIFFE://example/ns/web/sa/api"}, False),
        ({"san_uri": "*"}, False),
        ({"san_dns": "API.web.example"}, True),
        ({"san_dns": "*.web.example"}, True),
        ({"san_dns": "*.example"}, False),
        ({"san_dns": "api.web.exampl."}, False),
        ({"san_email": "*@example.org"}, True),
        ({"san_email": "alice@EXAMPLE.org"}, True),
        ({"san_email": "Alice@example.org"}, False),
        ({"san_email": "*"}, False),
        ({"common_name": "alice"}, True),
        ({"common_name": "al*"}, True),
        ({"subject": "O=Acme,CN=*"}, True),
        ({"subject": "O=*,CN=alice"}, True),
        ({"subject": "*"}, False),
        ({"issuer": "CN=test CA"}, True),
        ({"issuer": "CN=other CA"}, False),
        ({"san_uri": URI, "common_name": "bob"}, False),
        ({"san_uri": URI, "common_name": "alice"}, True),
    ],
)
def test_patterns(authority: Authority, match: dict[str, str], matches: bool) -> None:
    issued = authority.issue("alice", uris=[URI], dns=["api.web.example"], emails=["alice@example.org"], organisation="Acme")
    assert (Pattern(CertificateMatchSpec(**match)).found(names(issued)) is not None) is matches


def test_a_certificate_by_its_hash(authority: Authority) -> None:
    one, other = authority.issue(), authority.issue()
    pattern = Pattern(CertificateMatchSpec(sha256=one.sha256.upper()))
    assert pattern.found(names(one)) and not pattern.found(names(other))


@pytest.mark.parametrize("name", ["x,O=Acme", "x\\,O=Acme", "x+O=Acme", "x, O=Acme", "alice,O=Acme,CN=y"])
def test_a_chosen_name_does_not_reach_over_its_part_of_a_subject(authority: Authority, name: str) -> None:
    """The subject of a certificate from another organisation, whose common name holds what looks like ours."""
    issued = authority.issue(name, organisation="Evil")
    assert Pattern(CertificateMatchSpec(subject="CN=*,O=Acme")).found(names(issued)) is None
    assert Pattern(CertificateMatchSpec(subject="O=Acme,CN=*")).found(names(issued)) is None
    alone = authority.issue(name)
    assert Pattern(CertificateMatchSpec(subject="CN=*,O=Acme")).found(names(alone)) is None


def test_templates(authority: Authority) -> None:
    found = names(authority.issue("alice", uris=[URI], dns=["a.example", "b.example"]))
    assert filled(None, found, {"san_dns": "b.example"}) == "b.example"
    assert filled(None, found, {}) == URI
    assert filled("svc-{common_name}", found, {}) == "svc-alice"
    assert filled("{san_dns}", found, {"san_dns": "b.example"}) == "b.example"
    assert filled("{san_email}", found, {}) == "", "there is none"
    assert filled("x" * 250 + "{common_name}", found, {}) != "" and filled("x" * 255 + "{common_name}", found, {}) == ""
    assert unknown_placeholders("a{san_uri}b{common_name}") == []
    assert unknown_placeholders("{nobody}") == ["{nobody}"] and unknown_placeholders("{san_uri") == ["{"]
