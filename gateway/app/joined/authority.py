"""The gateway's own two small certificate authorities: one for machines that join, one for the gateways that use their engines.

Their keys are derived from the store's pepper, so all replicas have the same ones without keeping any, and their certificates are the same
to the byte, because Ed25519 signatures are (RFC 8032). They are two so that a machine, which has a certificate of the first, can never pass
for a gateway. Neither vouches for anybody else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.core.joining import DOMAIN
from gateway.core.specs.base import ClientTlsSpec

SKEW: Final = timedelta(days=1)
"""How far before the present a new certificate begins, since clocks differ, by a whole time zone if one was set wrongly."""
MACHINE_DAYS: Final = 7
GATEWAY_DAYS: Final = 30
_FROM, _UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
"""The validity of the authorities, which really end with the pepper that they are derived from."""


@dataclass(frozen=True)
class Authority:
    """One of the two. certificate: PEM."""

    key: Ed25519PrivateKey
    issuer: x509.Certificate

    @classmethod
    def of(cls, secret: bytes, name: str) -> Authority:
        """secret: 32 bytes."""
        key = Ed25519PrivateKey.from_private_bytes(secret)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Gatehouse {name}")])
        usage = _usage(signs=False, certifies=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(int.from_bytes(identifier.digest[:16]) | 1)
            .not_valid_before(_FROM)
            .not_valid_after(_UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, None)
        )
        return cls(key, made)

    @cached_property
    def pem(self) -> str:
        """Written once: each ticket has it."""
        return _pem(self.issuer)

    def issue(self, public: Ed25519PublicKey, name: str, hosts: list[str], now: datetime, days: int, *, serves: bool) -> str:
        """A certificate, PEM. hosts: the names that it is for as a server."""
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self.issuer.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=True, certifies=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(authority, critical=False)
        )
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        return _pem(made.sign(self.key, None))


class Authorities:
    """Both, and the files of this gateway's own certificate. secrets: (for machines, for gateways), of 32 bytes each."""

    def __init__(self, secrets: tuple[bytes, bytes], folder: Path, replica: str) -> None:
        self._machines, self._gateways = Authority.of(secrets[0], "machines"), Authority.of(secrets[1], "gateways")
        self._folder, self._replica = folder, replica
        self._made: datetime | None = None
        self._number = 0
        self.tls = ClientTlsSpec()
        """What engines of machines are asked with: set by `renew`."""

    @property
    def machines(self) -> str:
        """The certificate that vouches for machines, PEM."""
        return self._machines.pem

    @property
    def gateways(self) -> str:
        """The certificate of those who may use the engines of machines, PEM."""
        return self._gateways.pem

    def for_machine(self, name: str, public_key: bytes, now: datetime) -> str:
        """A certificate for a machine's key, PEM. Raises ValueError for what is no key."""
        public = Ed25519PublicKey.from_public_bytes(public_key)
        return self._machines.issue(public, name, [f"*.{name}.{DOMAIN}"], now, MACHINE_DAYS, serves=True)

    def renew(self, now: datetime) -> bool:
        """Makes this gateway's key and certificate if half of their time is over, or if the clock was ahead when they were made, so that
        machines would find them not valid yet; whether it did. The files have new names then, so that connections made with the old ones
        end in their own time. Raises OSError."""
        if self._made is not None and -SKEW / 2 < now - self._made < timedelta(days=GATEWAY_DAYS / 2):
            return False
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        key = Ed25519PrivateKey.generate()
        issued = self._gateways.issue(key.public_key(), f"gateway {self._replica}"[:64], [], now, GATEWAY_DAYS, serves=False)
        old = sorted(self._folder.glob("gateway-*.pem"))
        self._number = 1 + max((int(path.stem.rpartition("-")[2]) for path in old if path.stem.rpartition("-")[2].isdigit()), default=0)
        ca, cert, secret = (self._folder / name for name in ("machines.pem", f"gateway-{self._number}.pem", f"key-{self._number}.pem"))
        write(ca, self._machines.pem)
        write(cert, issued)
        write(secret, private_pem(key))
        for path in old[:-1]:  # those before the last: nothing uses them any more
            path.unlink(missing_ok=True)
            (self._folder / path.name.replace("gateway-", "key-")).unlink(missing_ok=True)
        self._made, self.tls = now, ClientTlsSpec(ca=str(ca), cert=str(cert), key=str(secret))
        return True


def write(path: Path, text: str) -> None:
    """Writes a file that only its owner reads, whole or not at all. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def private_pem(key: Ed25519PrivateKey) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode("ascii")


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _usage(*, signs: bool, certifies: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs, content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        key_cert_sign=certifies, crl_sign=certifies, encipher_only=False, decipher_only=False,
    )  # fmt: skip
