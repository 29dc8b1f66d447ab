"""Tokens bound to a key (DPoP, RFC 9449) of a certified provider, at a gateway with two workers behind a TLS terminator's name."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import grpc
import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_gateway_tokens import EXCHANGE, TYPE, claims, error, settings
from tests.e2e.test_grpc import SERVICE, address, raw
from tests.e2e.test_oidc import Provider, provider  # noqa: F401 - a fixture
from tests.e2e.test_sockets import opened, refused
from tests.fakes.ports import empty_port
from tests.unit.gateway.identity import proving
from tests.waiting import until

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
CHAT = "/v1/chat/completions"
BODY = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
NUMBERS = count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, provider: Provider) -> Iterator[Gatehouse]:  # noqa: F811
    directory = tmp_path_factory.mktemp("dpop")
    config = settings(directory, engine, provider.url)
    asking = {"url": f"{provider.url}/token/introspection", "client_id": "gw", "client_secret": "gw:secret+1"}
    config["identity"]["oidc"][0] |= {"introspection": asking, "claims": {"subject": "client_id", "roles": "roles"}}
    config["identity"]["dpop"] = {"urls": [proving.URL]}
    steps = [{"name": "one", "generate": {"model": "m1", "input": "prompt"}}, {"name": "two", "generate": {"model": "m1", "input": "one"}}]
    config["models"].append({"name": "steps", "pipeline": {"steps": steps}})
    with empty_port() as port:
        config["listen"]["grpc"] = f"127.0.0.1:{port}"
        with Gatehouse(directory, config, arguments=["--workers", "2"]) as gatehouse:
            yield gatehouse


def proof(token: str | None, path: str = CHAT, *, key: Any = KEY, **claims: Any) -> str:
    named = {"jti": f"e2e-{next(NUMBERS)}", **claims}
    return proving.proof(None if token is None else token.encode(), time.time(), path, key=key, **named).decode()


def bound(provider: Provider, key: Any = KEY, **more: str) -> str:  # noqa: F811
    return provider.bound_token(proof(None, key=key, htu=f"{provider.url}/token").encode(), **more)


def chat(running: Gatehouse, token: str, proof: str | None, scheme: str = "DPoP", model: str = "m1") -> httpx.Response:
    headers = {"authorization": f"{scheme} {token}", **({} if proof is None else {"DPoP": proof})}
    return httpx.post(running.url + CHAT, json={**BODY, "model": model}, headers=headers, trust_env=False, timeout=60)


def form(running: Gatehouse, proof: str | None, **fields: str) -> httpx.Response:
    headers = {} if proof is None else {"DPoP": proof}
    return httpx.post(f"{running.url}/auth/token", data=fields, headers=headers, trust_env=False, timeout=60)


@pytest.mark.parametrize("more", [{}, {"resource": "urn:opaque"}], ids=["signed", "opaque"])
def test_a_bound_token_of_the_provider(running: Gatehouse, provider: Provider, more: dict[str, str]) -> None:  # noqa: F811
    token = bound(provider, **more)
    for _ in range(3):
        answer = chat(running, token, proof(token))
        assert answer.status_code == 200, answer.text
    error(chat(running, token, None, "Bearer"), 401, "invalid_api_key" if more else "invalid_credentials")
    error(chat(running, token, proof(token, key=OTHER)), 401, "invalid_credentials")
    for wrong in (None, proof(token, htu="http://127.0.0.1/v1/chat/completions"), proof(token, htm="GET"), proof(None)):
        refused = chat(running, token, wrong)
        error(refused, 401, "invalid_dpop_proof")
        assert refused.headers["www-authenticate"].startswith('DPoP realm="gatehouse", error="invalid_dpop_proof", algs="ES256')
    unbound = provider.token(**more)
    assert chat(running, unbound, None, "Bearer").status_code == 200
    error(chat(running, unbound, proof(unbound)), 401, "invalid_credentials")
    models = {"authorization": f"DPoP {token}", "DPoP": proof(token, "/v1/models", htm="GET")}
    seen = httpx.get(f"{running.url}/v1/models?x=y", headers=models, trust_env=False, timeout=60)
    assert [model["id"] for model in seen.json()["data"]] == ["m1", "m2", "steps"]
    stepped = chat(running, token, proof(token), model="steps")
    assert stepped.status_code == 200, f"each step looks at the token, and the proof is good once: {stepped.text}"


def test_a_proof_counts_once_in_all_workers(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token = bound(provider)

    async def thieves() -> list[int]:
        said = {"authorization": f"DPoP {token}", "DPoP": proof(token)}

        async def one() -> int:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:  # a connection each: they spread over the workers
                return (await client.post(running.url + CHAT, json=BODY, headers=said)).status_code

        return await asyncio.gather(*(one() for _ in range(12)))

    def once() -> bool:
        said = sorted(asyncio.run(thieves()))
        assert said.count(200) <= 1 and set(said) <= {200, 401, 503}, said
        return said == [200] + [401] * 11  # otherwise the control process stood still for longer than a proof waits for it

    for _ in range(3):
        until(once, what="a round in which each got an answer")


def by_grpc(running: Gatehouse, token: str, proof: str | None, scheme: str = "DPoP") -> tuple[str, dict[str, str]]:
    """What ModelReady says, and its metadata."""
    metadata = [("authorization", f"{scheme} {token}"), *([] if proof is None else [("dpop", proof)])]
    with grpc.insecure_channel(address(running)) as channel:
        found = raw(channel, "ModelReady", b"\n\x02m1", metadata, wait_for_ready=True)  # also where connecting takes a second try
    if isinstance(found, grpc.RpcError):
        return found.code().name, dict(found.trailing_metadata())  # type: ignore[attr-defined]
    return "OK", dict(found[1])


def test_a_socket_is_opened_with_a_proof_and_by_nothing_less(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token, place = bound(provider), "/v1/stream"
    used = proof(token, place, htm="GET")
    with opened(running, None, headers={"authorization": f"DPoP {token}", "DPoP": used}) as client:
        assert [client.answer(number)["status"] for number in range(3)] == [200] * 3, "a proof is good once, its socket for all requests"
        client.send(type="auth", token=provider.token(), id="other")
        client.until_done("other")
        client.send(type="auth", token=bound(provider), id="same key")
        client.until_done("same key")
        client.send(type="auth", token=bound(provider, OTHER), id="other key")
        assert client.until_done_or_refused("other key")["body"]["error"]["code"] == "invalid_credentials", "no message brings a proof"
    with opened(running, None) as client:
        client.send(type="auth", token=token, id="unproved")
        assert client.until_done_or_refused("unproved")["body"]["error"]["code"] == "invalid_credentials"
    for scheme, given, code in (
        ("DPoP", used, "invalid_dpop_proof"),
        ("DPoP", None, "invalid_dpop_proof"),
        ("DPoP", proof(token, place), "invalid_dpop_proof"),
        ("DPoP", proof(token, CHAT, htm="GET"), "invalid_dpop_proof"),
        ("DPoP", proof(token, place, htm="GET", key=OTHER), "invalid_credentials"),
        ("Bearer", None, "invalid_credentials"),
    ):
        headers = {"authorization": f"{scheme} {token}", **({} if given is None else {"DPoP": given})}
        status, told = refused(running, key=None, headers=headers)
        assert (status, told["code"]) == (401, code), told


def test_each_call_of_grpc_needs_a_proof_of_its_own(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token, place = bound(provider), f"{SERVICE}ModelReady"
    used = proof(token, place)
    assert by_grpc(running, token, used)[0] == by_grpc(running, token, proof(token, place))[0] == "OK"
    for scheme, given, code in (
        ("DPoP", used, "invalid_dpop_proof"),
        ("DPoP", None, "invalid_dpop_proof"),
        ("DPoP", proof(token, place, htm="GET"), "invalid_dpop_proof"),
        ("DPoP", proof(token, f"{SERVICE}ModelInfer"), "invalid_dpop_proof"),
        ("DPoP", proof(token), "invalid_dpop_proof"),
        ("DPoP", proof(token, place, key=OTHER), "invalid_credentials"),
        ("Bearer", None, "invalid_credentials"),
    ):
        status, trailing = by_grpc(running, token, given, scheme)
        assert (status, trailing["x-gatehouse-code"]) == ("UNAUTHENTICATED", code), trailing


def test_tokens_of_the_gateway_are_bound_too(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token = bound(provider)
    fields = {"grant_type": EXCHANGE, "subject_token": token, "subject_token_type": TYPE}
    error(form(running, None, **fields), 401, "invalid_credentials")
    error(form(running, proof(None, "/auth/token", key=OTHER), **fields), 401, "invalid_credentials")
    error(form(running, proof(None), **fields), 401, "invalid_dpop_proof")
    answer = form(running, proof(None, "/auth/token"), **fields)
    assert answer.status_code == 200 and answer.json()["token_type"] == "DPoP", answer.text
    ours = answer.json()["access_token"]
    assert claims(ours)["cnf"] == {"jkt": proving.thumbprint(KEY)}
    assert chat(running, ours, proof(ours)).status_code == 200
    error(chat(running, ours, None, "Bearer"), 401, "invalid_credentials")

    free = form(running, None, **{**fields, "subject_token": provider.token()})
    assert free.json()["token_type"] == "Bearer"
    chosen = form(running, proof(None, "/auth/token"), **{**fields, "subject_token": provider.token()})
    assert chosen.json()["token_type"] == "DPoP" and claims(chosen.json()["access_token"])["cnf"] == {"jkt": proving.thumbprint(KEY)}
    again = httpx.post(
        f"{running.url}/auth/token",
        headers={"authorization": f"DPoP {ours}", "DPoP": proof(ours, "/auth/token")},
        data={"grant_type": "client_credentials", "scope": "infer:chat"},
        trust_env=False,
        timeout=60,
    )
    assert again.json()["token_type"] == "DPoP" and claims(again.json()["access_token"])["cnf"] == {"jkt": proving.thumbprint(KEY)}
    other = provider.http.post("/token", data={"grant_type": "client_credentials", "scope": "infer"}, auth=("bot", "bot-secret")).json()
    acting = form(running, None, **{**fields, "subject_token": other["access_token"]}, actor_token=token, actor_token_type=TYPE)
    error(acting, 401, "invalid_credentials")


def test_the_admin_listener_takes_them(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    provider.control("claims", {"tenant": "acme", "groups": ["engineers"], "roles": ["viewer"]})
    token = bound(provider)
    provider.control("claims", {"tenant": "acme", "groups": ["engineers"]})

    def whoami(scheme: str, proof: str | None) -> httpx.Response:
        headers = {"authorization": f"{scheme} {token}", **({} if proof is None else {"DPoP": proof})}
        return httpx.get(f"{running.admin_url}/admin/v1/whoami", headers=headers, trust_env=False, timeout=60)

    good = proof(token, "/admin/v1/whoami", htm="GET")
    assert whoami("DPoP", good).json()["id"] == "svc"
    for scheme, sent, code in (
        ("DPoP", good, "invalid_dpop_proof"),
        ("Bearer", None, "invalid_credentials"),
        ("DPoP", None, "invalid_dpop_proof"),
    ):
        refused = whoami(scheme, sent)
        assert (refused.status_code, refused.json()["code"]) == (401, code), refused.text
    assert refused.headers["www-authenticate"].startswith("DPoP ")


def test_no_client_can_say_that_a_key_was_proved(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token, name = bound(provider), proving.thumbprint(KEY)
    for url, path in ((running.url, "/v1/models"), (running.admin_url, "/admin/v1/whoami")):
        host, port = url.removeprefix("http://").split(":")
        for line in (f":proved: {name}", f"X: y\r\n:proved: {name}", f" :proved: {name}"):
            with socket.create_connection((host, int(port)), timeout=60) as raw:
                raw.sendall(
                    f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{line}\r\nConnection: close\r\n\r\n".encode()
                )
                status = raw.recv(4096).split(b" ")[1]
            assert status in (b"400", b"401"), status


def test_a_reload_asks_for_nonces_and_for_bound_tokens(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token = bound(provider)
    used = proof(token)
    assert chat(running, token, used).status_code == 200
    running.config["identity"]["dpop"] |= {"nonce": "required", "max_age": "2m"}
    running.config["identity"]["oidc"][0]["binding"] = "dpop"
    running.config["identity"]["gateway_tokens"]["binding"] = "dpop"
    running.file.write_text(yaml.safe_dump(running.config))
    root = {"authorization": "Bearer root-key-0123456789abcdef0123456789abcdef"}
    answer = httpx.post(f"{running.admin_url}/admin/v1/config/reload?wait=60", headers=root, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    error(chat(running, provider.token(), None, "Bearer"), 401, "invalid_credentials")
    asked = chat(running, token, proof(token))
    error(asked, 401, "use_dpop_nonce")
    nonce = asked.headers["dpop-nonce"]
    assert 'error="use_dpop_nonce"' in asked.headers["www-authenticate"]
    assert [chat(running, token, proof(token, nonce=nonce)).status_code for _ in range(4)] == [200] * 4, "whichever worker gave it out"
    error(chat(running, token, used), 401, "use_dpop_nonce")
    assert by_grpc(running, token, proof(token, f"{SERVICE}ModelReady"))[1]["dpop-nonce"]
    assert by_grpc(running, token, proof(token, f"{SERVICE}ModelReady", nonce=nonce))[0] == "OK"
    assert by_grpc(running, provider.token(), None, "Bearer")[0] == "UNAUTHENTICATED", "one that is not bound"
    assert refused(running, key=None, headers={"authorization": f"Bearer {provider.token()}"})[0] == 401
    fields = {"grant_type": EXCHANGE, "subject_token_type": TYPE}
    told = form(running, proof(None, "/auth/token"), subject_token=token, **fields)
    error(told, 401, "use_dpop_nonce")
    assert form(running, proof(None, "/auth/token", nonce=told.headers["dpop-nonce"]), subject_token=token, **fields).status_code == 200
    for _ in range(25):  # no throttle of failures keeps anybody from a nonce
        headers = {"authorization": f"DPoP {token}", "DPoP": proof(token, "/admin/v1/whoami", htm="GET")}
        wanted = httpx.get(f"{running.admin_url}/admin/v1/whoami", headers=headers, trust_env=False, timeout=60)
        assert wanted.status_code == 401 and wanted.json()["code"] == "use_dpop_nonce" and wanted.headers["dpop-nonce"]
    assert not any(token in line for line in running.lines), "no token is logged"
