"""Lists of revoked certificates (RFC 5280, 5): one file with one or several, in PEM or DER, watched and read in a thread.

A list counts if one of the authorities has signed it. A file that cannot be used leaves what was read before in force until that ends (its
`nextUpdate`); whether certificates count while there is nothing reliable, the settings say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from gateway.core.clock import Clock
from gateway.core.files import read_bytes
from gateway.core.stamps import Stamps, stamps
from gateway.identity.certificate import key_identifier

log = logging.getLogger("gatehouse.identity")

POLL_SECONDS: Final = 2.0
MAX_BYTES: Final = 64 * 1024 * 1024
_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_END: Final = b"-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class Revoked:
    """What the lists say: serial numbers by issuer (its name in DER). ended: the authorities of which a certificate is revoked, by name,
    with the key identifiers of those of this name that still count. names: of all authorities. ends: when the first of the lists is out of
    date."""

    serials: dict[bytes, frozenset[int]] = field(default_factory=dict)
    ended: dict[bytes, frozenset[bytes]] = field(default_factory=dict)
    names: frozenset[bytes] = frozenset()
    ends: float = 0.0


class Unusable(ValueError):
    """A file of lists, or of authorities, that cannot be used; the text says why."""


class OutOfDate(Unusable):
    """Its time is over."""


def authorities(files: tuple[str, ...]) -> list[x509.Certificate]:
    """The certificates in PEM files. Blocks. Raises Unusable."""
    found: list[x509.Certificate] = []
    for name in files:
        try:
            found += x509.load_pem_x509_certificates(_bytes(name))
        except (ValueError, UnsupportedAlgorithm):
            raise Unusable(f"{name} holds no certificate in PEM, or a damaged one") from None
    return found


def read(file: str, trusted: list[x509.Certificate], now: float) -> Revoked:
    """Blocks. Raises Unusable, also when a list is out of date."""
    lists = _lists(file, _bytes(file))
    serials: dict[bytes, frozenset[int]] = {}
    ends = float("inf")
    for one in lists:
        _check(file, one, trusted)
        if one.last_update_utc.timestamp() > now + 300.0:
            raise Unusable(f"{file}: a list is of the future")
        following = one.next_update_utc
        ends = min(ends, float("inf") if following is None else following.timestamp())
        issuer = one.issuer.public_bytes()
        serials[issuer] = serials.get(issuer, frozenset()) | {entry.serial_number for entry in one}
    if ends <= now:
        raise OutOfDate(f"{file}: a list is out of date")
    return Revoked(serials, _ended(trusted, serials), frozenset(one.subject.public_bytes() for one in trusted), ends)


def _ended(trusted: list[x509.Certificate], serials: dict[bytes, frozenset[int]]) -> dict[bytes, frozenset[bytes]]:
    """See Revoked. An authority below one that has ended has ended too."""

    def ends(one: x509.Certificate) -> bool:
        issuer = one.issuer.public_bytes()
        return one.serial_number in serials.get(issuer, ()) or below(ended, issuer, key_identifier(one, x509.AuthorityKeyIdentifier))

    ended: dict[bytes, frozenset[bytes]] = {}
    good = trusted
    while gone := {one.subject.public_bytes() for one in good if ends(one)}:
        good = [one for one in good if not ends(one)]
        keys = [(one.subject.public_bytes(), key_identifier(one, x509.SubjectKeyIdentifier)) for one in good]
        ended = {name: frozenset(key for subject, key in keys if subject == name) for name in gone | ended.keys()}
    return ended


def below(ended: dict[bytes, frozenset[bytes]], issuer: bytes, key: bytes) -> bool:
    """Whether the issuer of a certificate is an authority that has ended, and not one of the same name that counts. key: of the issuer, as
    the certificate names it; b"" where it does not."""
    others = ended.get(issuer)
    return others is not None and (not key or key not in others)


def _bytes(name: str) -> bytes:
    try:
        return read_bytes(name, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise Unusable(f"{name} cannot be read: {error.strerror if isinstance(error, OSError) else error}") from None


def _lists(file: str, data: bytes) -> list[x509.CertificateRevocationList]:
    try:
        if _BEGIN not in data:
            return [x509.load_der_x509_crl(data)]
        parts = data.split(_BEGIN)[1:]
        if any(_END not in part for part in parts):
            raise ValueError
        return [x509.load_pem_x509_crl(_BEGIN + part.partition(_END)[0] + _END + b"\n") for part in parts]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unusable(f"{file} holds no revocation list in PEM or DER, or a damaged one") from None


def _check(file: str, one: x509.CertificateRevocationList, trusted: list[x509.Certificate]) -> None:
    """Raises Unusable for a list that nobody trusted has signed, or that does not tell of all its issuer's certificates."""
    for authority in trusted:
        if authority.subject != one.issuer:
            continue
        try:
            if one.is_signature_valid(authority.public_key()):  # type: ignore[arg-type]  # a key that signs nothing raises TypeError
                break
        except (InvalidSignature, TypeError, ValueError, UnsupportedAlgorithm):
            continue
    else:
        raise Unusable(f"{file}: a list is signed by none of the authorities")
    try:
        extensions = list(one.extensions)
    except (ValueError, x509.DuplicateExtension):
        raise Unusable(f"{file}: a list has extensions that cannot be read") from None
    for extension in extensions:
        value: Any = extension.value
        if isinstance(value, x509.IssuingDistributionPoint):
            if value.indirect_crl or value.only_contains_ca_certs or value.only_contains_attribute_certs or value.only_some_reasons:
                raise Unusable(f"{file}: a list covers only a part of what its issuer revokes")
        elif extension.critical:
            raise Unusable(f"{file}: a list has the critical extension {extension.oid.dotted_string}, which is not supported")


