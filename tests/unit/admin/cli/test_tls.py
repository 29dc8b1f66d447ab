"""The command line's TLS: what options and profiles say, and files that cannot be used."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from admin.cli import profile
from admin.cli.client import Client, connection_options
from admin.cli.errors import CommandError
from admin.cli.profile import Profile
from admin.cli.session import resolve
from admin.cli.tls import SYSTEM, Tls, absolute, given
from tests.pki import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def test_files_become_a_context(authority: Authority) -> None:
    issued = authority.issue()
    context = Tls(authority.cert, issued.cert, issued.key).context()
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    assert len(context.get_ca_certs()) == 1
    assert len(SYSTEM.context().get_ca_certs()) != 1
    both = Path(issued.cert).with_suffix(".both")
    both.write_bytes(issued.pem + Path(issued.key).read_bytes())
    Tls(authority.cert, str(both)).context()


def test_files_that_cannot_be_used_are_named(authority: Authority) -> None:
    one, other = authority.issue(), authority.issue()
    for tls, what in (
        (Tls("/nowhere"), "the CAs in /nowhere cannot be used: No such file or directory"),
        (Tls(one.key), f"the CAs in {one.key} cannot be used"),
        (Tls(authority.cert, "/nowhere"), "the certificate in /nowhere cannot be used: No such file or directory"),
        (Tls(authority.cert, one.cert), f"the certificate in {one.cert} cannot be used"),
        (Tls(authority.cert, one.cert, other.key), f"the certificate in {one.cert} cannot be used"),
    ):
        with pytest.raises(CommandError) as caught:
            tls.context()
        assert str(caught.value).startswith(what)


def test_options_come_before_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Tls("ca", "cert", "key")
    assert given(None, None, None, saved) == saved
    assert given("other", None, None, saved) == Tls("other", "cert", "key")
    assert given(None, "mine", None, saved) == Tls("ca", "mine", ""), "another certificate's key is of no use"
    with pytest.raises(CommandError):
        given(None, None, "key")
    monkeypatch.chdir(tmp_path)
    assert absolute(Tls("ca", "", "/key")) == Tls(str(tmp_path / "ca"), "", "/key")


def test_a_profiles_certificate_is_for_its_own_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profile.save("default", Profile("https://a", ca="ca", cert="cert", cert_key="key"))
    assert resolve(None, None, "default").tls == resolve("https://a/", None, "default").tls == Tls("ca", "cert", "key")
    assert resolve("https://b", None, "default").tls == SYSTEM
    assert resolve("https://b", None, "default", "x").tls == Tls("x")


def test_a_certificate_never_goes_with_plain_http(authority: Authority) -> None:
    issued = authority.issue()
    for make in (
        lambda: connection_options("http://a", Tls("", issued.cert, issued.key)),
        lambda: Client("http://a", "", tls=Tls("", "x")),
    ):
        with pytest.raises(CommandError, match="needs https"):
            make()
