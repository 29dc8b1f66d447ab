"""What clumsy and hostile operators ask for, and what they are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e import adminapi
from tests.e2e.adminapi import admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.waiting import until

KEY: dict[str, Any] = {"tenant": "acme", "models": ["m*"]}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("mistakes")
    with Gatehouse(directory, adminapi.config(directory / "state", engine.port)) as gatehouse:
        yield gatehouse


@pytest.fixture
def root(running: Gatehouse) -> Iterator[httpx.Client]:
    with admin(running) as client:
        yield client


def test_a_client_that_asks_the_admin_listener_is_told_so(running: Gatehouse) -> None:
    with httpx.Client(base_url=running.admin_url, trust_env=False, timeout=90) as client:
        told = problem(client.post("/v1/chat/completions", json={}, headers={"x-request-id": "mine"}), 404, "not_found")
    assert "There is no /v1/chat/completions on this listener" in told["detail"] and told["instance"] == "mine"


def test_open_paths_tell_the_requests_id_and_refuse_other_methods_in_words(running: Gatehouse) -> None:
    with httpx.Client(base_url=running.admin_url, trust_env=False, timeout=90) as client:
        for path in ("/metrics", "/livez", "/readyz", "/.well-known/gatehouse-login"):
            assert client.get(path, headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
            assert client.get(path, headers={"x-request-id": "no id"}).headers["x-request-id"].startswith("adm-")
            wrong = client.post(path, headers={"x-request-id": "mine"})
            assert problem(wrong, 405, "method_not_allowed")["instance"] == wrong.headers["x-request-id"] == "mine"
            assert wrong.headers["allow"] == "GET, HEAD"


def test_nobody_takes_the_place_of_a_key_that_a_binding_gives_more_rights(running: Gatehouse, root: httpx.Client) -> None:
    assert root.post("/keys", json={**KEY, "id": "bound-up"}).status_code == 201
    bound = {"name": "b-up", "tenant": "acme", "principal": "bound-up", "role": "operator"}
    waiting = {**bound, "name": "b-later", "principal": "bound-later"}
    assert root.post("/bindings", json=bound).status_code == root.post("/bindings", json=waiting).status_code == 201
    with admin(running, "tenant-admin") as client:
        for taken in (
            client.delete("/keys/bound-up"),
            client.post("/keys/bound-up/rotate", json={}),
            client.post("/keys/bound-up/revoke"),
            client.put("/keys/bound-up", json={"models": ["*"]}),
            client.patch("/keys/bound-up", json={"models": ["*"]}),
            client.post("/keys", json={**KEY, "id": "bound-later"}),
            client.post("/keys?dry_run=true", json={**KEY, "id": "bound-later"}),
        ):
            problem(taken, 403, "policy_denied")
        plain = client.post("/keys", json=KEY).json()["id"]
        problem(client.post(f"/keys/{plain}/rotate", json={"id": "bound-later"}), 400, "invalid_value")
    assert root.delete("/keys/bound-up").status_code == 200
    assert root.delete("/bindings/b-up").status_code == root.delete("/bindings/b-later").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        ("/keys", {**KEY, "limits": ["typo"]}, 400, "limits[0]", "no limit 'typo'"),
        ("/keys", {**KEY, "cidrs": ["10.1.2.3/8"]}, 400, "cidrs[0]", "did you mean 10.0.0.0/8?"),
        ("/keys", {**KEY, "cidrs": ["10.0.0.0/8", "home"]}, 400, "cidrs[1]", "such as 192.0.2.7"),
        ("/bindings", {"name": "b", "tenant": "nowhere", "principal": "p", "role": "viewer"}, 404, "tenant", "no tenant 'nowhere'"),
        ("/bindings", {"name": "b", "tenant": "acme", "principal": "p", "role": "root"}, 400, "role", "there is no role 'root'"),
        ("/guardrails", {"name": "g", "type": "deny"}, 400, "type", "known: classifier, content, denylist"),
        ("/guardrails", {"name": "g", "type": "denylist", "settings": {"phrase": []}}, 400, "settings.phrase", "did you mean 'phrases'?"),
        ("/limits", {"name": "l", "requests": {"rate": 1, "per": "1 fortnight"}}, 400, "requests.per", "a duration such as"),
        ("/limits", {"name": "l", "tokens": {"rate": 0.5}}, 400, "tokens", "none would ever pass; set 'burst' to 1 or more"),
        ("/limits", {"name": "l"}, 400, "requests", "at least one of requests, tokens"),
        ("/limits", {"name": "l", "requests": {"rate": 1e308}}, 400, "requests.rate", "<= 1000000000000"),
        ("/limits", {"name": "l", "requests": {"rate": 1e-300, "burst": 1}}, 400, "requests.rate", ">= 1e-06"),
        ("/limits", {"name": "l", "concurrent": 10**30}, 400, "concurrent", "<= 9007199254740992"),
        ("/model-uploads", {"name": "../x", "size": 1, "sha256": "0" * 64}, 400, "name", "It must be 1 to 120 letters"),
        ("/halts", {"target": "nonsense", "reason": "x"}, 400, "target", "It must be all, or one of key/ID"),
        ("/tenants", {"name": "no spaces"}, 400, "name", "It must be 1 to 128 letters"),
    ],
)
def test_errors_name_the_field_and_what_would_be_right(
    root: httpx.Client, path: str, body: dict[str, Any], status: int, param: str, words: str
) -> None:
    for dry_run in ("true", "false"):
        found = root.post(path, json=body, params={"dry_run": dry_run}).json()
        assert (found["status"], found["param"]) == (status, param) and words in found["detail"]


def test_a_guardrail_is_patched_and_checked_as_a_whole(root: httpx.Client) -> None:
    settings = {"phrases": ["never said here"]}
    assert root.post("/guardrails", json={"name": "patched", "type": "denylist", "settings": settings}).status_code == 201
    changed = root.patch("/guardrails/patched", json={"fail_mode": "open"})
    assert changed.status_code == 200 and (changed.json()["fail_mode"], changed.json()["settings"]) == ("open", settings)
    problem(root.patch("/guardrails/patched", json={"settings": {"phrases": None}}), 400, "invalid_config")
    problem(root.patch("/guardrails/patched", json={"type": "nothing"}), 400, "invalid_config")
    assert root.delete("/guardrails/patched").status_code == 200


def test_a_limit_is_patched_and_checked_as_a_whole(root: httpx.Client) -> None:
    assert root.post("/limits", json={"name": "patched", "match": {"key": "nobody"}, "concurrent": 3}).status_code == 201
    problem(root.patch("/limits/patched", json={"concurrent": None}), 400, "invalid_value")
    assert root.patch("/limits/patched", json={"requests": {"rate": 5}, "concurrent": None}).json()["requests"]["rate"] == 5
    problem(root.patch("/limits/patched", json={"requests": {"rate": 5, "burst": 0.5}}), 400, "invalid_config")
    assert root.delete("/limits/patched").status_code == 200


@pytest.mark.parametrize("path", ["/engines/fake/drain", "/config/reload", "/models/m1/unload"])
def test_what_an_operation_does_not_take_is_not_ignored(root: httpx.Client, path: str) -> None:
    assert problem(root.post(path, json={"force": True}), 400, "invalid_value")["param"] == "force"
    problem(root.post(path, content=b"{"), 400, "invalid_json")


def test_a_body_whose_fields_are_all_optional_may_be_absent(root: httpx.Client) -> None:
    assert root.post("/keys", json={**KEY, "id": "bare"}).status_code == 201
    with_type = {"content-type": "application/json"}
    assert root.post("/keys/bare/rotate").status_code == 201
    for path in ("/keys/bare/suspend", "/keys/bare/resume"):
        assert root.post(path).status_code == root.post(path, headers=with_type).status_code == 200, path
    assert root.post("/sync:diff", content=iter([])).json()["items"] == [], "chunked, and nothing in it"
    problem(root.post("/keys/bare/suspend", content=b"{}"), 415, "unsupported_media_type")
    problem(root.post("/keys/bare/suspend", headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
    problem(root.post("/keys/bare/suspend", headers={"content-encoding": "gzip"}), 415, "unsupported_media_type")
    problem(root.post("/keys/bare/suspend", content=b"null", headers=with_type), 400, "invalid_value")
    problem(root.post("/keys"), 415, "unsupported_media_type")
    problem(root.put("/keys/bare"), 415, "unsupported_media_type")
    problem(root.patch("/keys/bare"), 415, "unsupported_media_type")
    assert root.post("/keys/bare/revoke").status_code == root.delete("/keys/bare").status_code == 200


def test_a_field_that_stands_twice_is_refused(root: httpx.Client) -> None:
    twice = root.post("/tenants", content=b'{"name": "one", "name": "two"}', headers={"content-type": "application/json"})
    assert problem(twice, 400, "invalid_json")["param"] == "name"
    assert root.get("/tenants/two").status_code == 404


def test_an_overlap_is_a_duration(root: httpx.Client) -> None:
    assert root.post("/keys", json={**KEY, "id": "turned"}).status_code == 201
    problem(root.post("/keys/turned/rotate", json={"overlap": "100d"}), 400, "invalid_value")
    turned = root.post("/keys/turned/rotate", json={"overlap": "1d"})
    assert turned.status_code == 201
    assert turned.json()["id"] == "turned" and root.delete("/keys/turned").status_code == 200


def test_a_limit_that_keys_name_is_not_deleted(root: httpx.Client) -> None:
    assert root.post("/limits", json={"name": "named", "match": {"key": ""}, "concurrent": 5}).status_code == 201
    assert root.post("/keys", json={**KEY, "id": "names-it", "limits": ["named"]}).status_code == 201
    refused = problem(root.delete("/limits/named"), 409, "in_use")
    assert "names-it" in refused["detail"]
    assert root.patch("/keys/names-it", json={"limits": None}).status_code == 200
    assert root.delete("/limits/named").status_code == root.delete("/keys/names-it").status_code == 200


def test_a_limit_is_written_as_in_the_configuration(root: httpx.Client) -> None:
    made = root.post("/limits", json={"name": "as-in-the-file", "match": {"key": "nobody"}, "requests": {"rate": 5, "per": "1m30s"}})
    assert made.status_code == 201 and made.json()["requests"]["per"] == "1m30s"
    changed = root.patch("/limits/as-in-the-file", json={"requests": {"rate": 5, "per": "2m"}})
    assert changed.json()["requests"]["per"] == "2m"
    assert root.delete("/limits/as-in-the-file").status_code == 200


@pytest.mark.parametrize("query", ["since=2026-13-45", "since=2026-02-01&until=2026-01-01", "limit=1&limit=2", "group_by=hour"])
def test_a_report_that_cannot_be_is_refused(root: httpx.Client, query: str) -> None:
    assert problem(root.get(f"/usage?{query}"), 400, "invalid_value")["param"] in ("since", "until", "limit", "group_by")


def test_a_tenant_goes_after_its_bindings(root: httpx.Client) -> None:
    assert root.post("/tenants", json={"name": "bound"}).status_code == 201
    bound = {"name": "in-bound", "tenant": "bound", "principal": "p", "role": "viewer"}
    assert root.post("/bindings", json=bound).status_code == 201
    assert "in-bound" in problem(root.delete("/tenants/bound"), 409, "in_use")["detail"]
    assert root.delete("/bindings/in-bound").status_code == root.delete("/tenants/bound").status_code == 200


def test_a_report_comes_in_pages_and_nothing_is_left_out(running: Gatehouse, root: httpx.Client) -> None:
    for key in (adminapi.KEYS["none"], adminapi.KEYS["viewer"], adminapi.KEYS["auditor"]):
        assert running.chat(key=key).status_code == 200
    query = {"group_by": "tenant,key,model,day"}
    whole = until(
        lambda: (lambda rows: rows if len(rows) >= 3 else None)(root.get("/usage", params=query).json()["items"]), what="the usage"
    )
    found: list[Any] = []
    page: dict[str, Any] = {"cursor": ""}
    while page["cursor"] is not None:
        page = root.get("/usage", params={**query, "limit": 1, **({"cursor": page["cursor"]} if page["cursor"] else {})}).json()
        assert len(page["items"]) == 1
        found += page["items"]
    assert found == whole
    for wrong in ("AAAA", "WzFd", found and "WyJhIl0"):
        assert problem(root.get("/usage", params={**query, "cursor": wrong}), 400, "invalid_value")["param"] == "cursor"
