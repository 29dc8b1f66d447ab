"""The operations whose growth loadtests.memory.growth measures: what each does to a gateway, and the configuration that it needs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from loadtests.soak import is_sidecar
from tests.e2e.harness import Gatehouse

PARALLEL: Final = 16
CHUNK: Final = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
WHOLE: Final = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m1","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"A few words of an answer."}}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}}'
)


@dataclass
class Site:
    """A running gateway: its addresses, keys, and what a client trusts."""

    gatehouse: Gatehouse
    key: str
    admin_key: str
    trusted: ssl.SSLContext | None = None
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """1, 2, 3: another one each time."""
        self.numbers[name] = found = self.numbers.get(name, 0) + 1
        return found

    def admin(self) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.admin_key}"}
        return httpx.AsyncClient(base_url=self.gatehouse.admin_url, headers=headers, trust_env=False, timeout=120)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.gatehouse.url.partition("://")[2].rpartition(":")
        return host, int(port)


Work = Callable[[Site, int], Awaitable[None]]


@dataclass(frozen=True)
class Operation:
    """name, what is done `count` times a round, and the kind of gateway that it is done to."""

    name: str
    count: int
    work: Work
    site: str = "plain"


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers whole, streams sixteen words, streams for ever (`endless` in the text) or fails (`fail`)."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            asked = await reader.readexactly(length)
            if b"fail" in asked:
                writer.write(b"HTTP/1.1 500 Oh\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            elif b'"stream":true' in asked:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                for _ in range(1 << 20 if b"endless" in asked else 16):
                    writer.write(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
                    await writer.drain()
                    if b"endless" in asked:
                        await asyncio.sleep(0.005)
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            else:
                body = WHOLE if head.startswith(b"POST") else b"{}"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
    writer.close()


def request(text: str, key: str, *, model: str = "m1", stream: bool = False) -> bytes:
    fields = {"model": model, "messages": [{"role": "user", "content": text}], **({"stream": True} if stream else {})}
    body = json.dumps(fields, separators=(",", ":")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def connect(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = site.address
    return await asyncio.open_connection(host, port, ssl=site.trusted, server_hostname=host if site.trusted else None)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytes) -> int:
    """Sends a request until it is not shed, as happens on a busy machine, and reads the whole answer; its status."""
    async with asyncio.timeout(120):
        while (status := await once(reader, writer, asked)) == 503:
            await asyncio.sleep(0.2)
    return status


async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytes) -> int:
    writer.write(asked)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    else:
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return int(head[9:12])


async def spread(count: int, one: Callable[[int], Awaitable[None]], parallel: int = PARALLEL) -> None:
    """Does something `count` times, so many at once."""
    turns = iter(range(count))

    async def some() -> None:
        for turn in turns:
            await one(turn)

    await asyncio.gather(*(some() for _ in range(min(parallel, count))))


def asks(expected: int, text: str, **options: Any) -> Work:
    """Requests that are answered so, on connections that are kept."""

    async def work(site: Site, count: int) -> None:
        idle = [await connect(site) for _ in range(PARALLEL)]
        key = options.get("key") or site.key
        asked = request(text, key, **{name: value for name, value in options.items() if name != "key"})

        async def one(_: int) -> None:
            pair = idle.pop()
            status = await exchange(*pair, asked)
            assert status == expected, f"{status} instead of {expected}"
            idle.append(pair)

        await spread(count, one)
        for _, writer in idle:
            writer.close()

    return work


async def cancelled(site: Site, count: int) -> None:
    """Streams whose clients leave after the first words."""
    asked = request("endless", site.key, stream=True)

    async def one(_: int) -> None:
        reader, writer = await connect(site)
        writer.write(asked)
        async with asyncio.timeout(120):
            if b" 200 " in await reader.readline():  # others were shed
                await reader.readuntil(b"word")
        writer.transport.abort()

    await spread(count, one)


async def connections(site: Site, count: int) -> None:
    """A connection for each request."""
    asked = request("hello", site.key)

    async def one(_: int) -> None:
        reader, writer = await connect(site)
        assert await exchange(reader, writer, asked) == 200
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    await spread(count, one)


async def silent(site: Site, count: int) -> None:
    """Connections that ask nothing."""

    async def one(_: int) -> None:
        _, writer = await connect(site)
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    await spread(count, one)


async def reload_same(site: Site, count: int) -> None:
    async with site.admin() as client:
        for _ in range(count):
            (await client.post("/admin/v1/config/reload")).raise_for_status()


async def reload_changed(site: Site, count: int) -> None:
    """Another limit, another guardrail, another endpoint and another model each time."""
    async with site.admin() as client:
        for _ in range(count):
            number = site.number("reload")
            found = json.loads(json.dumps(site.gatehouse.config))
            found["limits"][0]["requests"]["rate"] += number % 2
            found["guardrails"][-1]["settings"]["phrases"].append(f"operation {number % 2}")
            found["engines"].append({**found["engines"][0], "name": f"up-{number % 2}"})
            found["models"].append({"name": f"m2-{number % 2}", "pool": [f"up-{number % 2}"]})
            site.gatehouse.file.write_text(json.dumps(found))  # JSON is YAML
            (await client.post("/admin/v1/config/reload")).raise_for_status()


async def reload_signalled(site: Site, count: int) -> None:
    """By SIGHUP, as the soak does: another limit each time."""
    process = site.gatehouse.process
    assert process is not None
    async with site.admin() as client:
        for _ in range(count):
            found = json.loads(json.dumps(site.gatehouse.config))
            found["limits"][0]["requests"]["rate"] += site.number("signal") % 2
            before = await version(client)
            site.gatehouse.file.write_text(json.dumps(found))
            process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(60):
                while await version(client) == before:
                    await asyncio.sleep(0.02)


async def version(client: httpx.AsyncClient) -> int:
    """Of the configuration in force."""
    answer = await client.get("/admin/v1/config")
    return int(answer.json()["version"])


async def killed(site: Site, count: int) -> None:
    """kill -9 of the sidecar, its next start, and a request that it answers."""
    asked = request("hello", site.key, model="demo-chat")
    for _ in range(count):
        pid = next(pid for pid in site.gatehouse.engines() if is_sidecar(pid))
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(240):
            while not any(is_sidecar(other) and other != pid for other in site.gatehouse.engines()):
                await asyncio.sleep(0.1)
        await answered(site, asked)


async def answered(site: Site, asked: bytes, seconds: float = 240.0) -> None:
    """Waits until a request of this kind is answered."""
    reader, writer = await connect(site)
    async with asyncio.timeout(seconds):
        while await once(reader, writer, asked) != 200:
            await asyncio.sleep(0.2)
    writer.close()


async def keys(site: Site, count: int) -> None:
    """A key is made, used, rotated, used, revoked and refused, as in the soak; its record stays."""
    await lives(site, count, delete=False)


async def keys_deleted(site: Site, count: int) -> None:
    """The same, and its record is deleted."""
    await lives(site, count, delete=True)


async def lives(site: Site, count: int, *, delete: bool) -> None:
    async with site.admin() as client:

        async def one(_: int) -> None:
            wanted = {"id": f"k-{secrets.token_hex(6)}", "tenant": "acme", "models": ["m1"]}
            made = (await client.post("/admin/v1/keys", json=wanted)).raise_for_status().json()
            reader, writer = await connect(site)
            assert await exchange(reader, writer, request("hello", made["secret"])) == 200
            path = f"/admin/v1/keys/{made['id']}"
            rotated = (await client.post(f"{path}/rotate", json={})).raise_for_status().json()
            assert await exchange(reader, writer, request("hello", rotated["secret"])) == 200
            (await client.post(f"{path}/revoke", json={})).raise_for_status()
            async with asyncio.timeout(30):
                while await exchange(reader, writer, request("hello", rotated["secret"])) != 401:
                    await asyncio.sleep(0.1)
            writer.close()
            if delete:
                (await client.delete(path)).raise_for_status()

        await spread(count, one, 4)


async def roles(site: Site, count: int) -> None:
    """A role and a binding are made and deleted."""
    async with site.admin() as client:
        for _ in range(count):
            name = f"role-{secrets.token_hex(6)}"
            (await client.post("/admin/v1/roles", json={"name": name, "permissions": ["keys:read"]})).raise_for_status()
            (await client.delete(f"/admin/v1/roles/{name}")).raise_for_status()


async def revocations(site: Site, count: int) -> None:
    """Tokens are revoked, and the revocation is taken back."""
    async with site.admin() as client:
        for _ in range(count):
            wanted = {"type": "subject", "issuer": "https://issuer.example", "value": secrets.token_hex(8)}
            made = (await client.post("/admin/v1/revocations", json=wanted)).raise_for_status().json()
            (await client.delete(f"/admin/v1/revocations/{made['id']}")).raise_for_status()


def reads(*paths: str) -> Work:
    """Pages of the admin listener, by turns."""

    async def work(site: Site, count: int) -> None:
        async with site.admin() as client:
            for turn in range(count):
                (await client.get(paths[turn % len(paths)])).raise_for_status()

    return work


READS: Final = tuple(
    f"/admin/v1/{name}" for name in ("keys", "roles", "tenants", "models", "engines", "config", "status", "usage", "limits")
)
OPERATIONS: Final = (
    Operation("requests, whole", 1000, asks(200, "hello")),
    Operation("requests, streamed", 600, asks(200, "hello", stream=True)),
    Operation("requests, cancelled", 600, cancelled),
    Operation("requests, engine fails", 300, asks(502, "fail")),
    Operation("requests, model unknown", 1000, asks(404, "hello", model="nothing")),
    Operation("requests, wrong key", 1000, asks(401, "hello", key="wrong-key-0123456789abcdef0123456789abcdef")),
    Operation("requests, word denied", 1000, asks(400, "project nightingale")),
    Operation("connections, one request", 800, connections),
    Operation("connections, silent", 1500, silent),
    Operation("reloads, unchanged", 40, reload_same),
    Operation("reloads, changed", 40, reload_changed),
    Operation("reloads, SIGHUP", 30, reload_signalled),
    Operation("keys, revoked", 40, keys),
    Operation("keys, deleted", 40, keys_deleted),
    Operation("roles", 50, roles),
    Operation("revocations", 50, revocations),
    Operation("admin reads", 180, reads(*READS)),
    Operation("scrapes", 250, reads("/metrics")),
    Operation("kills of a sidecar", 8, killed, "sidecar"),
    Operation("segments of the audit log", 1000, asks(200, "hello"), "segments"),
    Operation("traces", 1000, asks(200, "hello"), "traces"),
    Operation("requests, limits in Redis", 1000, asks(200, "hello"), "redis"),
    Operation("keys, limits in Redis", 40, keys_deleted, "redis"),
    Operation("connections with TLS, one request", 500, connections, "tls"),
    Operation("connections with TLS, silent", 500, silent, "tls"),
)
