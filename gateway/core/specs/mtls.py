"""Settings of login by client certificate: `identity.mtls`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.specs.base import Name, Spec

Pattern = Annotated[str, Meta(min_length=1, max_length=1024)]


class CertificateMatchSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a certificate must have, all of it. Patterns with `*`, which stands for one part of a name (gateway.identity.certificate).

    san_*: one of its alternative names of that kind. subject, issuer: distinguished names as RFC 4514 writes them. sha256: of the DER.
    """

    san_uri: Pattern | None = None
    san_dns: Pattern | None = None
    san_email: Pattern | None = None
    common_name: Pattern | None = None
    subject: Pattern | None = None
    issuer: Pattern | None = None
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")] | None = None


class MtlsPrincipalSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who the certificates that match are. id, user: texts in which `{san_uri}`, `{san_dns}`, `{san_email}`, `{common_name}` stand for the
    certificate's; by default the name that matched."""

    match: CertificateMatchSpec
    tenant: Name
    id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    user: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    groups: tuple[Name, ...] = ()
    roles: tuple[Name, ...] = ()
    models: tuple[str, ...] = ()
    priority: Literal["interactive", "standard", "batch"] = "standard"


class ForwardedCertificatesSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """peers: the proxies, among `listen.trusted_peers`, whose `Client-Cert` header (RFC 9440) counts."""

    peers: Annotated[tuple[str, ...], Meta(min_length=1)]


class MtlsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Login by client certificate. principals: the first that matches counts. authorities: files with the CAs (PEM) that sign the
    revocation list and forwarded certificates; by default the listeners' `client_ca`.

    crl: a file with revocation lists. on_crl_failure: what certificates count for while it says nothing reliable. require_eku: whether a
    certificate must name its use; one that names another use never counts.
    """

    principals: Annotated[tuple[MtlsPrincipalSpec, ...], Meta(min_length=1)]
    authorities: tuple[str, ...] = ()
    crl: str | None = None
    on_crl_failure: Literal["closed", "open"] = "closed"
    require_eku: bool = True
    forwarded: ForwardedCertificatesSpec | None = None
