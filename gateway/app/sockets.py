"""The two listening sockets of a gateway: bound by itself, or given to it, by the service manager or by the image that it replaces."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from gateway.core.errors import ConfigError
from gateway.core.specs import ListenSpec
from gateway.server.listener import address_of, bind


@dataclass(frozen=True)
class Sockets:
    """Both listen. Life: `close`, which may be called again."""

    data: socket.socket
    admin: socket.socket

    def close(self) -> None:
        self.data.close()
        self.admin.close()


def listening(listen: ListenSpec, given: Mapping[str, socket.socket]) -> Sockets:
    """The sockets for the configured addresses; those that were given are checked against them. Raises ConfigError; then all are closed."""
    made: list[socket.socket] = []
    try:
        for name, address in (("data", listen.data), ("admin", listen.admin)):
            sock = given.get(name)
            if sock is None:
                made.append(bind(address, f"listen.{name}"))
            elif listens_on(sock, address):
                made.append(sock)
            else:
                raise ConfigError(
                    f"the service manager passes a socket on {address_of(sock)}, not on {address}: change this setting or the unit",
                    path=f"listen.{name}",
                )
    except ConfigError:
        for sock in (*made, *given.values()):
            sock.close()
        raise
    return Sockets(*made)


def shared_by_workers(listen: ListenSpec) -> None:
    """Raises ConfigError for an address on which several processes cannot listen."""
    if (listen.grpc or "").endswith(":0"):
        raise ConfigError("needs a port with workers, which all listen on it", path="listen.grpc")


def handed(listen: ListenSpec, data: int, admin: int) -> Sockets:
    """The sockets that the program before this one has handed over. One whose address the configuration has changed since is bound anew.
    Raises ConfigError; then all are closed."""
    made: list[socket.socket] = []
    given = [socket.socket(fileno=data), socket.socket(fileno=admin)]
    try:
        for name, address, sock in (("data", listen.data, given[0]), ("admin", listen.admin, given[1])):
            made.append(sock if listens_on(sock, address) else bind(address, f"listen.{name}"))
            made[-1].setblocking(False)
    except ConfigError:
        for sock in (*made, *given):
            sock.close()
        raise
    for sock in given:
        if sock not in made:
            sock.close()
    return Sockets(*made)


def listens_on(sock: socket.socket, address: str) -> bool:
    """Whether a socket listens on "host:port". Port 0 stands for any port, a name of a host for any of its addresses."""
    host, _, port = address.rpartition(":")
    own_host, own_port = sock.getsockname()[:2]
    if int(port) not in (0, own_port):
        return False
    wanted = {entry[4][0] for entry in _resolved(host.strip("[]"))}
    return any(ip_address(str(one).partition("%")[0]) == ip_address(own_host.partition("%")[0]) for one in wanted)


def _resolved(host: str) -> list[tuple[int, int, int, str, tuple[str | int, ...]]]:
    try:
        return socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)  # type: ignore[return-value]
    except OSError:
        return []
