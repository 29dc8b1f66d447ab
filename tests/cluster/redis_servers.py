"""Several Redis servers that belong together: one that Sentinel watches, and a Redis Cluster."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.transport.redis.resp import Parser, RedisError, command
from tests.cluster.servers import RedisServer, Sentinel
from tests.waiting import until

SLOTS: Final = 16384


class Watched:
    """A master, a replica of it, and a Sentinel."""

    def __init__(self, directory: Path) -> None:
        self.ports = [free_port(), free_port()]
        self.master = RedisServer(directory, "--repl-diskless-sync-delay", "0", name="master", port=self.ports[0])
        self.replica = RedisServer(directory, "--replicaof", "127.0.0.1", str(self.ports[0]), name="replica", port=self.ports[1])
        self.sentinel = Sentinel(directory, free_port(), self.ports[0])

    def start(self) -> Watched:
        self.master.start()
        self.replica.start()
        until(lambda: b"master_link_status:up" in tell(self.ports[1], "INFO", "replication"), what="the replica to be synchronised")
        self.sentinel.start()
        until(lambda: b"master-link-status\r\n$2\r\nok" in tell(self.sentinel.port, "SENTINEL", "replicas", "main"), what="the Sentinel")
        return self

    def stop(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.stop()


class RedisCluster:
    """A Redis Cluster of so many masters, without replicas. The slots are theirs in equal parts, in order."""

    def __init__(self, directory: Path, masters: int = 2) -> None:
        self.servers = []
        for number in range(masters):
            folder = directory / str(number)
            folder.mkdir()
            settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", str(free_port()))
            self.servers.append(RedisServer(folder, *settings, port=free_port()))

    def start(self) -> RedisCluster:
        for server in self.servers:
            server.start()
        first, count = self.servers[0], len(self.servers)
        for number, server in enumerate(self.servers):
            begin, end = SLOTS * number // count, SLOTS * (number + 1) // count - 1
            assert said(server.port, "CLUSTER", "ADDSLOTSRANGE", str(begin), str(end)) == b"OK"
            assert said(server.port, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1)) == b"OK"
        for server in self.servers[1:]:
            bus = server.settings[-1]
            assert said(server.port, "CLUSTER", "MEET", "127.0.0.1", str(first.port), first.settings[-1]) == b"OK", bus
        until(lambda: all(b"cluster_state:ok" in _info(server) for server in self.servers), what="the cluster")
        return self

    def of(self, key: str) -> RedisServer:
        """Who has a key now."""
        slot = said(self.servers[0].port, "CLUSTER", "KEYSLOT", key)
        return next(server for server in self.servers if said(server.port, "CLUSTER", "COUNTKEYSINSLOT", str(slot)))

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def _info(server: RedisServer) -> bytes:
    found = said(server.port, "CLUSTER", "INFO")
    return found if isinstance(found, bytes) else b""


def said(port: int, *words: str | bytes) -> object:
    """The whole answer to a command; a RedisError for an error."""
    parser = Parser()
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(command(*words))
        while not (replies := parser.feed(data := connection.recv(65536))):
            if not data:
                return RedisError("the connection was closed")
    return replies[0]


def tell(port: int, *words: str) -> bytes:
    """The answer as it came, or its beginning."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(command(*words))
        return connection.recv(65536)


def free_port() -> int:
    """One that no connection gets as its own: below those that Linux gives out (32768 and above)."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
