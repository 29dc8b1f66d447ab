"""The admin API of a running gateway, as operators and scripts use it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from admin.operation import Operation
from admin.permissions import ROLES, SHARED, TENANTED
from admin.resources import table
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS, admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, external, first_keys
from tests.waiting import until

KEY: dict[str, Any] = {"tenant": "acme", "models": ["m*"]}
EXPIRES = "2096-10-02T07:06:40Z"
LIMIT: dict[str, Any] = {"name": "l", "match": {"key": "nobody"}, "requests": {"rate": 5}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("admin")
    with Gatehouse(directory, adminapi.config(directory / "state", engine.port)) as gatehouse:
        yield gatehouse


@pytest.fixture
def root(running: Gatehouse) -> Iterator[httpx.Client]:
    with admin(running) as client:
        yield client


def events(gatehouse: Gatehouse, name: str, request_id: str) -> list[dict[str, Any]]:
    """The audit events of one request, waited for: all but the last are `begun`."""

    def found() -> list[dict[str, Any]]:
        return [r for r in gatehouse.audit() if r.get("event") == name and r["detail"]["request_id"] == request_id]

    return until(lambda: (lambda f: f if f and f[-1].get("outcome") != "begun" else None)(found()), what=f"{name} of {request_id}")


# --- who may do what


def attempt(client: httpx.Client, operation: Operation) -> int:
    """The status of a request that can change nothing: names that are not there, bodies that are wrong."""
    path = "/" + operation.path.replace("{name}", "not-there").replace("{id}", "not-there")
    options: dict[str, Any] = {"params": {"dry_run": "maybe"}} if operation.writes and operation.path != "config/reload" else {}
    if operation.path == "policies:explain":
        options = {"json": {"key": "not-there", "request": {"model": "m1"}}}
    if operation.path == "policies:test":
        options = {"json": {"cases": [{"key": "not-there", "request": {"model": "m1"}, "expect": "deny"}]}}
    with client.stream(operation.method, path, **options) as response:
        return response.status_code


def holds(role: str, permission: str) -> bool:
    if role == "none" or permission not in ROLES[role].permissions:
        return False
    return not ROLES[role].confined or permission.partition(":")[0] in TENANTED or permission in SHARED


@pytest.mark.parametrize("role", KEYS)
def test_every_route_asks_for_its_permission(running: Gatehouse, role: str) -> None:
    operations = table.operations()
    assert len(operations) > 50
    with admin(running, role) as client:
        for operation in operations:
            if operation.path.startswith("my/") and holds(role, operation.permission):
                continue  # for people who have logged in (test_own_keys.py); a key is none
            refused = attempt(client, operation) == 403
            assert refused is not holds(role, operation.permission), (role, operation.method, operation.path)


def test_nobody_gets_in_without_a_key(running: Gatehouse, root: httpx.Client) -> None:
    with httpx.Client(base_url=f"{running.admin_url}/admin/v1", trust_env=False, timeout=60) as client:
        statuses = {attempt(client, operation) for operation in table.operations()[:10]}
        statuses.add(client.get("/openapi.json").status_code)
        statuses.add(client.get("/no/such/path").status_code)
    assert statuses == {401}
    for path in ("/metrics", "/livez", "/readyz"):
        assert httpx.get(running.admin_url + path, trust_env=False, timeout=60).status_code == 200


def test_failed_logins_look_alike(running: Gatehouse) -> None:
    wrong = ("gh_" + "0" * 39, "x", "gh_0lCa0YgcdHyeDThLMvmOBBKWTQgTgcOCt2NfauA", KEYS["admin"][:-1] + "X")
    answers = []
    for key in wrong:
        with admin(running, key=key) as client:
            response = client.get("/keys")
            answers.append({**problem(response, 401, "invalid_credentials"), "instance": ""})
            assert response.headers["www-authenticate"].startswith("Bearer")
    assert all(answer == answers[0] for answer in answers)
    both = httpx.get(
        f"{running.admin_url}/admin/v1/keys",
        headers={"authorization": f"Bearer {KEYS['admin']}", "x-api-key": KEYS["viewer"]},
        trust_env=False,
        timeout=60,
    )
    problem(both, 400, "ambiguous_credentials")


def test_a_tenant_admin_stays_in_its_tenant(running: Gatehouse, root: httpx.Client) -> None:
    theirs = root.post("/keys", json={**KEY, "tenant": "globex"}).json()["id"]
    with admin(running, "tenant-admin") as client:
        assert {key["tenant"] for key in client.get("/keys").json()["items"]} == {"acme"}
        assert [tenant["name"] for tenant in client.get("/tenants").json()["items"]] == ["acme"]
        for response in (client.get(f"/keys/{theirs}"), client.post(f"/keys/{theirs}/revoke"), client.get("/tenants/globex")):
            problem(response, 404, "not_found")
        for response in (client.get("/keys?tenant=globex"), client.post("/keys", json={**KEY, "tenant": "globex"}), client.get("/config")):
            problem(response, 403, "policy_denied")
        assert client.get("/usage?tenant=globex").status_code == 403
        mine = client.post("/keys", json={**KEY, "roles": ["tenant-admin"]})
        assert mine.status_code == 201
        assert client.post(f"/keys/{mine.json()['id']}/revoke").json()["state"] == "revoked"
    assert root.get(f"/keys/{theirs}").json()["state"] == "active"


@pytest.mark.parametrize("role", sorted(ROLES))
def test_nobody_grants_what_they_lack(running: Gatehouse, root: httpx.Client, role: str) -> None:
    strong = root.post("/keys", json={**KEY, "roles": [role]}).json()["id"]
    with admin(running, "tenant-admin") as client:
        granted = client.post("/keys", json={**KEY, "roles": [role]})
        bound = client.post("/bindings", json={"name": f"b-{role}", "tenant": "acme", "principal": "test", "role": role})
        rotated = client.post(f"/keys/{strong}/rotate", json={})
        raised = client.put(f"/keys/{strong}", json={"models": [], "roles": []})
        lowered = client.patch(f"/keys/{strong}", json={"roles": None})
        expected = {True: {200, 201}, False: {403}}[role == "tenant-admin"]
        assert {granted.status_code} | {bound.status_code} | {rotated.status_code} <= expected
        for changed in (raised, lowered):
            assert changed.status_code == 403 if role != "tenant-admin" else changed.status_code in (200, 409)


def test_a_patch_of_a_key_leaves_what_it_does_not_name(root: httpx.Client) -> None:
    id = root.post("/keys", json={**KEY, "cidrs": ["10.0.0.0/8"], "expires": "2096-10-02T09:06:40+02:00", "description": "first"}).json()[
        "id"
    ]
    changed = root.patch(f"/keys/{id}", json={"cidrs": None, "description": "second"}, headers={"if-match": '"1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    shown = root.get(f"/keys/{id}").json()
    assert (shown["models"], shown["cidrs"], shown["expires"], shown["description"]) == (["m*"], [], EXPIRES, "second")
    problem(root.patch(f"/keys/{id}", json={"description": "lost"}, headers={"if-match": '"1"'}), 412, "version_mismatch")
    problem(root.patch(f"/keys/{id}", json={"description": "lost"}, headers={b"if-match": b'"\xb2"'}), 412, "version_mismatch")
    assert problem(root.patch(f"/keys/{id}", json={"modles": []}), 400, "invalid_value")["param"] == "modles"
    assert problem(root.patch(f"/keys/{id}", json={"priority": "urgent"}), 400, "invalid_value")["param"] == "priority"
    problem(root.patch("/keys/test", json={"description": "x"}), 409, "read_only")
    dry = root.patch(f"/keys/{id}?dry_run=true", json={"expires": None}).json()
    assert dry["diff"] == [{"path": "expires", "from": EXPIRES, "to": None}] and root.get(f"/keys/{id}").json()["expires"] == EXPIRES


def test_fields_need_permissions_of_their_own(running: Gatehouse, root: httpx.Client) -> None:
    with admin(running, "tenant-admin") as client:
        problem(client.post("/keys", json={**KEY, "priority": "interactive"}), 403, "policy_denied")
    with admin(running, "viewer") as client:
        assert all(endpoint["address"] is None for endpoint in client.get("/endpoints").json()["items"])
        assert client.get("/status").json()["endpoints"][0]["address"] is None
    assert root.get("/endpoints").json()["items"][0]["address"].startswith("http://127.0.0.1")
    assert root.post("/tenants", json={"name": "small", "models": ["tiny-*"]}).status_code == 201
    found = problem(root.post("/keys", json={"tenant": "small", "models": ["*"]}), 400, "invalid_value")
    assert found["param"] == "models[0]"
    assert root.post("/keys", json={"tenant": "small", "models": ["tiny-a*"]}).status_code == 201


def test_a_binding_gives_a_role_and_takes_it_again(running: Gatehouse, root: httpx.Client) -> None:
    with admin(running, "none") as client:
        problem(client.get("/keys"), 403, "policy_denied")
        bound = {"name": "b1", "tenant": "acme", "principal": "a-none", "role": "auditor"}
        assert root.post("/bindings", json=bound).status_code == 201
        assert client.get("/audit/records").status_code == 200
        assert client.get("/whoami").json()["grants"] == [{"role": "auditor", "tenant": None}]
        assert root.delete("/bindings/b1").status_code == 200
        problem(client.get("/audit/records"), 403, "policy_denied")


# --- resources


def test_a_resource_is_made_read_replaced_and_deleted(root: httpx.Client) -> None:
    made = root.post("/limits", json={**LIMIT, "name": "crud"})
    assert made.status_code == 201 and made.headers["location"] == "/admin/v1/limits/crud" and made.headers["etag"] == '"1"'
    shown = root.get("/limits/crud")
    assert shown.json() == made.json() and shown.headers["etag"] == '"1"'
    assert (shown.json()["source"], shown.json()["updated_by"], shown.json()["requests"]["rate"]) == ("store", "acme/a-admin", 5.0)
    problem(root.post("/limits", json={**LIMIT, "name": "crud"}), 409, "already_exists")
    changed = root.put("/limits/crud", json={**LIMIT, "name": "crud", "concurrent": 2}, headers={"if-match": '"1"'})
    assert changed.headers["etag"] == '"2"' and changed.json()["concurrent"] == 2
    for method in ("PUT", "DELETE"):
        lost = root.request(method, "/limits/crud", json={**LIMIT, "name": "crud"}, headers={"if-match": '"1"'})
        problem(lost, 412, "version_mismatch")
    problem(root.put("/limits/crud", json={**LIMIT, "name": "other"}), 409, "name_mismatch")
    problem(root.put("/limits/crud", json=LIMIT, headers={"if-match": "1"}), 400, "invalid_header")
    assert root.delete("/limits/crud", headers={"if-match": '"2"'}).status_code == 200
    problem(root.get("/limits/crud"), 404, "not_found")


def test_pages_and_filters(root: httpx.Client) -> None:
    names = [f"page-{n:02}" for n in range(7)]
    for name in names:
        assert root.post("/tenants", json={"name": name}).status_code == 201
    found: list[str] = []
    cursor = None
    while True:
        page = root.get("/tenants", params={"limit": 3, "prefix": "page-", **({"cursor": cursor} if cursor else {})}).json()
        assert len(page["items"]) <= 3
        found += [tenant["name"] for tenant in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert found == names
    everything = root.get("/tenants", params={"limit": 1}).json()
    assert everything["cursor"] and everything["items"][0]["source"] == "file"
    assert {tenant["source"] for tenant in root.get("/tenants?source=store").json()["items"]} == {"store"}
    assert {tenant["source"] for tenant in root.get("/tenants?source=file").json()["items"]} == {"file"}
    for query in ("limit=0", "limit=1001", "limit=x", "cursor=none", "nonsense=1", "limit=1&limit=2", "source=elsewhere"):
        problem(root.get(f"/tenants?{query}"), 400, "invalid_value")


def test_what_stands_in_the_file_is_read_only(root: httpx.Client) -> None:
    shown = root.get("/keys/test").json()
    assert (shown["source"], shown["version"], shown["tenant"]) == ("file", None, "acme")
    for response in (
        root.post("/keys/test/revoke"),
        root.delete("/keys/test"),
        root.put("/keys/test", json={}),
        root.delete("/tenants/acme"),
    ):
        problem(response, 409, "read_only")
    problem(root.post("/tenants", json={"name": "acme"}), 409, "read_only")


def test_dry_runs_show_the_difference_and_change_nothing(running: Gatehouse, root: httpx.Client) -> None:
    planned = root.post("/limits?dry_run=true", json={**LIMIT, "name": "planned"}).json()
    assert planned["dry_run"] is True and {"path": "name", "from": None, "to": "planned"} in planned["diff"]
    problem(root.get("/limits/planned"), 404, "not_found")
    root.post("/limits", json={**LIMIT, "name": "dry"})
    diff = root.put("/limits/dry?dry_run=true", json={**LIMIT, "name": "dry", "requests": {"rate": 6}}).json()["diff"]
    assert diff == [{"path": "requests.rate", "from": 5.0, "to": 6.0}]
    assert root.get("/limits/dry").json()["requests"]["rate"] == 5.0
    assert root.delete("/limits/dry?dry_run=true").json()["dry_run"] is True
    assert root.get("/limits/dry").status_code == 200
    problem(root.delete("/limits/dry?dry_run=true", headers={"if-match": '"7"'}), 412, "version_mismatch")
    key = root.post("/keys?dry_run=true", json={**KEY, "id": "dry-key"}).json()
    assert key["result"]["secret"] is None
    problem(root.get("/keys/dry-key"), 404, "not_found")
    assert root.post("/engines/fake/drain?dry_run=true").json()["diff"] == [{"path": "drained", "from": False, "to": True}]
    assert root.get("/endpoints/fake").json()["drained"] is False


def test_an_idempotency_key_makes_nothing_twice(root: httpx.Client) -> None:
    headers = {"idempotency-key": "once-1"}
    first = root.post("/keys", json={**KEY, "description": "idem"}, headers=headers)
    again = root.post("/keys", json={**KEY, "description": "idem"}, headers=headers)
    assert first.status_code == again.status_code == 201 and again.headers["idempotency-replayed"] == "true"
    assert first.json()["secret"].startswith("gh_") and again.json() == {**first.json(), "secret": None}
    assert again.headers["etag"] == first.headers["etag"] and again.headers["location"] == first.headers["location"]
    problem(root.post("/keys", json={**KEY, "description": "other"}, headers=headers), 422, "idempotency_key_reused")
    failed = {"idempotency-key": "once-2"}
    problem(root.post("/tenants", json={"name": "acme"}, headers=failed), 409, "read_only")
    assert root.post("/tenants", json={"name": "idem"}, headers=failed).status_code == 201  # the failed one left it free
    problem(root.post("/keys", json=KEY, headers={"idempotency-key": "a b"}), 400, "invalid_header")


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b'{"name": "x", "requets": {"rate": 1}}', "invalid_value", "'requets'; the nearest is 'requests'"),
        (b'{"name": "x", "requests": {"rat": 1}}', "invalid_value", "'rat'; the nearest is 'rate'"),
        (b'{"requests": {"rate": 1}}', "missing_required_parameter", "'name'"),
        (b'{"name": "x", "requests": {"rate": -1}}', "invalid_value", "Expected `float` >= 1e-06"),
        (b'{"name": "x"}', "invalid_value", "at least one"),
        (b'{"name": "a b", "requests": {"rate": 1}}', "invalid_value", "It must be 1 to 128 letters"),
        (b"{", "invalid_json", "not JSON"),
        (b"\xff", "invalid_json", "not JSON"),
        (b"[" * 100_000, "invalid_json", ""),
        (b"", "invalid_value", ""),
    ],
)
def test_bad_bodies_are_refused_with_what_is_wrong(root: httpx.Client, body: bytes, code: str, words: str) -> None:
    response = root.post("/limits", content=body, headers={"content-type": "application/json"})
    assert words in problem(response, 400, code)["detail"]


def test_query_parameters_are_bounded(root: httpx.Client) -> None:
    assert problem(root.get(f"/keys?{'&'.join(f'a{number}=1' for number in range(65))}"), 400, "invalid_value")["param"] == "query"


def test_bodies_are_bounded_and_typed(root: httpx.Client) -> None:
    large = b'{"name": "' + b"x" * 300_000 + b'"}'
    problem(root.post("/limits", content=large, headers={"content-type": "application/json"}), 413, "request_too_large")
    problem(root.post("/limits", content=b"name: x", headers={"content-type": "application/yaml"}), 415, "unsupported_media_type")
    encoded = {"content-type": "application/json", "content-encoding": "gzip"}
    problem(root.post("/limits", content=b"{}", headers=encoded), 415, "unsupported_media_type")
    allow = root.request("POST", "/limits/x")
    problem(allow, 405, "method_not_allowed")
    assert allow.headers["allow"] == "DELETE, GET, HEAD, PATCH, PUT"


def test_head_is_a_get_without_its_content(root: httpx.Client) -> None:
    """Also where that content has no end."""
    found, headed = root.get("/tenants"), root.head("/tenants")
    assert (headed.status_code, headed.content, headed.headers["content-length"]) == (200, b"", found.headers["content-length"])
    events = root.head("/events")
    assert (events.status_code, events.content) == (200, b"") and events.headers["content-type"].startswith("text/event-stream")
    assert root.head("/tenants/nobody").status_code == 404 and root.head("/policies:explain").status_code == 405


def test_names_are_decoded_once(root: httpx.Client) -> None:
    assert root.post("/tenants", json={"name": "org/team"}).headers["location"] == "/admin/v1/tenants/org%2Fteam"
    assert root.get("/tenants/org%2Fteam").json()["name"] == "org/team"
    for path in ("/tenants/org/team", "/tenants/org%252Fteam", "/tenants//org%2Fteam", "/tenants/", "/tenants/a%0A"):
        raw = httpx.URL(f"{root.base_url}").copy_with(raw_path=f"/admin/v1{path}".encode())
        problem(root.send(httpx.Request("GET", raw, headers=root.headers)), 404, "not_found")


# --- keys


def test_a_key_is_shown_once_works_rotates_and_ends(running: Gatehouse, root: httpx.Client) -> None:
    made = root.post("/keys", json={**KEY, "id": "life"}).json()
    secret = made["secret"]
    assert running.chat(key=secret).status_code == 200
    assert "secret" not in root.get("/keys/life").json() and secret not in root.get("/keys?limit=1000").text
    rotated = root.post("/keys/life/rotate", json={"overlap": 3600}).json()
    assert running.chat(key=secret).status_code == 200 and running.chat(key=rotated["secret"]).status_code == 200
    assert (rotated["id"], rotated["version"]) == ("life", 2)
    assert datetime.fromisoformat(rotated["overlap_until"]).timestamp() > time.time() + 3000
    again = root.post("/keys/life/rotate", json={"overlap": 0}).json()
    until(lambda: running.chat(key=secret).status_code == 401, what="the refusal of a secret that was cut")
    assert running.chat(key=rotated["secret"]).status_code == 401 and running.chat(key=again["secret"]).status_code == 200
    assert root.post("/keys/life/revoke").json()["state"] == "revoked"
    until(lambda: running.chat(key=again["secret"]).status_code == 401, what="the refusal of a revoked key")
    problem(root.post("/keys/life/rotate", json={}), 409, "key_not_active")
    assert [key["id"] for key in root.get("/keys?state=revoked&prefix=life").json()["items"]] == ["life"]
    in_log = json.dumps(running.audit())
    assert (
        secret not in in_log
        and rotated["secret"] not in in_log
        and again["secret"] not in in_log
        and not any(secret in line for line in running.lines)
    )


def test_keys_with_roles_open_the_admin_api(running: Gatehouse, root: httpx.Client) -> None:
    made = root.post("/keys", json={**KEY, "roles": ["viewer"], "models": []}).json()
    with admin(running, key=made["secret"]) as client:
        assert client.get("/status").status_code == 200
        problem(client.get("/keys"), 403, "policy_denied")
    for wrong in ({"roles": ["king"]}, {"cidrs": ["10.0.0.0/99"]}, {"operations": ["fly"]}, {"expires": "tomorrow"}, {"priority": "high"}):
        problem(root.post("/keys", json={**KEY, **wrong}), 400, "invalid_value")
    problem(root.post("/keys", json={**KEY, "tenant": "nowhere"}), 404, "not_found")


def test_a_tenant_goes_after_its_keys(root: httpx.Client) -> None:
    root.post("/tenants", json={"name": "leaving"})
    key = root.post("/keys", json={"tenant": "leaving", "models": []}).json()["id"]
    problem(root.delete("/tenants/leaving"), 409, "in_use")
    assert root.delete(f"/keys/{key}").status_code == 200 and root.delete("/tenants/leaving").status_code == 200


# --- the fleet, the configuration, the audit log, events


def test_engines_are_drained_resumed_and_breakers_held(running: Gatehouse, root: httpx.Client) -> None:
    assert root.post("/engines/fake/drain").json()["state"] == "draining"
    assert running.chat().status_code == 503
    assert root.post("/engines/fake/resume").json()["state"] == "ready"
    assert running.chat().status_code == 200
    assert root.post("/engines/fake/breaker", json={"state": "open"}).json()["breaker"]["forced"] == "open"
    assert running.chat().status_code == 503
    assert root.post("/engines/fake/breaker", json={"state": "auto"}).json()["breaker"]["forced"] is None
    assert running.chat().status_code == 200
    problem(root.post("/engines/nothing/drain"), 404, "not_found")
    problem(root.post("/models/m1/unload"), 409, "not_managed")


def test_policies_are_tested_without_a_request(root: httpx.Client) -> None:
    def explained(key: str, operation: str = "chat") -> Any:
        return root.post("/policies:explain", json={"key": key, "request": {"model": "m1", "operation": operation}}).json()

    allowed = explained("test")
    assert (allowed["allow"], allowed["tenant"], allowed["rule"]) == (True, "acme", "models:*")
    denied = explained("narrow")
    assert denied["allow"] is False and denied["reason"]
    made = root.post("/keys", json={**KEY, "operations": ["embeddings"]}).json()["id"]
    assert explained(made)["allow"] is False
    root.post(f"/keys/{made}/revoke")
    answer = explained(made, "embeddings")
    assert (answer["allow"], answer["rule"]) == (False, "credential")


def test_the_configuration_is_masked_applied_and_guarded(running: Gatehouse, root: httpx.Client) -> None:
    shown = root.get("/config")
    assert all(key not in shown.text for key in KEYS.values()) and "********" in shown.text
    config = yaml.safe_load(running.file.read_text())
    config["limits"] = [{"name": "applied", "requests": {"rate": 1000}}]
    text = yaml.safe_dump(config).encode()
    headers = {"content-type": "application/yaml", "if-match": shown.headers["etag"]}
    planned = root.put("/config?dry_run=true", content=text, headers=headers).json()
    assert (planned["changed"], planned["applied"]) == (["limits.applied"], False)
    fixed = yaml.safe_dump({**config, "state_dir": "/elsewhere"}).encode()
    for dry_run in ("true", "false"):
        answer = root.put(f"/config?dry_run={dry_run}", content=fixed, headers={"content-type": "application/yaml"})
        assert "restart" in problem(answer, 400, "invalid_config")["detail"]
    applied = root.put("/config", content=text, headers=headers)
    assert applied.json()["changed"] == ["limits.applied"] and applied.headers["etag"] != shown.headers["etag"]
    assert [limit["name"] for limit in root.get("/limits?source=file").json()["items"]] == ["applied"]
    problem(root.put("/config", content=text, headers=headers), 412, "version_mismatch")
    wrong = root.put("/config", content=b"version: 1\nlimitz: []", headers={"content-type": "application/yaml"})
    assert "the text:2: limitz: " in wrong.text and ".yaml" not in wrong.text
    assert "limits" in problem(wrong, 400, "invalid_config")["detail"]
    assert "limits" in root.get("/status").json()["config"]["refused"]
    with admin(running, "viewer") as viewer:
        assert viewer.get("/status").json()["config"] is None
    assert root.post("/config/reload").json()["changed"] == ["limits.applied"]
    assert root.get("/status").json()["config"]["refused"] is None
    done = events(running, "admin.config.apply", applied.headers["x-request-id"])
    assert [record.get("outcome", "ok") for record in done] == ["begun", "ok"]
    assert done[1]["detail"]["diff"][0]["path"] == "limits" and set(done[0]["detail"]["body"]) == {"sha256", "bytes"}


def test_every_write_is_recorded_with_who_what_and_the_difference(running: Gatehouse, root: httpx.Client) -> None:
    made = root.post("/limits", json={**LIMIT, "name": "noted"}, headers={"x-request-id": "noted-1"})
    assert made.headers["x-request-id"] == "noted-1"
    begun, done = events(running, "admin.limits.create", "noted-1")
    assert (begun["actor"], begun["outcome"], begun["detail"]["body"]["name"]) == ("acme/a-admin", "begun", "noted")
    assert done["target"] == "limits/noted" and {"path": "name", "from": None, "to": "noted"} in done["detail"]["diff"]
    refused = root.post("/limits", json={**LIMIT, "name": "noted"})
    assert events(running, "admin.limits.create", refused.headers["x-request-id"])[-1]["outcome"] == "refused"
    with admin(running, "viewer") as client:
        denied = client.post("/limits", json=LIMIT)
    assert events(running, "admin.limits.create", denied.headers["x-request-id"])[-1]["outcome"] == "denied"
    assert not [r for r in running.audit() if r.get("event", "").endswith(".read") and r.get("outcome") != "denied"]


def test_secrets_in_settings_are_masked_everywhere(running: Gatehouse, root: httpx.Client) -> None:
    body = {"name": "hides", "type": "denylist", "settings": {"phrases": ["x"], "api_token": "hunter2-hunter2"}}
    refused = root.post("/guardrails", json=body)
    assert refused.status_code == 400 and "hunter2" not in refused.text
    assert "hunter2" not in json.dumps(events(running, "admin.guardrails.create", refused.headers["x-request-id"]))
    masked = {"name": "masked", "type": "denylist", "settings": {"phrases": ["********"]}}
    assert "mask" in problem(root.post("/guardrails", json=masked), 400, "invalid_value")["detail"]


def test_the_audit_log_is_read_verified_and_exported(running: Gatehouse, root: httpx.Client) -> None:
    request_id = running.chat().headers["x-request-id"]
    running.outcome(request_id)
    assert len(root.get("/audit/records?count=5").json()["items"]) == 5
    report = root.post("/audit/verify").json()
    assert report["ok"] is True and report["writers"][0]["lines"] > 10
    lines = [json.loads(line) for line in root.get("/audit/export", params={"request_id": request_id}).text.splitlines()]
    assert [line["kind"] for line in lines] == ["intent", "outcome"]
    problem(root.get("/audit/proofs/nobody"), 404, "not_found")
    proof = root.get(f"/audit/proofs/{request_id}")
    if proof.status_code != 200:  # a checkpoint comes each minute
        problem(proof, 409, "audit_unproven")
    pem = root.get("/audit/keys").json()["items"][0]["pem"]
    assert pem == (running.state_dir / "keys" / "audit-signing.pub.pem").read_text()


def test_usage_is_reported(running: Gatehouse, root: httpx.Client) -> None:
    assert running.chat().status_code == 200

    def counted() -> bool:
        rows = root.get("/usage", params={"group_by": "tenant,key,model"}).json()["items"]
        return any((row["tenant"], row["key"], row["model"]) == ("acme", "test", "m1") and row["requests"] > 0 for row in rows)

    until(counted, what="the usage")
    problem(root.get("/usage?group_by=moon"), 400, "invalid_value")


def test_events_follow_changes(root: httpx.Client) -> None:
    with root.stream("GET", "/events", params={"kind": "admin"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        assert next(lines) == ": connected"
        with httpx.Client(base_url=root.base_url, headers=root.headers, trust_env=False, timeout=90) as other:
            other.post("/tenants", json={"name": "heard"})
        data = next(line for line in lines if line.startswith("data: "))
    assert json.loads(data[6:]) == {"event": "admin.tenants.create", "actor": "acme/a-admin", "target": "tenants/heard", "outcome": "ok"}


def test_an_open_stream_of_events_does_not_keep_the_gateway_from_ending(tmp_path: Path, engine: EngineThread) -> None:
    with Gatehouse(tmp_path, adminapi.config(tmp_path / "state", engine.port)) as gatehouse, admin(gatehouse) as client:
        with client.stream("GET", "/events") as response:
            assert response.status_code == 200
            assert gatehouse.stop() == 0
        assert not [line for line in gatehouse.lines if "Traceback" in line]


def test_too_many_failed_logins_are_put_off(tmp_path: Path, engine: EngineThread) -> None:
    with Gatehouse(tmp_path, adminapi.config(tmp_path / "state", engine.port)) as gatehouse:
        with admin(gatehouse, key="wrong") as client:
            statuses = [client.get("/keys").status_code for _ in range(20)]
            assert statuses == [401] * 20

            def late() -> httpx.Response | None:  # each second that the machine stands still for is one more failure
                answer = client.get("/keys")
                statuses.append(answer.status_code)
                return answer if answer.status_code == 429 else None

            refused = until(late, what="the pause")
        assert int(problem(refused, 429, "rate_limit_exceeded")["status"]) == 429 and int(refused.headers["retry-after"]) >= 1
        assert 1 <= int(refused.headers["retry-after-ms"]) <= 1000 * int(refused.headers["retry-after"])
        with admin(gatehouse) as client:
            assert client.get("/status").status_code == 200, "another's failures lock nobody out"
        assert len(gatehouse.noted(event="admin.login")) <= statuses.count(401) // 2, "not each of them"


def test_the_first_start_prints_an_administrators_key_once(tmp_path: Path, engine: EngineThread) -> None:
    config = configuration(tmp_path / "state", engines=[external("fake", engine.port)], models=[{"name": "m1", "pool": ["fake"]}])
    for start in range(2):
        with Gatehouse(tmp_path, config) as gatehouse:
            printed = first_keys(gatehouse)
            assert len(printed) == (1 if start == 0 else 0)
            if printed:
                first = printed[0]
            with admin(gatehouse, key=first) as client:
                assert client.get("/whoami").json()["grants"] == [{"role": "admin", "tenant": None}]
            assert gatehouse.chat(key=first).status_code == 404
            assert first not in json.dumps(gatehouse.audit())
