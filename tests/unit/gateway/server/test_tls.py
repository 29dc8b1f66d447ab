"""The files of a listener's TLS: what is taken, what is refused and why, and what contexts made of them offer."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from gateway.core.errors import ConfigError
from gateway.core.specs import TlsSpec
from gateway.server import tls
from gateway.server.tls import chain_of, context_of, read, verified_chain
from tests.pki import DAY, Authority, Issued, now


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def spec(issued: Issued, **options: object) -> TlsSpec:
    return TlsSpec(**{"cert": issued.cert, "key": issued.key, **options})  # type: ignore[arg-type]


def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end after a handshake in memory. Raises ssl.SSLError."""
    return both(server, client)[0]


def both(server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The client's end and the server's."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(up, down, server_side=True)
    there = client.wrap_bio(down, up, server_hostname="localhost", session=session)
    done = [False, False]
    for _ in range(10):
        for number, end in enumerate((there, here)):
            try:
                end.do_handshake()
                done[number] = True
            except ssl.SSLWantReadError:
                pass
        if all(done):
            return there, here
    raise AssertionError("the handshake does not end")


def test_what_is_read_serves_clients_that_trust_the_authority(authority: Authority) -> None:
    issued = authority.server()
    material = read(spec(issued), "listen.tls")
    assert material.fingerprint == issued.sha256
    assert material.expires == issued.certificate.not_valid_after_utc.timestamp()
    assert "PRIVATE" not in repr(material)
    client = authority.context()
    client.set_alpn_protocols(["h2", "http/1.1"])
    there = shaken(context_of(material), client)
    assert there.getpeercert(binary_form=True) == issued.der
    assert (there.version(), there.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_by_which_certificates_a_clients_was_verified(authority: Authority, tmp_path: Path, version: ssl.TLSVersion) -> None:
    between = Authority(tmp_path / "between", "between", parent=authority)
    issued, direct, server = between.issue("a"), authority.issue("b"), authority.server()
    Path(issued.cert).write_bytes(issued.pem + between.pem)
    context = context_of(read(spec(server, client_ca=authority.cert), "listen.tls"))
    client, other = authority.context(issued), authority.context(direct)
    client.maximum_version = version
    there, here = both(context, client)
    chain = chain_of(here, issued.sha256)
    assert chain == (between.der, authority.der) and chain_of(both(context, other)[1], direct.sha256) == (authority.der,)
    here.write(b"x")  # with TLS 1.3 the session comes with what follows
    assert there.read(1) == b"x"
    _, resumed = both(context, client, there.session)
    assert resumed.session_reused and verified_chain(resumed) is None
    assert chain_of(resumed, issued.sha256) is chain
    assert chain_of(resumed, direct.sha256) == (authority.der,) and chain_of(resumed, "unknown") == ()


def test_what_is_remembered_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "REMEMBERED", 2)
    monkeypatch.setattr(tls, "MOST_CHAINS", 1)
    chains = tls.Chains()
    for name in ("a", "b", "a", "c"):
        assert chains.note(name, (name.encode(),)) == (name.encode(),)
    assert [chains.of(name) for name in "abc"] == [(b"a",), (), (b"c",)]


def test_where_chains_are_not_told_no_certificate_is_asked_for(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "TELLS_CHAINS", False)
    server = authority.server()
    read(spec(server), "listen.tls")
    with pytest.raises(ConfigError, match="does not say by which certificates"):
        read(spec(server, client_ca=authority.cert), "listen.tls")


def test_old_versions_and_ciphers_are_not_spoken(authority: Authority) -> None:
    server = context_of(read(spec(authority.server()), "listen.tls"))
    client = authority.context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    there = shaken(server, client)
    found = there.cipher()
    assert there.version() == "TLSv1.2" and found is not None and found[0].startswith("ECDHE") and "GCM" in found[0]
    client.set_ciphers("ECDHE+AES:!AESGCM:!AESCCM")
    with pytest.raises(ssl.SSLError):
        shaken(server, client)
    old = authority.context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shaken(server, old)


def test_client_certificates_are_asked_for_and_verified(authority: Authority, tmp_path: Path) -> None:
    issued = authority.server()
    asks = context_of(read(spec(issued, client_ca=authority.cert), "listen.tls"))
    insists = context_of(read(spec(issued, client_ca=authority.cert, require_client=True), "listen.tls"))
    assert (asks.verify_mode, insists.verify_mode) == (ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED)
    shaken(asks, authority.context())
    shaken(insists, authority.context(authority.issue()))
    with pytest.raises(ssl.SSLError):
        shaken(insists, authority.context())
    stranger = Authority(tmp_path / "other")
    for bad in (
        stranger.issue(),
        authority.issue(expires=now() - DAY / 2),
        authority.issue(begins=now() + DAY / 2),
        authority.server(),
    ):
        with pytest.raises(ssl.SSLError):
            shaken(asks, authority.context(bad))


def _garbage(issued: Issued) -> None:
    Path(issued.cert).write_bytes(b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")


def _half(issued: Issued) -> None:
    Path(issued.cert).write_bytes(issued.pem[: len(issued.pem) // 2])


def _half_a_chain(issued: Issued) -> None:
    Path(issued.cert).write_bytes(issued.pem + issued.pem[: len(issued.pem) // 2])


def _empty(issued: Issued) -> None:
    Path(issued.cert).write_bytes(b"")


def _gone(issued: Issued) -> None:
    Path(issued.cert).unlink()


def _huge(issued: Issued) -> None:
    Path(issued.cert).write_bytes(issued.pem + b"\n" * tls.MAX_FILE_BYTES)


def _pipe(issued: Issued) -> None:
    Path(issued.cert).unlink()
    os.mkfifo(issued.cert)


def _folder(issued: Issued) -> None:
    Path(issued.cert).unlink()
    Path(issued.cert).mkdir()


def _key_garbage(issued: Issued) -> None:
    Path(issued.key).write_bytes(b"-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n")


def _key_encrypted(issued: Issued) -> None:
    how = serialization.BestAvailableEncryption(b"secret")
    Path(issued.key).write_bytes(
        issued.private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how),
    )


@pytest.mark.parametrize(
    ("damage", "path", "what"),
    [
        (_garbage, "listen.tls.cert", "holds no certificate in PEM, or a damaged one"),
        (_half, "listen.tls.cert", "holds no certificate in PEM, or a damaged one"),
        (_half_a_chain, "listen.tls.cert", "holds no certificate in PEM, or a damaged one"),
        (_empty, "listen.tls.cert", "holds no certificate in PEM, or a damaged one"),
        (_gone, "listen.tls.cert", "cannot be read: No such file or directory"),
        (_pipe, "listen.tls.cert", "cannot be read: it is not a file"),
        (_folder, "listen.tls.cert", "cannot be read: "),
        (_huge, "listen.tls.cert", "it is larger than"),
        (_key_garbage, "listen.tls.key", "holds no private key in PEM, or a damaged one"),
        (_key_encrypted, "listen.tls.key", "is encrypted; store it without a password"),
    ],
)
def test_files_that_cannot_be_used_are_refused(authority: Authority, damage: Callable[[Issued], None], path: str, what: str) -> None:
    issued = authority.server()
    damage(issued)
    with pytest.raises(ConfigError, match=what) as caught:
        read(spec(issued), "listen.tls")
    assert caught.value.path == path


def test_a_certificate_needs_its_own_key_and_its_time(authority: Authority) -> None:
    one, other = authority.server(), authority.server()
    with pytest.raises(ConfigError, match="is not the key of the certificate") as caught:
        read(spec(one, key=other.key), "listen.admin_tls")
    assert caught.value.path == "listen.admin_tls.key"
    with pytest.raises(ConfigError, match=r"expired at \d{4}-"):
        read(spec(authority.server(expires=now() - DAY / 2)), "listen.tls")
    with pytest.raises(ConfigError, match=r"is not valid before \d{4}-"):
        read(spec(authority.server(begins=now() + DAY / 2)), "listen.tls")
    with pytest.raises(ConfigError, match="holds no certificate") as caught:
        read(spec(one, client_ca=one.key), "listen.tls")
    assert caught.value.path == "listen.tls.client_ca"


def test_without_proc_a_private_file_is_used(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_DESCRIPTORS", Path("/nowhere"))
    shaken(context_of(read(spec(authority.server()), "listen.tls")), authority.context())
