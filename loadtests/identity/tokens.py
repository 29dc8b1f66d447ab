"""What tokens cost and how soon a revocation counts: python -m loadtests.identity.tokens cost | revoke | rotate [--replicas].

`cost` measures a remembered credential through the chain of authenticators, in this process: an API key, a token of an issuer, a gateway
token, each with and without 10,000 revocations. `revoke` starts a gateway with two workers (--replicas: two gateways on a PostgreSQL of
its own) and measures, over 200 trials, from the request that revokes a token to the first refusal everywhere. `rotate` rotates the signing
key under load and counts requests that failed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ed25519

from gateway.core.clock import SystemClock
from gateway.core.secret import Secret
from gateway.core.specs import GatewayTokensSpec, OidcSpec, StaticKeySpec
from gateway.core.tokens import Grant
from gateway.core.types import Peer
from gateway.identity.api_key import ApiKeyAuthenticator
from gateway.identity.chain import chain
from gateway.identity.gateway_tokens import GatewayTokenAuthenticator, claims_of, encoded
from gateway.identity.jwks import keys_of
from gateway.identity.oidc import OidcAuthenticator
from gateway.identity.revocations import Revocations
from gateway.identity.token_keys import TokenKeys, name_of, text_of
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_gateway_tokens import claims, exchanged, settings
from tests.e2e.test_oidc import Provider
from tests.integration.postgres import PostgresServer
from tests.unit.gateway.identity import issuing

KEY = "k" * 40
ROOT = {"authorization": "Bearer root-key-0123456789abcdef0123456789abcdef"}
PEER = Peer("192.0.2.1")


def cost(rounds: int) -> None:
    signer = ed25519.Ed25519PrivateKey.generate()
    public = text_of(signer.public_key().public_bytes_raw())
    keys, revocations, clock = TokenKeys(), Revocations(), SystemClock()
    keys.replace({name_of(public): public})
    spec = GatewayTokensSpec(issuer="https://gw.example", ttl=3600.0)
    own = encoded(claims_of(Grant(subject="ci", tenant="t", groups=("g",)), spec, "one", time.time()), name_of(public), signer)
    oidc = OidcAuthenticator(OidcSpec(name="corp", issuer=issuing.ISSUER, audiences=("gatehouse",)), clock, revocations)
    oidc._issuer.keys._take(keys_of(issuing.jwks(issuing.jwk(issuing.RSA, "RS256"))))
    now = time.time()
    theirs = issuing.token({"iat": now - 10, "exp": now + 3600})
    static = StaticKeySpec(id="ci", tenant="t", models=("*",), key=Secret(KEY))
    door = chain([GatewayTokenAuthenticator(spec, clock, keys, revocations), oidc, ApiKeyAuthenticator((static,))])
    for many in (0, 10_000):
        revocations.replace(("token", "x", f"t{number}", 0.0, 0.0) for number in range(many))
        for name, credential in (("API key", KEY.encode()), ("OIDC token", theirs), ("gateway token", own.encode())):
            headers = {b"authorization": b"Bearer " + credential, b"host": b"x"}
            best = min(_timed(lambda headers=headers: door.authenticate(headers, PEER), rounds) for _ in range(5))
            print(f"{name:14} {many:6} revocations {best * 1e6:6.2f} us")


def _timed(call: Callable[[], object], rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - began) / rounds


class Site:
    """Gateways over one engine and one provider: two workers, or two replicas on a PostgreSQL."""

    def __init__(self, directory: Path, store: str | None) -> None:
        self.engine, self.provider = EngineThread(), Provider()
        self.gateways = []
        for number in range(1 if store is None else 2):
            folder = directory / f"replica{number}"
            folder.mkdir()
            config = settings(folder, self.engine, self.provider.url, **({} if store is None else {"store": {"url": store}}))
            environ = {} if store is None else {"GATEHOUSE_PEPPER": "a pepper for the measurement of tokens 0123456789"}
            self.gateways.append(Gatehouse(folder, config, environ, ["--workers", "2"] if store is None else []).start())

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.stop()
        self.provider.close()


def revoke(site: Site, trials: int) -> None:
    first = site.gateways[0]
    last = site.gateways[-1]
    took: list[float] = []
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=f"{first.admin_url}/admin/v1", headers=ROOT, trust_env=False) as admin:
        for number in range(trials):
            token = site.provider.token()
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=last.url, headers=headers, trust_env=False, limits=limits) as client:
                for _ in range(4):
                    assert client.get("/v1/models").status_code == 200, number
                began = time.perf_counter()
                body = {"type": "token", "issuer": site.provider.url, "value": claims(token)["jti"]}
                done = threading.Thread(target=lambda body=body: admin.post("/revocations", json=body))
                done.start()
                refused = 0
                while refused < 6:  # new connections meet both workers
                    refused = refused + 1 if client.get("/v1/models").status_code == 401 else 0
                took.append(time.perf_counter() - began)
                done.join()
    took.sort()
    print(f"revocation, {trials} trials: p50 {statistics.median(took) * 1e3:.0f} ms, p99 {took[int(trials * 0.99) - 1] * 1e3:.0f} ms, "
          f"max {took[-1] * 1e3:.0f} ms (until six refusals in a row)")  # fmt: skip


def rotate(site: Site, seconds: float) -> None:
    gateway, counts, failed, stop = site.gateways[-1], [0], list[int](), threading.Event()
    tokens = [exchanged(site.gateways[0], site.provider.token())]

    def load() -> None:
        with httpx.Client(base_url=gateway.url, trust_env=False) as client:
            while not stop.is_set():
                status = client.get("/v1/models", headers={"authorization": f"Bearer {tokens[counts[0] % len(tokens)]}"}).status_code
                counts[0] += 1
                if status != 200:
                    failed.append(status)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    end, rotations = time.monotonic() + seconds, 0
    with httpx.Client(base_url=f"{site.gateways[0].admin_url}/admin/v1", headers=ROOT, trust_env=False) as admin:
        while time.monotonic() < end:
            admin.post("/token-keys?after=2&wait=5").raise_for_status()
            rotations += 1
            until = time.monotonic() + 3
            while time.monotonic() < until:
                tokens.append(exchanged(site.gateways[0], site.provider.token()))
                threading.Event().wait(1.1)
    stop.set()
    for thread in threads:
        thread.join()
    print(f"rotation: {rotations} rotations, {len(tokens)} tokens, {counts[0]} requests, {len(failed)} failed {sorted(set(failed))}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cost", "revoke", "rotate"))
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--replicas", action="store_true", help="two replicas instead of two workers")
    given = parser.parse_args(arguments)
    if given.what == "cost":
        cost(given.rounds)
        return
    os.environ.pop("GATEHOUSE_TEST_WORKERS", None)
    with tempfile.TemporaryDirectory() as directory:
        server = PostgresServer().start() if given.replicas else None
        site = Site(Path(directory), None if server is None else server.database())
        try:
            if given.what == "revoke":
                revoke(site, given.trials)
            else:
                rotate(site, given.seconds)
        finally:
            site.close()
            if server is not None:
                server.remove()


if __name__ == "__main__":
    main(sys.argv[1:])
