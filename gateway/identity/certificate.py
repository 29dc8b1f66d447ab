"""Client certificates: the names in one, and the patterns that settings match against them (RFC 5280).

In a pattern `*` stands for one part of a name and nothing else: in a URI for what is between two `/`, in a DNS name for a label, in an
address for what is before or behind the `@`, in a distinguished name for one value. So no name that somebody may choose
can reach over the part that it was meant for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.core.specs.mtls import CertificateMatchSpec

MAX_NAMES: Final = 64
"""The most alternative names of one certificate."""
MAX_NAME: Final = 256
SPIFFE: Final = "spiffe:"
_SPIFFE_ID: Final = re.compile(r"spiffe://[a-z0-9._-]{1,255}(/(?!\.{1,2}(/|\Z))[A-Za-z0-9._-]+)*").fullmatch
"""A trust domain and a path (SPIFFE-ID, 2): no query, fragment, port, encoded character, empty or dot segment."""
_DNS: Final = re.compile(r"[A-Za-z0-9_*-]{1,63}(\.[A-Za-z0-9_*-]{1,63})*\.?").fullmatch
_PART: Final = {"san_uri": "[^/]+", "san_dns": "[^.]+", "san_email": "[^@]+"}
_VALUE: Final = r"[^,+\\=]+"
"""Values of a distinguished name. Escaped characters are left out, because a chosen name could use them to look like the end of a value."""
_ANY: Final = "[^/]+"
NAMES: Final = ("san_uri", "san_dns", "san_email", "common_name")
"""The fields that a template may use, in the order in which they serve as a principal's name."""
E = TypeVar("E", bound=x509.ExtensionType)
_PLACEHOLDER: Final = re.compile(r"\{(.*?)\}")


class Unacceptable(ValueError):
    """Not a client's certificate. The text is for the log and contains no names."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a certificate says. Lists hold what is well-formed only. issuer_der, issuer_key, serial: for revocation lists. Times in seconds
    since the epoch."""

    san_uri: tuple[str, ...]
    san_dns: tuple[str, ...]
    san_email: tuple[str, ...]
    common_name: tuple[str, ...]
    subject: str
    issuer: str
    issuer_der: bytes
    issuer_key: bytes
    serial: int
    begins: float
    expires: float
    sha256: str

    def all(self, kind: str) -> tuple[str, ...]:
        found = getattr(self, kind)
        return (found,) if isinstance(found, str) else found


def read(der: bytes, sha256: str, *, require_eku: bool) -> Names:
    """Raises Unacceptable for what is not a client's certificate: a CA's, one for another use, or one that cannot be read."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        _suitable(certificate, require_eku)
        return _names(certificate, sha256)
    except Unacceptable:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise Unacceptable(f"it cannot be read ({type(error).__name__})") from None


@dataclass(frozen=True, slots=True)
class Issuer:
    """What a revocation list knows a certificate above a client's by: its own name and its issuer's (DER), the issuer's key, the serial
    number."""

    subject: bytes
    issuer: bytes
    key: bytes
    serial: int


def issuer_of(der: bytes) -> Issuer:
    """Parses an issuer's certificate. Raises ValueError for anything else."""
    certificate = x509.load_der_x509_certificate(der)
    key = key_identifier(certificate, x509.AuthorityKeyIdentifier)
    return Issuer(certificate.subject.public_bytes(), certificate.issuer.public_bytes(), key, certificate.serial_number)


def for_clients(extension: x509.ExtendedKeyUsage | None, require: bool) -> bool:
    """Whether the extended key usage (RFC 5280, 4.2.1.12) lets a certificate be a TLS client's."""
    if extension is None:
        return not require
    return ExtendedKeyUsageOID.CLIENT_AUTH in extension


