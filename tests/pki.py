"""Real certificates for tests: an authority that issues what a test asks for, good or bad, and lists what it has revoked."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
DAY = datetime.timedelta(days=1)
_SERIALS = itertools.count(1000)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, and the files that hold them."""

    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey
    cert: str
    key: str

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def sha256(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()


class Authority:
    """A certification authority below a folder. parent: who signs it; None: itself."""

    def __init__(
        self,
        folder: Path,
        name: str = "test CA",
        parent: Authority | None = None,
        permitted: Sequence[x509.GeneralName] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.parent = folder, parent
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = self if parent is None else parent
        builder = _builder(self.name, signer, self.private.public_key(), now() - DAY, now() + 30 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        if permitted:
            builder = builder.add_extension(x509.NameConstraints(permitted_subtrees=permitted, excluded_subtrees=None), critical=True)
        self.certificate = builder.sign(signer.private, hashes.SHA256())
        self.cert = str(folder / f"{name.replace(' ', '-')}.pem")
        Path(self.cert).write_bytes(self.pem)
        self.revoked: list[int] = []

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def issue(
        self,
        name: str = "client",
        *,
        uris: Sequence[str] = (),
        dns: Sequence[str] = (),
        emails: Sequence[str] = (),
        addresses: Sequence[str] = (),
        usage: Sequence[x509.ObjectIdentifier] | None = (CLIENT,),
        begins: datetime.datetime | None = None,
        expires: datetime.datetime | None = None,
        ca: bool = False,
        organisation: str = "",
        critical: bool = False,
    ) -> Issued:
        """usage: None for a certificate without that extension. critical: with an unknown critical extension."""
        private = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
        if organisation:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
        builder = _builder(x509.Name(attributes), self, private.public_key(), begins or now() - DAY, expires or now() + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        names: list[x509.GeneralName] = [
            *map(x509.UniformResourceIdentifier, uris),
            *map(x509.DNSName, dns),
            *map(x509.RFC822Name, emails),
            *(x509.IPAddress(ipaddress.ip_address(one)) for one in addresses),
        ]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not attributes)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        if critical:
            builder = builder.add_extension(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00"), critical=True)
        certificate = builder.sign(self.private, hashes.SHA256())
        stem = self.folder / f"{name or 'nameless'}-{certificate.serial_number}"
        issued = Issued(certificate, private, f"{stem}.pem", f"{stem}.key")
        Path(issued.cert).write_bytes(issued.pem)
        Path(issued.key).write_bytes(key_pem(private))
        return issued

    def server(self, **options: object) -> Issued:
        """For a listener on this machine."""
        return self.issue("server", dns=["localhost"], addresses=["127.0.0.1"], usage=[SERVER], **options)  # type: ignore[arg-type]

    def revoke(self, *issued: Issued) -> None:
        self.revoked += [one.certificate.serial_number for one in issued]

    def crl(self, name: str = "crl.pem", *, next_update: datetime.datetime | None = None, der: bool = False) -> str:
        """Writes the list of what is revoked, at once as a whole; returns its path."""
        ends = next_update or now() + DAY
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(min(now() - DAY, ends - DAY)).next_update(ends)
        for serial in self.revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now() - DAY).build()
            builder = builder.add_revoked_certificate(entry)
        encoding = serialization.Encoding.DER if der else serialization.Encoding.PEM
        return replaced(self.folder / name, builder.sign(self.private, hashes.SHA256()).public_bytes(encoding))

    def context(self, client: Issued | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=self.cert)
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        return context


def replaced(path: Path, data: bytes) -> str:
    """Puts a file in the place of another in one step, as renewing programs do."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    draft.replace(path)
    return str(path)


def key_pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _builder(
    subject: x509.Name, signer: Authority, public: ec.EllipticCurvePublicKey, begins: datetime.datetime, expires: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer.name)
        .public_key(public)
        .serial_number(next(_SERIALS))
        .not_valid_before(begins)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.private.public_key()), critical=False)
    )
