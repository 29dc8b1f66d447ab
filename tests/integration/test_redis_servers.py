"""Connections to real Redis servers as operators run them: TLS, users, databases, Sentinel and its failover."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.clock import SystemEntropy
from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec
from gateway.core.specs.redis import RedisSpec
from gateway.transport.redis.address import target
from gateway.transport.redis.connection import Connection
from gateway.transport.redis.keeper import Keeper
from tests.cluster.redis_servers import Watched, free_port, tell
from tests.cluster.servers import RedisServer
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import reached


class Line:
    """A Keeper, and what it says."""

    def __init__(self, **spec: Any) -> None:
        self.up: list[Connection] = []
        self.down: list[str] = []
        if "url" in spec:
            spec["url"] = Secret(spec["url"])
        self.keeper = Keeper(target(RedisSpec(**spec)), self.up.append, lambda error: self.down.append(str(error)), SystemEntropy())
        self.keeper.start()

    async def connected(self, times: int = 1) -> Connection:
        await reached(lambda: len(self.up) >= times, what=f"a connection ({self.down[-3:]})")
        return self.up[-1]

    async def says(self, why: str) -> None:
        """Waits until this is why there is no connection: on a slow machine the first try may have had too little time."""
        await reached(lambda: any(why in error for error in self.down), what=why)


@pytest.fixture
async def lines() -> AsyncIterator[list[Line]]:
    made: list[Line] = []
    yield made
    for line in made:
        await line.keeper.aclose()


@pytest.fixture
def server(short_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(short_path).start()
    yield made
    made.stop()


async def test_a_user_with_a_password_and_a_database(server: RedisServer, lines: list[Line]) -> None:
    assert server.command("ACL", "SETUSER", "gw", "on", ">s3:cr/et", "+@all", "~*") == b"+OK"
    assert server.command("ACL", "SETUSER", "default", "off") == b"+OK"
    lines.append(Line(url=f"unix://gw:s3%3Acr%2Fet@{server.socket}?db=3"))
    found = await (await lines[0].connected()).must("CLIENT", "LIST")
    assert isinstance(found, bytes) and b"db=3" in found and b"user=gw" in found and b"name=redis" in found
    lines.append(Line(url=f"unix://{server.socket}", username="gw", password=Secret("s3:cr/et")))
    await lines[1].connected()
    lines.append(Line(url=f"unix://{server.socket}", username="gw", password=Secret("hunter2")))
    await lines[2].says("WRONGPASS")
    assert "hunter2" not in str(lines[2].down)


async def test_tls_with_a_private_ca_and_a_client_certificate(short_path: Path, lines: list[Line]) -> None:
    made, port = Certificates(short_path), free_port()
    files = ("--tls-ca-cert-file", made.ca, "--tls-cert-file", made.server, "--tls-key-file", made.server_key)
    server = RedisServer(short_path, "--tls-port", str(port), *files)
    await asyncio.to_thread(server.start)
    try:
        url, mine = f"rediss://127.0.0.1:{port}", {"ca": made.ca, "cert": made.client, "key": made.client_key}
        lines.append(Line(url=url, tls=ClientTlsSpec(**mine)))
        assert await (await lines[0].connected()).must("PING") == b"PONG"
        lines.append(Line(url=url, tls=ClientTlsSpec(ca=made.ca)))
        lines.append(Line(url=url))
        lines.append(Line(url=url, tls=ClientTlsSpec(**mine, server_name="other.example")))
        await reached(lambda: bool(lines[1].down))
        await lines[2].says("CERTIFICATE_VERIFY_FAILED")
        await lines[3].says("other.example")
        assert not (lines[2].up or lines[3].up)
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_restart_is_survived(server: RedisServer, lines: list[Line]) -> None:
    lines.append(Line(url=f"unix://{server.socket}"))
    first = await lines[0].connected()
    await asyncio.to_thread(server.stop)
    await reached(lambda: bool(lines[0].down))
    await asyncio.to_thread(server.start)
    assert await lines[0].connected(2) is not first


@pytest.fixture
def watched(short_path: Path) -> Iterator[Watched]:
    made = Watched(short_path).start()
    yield made
    made.stop()


async def test_a_failover_is_followed(watched: Watched, lines: list[Line]) -> None:
    lines.append(Line(sentinels=("127.0.0.1:1", f"127.0.0.1:{watched.sentinel.port}"), master="main"))
    lines.append(Line(url=f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/nobody"))
    lines.append(Line(url=f"redis+sentinel://127.0.0.1:{watched.ports[0]}/main"))  # that is no Sentinel
    await lines[0].connected()
    assert lines[0].keeper.address is not None and lines[0].keeper.address.port == watched.ports[0]
    await asyncio.to_thread(watched.fail)
    await lines[0].connected(2)
    assert lines[0].keeper.address.port == watched.ports[1]
    assert await lines[0].up[-1].must("SET", "k", "v") == b"OK"
    for line in lines[1:]:
        await reached(lambda line=line: bool(line.down))
        assert not line.up


async def test_a_sentinel_that_says_nothing_is_named(short_path: Path, lines: list[Line]) -> None:
    """It takes connections, and nothing more."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        lines.append(Line(url=f"redis+sentinel://127.0.0.1:{port}/main"))
        await lines[0].says(f"127.0.0.1:{port}: no answer")


async def test_a_master_that_became_a_replica_is_not_used(watched: Watched, lines: list[Line]) -> None:
    lines.append(Line(url=f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/main"))
    await lines[0].connected()
    assert tell(watched.sentinel.port, "SENTINEL", "failover", "main") == b"+OK\r\n"
    await lines[0].connected(2)
    assert await lines[0].up[-1].must("SET", "k", "v") == b"OK"
