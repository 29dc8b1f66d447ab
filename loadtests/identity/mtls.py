"""What client certificates cost, and whether renewing a listener's certificate fails a request.

usage: python -m loadtests.identity.mtls login     nanoseconds of one login, for each kind of credential
       python -m loadtests.identity.mtls request   the gateway's CPU time for a request on a lasting connection, by key and by certificate
       python -m loadtests.identity.mtls renew [--times 50] [--workers 2]   requests that fail while the certificate is renewed under load
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import statistics
import tempfile
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.core.plugins import AuthenticatorContext
from gateway.core.secret import Secret
from gateway.core.specs import StaticKeySpec
from gateway.core.specs.mtls import CertificateMatchSpec, ForwardedCertificatesSpec, MtlsPrincipalSpec, MtlsSpec
from gateway.core.types import Headers, Peer
from gateway.identity.api_key import ApiKeyAuthenticator
from gateway.identity.chain import chain
from gateway.identity.mtls import MtlsAuthenticator
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.pki import DAY, Authority, Issued, now, replaced

CALLS, ROUNDS = 20_000, 15
WEB = "spiffe://example/ns/web/sa/api"
ENTRY = {"match": {"san_uri": "spiffe://example/ns/*/sa/*"}, "tenant": "mesh", "models": ["*"]}
BODY = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "hi"}]}).encode()


def best(call: Callable[[], object]) -> float:
    """Nanoseconds of one call, in the best of several rounds."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter_ns() - began) / CALLS)
    return min(found)


async def logins(folder: Path) -> None:
    authority = Authority(folder)
    issued = authority.issue(uris=[WEB])
    entry = MtlsPrincipalSpec(match=CertificateMatchSpec(san_uri="spiffe://example/ns/*/sa/*"), tenant="mesh", models=("*",))
    spec = MtlsSpec(
        principals=(entry,), authorities=(authority.cert,), crl=authority.crl(), forwarded=ForwardedCertificatesSpec(peers=("10.0.0.1",))
    )
    mtls = MtlsAuthenticator(spec, AuthenticatorContext(name="mtls"))
    await mtls.start()
    keys = ApiKeyAuthenticator([StaticKeySpec(id="k", tenant="t", models=("*",), key=Secret(KEY))])
    alone, both = chain([keys]), chain([mtls, keys])
    with_key: Headers = {b"host": b"a", b"authorization": b"Bearer " + KEY.encode()}
    bare: Headers = {b"host": b"a"}
    plain, certified = Peer("10.0.0.2"), Peer("10.0.0.2", certificate=issued.der)
    forwarded = b":" + b64encode(issued.der) + b":"
    ways: dict[str, Callable[[], object]] = {
        "API key, no other way to log in": lambda: alone.authenticate(with_key, plain),
        "API key, certificates are configured": lambda: both.authenticate(with_key, plain),
        "API key beside a certificate": lambda: both.authenticate(with_key, certified),
        "certificate of the connection": lambda: both.authenticate(bare, certified),
        "certificate forwarded by a proxy": lambda: both.authenticate(bare, Peer("a", True, asserted=(forwarded, None))),
    }
    for name, call in ways.items():
        print(f"{name:38} {best(call):6.0f} ns")
    first = []
    for _ in range(200):
        peer, fresh = Peer("a", certificate=authority.issue(uris=[WEB]).der), time.perf_counter_ns()
        both.authenticate(bare, peer)
        first.append((time.perf_counter_ns() - fresh) / 1000)
    print(f"{'certificate seen for the first time':38} {statistics.median(first):6.0f} us")
    await mtls.aclose()


@contextmanager
def gatehouse(folder: Path, workers: int = 0) -> Iterator[tuple[Gatehouse, Authority, Path]]:
    """A gateway with TLS on its data listener, whose certificate is in folder/tls.crt and tls.key."""
    engine, authority = EngineThread(), Authority(folder / "ca")
    put(folder, authority.server())
    config = adminapi.config(folder / "state", engine.port, telemetry={"log_level": "warning"})
    config["listen"] |= {"tls": {"cert": str(folder / "tls.crt"), "key": str(folder / "tls.key"), "client_ca": authority.cert}}
    config["identity"]["mtls"] = {"principals": [ENTRY], "crl": authority.crl()}
    running = Gatehouse(folder, config, arguments=["--workers", str(workers)] if workers else [])
    with running:
        yield running, authority, folder
    engine.close()


