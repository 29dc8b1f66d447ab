"""Several Redis servers that belong together: one that Sentinel watches, and a Redis Cluster."""

from __future__ import annotations

import atexit
import secrets
import socket
from pathlib import Path
from typing import Final

from gateway.transport.redis.resp import Parser, RedisError, command
from tests.cluster.servers import RedisServer, Sentinel
from tests.waiting import SECONDS, until

SLOTS: Final = 16384


class Watched:
    """A master, a replica of it, and a Sentinel that takes no master for down, however slow it is, until it is to (`notice_soon`)."""

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

    def fail(self) -> None:
        """The master stands still, and closes nothing; the Sentinel soon takes it for down."""
        self.master.freeze()
        self.notice_soon()

    def notice_soon(self) -> None:
        """From now on a master that does not answer for 0.3 seconds is down."""
        assert tell(self.sentinel.port, "SENTINEL", "SET", "main", "down-after-milliseconds", "300") == b"+OK\r\n"

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
        self._notice(60_000)  # a server that the machine holds up is not down
        return self

    def notice_soon(self) -> None:
        """From now on a server that does not answer for two seconds is down."""
        self._notice(2000)

    def _notice(self, milliseconds: int) -> None:
        for server in self.servers:
            assert said(server.port, "CONFIG", "SET", "cluster-node-timeout", str(milliseconds)) == b"OK"

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
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        connection.sendall(command(*words))
        while not (replies := parser.feed(data := connection.recv(65536))):
            if not data:
                return RedisError("the connection was closed")
    return replies[0]


def tell(port: int, *words: str) -> bytes:
    """The answer as it came, or its beginning."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        connection.sendall(command(*words))
        return connection.recv(65536)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """One that no connection gets as its own: below those that Linux gives out (32768 and above). Nobody is given it again, here or in
    another process: of TCP it is held, so that only a server with SO_REUSEADDR, which all of ours set, can listen there."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        held = socket.socket(type=kind)
        try:
            held.bind(("127.0.0.1", port))
        except OSError:
            held.close()
            continue
        if kind == socket.SOCK_STREAM:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after `bind`, which would share the port with those who hold it
            atexit.register(held.close)
        else:
            held.close()
        return port
