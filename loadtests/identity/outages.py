"""What goes wrong with issuers and directories, and what valid callers notice of it.

    python -m loadtests.identity.outages [--kids 10000] [--down 60] [--rate 200]

Against one gateway with the provider `oidc-provider` and slapd, callers with an API key and with a token send `--rate` requests a second:

1. quiet, for comparison; 2. while `--kids` tokens with key names that nobody knows are sent; 3. while the provider rotates its key five
times and every caller gets new tokens; 4. while slapd is down for `--down` seconds and somebody tries to log in by password all the time.

Exits with 1 when a valid caller's request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from gateway.identity.jwks import COOLDOWN
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.e2e.test_oidc import Provider
from tests.integration.slapd import ADMIN, ADMIN_PASSWORD, BASE, Slapd, directory

BODY = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
QUIET_SECONDS = 10.0


def config(state: Path, engine: EngineThread, provider: Provider, slapd: Slapd) -> dict[str, Any]:
    made = configuration(
        state,
        engines=[external("fake", engine.port, slots=256)],
        models=[{"name": "m1", "pool": ["fake"]}],
        roles={"chatter": {"permissions": ["infer:chat"]}},
        bindings=[{"role": "chatter", "subjects": ["group/engineers", "group/staff"]}],
    )
    made["identity"]["oidc"] = [{"name": "corp", "issuer": provider.url, "audiences": ["gatehouse"]}]
    made["identity"]["ldap"] = [
        {
            "name": "corp",
            "servers": [f"ldaps://localhost:{slapd.tls_port}"],
            "tls": {"ca": str(slapd.ca)},
            "bind": {"dn": ADMIN, "password": ADMIN_PASSWORD},
            "users": {"base": f"ou=people,{BASE}"},
            "groups": {"base": f"ou=groups,{BASE}", "nested": True},
            "tenant": {"value": "acme"},
            "timeout": "2s",
            "cache": "0s",
        }
    ]
    return made


class Callers:
    """Valid callers at a steady rate: every other request with a token. failed: statuses other than 200."""

    def __init__(self, client: httpx.AsyncClient, rate: float, token: str) -> None:
        self._client, self._pause, self.token = client, 1.0 / rate, token
        self.taken: list[float] = []
        self.failed: list[int] = []
        self._running: set[asyncio.Task[None]] = set()

    async def during(self, work: Awaitable[Any]) -> Any:
        """Sends requests while something else goes on."""
        self.taken, self.failed = [], []
        stopped = asyncio.Event()
        sending = asyncio.create_task(self._send(stopped))
        try:
            return await work
        finally:
            stopped.set()
            await sending
            await asyncio.gather(*self._running)

    async def _send(self, stopped: asyncio.Event) -> None:
        number, due = 0, time.monotonic()
        while not stopped.is_set():
            task = asyncio.create_task(self._one(self.token if number % 2 else KEY, due))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            number, due = number + 1, due + self._pause
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _one(self, credential: str, due: float) -> None:
        try:
            answer = await self._client.post("/v1/chat/completions", json=BODY, headers={"authorization": f"Bearer {credential}"})
            status = answer.status_code
        except httpx.HTTPError:
            status = 0
        self.taken.append(time.monotonic() - due)
        if status != 200:
            self.failed.append(status)

    def line(self, what: str, more: str = "") -> str:
        taken = sorted(self.taken)
        p50, p99 = (taken[int(len(taken) * share)] * 1000 for share in (0.5, 0.99))
        return f"| {what} | {len(taken)} | {len(self.failed)} | {p50:.1f} | {p99:.1f} | {more} |"


def invented(token: str) -> str:
    """The same token, naming a key that nobody knows."""
    head, payload, signature = token.split(".")
    header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4))) | {"kid": secrets.token_hex(8)}
    made = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    return f"{made}.{payload}.{signature}"


async def flood(client: httpx.AsyncClient, token: str, count: int) -> list[int]:
    """Sends tokens with unknown keys, sixteen at a time; their statuses."""
    rest = iter(range(count))
    statuses: list[int] = []

    async def send() -> None:
        for _ in rest:
            answer = await client.post("/v1/chat/completions", json=BODY, headers={"authorization": f"Bearer {invented(token)}"})
            statuses.append(answer.status_code)

    await asyncio.gather(*[send() for _ in range(16)])
    return statuses


async def rotations(callers: Callers, provider: Provider) -> None:
    for _ in range(5):
        await asyncio.to_thread(provider.control, "rotate")
        callers.token = await asyncio.to_thread(provider.token)
        await asyncio.sleep(COOLDOWN + 1.0)


async def without_directory(client: httpx.AsyncClient, slapd: Slapd, seconds: float) -> list[tuple[int, float]]:
    """(status, seconds) of logins by password while slapd is away."""
    slapd.stop()
    found: list[tuple[int, float]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        answer = await client.post("/v1/chat/completions", json=BODY, auth=("alice", "alice-secret"))
        found.append((answer.status_code, time.monotonic() - began))
        await asyncio.sleep(0.5)
    return found


async def measure(gatehouse: Gatehouse, provider: Provider, slapd: Slapd, asked: argparse.Namespace) -> int:
    limits = httpx.Limits(max_connections=256)
    async with httpx.AsyncClient(base_url=gatehouse.url, trust_env=False, timeout=60, limits=limits) as client:
        callers = Callers(client, asked.rate, provider.token())
        failed = 0
        print("| phase | requests of valid callers | failed | p50 ms | p99 ms | |\n|---|---|---|---|---|---|")

        async def phase(what: str, work: Callable[[], Awaitable[Any]], told: Callable[[Any], str] = lambda _: "") -> None:
            nonlocal failed
            found = await callers.during(work())
            failed += len(callers.failed)
            print(callers.line(what, told(found)), flush=True)

        await phase("quiet", lambda: asyncio.sleep(QUIET_SECONDS))
        before = provider.control("fetches")["fetches"]
        kids = lambda found: f"{found.count(401)} of {len(found)} refused, {provider.control('fetches')['fetches'] - before} fetches"  # noqa: E731
        await phase("unknown keys", lambda: flood(client, callers.token, asked.kids), kids)
        await asyncio.sleep(COOLDOWN)  # the flood has used the fetch of these seconds
        await phase("five rotations", lambda: rotations(callers, provider))
        away = lambda found: f"{len(found)} logins, statuses {sorted({s for s, _ in found})}, at most {max(t for _, t in found):.2f} s"  # noqa: E731
        await phase("slapd away", lambda: without_directory(client, slapd, asked.down), away)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kids", type=int, default=10_000)
    parser.add_argument("--down", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=200.0)
    asked = parser.parse_args()
    engine, provider = EngineThread(), Provider()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="gatehouse-outages-") as folder,
            directory(Path(folder)) as slapd,
            Gatehouse(Path(folder), config(Path(folder) / "state", engine, provider, slapd)) as gatehouse,
        ):
            return asyncio.run(measure(gatehouse, provider, slapd, asked))
    finally:
        provider.close()
        engine.close()


if __name__ == "__main__":
    raise SystemExit(main())
