"""Tokens and the admin API, with two workers: revocation, rotation of keys, step-up, narrowed administrators."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_gateway_tokens import ISSUER, claims, error, exchange, exchanged, settings
from tests.e2e.test_oidc import Provider, chat, provider  # noqa: F401 - a fixture
from tests.waiting import until

ROOT = "root-key-0123456789abcdef0123456789abcdef"
WATCH = "watch-key-0123456789abcdef0123456789abcdef"
REVOKE = ("revoke", "--why", "stolen", "-o", "json", "--wait", "60")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, provider: Provider) -> Iterator[Gatehouse]:  # noqa: F811
    directory = tmp_path_factory.mktemp("tokens")
    config = settings(directory, engine, provider.url)
    config["identity"]["oidc"][0]["claims"] = {"roles": "gatehouse_roles"}
    config["identity"]["step_up"] = [
        {"permissions": ["config:*"], "max_age": "1h"},
        {"permissions": ["upgrade:*"], "acr": ["high"], "amr": ["mfa"]},
    ]
    config |= {"files": {"enabled": True, "reserve_bytes": 0}, "batches": {"enabled": True, "parallel": 1}}
    with Gatehouse(directory, config, arguments=["--workers", "2"]) as gatehouse:
        yield gatehouse


def admin(running: Gatehouse, token: str = ROOT) -> httpx.Client:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"{running.admin_url}/admin/v1", headers=headers, trust_env=False, timeout=60)


def cli(running: Gatehouse, *arguments: str, code: int = 0) -> str:
    environ = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": ROOT, "PATH": os.environ["PATH"]}
    result = CliRunner().invoke(app, ["tokens", *arguments], env=environ)
    assert result.exit_code == code, result.output
    return result.output


def everywhere(running: Gatehouse, token: str, status: int) -> None:
    """Whether both workers answer so: enough new connections to meet each of them."""
    assert {chat(running, token).status_code for _ in range(12)} == {status}


def shown(running: Gatehouse) -> int:
    """How many keys a worker shows, on a new connection."""
    return len(httpx.get(f"{running.url}/.well-known/jwks.json", trust_env=False, timeout=60).json()["keys"])


def test_a_revoked_token_is_refused_by_every_worker_and_so_is_what_it_was_exchanged_for(
    running: Gatehouse,
    provider: Provider,  # noqa: F811
) -> None:
    source = provider.token()
    token = exchanged(running, source)
    other = provider.token()
    everywhere(running, source, 200)
    everywhere(running, token, 200)
    made = json.loads(cli(running, *REVOKE, "--issuer", provider.url, "--id", claims(source)["jti"]))
    everywhere(running, source, 401)
    everywhere(running, token, 401)
    error(exchange(running, source), 401, "invalid_credentials")
    everywhere(running, other, 200)
    assert "stolen" in cli(running, "revocations", "--wide")
    cli(running, "restore", made["id"])
    until(lambda: chat(running, token).status_code == 200, what="the token again")
    assert any(record.get("event") == "admin.revocations.create" for record in running.audit())


def test_a_batch_ends_when_the_token_that_made_it_is_revoked(
    running: Gatehouse,
    provider: Provider,  # noqa: F811
    engine: EngineThread,
) -> None:
    token = provider.token()
    one = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": "m1", "messages": [{"role": "user", "content": "hello"}]}}
    lines = "\n".join(json.dumps({"custom_id": str(number), **one}) for number in range(3))
    engine.play("hold")
    with running.client(token) as http:
        file = http.post("/v1/files", files={"file": ("in.jsonl", lines.encode())}, data={"purpose": "batch"}).json()["id"]
        wanted = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = http.post("/v1/batches", json=wanted).json()["id"]
    engine.holds(1)
    made = json.loads(cli(running, *REVOKE, "--issuer", provider.url, "--id", claims(token)["jti"]))
    everywhere(running, token, 401)
    engine.release()
    with admin(running) as client:
        found = until(lambda: (one := client.get(f"/batches/{batch}").json())["state"] == "failed" and one, what="the end of the batch")
    assert found["errors"][0]["code"] == "creator_stopped" and found["completed"] == 1
    cli(running, "restore", made["id"])


def test_a_subject_loses_what_was_issued_until_now_and_nothing_later(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token = exchanged(running, provider.token())
    with admin(running) as client:
        made = client.post("/revocations?wait=60", json={"type": "subject", "issuer": ISSUER, "value": "svc"})
        assert made.status_code == 201 and made.headers["x-gatehouse-in-force"] == "true", made.text
        everywhere(running, token, 401)
        until(lambda: int(time.time()) > time.time() - 1 and chat(running, exchanged(running, provider.token())).status_code == 200)
        assert client.delete(f"/revocations/{made.json()['id']}").status_code == 200


def test_wrong_revocations_are_refused(running: Gatehouse) -> None:
    with admin(running) as client:
        for body in (
            {"type": "token", "value": "x"},
            {"type": "token", "issuer": "x"},
            {"type": "subject", "issuer": "x"},
            {"type": "all", "issuer": "x"},
            {"type": "issuer", "issuer": "x", "value": "y"},
            {"type": "everything"},
            {"type": "all", "before": "2999-01-01T00:00:00Z"},
            {"type": "all", "expires_at": "2001-01-01T00:00:00Z"},
        ):
            assert client.post("/revocations", json=body).status_code == 400, body
        dry = client.post("/revocations?dry_run=true", json={"type": "all"})
        assert dry.status_code == 200 and dry.json()["dry_run"] is True
        assert client.get("/revocations").json()["items"] == []
    with admin(running, WATCH) as client:
        assert client.get("/revocations").status_code == 403
    for wrong in (("revoke",), ("revoke", "--id", "x"), ("revoke", "--everything", "--issuer", "x")):
        cli(running, *wrong, code=2)


def test_keys_are_rotated_and_withdrawn_while_tokens_go_on(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    before = exchanged(running, provider.token())
    keys = json.loads(cli(running, "rotate", "--after", "0", "-o", "json"))["items"]
    assert [key["state"] for key in keys] == ["former", "signing"]
    until(lambda: all(shown(running) == 2 for _ in range(12)), what="the new key at both workers")
    after = exchanged(running, provider.token())
    everywhere(running, before, 200)
    everywhere(running, after, 200)
    cli(running, "withdraw", keys[0]["id"])
    until(lambda: {chat(running, before).status_code for _ in range(12)} == {401}, what="the end of the key at both workers")
    everywhere(running, after, 200)
    assert keys[1]["id"] in cli(running, "keys", "--wide")


def test_administrators_need_the_login_that_a_step_up_asks_for(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    def token(**login: Any) -> str:
        provider.control("claims", {"tenant": "acme", "groups": ["engineers"], "gatehouse_roles": ["admin"], **login})
        made = provider.token()
        provider.control("claims", {"tenant": "acme", "groups": ["engineers"]})
        return made

    def ask(value: str, path: str) -> httpx.Response:
        with admin(running, value) as client:
            return client.get(path)

    now = int(time.time())
    stale, fresh = token(auth_time=now - 7200), token(auth_time=now)
    assert ask(stale, "/keys").status_code == 200 and ask(fresh, "/config").status_code == 200
    refused = ask(stale, "/config")
    assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_user_authentication")
    assert 'max_age="3600"' in refused.headers["www-authenticate"]
    assert ask(exchanged(running, fresh), "/config").status_code == 200, "a token that was had for it keeps the moment"
    assert ask(exchanged(running, stale), "/config").status_code == 403
    assert ask(ROOT, "/config").status_code == 403, "a key is no login"
    assert ask(token(acr="high", amr=["pwd"]), "/upgrade").status_code == 403
    assert ask(token(acr="high", amr=["pwd", "mfa"]), "/upgrade").status_code == 200


def test_a_narrowed_administrator_has_only_what_the_scope_names(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    provider.control("claims", {"tenant": "acme", "groups": ["engineers"], "gatehouse_roles": ["admin"]})
    whole = provider.token()
    provider.control("claims", {"tenant": "acme", "groups": ["engineers"]})
    narrow = exchanged(running, whole, scope="admin:keys:read")
    with admin(running, narrow) as client:
        assert client.get("/keys").status_code == 200
        assert client.get("/status").status_code == 403
        assert client.post("/keys", json={"tenant": "acme", "models": ["*"]}).status_code == 403
    error(chat(running, narrow), 403, "insufficient_scope")
    error(exchange(running, narrow, scope="admin:keys:*"), 400, "invalid_scope")
