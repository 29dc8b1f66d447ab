"""The two authorities: the same on every replica, and neither vouches for the other's."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.app.joined.authority import GATEWAY_DAYS, Authorities, private_pem, write
from gateway.app.joined.identity import Identity
from gateway.core.joining import host_of

SECRETS = (b"m" * 32, b"g" * 32)
NOW = datetime.now(UTC)


def authorities(folder: Path, secrets: tuple[bytes, bytes] = SECRETS) -> Authorities:
    made = Authorities(secrets, folder, "gw-1")
    assert made.renew(NOW)
    return made


class Machine:
    """A machine's end of a connection."""

    def __init__(self, folder: Path, name: str, issuer: Authorities) -> None:
        folder.mkdir()
        key = Ed25519PrivateKey.generate()
        self.certificate, self.key = folder / "certificate.pem", folder / "key.pem"
        write(self.key, private_pem(key))
        write(self.certificate, issuer.for_machine(name, key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), NOW))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.certificate, self.key)
        self.context.load_verify_locations(cadata=issuer.gateways)
        self.context.verify_mode = ssl.CERT_REQUIRED


def speaks(machine: Machine, client: ssl.SSLContext, host: str) -> bool:
    """Whether both ends accept each other."""
    ours, theirs = socket.socketpair()
    accepted: list[bool] = []

    def serve() -> None:
        try:
            with machine.context.wrap_socket(theirs, server_side=True) as secure:
                secure.sendall(b"x")
                accepted.append(True)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as secure:
            return secure.recv(1) == b"x"
    except OSError:
        return False
    finally:
        ours.close()
        thread.join()


def client(issuer: Authorities) -> ssl.SSLContext:
    tls = issuer.tls
    context = ssl.create_default_context(cafile=tls.ca)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    assert tls.cert is not None
    context.load_cert_chain(tls.cert, tls.key)
    return context


def test_replicas_have_the_same_authorities_to_the_byte_and_other_stores_others(tmp_path: Path) -> None:
    one, other = authorities(tmp_path / "a"), authorities(tmp_path / "b")
    assert one.gateways == other.gateways
    assert (tmp_path / "a" / "machines.pem").read_bytes() == (tmp_path / "b" / "machines.pem").read_bytes()
    assert authorities(tmp_path / "c", (b"x" * 32, b"y" * 32)).gateways != one.gateways


def test_any_replica_speaks_to_a_machine_that_joined_at_another_by_its_own_name_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "m", "gpu-1", authorities(tmp_path / "a"))
    gateway = client(authorities(tmp_path / "b"))
    assert speaks(machine, gateway, host_of("gpu-1", "chat"))
    assert not speaks(machine, gateway, host_of("gpu-2", "chat")), "another machine at this address"
    assert not speaks(machine, gateway, "gpu-1.joined.gatehouse"), "no engine"


def test_neither_a_machine_nor_another_stores_gateway_passes_for_a_gateway(tmp_path: Path) -> None:
    ours = authorities(tmp_path / "a")
    machine, other = Machine(tmp_path / "m", "gpu-1", ours), Machine(tmp_path / "n", "gpu-2", ours)
    impostor = ssl.create_default_context(cafile=ours.tls.ca)
    impostor.load_cert_chain(other.certificate, other.key)
    assert not speaks(machine, impostor, host_of("gpu-1", "chat"))
    nobody = ssl.create_default_context(cafile=ours.tls.ca)
    assert not speaks(machine, nobody, host_of("gpu-1", "chat"))
    foreign = authorities(tmp_path / "f", (b"m" * 32, b"y" * 32))  # the machines' authority is the same
    assert not speaks(machine, client(foreign), host_of("gpu-1", "chat"))
    strangers = Machine(tmp_path / "s", "gpu-1", authorities(tmp_path / "g", (b"z" * 32, b"g" * 32)))
    assert not speaks(strangers, client(ours), host_of("gpu-1", "chat"))


def test_a_gateways_certificate_is_good_by_a_clock_that_is_hours_behind(tmp_path: Path) -> None:
    made = authorities(tmp_path / "a")
    found = x509.load_pem_x509_certificate(Path(made.tls.cert or "").read_bytes())
    assert found.not_valid_before_utc <= NOW - timedelta(hours=23) and found.not_valid_after_utc > NOW + timedelta(days=GATEWAY_DAYS - 1)


def test_by_a_clock_that_is_days_ahead_a_new_certificate_is_asked_for_once(tmp_path: Path) -> None:
    made, identity = authorities(tmp_path / "a"), Identity(tmp_path / "m")
    public = identity.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    identity.keep(made.for_machine("gpu-1", public, NOW - timedelta(days=6)), made.gateways)
    assert identity.complete and not identity.due
    again = Identity(tmp_path / "m")  # another process
    assert again.complete and again.due
    again.keep(made.for_machine("gpu-1", public, NOW - timedelta(days=6)), made.gateways)
    assert not again.due


def test_a_gateway_whose_clock_was_days_ahead_takes_another_certificate_once_it_is_right(tmp_path: Path) -> None:
    made = Authorities(SECRETS, tmp_path / "a", "gw-1")
    assert made.renew(NOW + timedelta(days=40))
    machine = Machine(tmp_path / "m", "gpu-1", made)
    assert not speaks(machine, client(made), host_of("gpu-1", "chat")), "it is not valid yet"
    assert made.renew(NOW) and speaks(machine, client(made), host_of("gpu-1", "chat"))
    assert not made.renew(NOW - timedelta(hours=11)) and not made.renew(NOW)


def test_a_machines_certificate_that_is_not_valid_yet_is_replaced(tmp_path: Path) -> None:
    made, identity = authorities(tmp_path / "a"), Identity(tmp_path / "m")
    public = identity.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    identity.keep(made.for_machine("gpu-1", public, NOW + timedelta(days=40)), made.gateways)
    assert Identity(tmp_path / "m").due


def test_a_certificate_for_another_key_does_not_replace_a_machines_own(tmp_path: Path) -> None:
    made, identity, other = authorities(tmp_path / "a"), Identity(tmp_path / "m"), Identity(tmp_path / "n")
    ours, theirs = (one.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw) for one in (identity, other))
    identity.keep(made.for_machine("gpu-1", ours, NOW), made.gateways)
    before = identity.certificate.read_bytes()
    for certificate, gateways in ((made.for_machine("gpu-1", theirs, NOW), made.gateways), (before.decode(), "no certificate")):
        with pytest.raises(ValueError):
            identity.keep(certificate, gateways)
    assert identity.certificate.read_bytes() == before and identity.gateways == made.gateways


def test_the_gateways_own_certificate_is_renewed_under_another_name_and_only_owners_read_it(tmp_path: Path) -> None:
    made = authorities(tmp_path / "a")
    first = made.tls
    assert not made.renew(NOW + timedelta(days=GATEWAY_DAYS / 2 - 1)) and made.tls is first
    assert made.renew(NOW + timedelta(days=GATEWAY_DAYS / 2)) and made.tls != first
    assert made.renew(NOW + timedelta(days=GATEWAY_DAYS))
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["gateway-2.pem", "gateway-3.pem", "key-2.pem", "key-3.pem", "machines.pem"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()} == {0o600}


def test_what_is_no_key_gets_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        authorities(tmp_path / "a").for_machine("gpu-1", b"short", NOW)