def key_identifier(certificate: x509.Certificate, kind: type[x509.AuthorityKeyIdentifier] | type[x509.SubjectKeyIdentifier]) -> bytes:
    """The identifier of a certificate's own key, or of its issuer's; b"" if it has none that can be read."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value.key_identifier or b""
    except (x509.ExtensionNotFound, ValueError, x509.DuplicateExtension):
        return b""


def _suitable(certificate: x509.Certificate, require_eku: bool) -> None:
    extensions = certificate.extensions
    constraints = _extension(extensions, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        raise Unacceptable("it is an authority's")
    if not for_clients(_extension(extensions, x509.ExtendedKeyUsage), require_eku):
        raise Unacceptable("it is not for clients (extended key usage)")


def _extension(extensions: x509.Extensions, kind: type[E]) -> E | None:
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _names(certificate: x509.Certificate, sha256: str) -> Names:
    alternative = _extension(certificate.extensions, x509.SubjectAlternativeName)
    if alternative is not None and len(alternative) > MAX_NAMES:
        raise Unacceptable("it has too many names")
    uris = [] if alternative is None else alternative.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) > 1 and any(uri.lower().startswith(SPIFFE) for uri in uris):
        raise Unacceptable("it has a SPIFFE ID and another URI")  # X.509-SVID, 2: exactly one
    if uris and uris[0].lower().startswith(SPIFFE) and _SPIFFE_ID(uris[0]) is None:
        raise Unacceptable("its SPIFFE ID is not one by the standard (a query, a fragment, an empty, dot or encoded segment)")
    hosts = [] if alternative is None else alternative.get_values_for_type(x509.DNSName)
    if not all(map(_DNS, hosts)):
        raise Unacceptable("it has a DNS name that is none (RFC 5280, 4.2.1.6)")
    common = [attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return Names(
        san_uri=_clean(uris),
        san_dns=tuple(name.lower() for name in _clean(hosts)),
        san_email=tuple(map(_email, _clean([] if alternative is None else alternative.get_values_for_type(x509.RFC822Name)))),
        common_name=_clean([value for value in common if isinstance(value, str)]),
        subject=_text(certificate.subject.rfc4514_string()),
        issuer=_text(certificate.issuer.rfc4514_string()),
        issuer_der=certificate.issuer.public_bytes(),
        issuer_key=key_identifier(certificate, x509.AuthorityKeyIdentifier),
        serial=certificate.serial_number,
        begins=certificate.not_valid_before_utc.timestamp(),
        expires=certificate.not_valid_after_utc.timestamp(),
        sha256=sha256,
    )


def _clean(names: list[str]) -> tuple[str, ...]:
    """The well-formed names. A name for several hosts or people (`*.example`) names nobody and is left out."""
    return tuple(name for name in names if 0 < len(name) <= MAX_NAME and name.isprintable() and "*" not in name)


def _text(name: str) -> str:
    return name if len(name) <= 4 * MAX_NAME and name.isprintable() else ""


def _email(name: str) -> str:
    """The address with its domain in lower case (RFC 5280, 4.2.1.6). The part before the `@` is left to the mail server."""
    local, at, domain = name.rpartition("@")
    return f"{local}{at}{domain.lower()}"


class Pattern:
    """The pattern of one `match`. Immutable."""

    def __init__(self, spec: CertificateMatchSpec) -> None:
        wanted = {
            "san_uri": spec.san_uri,
            "san_dns": spec.san_dns,
            "san_email": spec.san_email,
            "common_name": spec.common_name,
            "subject": spec.subject,
            "issuer": spec.issuer,
            "sha256": spec.sha256,
        }
        self._wanted = {field: _compiled(field, text) for field, text in wanted.items() if text is not None}

    def found(self, names: Names) -> Mapping[str, str] | None:
        """The name that matched, for each field; None if a field has no match."""
        found: dict[str, str] = {}
        for field, pattern in self._wanted.items():
            name = next((name for name in names.all(field) if name and pattern.fullmatch(name)), None)
            if name is None:
                return None
            found[field] = name
        return found


def _compiled(field: str, text: str) -> re.Pattern[str]:
    if field in ("san_dns", "sha256"):
        text = text.lower()
    elif field == "san_email":
        text = _email(text)
    part = _PART.get(field, _VALUE if field in ("subject", "issuer") else _ANY)
    return re.compile(part.join(re.escape(piece) for piece in text.split("*")))


def filled(template: str | None, names: Names, matched: Mapping[str, str]) -> str:
    """A template filled with the certificate's names; without a template, the name that matched, else the certificate's first name. "" if a
    field is missing, or the result is not a valid name."""
    if template is None:
        for field in NAMES:
            if field in matched:
                return matched[field]
        for field in NAMES:
            if (having := names.all(field)) and having[0]:
                return having[0]
        return names.subject if len(names.subject) <= MAX_NAME else ""
    missing = False

    def put(found: re.Match[str]) -> str:
        nonlocal missing
        field = found[1]
        having = (matched[field],) if field in matched else names.all(field)
        missing = missing or not having
        return having[0] if having else ""

    text = _PLACEHOLDER.sub(put, template)
    return "" if missing or len(text) > MAX_NAME else text


def unknown_placeholders(template: str) -> list[str]:
    """The names in braces that are not fields of a certificate."""
    rest = _PLACEHOLDER.sub("", template)
    return [f"{{{name}}}" for name in _PLACEHOLDER.findall(template) if name not in NAMES] + [brace for brace in "{}" if brace in rest]
