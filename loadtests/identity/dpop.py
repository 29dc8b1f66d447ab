"""What a DPoP proof costs: python -m loadtests.identity.dpop [--rounds 2000] [--requests 400].

First in this process: a remembered token through the door of a gateway, as a bearer token and with a new proof each time, by algorithm.
Then at a gateway with two workers, which ask the control process about each proof: the median time of `GET /v1/models` on one kept
connection, with the same two tokens in turn, with the proofs made before.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.core.clock import SystemClock
from gateway.core.proofs import METHOD, PATH, PROOF
from gateway.core.specs import ClaimSpec, ClaimsSpec, OidcSpec
from gateway.core.specs.identity import DpopSpec
from gateway.core.types import Headers, Peer, Principal
from gateway.identity.chain import chain
from gateway.identity.jwks import keys_of
from gateway.identity.oidc import OidcAuthenticator
from gateway.identity.proving import Proving
from gateway.identity.replays import Replays
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_gateway_tokens import settings
from tests.e2e.test_oidc import Provider
from tests.unit.gateway.identity import issuing, proving

PEER = Peer("192.0.2.1")
PATH_OF_CHAT = "/v1/chat/completions"
ALGORITHMS: Sequence[tuple[str, Any]] = (("ES256", issuing.EC), ("EdDSA", issuing.ED), ("PS256", issuing.RSA))


def cost(rounds: int) -> None:
    clock = SystemClock()
    spec = OidcSpec(name="corp", issuer=issuing.ISSUER, audiences=("gatehouse",), claims=ClaimsSpec(tenant=ClaimSpec(value="t")))
    oidc = OidcAuthenticator(spec, clock)
    oidc._issuer.keys._take(keys_of(issuing.jwks(issuing.jwk(issuing.RSA, "RS256"))))
    dpop = DpopSpec(urls=(proving.URL,), algorithms=("ES256", "EdDSA", "PS256"))
    plain, door = chain([oidc]), Proving(chain([oidc]), dpop, clock, b"s" * 32, Replays(clock).claim)
    now = time.time()
    free = {b"authorization": b"Bearer " + issuing.token({"iat": now - 10, "exp": now + 3600}), b"host": b"x"}
    for name, asked in (("bearer, without dpop", plain), ("bearer, with dpop", door)):
        print(f"{name:22} {best([free] * rounds, asked):7.2f} us")
    for algorithm, key in ALGORITHMS:
        bound = issuing.token({"iat": now - 10, "exp": now + 3600, "cnf": {"jkt": proving.thumbprint(key, algorithm)}})
        each: list[Headers] = [
            {
                b"authorization": b"DPoP " + bound,
                METHOD: b"POST",
                PATH: PATH_OF_CHAT.encode(),
                PROOF: proving.proof(bound, time.time(), PATH_OF_CHAT, key=key, alg=algorithm, jti=f"{algorithm}{number}"),
            }
            for number in range(rounds)
        ]
        print(f"{'proof with ' + algorithm:22} {best(each, door):7.2f} us")


def best(requests: list[Headers], door: Any) -> float:
    """Microseconds for each: of five fifths, the fastest."""
    size, took = len(requests) // 5, []
    for start in range(0, len(requests), size):
        part = requests[start : start + size]
        began = time.perf_counter()
        for headers in part:
            assert door.authenticate(headers, PEER).__class__ is Principal
        took.append((time.perf_counter() - began) / len(part))
    return min(took) * 1e6


def served(requests: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with tempfile.TemporaryDirectory() as folder:
        engine, provider = EngineThread(), Provider()
        config = settings(Path(folder), engine, provider.url)
        config["identity"]["oidc"][0]["claims"] = {"subject": "client_id"}
        config["identity"]["dpop"] = {"urls": [proving.URL]}
        try:
            with Gatehouse(Path(folder), config, arguments=["--workers", "2"]) as gatehouse:
                at = f"{provider.url}/token"
                bound = provider.bound_token(proving.proof(None, time.time(), key=key, htu=at, jti="t"))
                free = {"authorization": f"Bearer {provider.token()}"}
                proofs = [
                    proving.proof(bound.encode(), time.time(), "/v1/models", key=key, htm="GET", jti=f"s{number}").decode()
                    for number in range(requests)
                ]
                took: dict[str, list[float]] = {"bearer": [], "DPoP": []}
                with httpx.Client(base_url=gatehouse.url, trust_env=False) as client:
                    client.get("/v1/models", headers=free)
                    for proof in proofs:
                        for name, headers in (("bearer", free), ("DPoP", {"authorization": f"DPoP {bound}", "DPoP": proof})):
                            began = time.perf_counter()
                            assert client.get("/v1/models", headers=headers).status_code == 200
                            took[name].append(time.perf_counter() - began)
                for name, each in took.items():
                    print(f"two workers, {name:7} median {statistics.median(each) * 1e6:6.0f} us of {len(each)}")
        finally:
            provider.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=400)
    options = parser.parse_args(arguments)
    cost(options.rounds)
    served(options.requests)


if __name__ == "__main__":
    main()
