"""Who sent a request: which peers are trusted proxies, and for whom they forward."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from functools import lru_cache
from typing import Final

from gateway.core.errors import GatehouseError, PermissionDenied, RequestError
from gateway.core.network import Rules
from gateway.core.specs import Forwarding, IdentitySpec
from gateway.core.types import Headers, Peer
from gateway.server.proxy_protocol import Header
from gateway.server.tls import chain_of

CLIENT_CERT: Final = b"client-cert"
FORWARDED: Final = b"forwarded"
X_FORWARDED_FOR: Final = b"x-forwarded-for"
FORWARDING: Final = frozenset({FORWARDED, X_FORWARDED_FOR, CLIENT_CERT, b"client-cert-chain"})
"""Headers with which a trusted proxy says whose request it forwards."""
NO_LOGINS: Final = IdentitySpec()
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
MAX_HOPS: Final = 16
"""Proxies behind one another that are looked behind."""
MAX_HOP_BYTES: Final = 64
MAX_ELEMENT_BYTES: Final = 512
_PAIR: Final = re.compile(rb"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)|\"([^\"\\]*)\")[ \t]*(;|$)")
"""One parameter in an element of Forwarded (RFC 7239, 4), without escapes, which no address needs."""
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


@lru_cache(maxsize=4096)
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
    nameless = said is not None and not said.own and said.address is None
    if said is not None and said.address is not None and not said.own:
        address = plain(said.address)
    peer = Peer(address, not nameless and is_trusted(address, trusted), certificate)
    if certificate is not None:
        peer.chain = chain_of(tls, peer.thumbprint)
    return peer


def let_in(rules: Rules, peer: Peer) -> bool:
    """Whether a listener's rules admit a connection. A trusted proxy's may carry anybody's requests, which are judged one by one: it is
    refused only if it is denied itself."""
    return not rules.denies(peer.address) if peer.trusted else rules.admits(peer.address)


def judged(peer: Peer, trusted: tuple[str, ...]) -> Peer:
    """The other end of a connection as it counts now: a reload may have taken its trust away. Trust that is given counts from the next
    connection on."""
    if not peer.trusted or is_trusted(peer.address, trusted):
        return peer
    return Peer(peer.address, False, peer.certificate, chain=peer.chain)


def forwarded_peer(
    proxy: Peer,
    headers: Headers,
    trusted: tuple[str, ...] = (),
    identity: IdentitySpec = NO_LOGINS,
    by: Forwarding = "x-forwarded-for",
) -> Peer:
    """The client that a trusted proxy names. by: the header that counts.

    The connection's certificate is the proxy's, not the client's, also where the header names nobody; the client's is what the header of a
    proxy says that may forward it.
    """
    asserted = _asserted(proxy, headers, identity) if CLIENT_CERT in headers else None
    if by != "forwarded" and X_FORWARDED_FOR in headers:
        address = _client(headers[X_FORWARDED_FOR], trusted, False)
    elif by != "x-forwarded-for" and FORWARDED in headers:
        address = _client(headers[FORWARDED], trusted, True)
    elif asserted is None:
        return proxy
    else:
        address = ""
    return Peer(address or proxy.address, True, asserted=asserted)


def refusal(peer: Peer, headers: Headers, trusted: tuple[str, ...], by: Forwarding, rules: Rules | None) -> GatehouseError | None:
    """Why a request that a trusted proxy forwards is not served; None if it is. peer: the client that it names (`forwarded_peer`)."""
    both = by == "either" and FORWARDED in headers and X_FORWARDED_FOR in headers
    if both and _client(headers[FORWARDED], trusted, True) != _client(headers[X_FORWARDED_FOR], trusted, False):
        return RequestError("Forwarded and X-Forwarded-For name different clients.", code="ambiguous_forwarding", param="forwarded")
    if rules is not None and not rules.admits(peer.address):
        return PermissionDenied("Requests from this address are not accepted.", code="network_denied")
    return None


def _client(value: bytes, trusted: tuple[str, ...], forwarded: bool) -> str:
    """The client in a header: going from the end, where the nearest proxy has put its own peer, the first address that is not a trusted
    proxy's too. What stands before it, a client may have written. Where an address is not to be read, the one behind it counts; "" if there
    is none. forwarded: it is Forwarded and not X-Forwarded-For."""
    address = ""
    for _ in range(MAX_HOPS):
        value, comma, last = value.rpartition(b",")
        if forwarded:
            last = _named(last)
        hop = _hop(last.strip(), trusted) if len(last) <= MAX_HOP_BYTES else None
        if hop is None:
            break
        address, forwards = hop
        if not forwards or not comma:
            break
    return address


def _named(element: bytes) -> bytes:
    """What an element of Forwarded has as `for`; b"" where there is not exactly one, or it is no such element. A comma in quotes belongs to
    none: proxies write none, and clients could hide what stands behind them."""
    if len(element) > MAX_ELEMENT_BYTES:
        return b""
    found: list[bytes] = []
    place = 0
    while True:
        pair = _PAIR.match(element, place)
        if pair is None:
            return b""
        if pair[1].lower() == b"for":
            found.append(pair[2] or pair[3] or b"")
        if not pair[4]:
            return found[0] if len(found) == 1 else b""
        place = pair.end()


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