def put(folder: Path, issued: Issued) -> None:
    replaced(folder / "tls.key", Path(issued.key).read_bytes())
    replaced(folder / "tls.crt", issued.pem)


class Caller:
    """One connection that asks again and again."""

    def __init__(self, url: str, context: ssl.SSLContext, key: str = "") -> None:
        host, _, port = url.removeprefix("https://").rpartition(":")
        self._where: Any = (host, int(port))
        self._context = context
        line = f"authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{line}content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
        )
        self._request = head.encode() + BODY

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._where, ssl=self._context)

    async def ask(self) -> int:
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(length)
        return int(head[9:12])

    def close(self) -> None:
        self._writer.transport.abort()


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def requests(folder: Path, count: int) -> None:
    with gatehouse(folder) as (running, authority, _):
        assert running.process is not None
        ways = {
            "API key": Caller(running.url, authority.context(), KEY),
            "certificate": Caller(running.url, authority.context(authority.issue(uris=[WEB]))),
            "API key beside a certificate": Caller(running.url, authority.context(authority.issue(uris=[WEB])), KEY),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for caller in ways.values():
            await caller.open()
            for _ in range(200):
                assert await caller.ask() == 200
        for _ in range(5):
            for name, caller in ways.items():
                before = cpu(running.process.pid)
                for _ in range(count):
                    await caller.ask()
                found[name].append((cpu(running.process.pid) - before) / count * 1e6)
        for name, values in found.items():
            print(f"{name:30} {min(values):6.0f} us of CPU a request (median {statistics.median(values):.0f})")


async def renewals(folder: Path, times: int, workers: int) -> None:
    outcomes: Counter[str] = Counter()
    with gatehouse(folder, workers) as (running, authority, _):
        context, over = authority.context(authority.issue(uris=[WEB])), asyncio.Event()

        async def lasting() -> None:
            caller = Caller(running.url, context)
            await caller.open()
            while not over.is_set():
                outcomes[f"on a lasting connection: {await caller.ask()}"] += 1
            caller.close()

        async def fresh() -> None:
            while not over.is_set():
                caller = Caller(running.url, context)
                await caller.open()
                outcomes[f"on a new connection: {await caller.ask()}"] += 1
                caller.close()

        callers = [asyncio.ensure_future(lasting()) for _ in range(4)] + [asyncio.ensure_future(fresh()) for _ in range(4)]
        serials: list[int] = []
        for number in range(times):
            issued = authority.server(expires=now() + (2 + number) * DAY)
            serials.append(issued.certificate.serial_number)
            put(folder, issued)
            if number % 2:
                os.kill(running.process.pid, 1)  # type: ignore[union-attr]  # SIGHUP; else the gateway notices by itself
            until = time.monotonic() + 30
            taken = False
            while not taken and time.monotonic() < until:
                await asyncio.sleep(0.05)
                taken = {await shown(running.url, context) for _ in range(4)} == {issued.der}  # workers take turns
            outcomes["renewals that were taken"] += taken
        over.set()
        for failed in await asyncio.gather(*callers, return_exceptions=True):
            if failed is not None:
                outcomes[f"failed: {type(failed).__name__}: {failed}"] += 1
    for name, number in sorted(outcomes.items()):
        print(f"{number:7} {name}")


async def shown(url: str, context: ssl.SSLContext) -> bytes:
    """The certificate that a new connection is shown."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.transport.abort()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("login", "request", "renew"))
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.what == "login":
            asyncio.run(logins(Path(folder)))
        elif given.what == "request":
            asyncio.run(requests(Path(folder), given.count))
        else:
            asyncio.run(renewals(Path(folder), given.times, given.workers))


if __name__ == "__main__":
    main()
