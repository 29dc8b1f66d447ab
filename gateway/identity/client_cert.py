"""Certificates that a proxy forwards in the headers `Client-Cert` and `Client-Cert-Chain` (RFC 9440).

What the proxy has verified is verified again here: the chain up to one of our authorities, the use, the time. The rules are those of the
Web PKI for keys and signatures (RSA from 2048 bits, ECDSA on the NIST curves).
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification

from gateway.identity.certificate import for_clients

MAX_BYTES: Final = 12 * 1024
"""The most bytes of both headers together."""
MAX_CHAIN: Final = 6
"""The most certificates besides the client's."""
_BYTES: Final = re.compile(rb":([A-Za-z0-9+/]*={0,2}):").fullmatch
"""A byte sequence of a structured field (RFC 9651, 3.3.5), without parameters."""


class Malformed(ValueError):
    """The headers hold no acceptable certificate. The text is for the log."""


def decoded(value: bytes) -> bytes:
    """The DER in a byte sequence. Raises Malformed."""
    found = _BYTES(value.strip(b" \t"))
    if found is None:
        raise Malformed("it is not one byte sequence")
    try:
        return b64decode(found[1], validate=True)
    except binascii.Error:
        raise Malformed("it is not base64") from None


def parse(value: bytes, chain: bytes | None) -> tuple[bytes, list[bytes]]:
    """The client's certificate and the intermediate ones, in DER. Raises Malformed."""
    if len(value) + len(chain or b"") > MAX_BYTES:
        raise Malformed("the headers are too large")
    parts = chain.split(b",") if chain is not None and chain.strip(b" \t") else []
    if len(parts) > MAX_CHAIN:
        raise Malformed("the chain is too long")
    return decoded(value), [decoded(part) for part in parts]


class Verifier:
    """Checks forwarded certificates against authorities."""

    def __init__(self, trusted: list[x509.Certificate], *, require_eku: bool) -> None:
        self._store = verification.Store(trusted)
        agnostic = verification.Criticality.AGNOSTIC

        def usage(policy: verification.Policy, certificate: x509.Certificate, found: x509.ExtendedKeyUsage | None) -> None:
            if not for_clients(found, require_eku):
                raise ValueError("not for clients")

        self._leaf = verification.ExtensionPolicy.permit_all().may_be_present(x509.ExtendedKeyUsage, agnostic, usage)
        self._authority = verification.ExtensionPolicy.webpki_defaults_ca()

    def verify(self, der: bytes, chain: list[bytes], now: float) -> tuple[float, tuple[bytes, ...]]:
        """When the first certificate of the chain ends, in seconds since the epoch, and those above the client's (DER). Raises Malformed
        for one that does not lead to an authority, that is not valid now, or is not for clients."""
        try:
            leaf = x509.load_der_x509_certificate(der)
            between = [x509.load_der_x509_certificate(one) for one in chain]
            policy = verification.PolicyBuilder().store(self._store).time(datetime.fromtimestamp(now, UTC)).max_chain_depth(MAX_CHAIN)
            verifier = policy.extension_policies(ca_policy=self._authority, ee_policy=self._leaf).build_client_verifier()
            verified = verifier.verify(leaf, between)
        except (verification.VerificationError, ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
            raise Malformed(f"it is not verified ({type(error).__name__})") from None
        above = tuple(one.public_bytes(Encoding.DER) for one in verified.chain[1:])
        return min(one.not_valid_after_utc.timestamp() for one in verified.chain), above


def digest(value: bytes, chain: bytes | None) -> bytes:
    """A hash of both headers, under which what was verified is remembered."""
    hashed = sha256(value)
    hashed.update(b"\0" if chain is None else b"\1" + chain)
    return hashed.digest()
