"""Who sent a request: which peers are trusted proxies, and for whom they forward."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from functools import lru_cache
from typing import Final

from gateway.core.network import Rules
from gateway.core.specs import IdentitySpec
from gateway.core.types import Headers, Peer
from gateway.server.proxy_protocol import Header

CLIENT_CERT: Final = b"client-cert"
FORWARDING: Final = frozenset({b"x-forwarded-for", CLIENT_CERT, b"client-cert-chain"})
"""Headers with which a trusted proxy says whose request it forwards."""
NO_LOGINS: Final = IdentitySpec()
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
MAX_HOPS: Final = 16
"""Proxies behind one another that are looked behind."""
MAX_HOP_BYTES: Final = 64
_WITH_PORT: Final = re.compile(rb"\[([0-9a-fA-F:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")


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


def peer_of(transport: asyncio.BaseTransport, trusted: tuple[str, ...] = (), said: Header | None = None) -> Peer:
    """The other end of a new connection, with its certificate where TLS has verified one. said: by a trusted proxy in the PROXY protocol;
    the other end is then the client that it names. One that it does not name has the proxy's address, but not its trust."""
    name = transport.get_extra_info("peername")
    address = plain(name[0]) if isinstance(name, tuple) else "local"
    tls = transport.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    if said is not None and not said.own:
        if said.address is None:
            return Peer(address, False, certificate)
        address = plain(said.address)
    return Peer(address, is_trusted(address, trusted), certificate)


def let_in(rules: Rules, peer: Peer) -> bool:
    """Whether a listener's rules admit a connection. A trusted proxy's may carry anybody's requests, which are judged one by one: it is
    refused only if it is denied itself."""
    return not rules.denies(peer.address) if peer.trusted else rules.admits(peer.address)


def forwarded_peer(proxy: Peer, headers: Headers, trusted: tuple[str, ...] = (), identity: IdentitySpec = NO_LOGINS) -> Peer:
    """The client that a trusted proxy names in X-Forwarded-For: going from the end, where the nearest proxy has put its own peer, the first
    address that is not a trusted proxy's too. What stands before it, a client may have written.

    Where an address is not to be read, the one behind it counts, and that is the proxy itself if there is none. The
    connection's certificate is the proxy's, not the client's; the client's is what the header of a proxy says that may forward it.
    """
    asserted = _asserted(proxy, headers, identity) if CLIENT_CERT in headers else None
    value = headers.get(b"x-forwarded-for")
    if value is None:
        return proxy if asserted is None else Peer(proxy.address, True, asserted=asserted)
    address = ""
    for _ in range(MAX_HOPS):
        value, comma, last = value.rpartition(b",")
        hop = _hop(last.strip(), trusted) if len(last) <= MAX_HOP_BYTES else None
        if hop is None:
            break
        address, forwards = hop
        if not forwards or not comma:
            break
    if not address and asserted is None:
        return proxy
    return Peer(address or proxy.address, True, asserted=asserted)


@lru_cache(maxsize=4096)
def _hop(text: bytes, trusted: tuple[str, ...]) -> tuple[str, bool] | None:
    """An address of the header, with or without a port, and whether it is a trusted proxy's; None for anything else."""
    found = _WITH_PORT.fullmatch(text)
    if found is not None:
        text = found[1] or found[2]
    try:
        parsed = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.scope_id is not None:
        return None
    address = plain(str(parsed))
    return address, is_trusted(address, trusted)


def _asserted(proxy: Peer, headers: Headers, identity: IdentitySpec) -> tuple[bytes, bytes | None] | None:
    """The headers of RFC 9440, where this proxy may send them."""
    mtls = identity.mtls
    if mtls is None or mtls.forwarded is None or not is_trusted(proxy.address, mtls.forwarded.peers):
        return None
    return headers[CLIENT_CERT], headers.get(b"client-cert-chain")
