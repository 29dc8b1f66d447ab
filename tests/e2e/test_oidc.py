"""Access tokens of a certified OpenID Connect provider (npm `oidc-provider`) at a running gateway."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.identity.jwks import COOLDOWN
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.waiting import until

CLIENTS = Path(__file__).parents[1] / "clients"
ROLES = {"chatter": {"permissions": ["infer:chat"]}}
BINDINGS = [{"role": "chatter", "subjects": ["group/engineers"], "tenant": "acme", "when": "request.max_tokens <= 100"}]


class Provider:
    """The provider in its own process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", "oidc_provider.mjs"], cwd=CLIENTS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def token(self, **more: str) -> str:
        form = {"grant_type": "client_credentials", "scope": "infer", **more}
        token: str = self.http.post("/token", data=form, auth=("svc", "svc-secret")).json()["access_token"]
        return token

    def bound_token(self, proof: bytes, **more: str) -> str:
        """A token that is bound to the key of a DPoP proof for a POST to `/token` (RFC 9449, 5)."""
        form = {"grant_type": "client_credentials", "scope": "infer", **more}
        answer = self.http.post("/token", data=form, auth=("svc", "svc-secret"), headers={"DPoP": proof.decode()}).json()
        assert answer["token_type"] == "DPoP", answer
        token: str = answer["access_token"]
        return token

    def control(self, what: str, body: Any = None) -> Any:
        return self.http.post(f"/control/{what}", json=body).json()

    def close(self) -> None:
        self.http.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, provider: Provider) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("oidc")
    config = configuration(
        directory / "state",
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}],
        roles=ROLES,
        bindings=BINDINGS,
    )
    config["identity"]["oidc"] = [{"name": "corp", "issuer": provider.url, "audiences": ["gatehouse"], "leeway": "0s"}]
    asking = {"url": f"{provider.url}/token/introspection", "client_id": "gw", "client_secret": "gw:secret+1", "cache": "300ms"}
    config["identity"]["oidc"][0] |= {"introspection": asking, "claims": {"subject": "client_id"}}
    with Gatehouse(directory, config) as gatehouse:
        yield gatehouse


def chat(running: Gatehouse, token: str, **body: Any) -> httpx.Response:
    body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **body}
    return httpx.post(
        f"{running.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=60
    )


def test_a_token_of_the_provider_is_a_principal_with_groups(running: Gatehouse, provider: Provider) -> None:
    token = provider.token()
    assert chat(running, token, max_tokens=5).status_code == 200
    refused = chat(running, token, max_tokens=500)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "policy_denied")
    assert chat(running, KEY).status_code == 200, "API keys go on working"

    def intents() -> list[dict[str, Any]]:
        return [record for record in running.audit() if record["kind"] == "intent" and record["credential"] == "oidc"]

    records = until(intents, what="the record")  # in the log itself it may come a moment after the answer
    assert (records[0]["principal"], records[0]["tenant"], records[0]["rule"]) == ("svc", "acme", "binding:0")


def test_a_caller_without_the_group_may_do_nothing(running: Gatehouse, provider: Provider) -> None:
    provider.control("claims", {"tenant": "acme", "groups": ["sales"]})
    assert chat(running, provider.token()).status_code == 404
    provider.control("claims", {"groups": ["engineers"]})
    assert chat(running, provider.token()).status_code == 401, "without a tenant"
    provider.control("claims", {"tenant": "acme", "_claim_names": {"groups": "src1"}})
    assert chat(running, provider.token()).status_code == 401, "whose groups are kept elsewhere"
    provider.control("claims", {"tenant": "acme", "groups": ["engineers"]})


def test_all_refusals_look_alike(running: Gatehouse, provider: Provider) -> None:
    token = provider.token()
    head, payload, signature = token.split(".")
    wrong = [
        f"{head}.{payload}.{signature[:-6]}AAAAAA",
        f"{head}.{payload}.",
        provider.token(resource="urn:other"),
        "eyJhbGciOiJub25lIn0." + payload + ".AAAA",
        "not-a-key-at-all",
        "gh_" + "0" * 39,
    ]
    answers = [chat(running, value) for value in wrong]
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.json()["error"]["message"] for answer in answers} == {"The credential is not valid."}
    assert not any(value in line for value in (token, signature) for line in running.lines), "nothing that identifies a token is logged"


def test_a_rotation_of_the_providers_key_fails_no_request(running: Gatehouse, provider: Provider) -> None:
    before = provider.token()
    provider.control("rotate")
    statuses = [chat(running, provider.token()).status_code for _ in range(5)] + [chat(running, before).status_code]
    assert statuses == [200] * 6


def test_unknown_keys_cost_the_provider_next_to_nothing(running: Gatehouse, provider: Provider) -> None:
    _, payload, signature = provider.token().split(".")
    fetches, began = provider.control("fetches")["fetches"], time.monotonic()
    for number in range(200):
        forged = base64.urlsafe_b64encode(json.dumps({"alg": "RS256", "kid": f"unknown-{number}"}).encode()).rstrip(b"=").decode()
        assert chat(running, f"{forged}.{payload}.{signature}").status_code == 401
    assert provider.control("fetches")["fetches"] - fetches <= 1 + (time.monotonic() - began) // COOLDOWN


def test_a_token_is_refused_once_it_has_expired(running: Gatehouse, provider: Provider) -> None:
    def good() -> str | None:  # a machine that stands still gets another one
        return token if chat(running, token := provider.token()).status_code == 200 else None

    provider.control("ttl", 2)
    short: str = until(good, what="a token that is good")
    provider.control("ttl", 600)
    until(lambda: chat(running, short).status_code == 401, what="the end of the token")
    assert chat(running, short).json()["error"]["code"] == "expired_token"


def test_an_opaque_token_is_what_its_issuer_says(running: Gatehouse, provider: Provider) -> None:
    token = provider.token(resource="urn:opaque")
    assert "." not in token and chat(running, token).status_code == 200
    assert chat(running, token, max_tokens=500).status_code == 403, "its groups count"
    wrong = [token[:-1] + ("A" if token[-1] != "A" else "B"), "x" * 43, token + " "]
    assert [chat(running, value).status_code for value in wrong[:2]] == [401, 401]
    assert not any(token in line for line in running.lines)
    provider.http.post("/token/revocation", data={"token": token}, auth=("svc", "svc-secret")).raise_for_status()
    until(lambda: chat(running, token).status_code == 401, what="the end of what is remembered")
    other = provider.token(resource="urn:opaque")
    provider.control("claims", {"tenant": "acme", "groups": ["sales"]})
    assert chat(running, other).status_code == 200, "claims are the token's, as of its making"
    provider.control("claims", {"tenant": "acme", "groups": ["engineers"]})
