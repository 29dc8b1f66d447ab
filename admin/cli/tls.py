"""TLS towards a gateway: whom the commands trust, and the certificate with which they say who they are."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from admin.cli.errors import CommandError, UsageError

Ca = Annotated[str | None, typer.Option("--ca", help="Trust these CAs (a PEM file) instead of the system's.", envvar="GATEHOUSE_CA")]
Cert = Annotated[str | None, typer.Option("--cert", help="A client certificate (a PEM file) to log in with.", envvar="GATEHOUSE_CERT")]
CertKey = Annotated[
    str | None, typer.Option("--cert-key", help="The certificate's private key, if it is in another file.", envvar="GATEHOUSE_CERT_KEY")
]


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files; "" for none. ca: the system's CAs, or those of SSL_CERT_FILE, without it."""

    ca: str = ""
    cert: str = ""
    cert_key: str = ""

    def context(self) -> ssl.SSLContext:
        """Raises CommandError."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ValueError) as error:
            raise CommandError(f"the CAs in {self.ca} cannot be used: {_reason(error)}") from None
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.cert_key or None, password=_no_password)
            except (OSError, ValueError) as error:
                raise CommandError(f"the certificate in {self.cert} cannot be used: {_reason(error)}") from None
        return context


SYSTEM: Final = Tls()


def given(ca: str | None, cert: str | None, cert_key: str | None, saved: Tls = SYSTEM) -> Tls:
    """The TLS settings of the options; for those that are not given, the saved ones. Raises CommandError."""
    if cert_key and not (cert or saved.cert):
        raise UsageError("--cert-key needs --cert")
    if cert:
        return Tls(ca or saved.ca, cert, cert_key or "")
    return Tls(ca or saved.ca, saved.cert, cert_key or saved.cert_key)


def absolute(tls: Tls) -> Tls:
    """The same settings with absolute paths."""
    return Tls(*(os.path.abspath(path) if path else "" for path in (tls.ca, tls.cert, tls.cert_key)))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
        return error.strerror
    return "it is encrypted, or no PEM of a certificate and its key" if isinstance(error, ssl.SSLError) else str(error)


def _no_password() -> str:
    """Asked instead of the terminal, which OpenSSL would ask."""
    return ""
