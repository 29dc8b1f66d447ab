"""Names and passwords of a real directory at a running gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.integration.slapd import ADMIN, ADMIN_PASSWORD, BASE, Slapd, directory
from tests.waiting import until


@pytest.fixture(scope="module")
def slapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    with directory(tmp_path_factory.mktemp("slapd")) as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, slapd: Slapd) -> Iterator[Gatehouse]:
    folder = tmp_path_factory.mktemp("ldap")
    config = configuration(
        folder / "state",
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}],
        roles={"chatter": {"permissions": ["infer:chat"]}},
        bindings=[{"role": "chatter", "subjects": ["group/staff"]}],
    )
    config["identity"]["ldap"] = [
        {
            "name": "corp",
            "servers": [f"ldaps://localhost:{slapd.tls_port}"],
            "tls": {"ca": str(slapd.ca)},
            "bind": {"dn": ADMIN, "password": ADMIN_PASSWORD},
            "users": {"base": f"ou=people,{BASE}"},
            "groups": {"base": f"ou=groups,{BASE}", "nested": True},
            "tenant": {"value": "acme"},
            "timeout": "30s",
            "cache": "0s",
        }
    ]
    config["identity"]["gateway_tokens"] = {"issuer": "https://gw.example"}
    with Gatehouse(folder, config, arguments=["--workers", "2"]) as gatehouse:
        yield gatehouse


def chat(running: Gatehouse, auth: Any) -> httpx.Response:
    body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {auth}"} if isinstance(auth, str) else {}
    sent = None if isinstance(auth, str) else auth
    return httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, auth=sent, trust_env=False, timeout=60)


def test_a_member_of_a_group_of_groups_may_chat(running: Gatehouse) -> None:
    assert chat(running, ("alice", "alice-secret")).status_code == 200
    assert chat(running, ("bob", "bob-secret")).status_code == 404, "bob is in no group, so no role lets him see a model"
    record = running.noted(kind="intent")[0]
    assert (record["principal"], record["tenant"], record["credential"], record["rule"]) == ("alice", "acme", "ldap", "binding:0")


def test_a_login_is_exchanged_for_a_token(running: Gatehouse) -> None:
    url, narrow = f"{running.url}/auth/token", {"grant_type": "client_credentials", "scope": "infer:embeddings"}
    whole = httpx.post(url, auth=("alice", "alice-secret"), trust_env=False, timeout=60)
    assert whole.status_code == 200, whole.text
    assert chat(running, whole.json()["access_token"]).status_code == 200
    part = httpx.post(url, auth=("alice", "alice-secret"), data=narrow, trust_env=False, timeout=60)
    assert part.json()["scope"] == "infer:embeddings"
    assert chat(running, part.json()["access_token"]).json()["error"]["code"] == "insufficient_scope"
    assert httpx.post(url, auth=("alice", "wrong"), trust_env=False, timeout=60).status_code == 401


def test_refusals_say_nothing(running: Gatehouse) -> None:
    answers = [chat(running, pair) for pair in (("alice", "wrong"), ("nobody", "x"), ("*", "alice-secret"), ("alice", ""))]
    assert {(answer.status_code, answer.json()["error"]["message"]) for answer in answers} == {(401, "The credential is not valid.")}
    assert not any("alice" in line or "secret" in line for line in running.lines)


def test_all_workers_count_failures_together(running: Gatehouse) -> None:
    """Each request has a connection of its own, so they spread over the workers."""
    assert [chat(running, ("a*b", f"guess {number}")).status_code for number in range(5)] == [401] * 5
    right = [chat(running, ("a*b", "star-secret")).status_code for _ in range(8)]
    assert right == [401] * 8, "no worker has a budget of its own left for this name"
    assert chat(running, ("alice", "alice-secret")).status_code == 200


def test_a_directory_that_is_away_harms_nobody_else(running: Gatehouse, slapd: Slapd) -> None:
    slapd.stop()
    try:
        away = chat(running, ("alice", "alice-secret"))
        assert (away.status_code, away.json()["error"]["code"]) == (503, "directory_unavailable")
        assert chat(running, KEY).status_code == 200
    finally:
        slapd.start()
    until(lambda: chat(running, ("alice", "alice-secret")).status_code == 200, what="a login at the directory that is back")
