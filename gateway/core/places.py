"""Names of copies of an engine, and the addresses to which a host name leads."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

COPY: Final = "~"
"""Between the name of an engine and the number of its copy, from 2 on."""
NOWHERE: Final = "-"
"""Stands for the address of a name that has none."""


def is_copy(name: str) -> bool:
    """Whether this is the name of a copy of an engine, other than the first."""
    return COPY in name


class Place(Struct, frozen=True, order=True):
    """host: an IPv4 or IPv6 address as text. weight: of an SRV record (RFC 2782); 0 for all others."""

    host: str
    port: int
    weight: int = 0

    @property
    def text(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_place(text: str) -> Place | None:
    """None for NOWHERE. Raises ValueError."""
    if text == NOWHERE:
        return None
    host, _, port = text.rpartition(":")
    return Place(host.removeprefix("[").removesuffix("]"), int(port))
