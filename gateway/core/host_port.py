"""An IP address with a port: what the host name of an engine leads to, and where a machine that has joined can be reached."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

NOWHERE: Final = "-"
"""Written in place of the address of a name that has none at the moment."""


class HostPort(Struct, frozen=True, order=True):
    """host: an IPv4 or IPv6 address as text. weight: that of an SRV record (RFC 2782); 0 for all others."""

    host: str
    port: int
    weight: int = 0

    @property
    def text(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str) -> HostPort | None:
    """Parses `HostPort.text`; None for NOWHERE. Raises ValueError."""
    if text == NOWHERE:
        return None
    host, _, port = text.rpartition(":")
    return HostPort(host.removeprefix("[").removesuffix("]"), int(port))
