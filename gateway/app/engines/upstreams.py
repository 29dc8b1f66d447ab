"""Where an external engine of the store may be: no address that only this machine should reach, unless `store.upstreams` allows it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from gateway.core.errors import ConfigError
from policies.patterns import matches

RESOLVE_SECONDS: Final = 2.0
_IP = ipaddress.IPv4Address | ipaddress.IPv6Address
_METADATA: Final = frozenset(
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "fd20:ce::254", "168.63.129.16", "100.100.100.200", "192.0.0.192")
)
"""Where clouds tell a machine its credentials beside link-local addresses: AWS and Google by IPv6, Azure, Alibaba, Oracle."""


def check_address(url: str, allowed: Sequence[str]) -> str | None:
    """Checks what needs no name resolution; returns the host name that still has to be resolved, if any. Raises ConfigError.

    allowed: networks and patterns of host names (`store.upstreams`). When empty, every address is allowed but loopback, link-local,
    unspecified and multicast ones, and those of cloud metadata.
    """
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if any(matches(pattern, host) for pattern in allowed if _network(pattern) is None):
            return None
        return host
    _check_ip(address, allowed)
    return None


async def check_upstream(url: str, allowed: Sequence[str]) -> None:
    """Checks a URL with every address that its host name resolves to now. Raises ConfigError."""
    host = check_address(url, allowed)
    if host is None:
        return
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise ConfigError("the host's name cannot be resolved here", path="url") from None
    for entry in found:
        _check_ip(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]), allowed)


def permitted(host: str, networks: Sequence[str], url: str, upstreams: Sequence[str] | None) -> bool:
    """Whether an engine may be at an address to which its name leads. networks: those of `dns`; when empty, everything but this machine,
    its links and its cloud's metadata. upstreams: `store.upstreams`, for an engine of the store at this url; None for one of the file. A
    pattern there that fits the name leaves the address to `networks`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    try:
        _check_ip(address, networks)
        if upstreams is not None and check_address(url, upstreams) is not None:
            _check_ip(address, upstreams)
    except ConfigError:
        return False
    return True


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _check_ip(address: _IP, allowed: Sequence[str]) -> None:
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if allowed:
        networks = [network for network in map(_network, allowed) if network is not None]
        if not any(address in network for network in networks):
            raise ConfigError("is not within store.upstreams, where engines of the store may be", path="url")
    elif address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast or address in _METADATA:
        raise ConfigError(
            "is an address of this machine or link, or of its cloud's metadata; store.upstreams of the configuration can allow it",
            path="url",
        )
