"""Addresses and TLS settings: what is accepted, and one clear sentence for what is not."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.core.specs import ClientTlsSpec
from gateway.transport.address import parse_address, tls_context
from tests.unit.gateway.transport.conftest import Certificates


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "host_header", "base_path"),
    [
        ("http://10.0.0.5:8000", "http", "10.0.0.5", 8000, b"10.0.0.5:8000", b""),
        ("http://engine.internal", "http", "engine.internal", 80, b"engine.internal", b""),
        ("https://engine.internal", "https", "engine.internal", 443, b"engine.internal", b""),
        ("https://engine.internal:443/", "https", "engine.internal", 443, b"engine.internal", b""),
        ("http://engine.internal:443", "http", "engine.internal", 443, b"engine.internal:443", b""),
        ("http://h:1/base/path/", "http", "h", 1, b"h:1", b"/base/path"),
        ("http://[::1]:8000", "http", "::1", 8000, b"[::1]:8000", b""),
        ("http://ENGINE:1", "http", "engine", 1, b"engine:1", b""),
        ("http://bücher.example:1", "http", "xn--bcher-kva.example", 1, b"xn--bcher-kva.example:1", b""),
    ],
)
def test_addresses(text: str, scheme: str, host: str, port: int, host_header: bytes, base_path: bytes) -> None:
    address = parse_address(text)
    assert (address.scheme, address.host, address.port, address.path) == (scheme, host, port, "")
    assert (address.host_header, address.base_path) == (host_header, base_path)


@pytest.mark.parametrize("text", ["unix:/run/engine.sock", "unix:///run/engine.sock"])
def test_unix_sockets(text: str) -> None:
    address = parse_address(text)
    assert (address.scheme, address.path, address.host_header, address.base_path) == ("unix", "/run/engine.sock", b"localhost", b"")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "10.0.0.5:8000",
            "ftp://h:1",
            "http://",
            "http://:80",
            "http://h:99999",
            "http://h:x",
            "http://[::1",
            "unix:",
            "unix:relative",
        ),
        *("http://user:secret@h:1", "http://h:1?a=b", "http://h:1/#f", "http://h:1/a b", "http://h:1/\r\nx: y", "http://h:1/\u00e4"),
        *("unix:/" + "x" * 107, "http://" + "a" * 64 + ".test:1", "http://a..b:1", "http://h\x00:1", "unix:/a\nb"),
    ],
)
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


def test_a_unix_path_may_hold_spaces() -> None:
    assert parse_address("unix:/home/me/My Projects/run/a b.sock").path == "/home/me/My Projects/run/a b.sock"
    with pytest.raises(ConfigError, match="must not contain spaces or control characters"):
        parse_address("http://h/a b")


def test_the_longest_unix_path_is_accepted() -> None:
    assert len(parse_address("unix:/" + "x" * 106).path) == 107


def test_tls_verifies_by_default() -> None:
    context = tls_context(None)
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_configured_ca_replaces_the_systems(certificates: Certificates) -> None:
    context = tls_context(ClientTlsSpec(ca=certificates.ca))
    assert [dict(pair[0] for pair in c["subject"])["commonName"] for c in context.get_ca_certs()] == ["test CA"]  # type: ignore[misc]


@pytest.mark.parametrize("field", ["ca", "cert"])
def test_tls_files_that_cannot_be_used(tmp_path: Path, field: str) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("not a certificate")
    for path in (broken, tmp_path / "absent.pem"):
        with pytest.raises(ConfigError, match=path.name):
            tls_context(ClientTlsSpec(**{field: str(path)}))


def test_a_context_is_made_once_until_a_file_changes(certificates: Certificates, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Path(certificates.ca).read_bytes())
    spec = ClientTlsSpec(ca=str(ca))
    first = tls_context(spec)
    assert tls_context(ClientTlsSpec(ca=str(ca), server_name="other")) is first
    assert tls_context(None) is not first
    ca.write_bytes(ca.read_bytes() + b"\n")
    assert tls_context(spec) is not first
    ca.unlink()
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        tls_context(spec)