class RevocationList:
    """The file of one authenticator. Life: `load`, then `look` every POLL_SECONDS. record: (event, target, detail) for the audit log.
    gauge: told when the list ends, in seconds since the epoch.

    generation: grows with each list that is read.
    """

    def __init__(
        self,
        file: str,
        trusted: tuple[str, ...],
        clock: Clock,
        record: Callable[[str, str, dict[str, Any]], None],
        gauge: Callable[[str, float], None],
    ) -> None:
        self._file, self._trusted, self._clock, self._record, self._gauge = file, trusted, clock, record, gauge
        self._revoked: Revoked | None = None
        self._seen: Stamps = ()
        self._read_at: Stamps = ()
        self._failed = ""
        self._overdue = False
        self.generation = 0

    async def load(self) -> None:
        """Reads the file at once, without waiting until it rests."""
        self._seen = await asyncio.to_thread(self._stamps)
        await self._read()

    async def look(self) -> None:
        """Reads the file once it has changed and come to rest."""
        seen = await asyncio.to_thread(self._stamps)
        at_rest, self._seen = seen == self._seen, seen
        if at_rest and seen != self._read_at:
            await self._read()
        if self._revoked is not None and not self._overdue and self._revoked.ends <= self._clock.wall():
            self._overdue = True
            self._fails(f"{self._file}: a list is out of date")

    async def _read(self) -> None:
        self._read_at = self._seen
        try:
            found = await asyncio.to_thread(lambda: read(self._file, authorities(self._trusted), self._clock.wall()))
        except Unusable as error:
            self._fails(str(error))
            return
        self._revoked, self._failed, self._overdue = found, "", False
        self.generation += 1
        count = sum(map(len, found.serials.values()))
        self._gauge("crl", found.ends)
        self._gauge("crl_refused", 0.0)
        self._record("crl_loaded", "identity.mtls.crl", {"revoked": count})
        log.info("identity.mtls.crl: %d certificates are revoked", count)

    def _fails(self, reason: str) -> None:
        self._gauge("crl_refused", 1.0)
        if reason == self._failed:
            return
        self._failed = reason
        self._record("crl_unusable", "identity.mtls.crl", {"reason": reason})
        log.error("identity.mtls.crl: %s; the list that was read before counts until it is out of date", reason)

    def revokes(self, issuer: bytes, key: bytes, serial: int) -> bool | None:
        """Whether a certificate is revoked, or its issuer is, as far as the last good list says; None if there is none of its issuer. key:
        the identifier of the issuer's key."""
        if self._revoked is None:
            return None
        if below(self._revoked.ended, issuer, key):
            return True
        serials = self._revoked.serials.get(issuer)
        return None if serials is None else serial in serials

    def configured(self, issuer: bytes) -> bool:
        """Whether an authority has this name, as far as the last good list says."""
        return self._revoked is None or issuer in self._revoked.names

    def reliable(self, now: float) -> bool:
        """Whether there is a list, and it is not out of date."""
        return self._revoked is not None and now < self._revoked.ends

    def _stamps(self) -> Stamps:
        return stamps((self._file, *self._trusted))
