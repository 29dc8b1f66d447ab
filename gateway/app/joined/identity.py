"""A machine's key and certificate, in its state directory: a machine that comes back is the same one, and needs no token again."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.app.joined.authority import private_pem, write
from gateway.core.errors import ConfigError

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
AGAIN_SECONDS: Final = 3600.0
"""Between two certificates that a process asks for."""


class Identity:
    """Makes the key if there is none. Raises ConfigError for one that cannot be used, OSError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.key_file, self.certificate = folder / "key.pem", folder / "certificate.pem"
        self._authority = folder / "gateways.pem"
        if not self.key_file.exists():
            write(self.key_file, private_pem(Ed25519PrivateKey.generate()))
        try:
            key = load_pem_private_key(self.key_file.read_bytes(), None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{self.key_file} holds no key of this machine; remove {folder} and join again under a new name")
        self.key = key
        self._kept = float("-inf")
        """When this process was last given a certificate, good or not, monotonic seconds."""

    @property
    def complete(self) -> bool:
        """Whether it has a certificate that is not over."""
        return self._until() > datetime.now(UTC)

    @property
    def begun(self) -> bool:
        """Whether it has ever joined. Gateways know it by its key, whatever became of the certificate, and the first of them that hears it
        gives it another one."""
        return self._until() > _NEVER

    @property
    def due(self) -> bool:
        """Whether half of the certificate's time is over, or has not begun: the gateway's clock was ahead when it gave it. By a clock that
        is days off one of them always holds: so it is asked for once an hour."""
        if time.monotonic() - self._kept < AGAIN_SECONDS:
            return False
        try:
            found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        except (OSError, ValueError):
            return True
        begin, end = found.not_valid_before_utc, found.not_valid_after_utc
        return not begin <= datetime.now(UTC) <= begin + (end - begin) / 2

    @property
    def gateways(self) -> str:
        """The authority of gateways, PEM."""
        return self._authority.read_text(encoding="ascii")

    def keep(self, certificate: str, gateways: str) -> None:
        """Takes what a gateway has given. Raises ValueError for what is no certificate of this machine's key, OSError; what it had
        stays."""
        self._kept = time.monotonic()
        if x509.load_pem_x509_certificate(certificate.encode()).public_key() != self.key.public_key():
            raise ValueError("the certificate is for another key")
        x509.load_pem_x509_certificate(gateways.encode())
        write(self._authority, gateways)
        write(self.certificate, certificate)

    def _until(self) -> datetime:
        try:
            if not self._authority.exists():
                return _NEVER
            return x509.load_pem_x509_certificate(self.certificate.read_bytes()).not_valid_after_utc
        except (OSError, ValueError):
            return _NEVER
