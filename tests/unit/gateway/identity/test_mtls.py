"""Login by client certificate: who is let in as whom, what is refused, and what is remembered."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import AuthenticationError, ConfigError, GatehouseError, RequestError
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs.mtls import CertificateMatchSpec, ForwardedCertificatesSpec, MtlsPrincipalSpec, MtlsSpec
from gateway.core.types import Headers, Peer, Principal
from gateway.identity import mtls
from gateway.identity.mtls import MtlsAuthenticator, check
from tests.pki import DAY, SERVER, Authority, Issued, now, replaced
from tests.unit.gateway.identity.test_revocation_list import Later

MESH = MtlsPrincipalSpec(match=CertificateMatchSpec(san_uri="spiffe://example/ns/*/sa/*"), tenant="acme", groups=("mesh",), models=("*",))
OPS = MtlsPrincipalSpec(
    match=CertificateMatchSpec(common_name="ops-*"), tenant="ops", id="{common_name}", user="operator", roles=("admin",)
)
KEY: Headers = {b"authorization": b"Bearer something"}


class Site:
    def __init__(self, authority: Authority, **options: Any) -> None:
        self.authority, self.clock = authority, Later()
        self.spec = MtlsSpec(**{"principals": (MESH, OPS), "authorities": (authority.cert,), **options})
        self.authenticator = MtlsAuthenticator(self.spec, AuthenticatorContext(name="mtls", clock=self.clock))

    def ask(self, issued: Issued | None, headers: Headers | None = None) -> Principal | None:
        found = self.authenticator.authenticate(headers or {}, Peer("192.0.2.1", certificate=None if issued is None else issued.der))
        assert found is None or isinstance(found, Principal)
        return found

    def forwarded(self, value: bytes, chain: bytes | None = None) -> tuple[Principal | None, Peer]:
        peer = Peer("192.0.2.1", True, asserted=(value, chain))
        found = self.authenticator.authenticate({}, peer)
        assert found is None or isinstance(found, Principal)
        return found, peer

    def refused(self, issued: Issued, headers: Headers | None = None) -> str:
        with pytest.raises(GatehouseError) as caught:
            self.ask(issued, headers)
        return caught.value.code


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
async def made(authority: Authority) -> AsyncIterator[Any]:
    sites: list[Site] = []

    async def make(**options: Any) -> Site:
        sites.append(Site(authority, **options))
        await sites[-1].authenticator.start()
        return sites[-1]

    yield make
    for site in sites:
        await site.authenticator.aclose()


async def test_a_certificate_is_who_the_settings_say(made: Any, authority: Authority) -> None:
    site = await made()
    issued = authority.issue(uris=["spiffe://example/ns/web/sa/api"])
    found = site.ask(issued)
    assert found is not None
    assert (found.id, found.tenant, found.kind, found.user) == ("spiffe://example/ns/web/sa/api", "acme", "mtls", found.id)
    assert (found.groups, found.models, found.expires) == (("mesh",), ("*",), issued.certificate.not_valid_after_utc.timestamp())
    assert found.login is not None
    assert (found.login.strength, found.login.certificate, found.login.issuer) == ("certificate", issued.sha256, "CN=test CA")
    assert site.ask(issued) is found, "one object for as long as it is valid"
    ops = site.ask(authority.issue("ops-7"))
    assert ops is not None and (ops.id, ops.tenant, ops.user, ops.roles) == ("ops-7", "ops", "operator", ("admin",))


async def test_who_matches_nothing_is_left_to_others(made: Any, authority: Authority) -> None:
    site = await made()
    assert site.ask(None) is None
    assert site.ask(authority.issue("somebody", uris=["spiffe://elsewhere/ns/web/sa/api"])) is None


async def test_beside_a_credential_a_certificate_is_only_a_fact(made: Any, authority: Authority) -> None:
    site = await made()
    issued = authority.issue("ops-1")
    assert site.ask(issued, KEY) is None
    assert site.ask(issued, {b"authorization": b"Bearer "}) is site.ask(issued), "what clients send that insist on a key"
    with pytest.raises(RequestError):
        site.ask(issued, {**KEY, b"x-api-key": b"another"})


async def test_what_is_no_clients_certificate_is_refused(made: Any, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    site = await made()
    name = "spiffe://example/ns/web/sa/api"
    with caplog.at_level(logging.INFO):
        for bad in (
            authority.issue(uris=[name], usage=[SERVER]),
            authority.issue(uris=[name], usage=None),
            authority.issue(uris=[name], ca=True),
            authority.issue(uris=[name, "https://example/other"]),
            authority.issue(uris=[name], expires=now() - DAY / 2),
            authority.issue(uris=[name], begins=now() + DAY / 2),
        ):
            assert site.refused(bad) == site.refused(bad, KEY) == "invalid_credentials"
    assert name not in caplog.text
    lenient = await made(require_eku=False)
    assert lenient.ask(authority.issue("ops-1", usage=None)) is not None


async def test_a_certificate_ends_on_an_open_connection(made: Any, authority: Authority) -> None:
    site = await made()
    issued = authority.issue("ops-1", expires=now() + DAY / 24)
    assert site.ask(issued) is not None
    site.clock.seconds = 7200.0
    assert site.refused(issued) == "invalid_credentials"


async def test_a_revoked_certificate_is_refused_whatever_else_there_is(made: Any, authority: Authority) -> None:
    site = await made(crl=authority.crl())
    bad, good = authority.issue("ops-1"), authority.issue("ops-2")
    assert site.ask(bad) and site.ask(good)
    before = site.ask(good)
    authority.revoke(bad)
    authority.crl()
    for _ in range(3):
        await site.authenticator._crl.look()
    assert site.refused(bad) == site.refused(bad, KEY) == "invalid_credentials"
    assert site.ask(good) is before


@pytest.mark.parametrize("on_crl_failure", ["open", "closed"])
async def test_an_authority_that_is_revoked_is_no_authority(made: Any, authority: Authority, tmp_path: Path, on_crl_failure: str) -> None:
    sub = Authority(tmp_path / "sub", "sub CA", parent=authority)
    both, issued = tmp_path / "both.pem", sub.issue("ops-1")
    both.write_bytes(Path(authority.crl()).read_bytes() + Path(sub.crl()).read_bytes())
    site = await made(crl=str(both), authorities=(authority.cert, sub.cert), on_crl_failure=on_crl_failure)
    assert site.ask(issued) and site.ask(authority.issue("ops-1"))
    authority.revoked.append(sub.certificate.serial_number)
    replaced(both, Path(authority.crl()).read_bytes() + Path(sub.crl()).read_bytes())
    for _ in range(3):
        await site.authenticator._crl.look()
    assert site.refused(issued) == site.refused(issued, KEY) == "invalid_credentials"
    assert site.ask(authority.issue("ops-1"))


@pytest.mark.parametrize("on_crl_failure", ["open", "closed"])
async def test_an_authority_between_that_is_revoked_takes_along_what_is_below(
    made: Any, authority: Authority, tmp_path: Path, on_crl_failure: str
) -> None:
    """One that clients or proxies send, and that is not among the authorities; below it is another one that is."""
    sub = Authority(tmp_path / "sub", "sub CA", parent=authority)
    low = Authority(tmp_path / "low", "low CA", parent=sub)
    both, by_sub, by_low = tmp_path / "both.pem", sub.issue("ops-2"), low.issue("ops-1")
    lists = lambda: Path(authority.crl()).read_bytes() + Path(low.crl()).read_bytes()  # noqa: E731 - one line says it
    both.write_bytes(lists())
    forwarded = ForwardedCertificatesSpec(peers=("10.0.0.1",))
    site = await made(crl=str(both), authorities=(authority.cert, low.cert), on_crl_failure=on_crl_failure, forwarded=forwarded)
    value, chain = (b":" + b64encode(one.der) + b":" for one in (by_sub, sub))

    def answer(issued: Issued, *above: Authority) -> str:
        peer = Peer("192.0.2.1", certificate=issued.der, chain=tuple(one.der for one in above))
        try:
            return str(site.authenticator.authenticate({}, peer).id)
        except GatehouseError as error:
            return error.code

    def forwards() -> str:
        try:
            return str(site.forwarded(value, chain)[0].id)
        except GatehouseError as error:
            return error.code

    unsure = "ops-2" if on_crl_failure == "open" else "revocation_unavailable"
    assert answer(by_low, low, sub, authority) == answer(by_low) == "ops-1"
    assert answer(by_sub, sub, authority) == forwards() == unsure, "there is no list of that issuer"
    assert answer(by_sub) == "revocation_unavailable", "who its issuer is, nobody knows"
    authority.revoked.append(sub.certificate.serial_number)
    replaced(both, lists())
    for _ in range(2):
        await site.authenticator._crl.look()
    assert answer(by_low, low, sub, authority) == answer(by_sub, sub, authority) == forwards() == "invalid_credentials"
    assert answer(by_low, low, authority) == "ops-1", "another certificate of the same authority is good"


async def test_without_a_reliable_list_certificates_count_as_configured(made: Any, authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("ops-1")
    closed, open_ = await made(crl=authority.crl()), await made(crl=authority.crl(), on_crl_failure="open")
    assert closed.ask(issued) and open_.ask(issued)
    for site in (closed, open_):
        site.clock.seconds = 0.9 * 86400.0
    assert closed.ask(issued)
    longer = authority.issue("ops-1", expires=now() + 9 * DAY)
    for site in (closed, open_):
        site.clock.seconds = 2 * 86400.0
    assert closed.refused(longer) == "revocation_unavailable"
    assert open_.ask(longer) is not None
    never = await made(crl=str(tmp_path / "nowhere"))
    assert never.refused(issued) == never.refused(issued, KEY) == "revocation_unavailable"
    assert never.ask(None, KEY) is None, "who has no certificate is not concerned"
    foreign = Authority(tmp_path / "foreign", "foreign CA")
    assert closed.refused(foreign.issue("ops-3", expires=now() + 9 * DAY)) == "revocation_unavailable", "no list of its issuer"


async def test_what_a_proxy_forwards_is_verified_and_becomes_the_peers(made: Any, authority: Authority) -> None:
    site = await made(forwarded=ForwardedCertificatesSpec(peers=("10.0.0.1",)), crl=authority.crl())
    issued = authority.issue("ops-1")
    value = b":" + b64encode(issued.der) + b":"
    found, peer = site.forwarded(value)
    assert found is not None and found.id == "ops-1"
    assert (peer.certificate, peer.thumbprint, peer.asserted) == (issued.der, issued.sha256, None)
    assert site.forwarded(value)[0] is found
    for bad in (value[:-1], value + b", " + value, b"x", b":" + b64encode(authority.issue(usage=[SERVER]).der) + b":"):
        with pytest.raises(AuthenticationError) as caught:
            site.forwarded(bad)
        assert caught.value.code == "invalid_credentials"
    authority.revoke(issued)
    authority.crl()
    for _ in range(3):
        await site.authenticator._crl.look()
    with pytest.raises(AuthenticationError):
        site.forwarded(value)
    site.clock.seconds = 2 * 86400.0
    with pytest.raises(AuthenticationError):
        site.forwarded(value)


async def test_other_authorities_count_without_a_restart(made: Any, authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "authorities.pem"
    file.write_bytes(authority.pem)
    site = await made(forwarded=ForwardedCertificatesSpec(peers=("10.0.0.1",)), authorities=(str(file),))
    value = b":" + b64encode(authority.issue("ops-1").der) + b":"
    assert site.forwarded(value)[0] is not None
    replaced(file, b"garbage")
    for _ in range(3):
        await site.authenticator.look()
    assert site.forwarded(value)[0] is not None
    replaced(file, Authority(tmp_path / "other").pem)
    for _ in range(3):
        await site.authenticator.look()
    with pytest.raises(AuthenticationError):
        site.forwarded(value)


async def test_what_is_remembered_is_bounded(made: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtls, "REMEMBERED", 3)
    site = await made(forwarded=ForwardedCertificatesSpec(peers=("10.0.0.1",)))
    for number in range(6):
        site.forwarded(b":" + b64encode(authority.issue(f"ops-{number}").der) + b":")
    assert len(site.authenticator._known) == len(site.authenticator._forwarded) == 3


def test_files_and_templates_are_checked_when_they_are_new(authority: Authority, tmp_path: Path) -> None:
    check(MtlsSpec(principals=(MESH,), authorities=(authority.cert,), crl=authority.crl()))
    check(MtlsSpec(principals=(MESH,), authorities=(authority.cert,), crl=authority.crl(next_update=now() - DAY / 24)))
    check(MtlsSpec(principals=(MESH,), authorities=(authority.cert,), crl="/nowhere", on_crl_failure="open"))
    wrong = MtlsPrincipalSpec(match=CertificateMatchSpec(common_name="a"), tenant="t", id="{nobody}")
    for spec, path in (
        (MtlsSpec(principals=(MESH,), authorities=("/nowhere",)), "identity.mtls.authorities"),
        (MtlsSpec(principals=(MESH,), authorities=(authority.cert,), crl="/nowhere"), "identity.mtls.crl"),
        (MtlsSpec(principals=(MESH,), authorities=(authority.cert,), crl=authority.cert), "identity.mtls.crl"),
        (MtlsSpec(principals=(MESH, wrong)), "identity.mtls.principals[1].id"),
    ):
        with pytest.raises(ConfigError) as caught:
            check(spec)
        assert caught.value.path == path
