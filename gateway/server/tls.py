"""TLS of a listener: reading its files, and the context that new connections get.

The files become a `Material` in memory: checked, so that a context can be made of it anywhere and at any time. Who serves gets contexts
from it and never reads the files, which somebody may be replacing meanwhile.
"""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

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
"""The ciphers of TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has nothing else."""
PROTOCOLS: Final = ("http/1.1",)
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
REMEMBERED: Final = 16384
"""Clients' certificates of which a context knows the chain."""
MOST_CHAINS: Final = 1024
TELLS_CHAINS: Final = hasattr(ssl.SSLObject, "get_verified_chain") or hasattr(ssl._ssl._SSLSocket, "get_verified_chain")  # type: ignore[attr-defined]
Chain = tuple[bytes, ...]
"""A chain of certificates in DER."""
_DER: Final = 2
"""The ssl module's number of that form."""
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
    """A context that keeps the material that it was made of, since gRPC has its own TLS and needs the material itself. chains: the
    certificates by which those of clients were verified."""

    material: Material
    chains: Chains


class Chains:
    """By which certificates clients' own were verified, in the handshakes of one context. A session that is resumed does not say; it
    belongs to the same context, so its beginning has."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Chain] = OrderedDict()
        self._same: dict[Chain, Chain] = {}

    def note(self, thumbprint: str, chain: Chain) -> Chain:
        """The chain, the same object for all that have it."""
        if len(self._same) >= MOST_CHAINS:
            self._same.clear()
        chain = self._known[thumbprint] = self._same.setdefault(chain, chain)
        self._known.move_to_end(thumbprint)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return chain

    def of(self, thumbprint: str) -> Chain:
        return self._known.get(thumbprint, ())


def chain_of(tls: Any, thumbprint: str) -> Chain:
    """The certificates above the client's that has this thumbprint, the root last; () where nobody knows them any more."""
    context, found = getattr(tls, "context", None), verified_chain(tls)
    if not isinstance(context, ListenerContext):
        return found or ()
    return context.chains.of(thumbprint) if found is None else context.chains.note(thumbprint, found)


def verified_chain(tls: Any) -> Chain | None:
    """What the ssl module has a public method for from Python 3.13 on, and until then its object within. None for a session that is
    resumed, and where there is neither: `context_of` asks for no client's certificate there."""
    if hasattr(tls, "get_verified_chain"):
        found = tls.get_verified_chain()
    else:
        ask = getattr(getattr(tls, "_sslobj", None), "get_verified_chain", None)
        found = None if ask is None else [one.public_bytes(_DER) for one in ask() or ()]
    return tuple(found[1:]) if found else None


class Contexts:
    """The TLS contexts of one listener. A new connection gets `current`; those under way keep theirs."""

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
    context.material, context.chains = material, Chains()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(list(PROTOCOLS))
    context.options |= ssl.OP_NO_RENEGOTIATION
    with ExitStack() as files:
        cert, key = (files.enter_context(_file(text)) for text in (material.cert, material.key.reveal()))
        context.load_cert_chain(cert, key, password=_no_password)
    if material.client_ca:
        if not TELLS_CHAINS:
            raise ValueError("this Python does not say by which certificates a client's is verified")
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
