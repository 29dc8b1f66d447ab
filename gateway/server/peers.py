"""Who sent a request: which peers are trusted proxies, and for whom they forward."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from gateway.core.types import Headers, Peer

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=16)
def _networks(trusted: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(entry, strict=False) for entry in trusted)


def plain(address: str) -> str:
    """An address as it is compared and recorded: IPv4 addresses mapped into IPv6 (a listener on `::`) become IPv4 ones."""
    if not address.lower().startswith("::ffff:"):
        return address
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return address
    return address if mapped is None else str(mapped)


def is_trusted(address: str, trusted: tuple[str, ...]) -> bool:
    """Whether an address is one of the configured proxies (addresses or networks)."""
    if not trusted:
        return False
    try:
        found = ipaddress.ip_address(plain(address))
    except ValueError:
        return False
    return any(found in network for network in _networks(trusted) if network.version == found.version)


def forwarded_peer(proxy: Peer, headers: Headers) -> Peer:
    """The client that a trusted proxy names: the last address of X-Forwarded-For, which is the one the proxy itself added.

    It has no certificate: the connection's certificate is the proxy's.
    """
    value = headers.get(b"x-forwarded-for")
    if value is None:
        return proxy
    last = value.rpartition(b",")[2].strip().decode("latin-1")
    try:
        return Peer(plain(str(ipaddress.ip_address(last))), True)
    except ValueError:
        return proxy
