"""Whether anybody can lock out an administrator or a client behind the same address: a stale client, a guesser, and 100,000 addresses.

    python -m loadtests.identity.lockout [--trials 200] [--seconds 20] [--workers 0]

Starts a gateway with a scripted engine. From one address, a stale client repeats a key that is not valid any more, and a guesser brings
ever new, well-formed keys, on both listeners and on several connections each; through a trusted proxy (the PROXY protocol) another attacker
fails from ever new IPv6 addresses, up to 100,000. Meanwhile, from the same address as the first two, an administrator and a client log in
as often as `--trials` says, each time with a key of the store that the gateway has not seen before, on a connection of its own. Prints how
many of them got in, how long that took, and how many failures the gateway answered; exits with 1 when one did not get in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx

from gateway.core.clock import SystemEntropy
from gateway.identity.keys import generate
from tests.e2e.adminapi import admin, config
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse

PROXY, NAT = "127.0.0.2", "127.0.0.5"
ADDRESSES = 100_000
DATA, ADMIN = "/v1/models", "/admin/v1/keys?limit=1"


class Attack:
    """What fails, and how often, while `running`."""

    def __init__(self, gatehouse: Gatehouse) -> None:
        self.places = [
            (url.removeprefix("http://").rpartition(":"), path) for url, path in ((gatehouse.url, DATA), (gatehouse.admin_url, ADMIN))
        ]
        self.running = True
        self.answers: Counter[str] = Counter()
        self.addresses = 0

    async def stale(self, place: int) -> None:
        """One key, again and again."""
        key = self._guess()
        await self._repeat(place, "stale", lambda: key)

    async def guesses(self, place: int) -> None:
        """Ever new keys."""
        await self._repeat(place, "guess", self._guess)

    async def spread(self, place: int) -> None:
        """A failure from ever new addresses."""
        (host, _, port), path = self.places[place]
        while self.running and self.addresses < ADDRESSES:
            self.addresses += 1
            number = self.addresses
            header = f"PROXY TCP6 2001:db8:{number >> 12:x}:{number & 0xFFF:x}::1 2001:db8::1 1 2\r\n"
            try:
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=(PROXY, 0))
                writer.write(header.encode() + self._request(path, self._guess(), "close"))
                self._count("spread", await reader.read())
                writer.close()
            except OSError:
                self.answers["spread: connection refused"] += 1

    async def _repeat(self, place: int, name: str, key: Callable[[], str]) -> None:
        (host, _, port), path = self.places[place]
        while self.running:
            try:
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=(NAT, 0))
                for _ in range(1000):
                    if not self.running:
                        break
                    writer.write(self._request(path, key(), "keep-alive"))
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                    await reader.readexactly(length)
                    self._count(name, head)
                writer.close()
            except (OSError, asyncio.IncompleteReadError):
                self.answers[f"{name}: connection lost"] += 1

    def _count(self, name: str, answer: bytes) -> None:
        self.answers[f"{name}: {answer[9:12].decode() or 'closed'}"] += 1

    @staticmethod
    def _guess() -> str:
        return generate(SystemEntropy())

    @staticmethod
    def _request(path: str, key: str, connection: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\nconnection: {connection}\r\n\r\n".encode()


async def trial(url: str, path: str, key: str) -> tuple[int, float]:
    begun = time.monotonic()
    transport = httpx.AsyncHTTPTransport(local_address=NAT, verify=False)
    async with httpx.AsyncClient(transport=transport, timeout=30) as client:
        begun = time.monotonic()
        answer = await client.get(f"{url}{path}", headers={"authorization": f"Bearer {key}"})
    return answer.status_code, time.monotonic() - begun


async def measure(gatehouse: Gatehouse, secrets: list[str], trials: int, seconds: float) -> int:
    attack = Attack(gatehouse)
    tasks = [asyncio.create_task(one(place)) for place in (0, 1) for one in (attack.stale, attack.guesses, attack.guesses)]
    tasks += [asyncio.create_task(attack.spread(place)) for place in (0, 0, 0, 1)]
    await asyncio.sleep(2.0)
    failed = 0
    try:
        for name, url, path in (("client", gatehouse.url, DATA), ("administrator", gatehouse.admin_url, ADMIN)):
            took, seen = [], Counter[int]()
            for number in range(trials):
                status, spent = await trial(url, path, secrets[number if name == "client" else trials + number])
                seen[status] += 1
                took.append(spent)
                await asyncio.sleep(seconds / trials / 2)
            took.sort()
            failed += trials - seen[200]
            half, most = took[len(took) // 2] * 1e3, took[int(len(took) * 0.99)] * 1e3
            print(f"{name}: {seen[200]} of {trials} got in; p50 {half:.0f} ms, p99 {most:.0f} ms; {dict(seen)}")
    finally:
        attack.running = False
        await asyncio.gather(*tasks, return_exceptions=True)
    print(f"meanwhile: {json.dumps(dict(sorted(attack.answers.items())))}, from {attack.addresses} further addresses")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=0)
    given = parser.parse_args()
    engine = EngineThread()
    listen = {
        "trusted_peers": [PROXY],
        "admin_trusted_peers": [PROXY],
        "proxy_protocol": "required",
        "admin_proxy_protocol": "required",
    }
    with tempfile.TemporaryDirectory() as directory:
        settings = config(Path(directory) / "state", engine.port, listen=listen)
        with Gatehouse(Path(directory), settings, arguments=["--workers", str(given.workers)] if given.workers else []) as gatehouse:
            with admin(gatehouse) as client:
                secrets = []
                for number in range(2 * given.trials):
                    wanted = {"tenant": "acme", "models": ["*"], "roles": ["admin"] if number >= given.trials else []}
                    secrets.append(client.post("/keys", json=wanted).raise_for_status().json()["secret"])
            failed = asyncio.run(measure(gatehouse, secrets, given.trials, given.seconds))
    engine.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
