"""What replicas know each other by: certificates of an authority of their own, whose key is derived from the store's pepper.

Whoever has the pepper is a replica, and nobody else is: no machine that has joined, no client, and no gateway of another store. Each
replica makes its own key and certificates at its start, and again after half of their time.
"""

from __future__ import annotations

import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.app.joined.authority import Authority, private_pem, write
from gateway.core.modelshare import DOMAIN
from gateway.core.specs.base import ClientTlsSpec

DAYS: Final = 30
FOLDER: Final = "replica-certificates"


def host_of(replica: str) -> str:
    """The name that a replica's certificate is for."""
    return f"{replica}.{DOMAIN}"


def folder_of(state_dir: Path) -> Path:
    """Where they are kept. Raises OSError."""
    if (earlier := state_dir / "replica").is_dir():  # as an earlier release did; without a name in the settings, the replica's id is there
        shutil.rmtree(earlier)
    return state_dir / FOLDER


class Credentials:
    """secret: 32 bytes. folder: for the files, which only this user reads. Raises OSError."""

    def __init__(self, secret: bytes, folder: Path, replica: str) -> None:
        self._authority, self._folder, self._replica = Authority.of(secret, "replicas"), folder, replica
        self._made: datetime | None = None
        self._turn = 0
        self.tls = ClientTlsSpec()
        """What other replicas are asked with."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """What other replicas are answered with."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.num_tickets = 0
        self.context.set_alpn_protocols(["http/1.1"])
        self.context.load_verify_locations(cadata=self._authority.pem)
        self.renew(datetime.now(UTC))

    def renew(self, now: datetime) -> None:
        """Makes the key and the certificates anew if half of their time is over. Raises OSError."""
        if self._made is not None and now - self._made < timedelta(days=DAYS / 2):
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        key = Ed25519PrivateKey.generate()
        self._turn = 1 - self._turn  # connections that were made with the last ones end in their own time
        ca, secret = self._folder / "replicas.pem", self._folder / f"key-{self._turn}.pem"
        server, client = (self._folder / f"{kind}-{self._turn}.pem" for kind in ("server", "client"))
        public, name = key.public_key(), f"replica {self._replica}"
        write(ca, self._authority.pem)
        write(secret, private_pem(key))
        write(server, self._authority.issue(public, name, [host_of(self._replica)], now, DAYS, serves=True))
        write(client, self._authority.issue(public, name, [], now, DAYS, serves=False))
        self.context.load_cert_chain(server, secret)
        self._made, self.tls = now, ClientTlsSpec(ca=str(ca), cert=str(client), key=str(secret))
