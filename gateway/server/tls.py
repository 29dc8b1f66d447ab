"""TLS of a listener: reading its files, and the context that new connections get.

The files become a `Material` in memory: checked, so that a context can be made of it anywhere and at any time. Who serves gets contexts
from it and never reads the files, which somebody may be replacing meanwhile.
"""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from gateway.core.errors import ConfigError
from gateway.core.files import read_bytes
from gateway.core.messages import Message
from gateway.core.secret import Secret
from gateway.core.specs import TlsSpec

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has nothing else."""
PROTOCOLS: Final = ("http/1.1",)
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_DESCRIPTORS: Final = Path("/proc/self/fd")


class Material(Message, frozen=True, kw_only=True):
    """The files of one listener, checked: PEM. cert: the certificate and those that vouch for it. client_ca: "" where no client
    certificate is asked for. begins, expires: of the certificate, seconds since the epoch. fingerprint: its SHA-256, in hex."""

    cert: str
    key: Secret
    client_ca: str = ""
    require_client: bool = False
    subject: str = ""
    begins: float = 0.0
    expires: float = 0.0
    fingerprint: str = ""


class ListenerContext(ssl.SSLContext):
    """A context that knows what it was made of: gRPC has TLS of its own, and makes its own of it."""

    material: Material


class Contexts:
    """Of one listener. `current` is what a connection that begins now gets; those under way keep theirs."""

    __slots__ = ("current",)

    def __init__(self, current: ListenerContext) -> None:
        self.current = current


def read(spec: TlsSpec, setting: str) -> Material:
    """Reads and checks the files. Blocks. Raises ConfigError with the setting for anything that clients could not use: files that cannot
    be read or are no PEM, a key of another certificate, a certificate that has expired or is not valid yet."""
    chain = _certificates(spec.cert, f"{setting}.cert")
    leaf = chain[0]
    key = _key(spec.key, f"{setting}.key")
    form, encoding = serialization.PublicFormat.SubjectPublicKeyInfo, serialization.Encoding.DER
    if key.public_key().public_bytes(encoding, form) != leaf.public_key().public_bytes(encoding, form):
        raise ConfigError(f"is not the key of the certificate in {spec.cert}", path=f"{setting}.key")
    begins, expires, now = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp(), time.time()
    if not begins <= now < expires:
        what = f"expired at {leaf.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC"
        if now < begins:
            what = f"is not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC"
        raise ConfigError(f"the certificate in {spec.cert} {what}", path=f"{setting}.cert")
    trusted = [] if spec.client_ca is None else _certificates(spec.client_ca, f"{setting}.client_ca")
    material = Material(
        cert=pem_of(chain),
        key=Secret(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode("ascii")
        ),
        client_ca=pem_of(trusted),
        require_client=spec.require_client,
        subject=leaf.subject.rfc4514_string()[:256],
        begins=begins,
        expires=expires,
        fingerprint=leaf.fingerprint(hashes.SHA256()).hex(),
    )
    try:
        context_of(material)
    except (OSError, ValueError) as error:  # what OpenSSL does not take: a weak key, a chain with a broken signature algorithm
        raise ConfigError(f"the TLS files cannot be used: {error}", path=setting) from None
    return material


def context_of(material: Material) -> ListenerContext:
    """A server's context. Raises OSError (which ssl.SSLError is) or ValueError."""
    context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
    context.material = material
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(list(PROTOCOLS))
    context.options |= ssl.OP_NO_RENEGOTIATION
    with ExitStack() as files:
        cert, key = (files.enter_context(_file(text)) for text in (material.cert, material.key.reveal()))
        context.load_cert_chain(cert, key, password=_no_password)
    if material.client_ca:
        context.load_verify_locations(cadata=material.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if material.require_client else ssl.CERT_OPTIONAL
    return context


def pem_of(certificates: list[x509.Certificate]) -> str:
    return "".join(one.public_bytes(serialization.Encoding.PEM).decode("ascii") for one in certificates)


def _certificates(name: str, path: str) -> list[x509.Certificate]:
    """At least one. Raises ConfigError."""
    data = _bytes(name, path)
    try:
        if data.count(b"-----BEGIN") != data.count(b"-----END"):  # written in part: the parser takes what is whole
            raise ValueError
        return x509.load_pem_x509_certificates(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{name} holds no certificate in PEM, or a damaged one", path=path) from None


def _key(name: str, path: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(_bytes(name, path), None)
    except TypeError:
        raise ConfigError(f"{name} is encrypted; store it without a password, readable by the gateway's user only", path=path) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{name} holds no private key in PEM, or a damaged one", path=path) from None


def _bytes(name: str, path: str) -> bytes:
    try:
        return read_bytes(name, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{name} cannot be read: {reason}", path=path) from None


@contextmanager
def _file(text: str) -> Iterator[str]:
    """The path of an anonymous file, because OpenSSL loads a certificate chain from files only. Where there is no /proc, a file that only
    this user can read."""
    if hasattr(os, "memfd_create") and _DESCRIPTORS.is_dir():
        descriptor = os.memfd_create("gatehouse-tls", os.MFD_CLOEXEC)
        with open(descriptor, "wb") as memory:
            memory.write(text.encode("ascii"))
            memory.flush()
            yield str(_DESCRIPTORS / str(descriptor))
    else:
        with tempfile.NamedTemporaryFile(prefix="gatehouse-") as file:
            file.write(text.encode("ascii"))
            file.flush()
            yield file.name


def _no_password() -> str:
    """Asked instead of the terminal, which OpenSSL would ask."""
    return ""
