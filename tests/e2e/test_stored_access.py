"""Roles and bindings of the store: on the data listener with two workers, and on the admin listener."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from admin.permissions import ALL, FIELDS
from admin.resources import table
from tests.e2e import adminapi
from tests.e2e.adminapi import admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.e2e.test_admin import attempt

CHATTER = {"name": "chatter", "permissions": ["infer:chat:model/m1"]}
PROBE = "probe-key-0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("stored")
    config = adminapi.config(directory / "state", engine.port)
    config["identity"]["api_keys"]["static"].append({"id": "probe", "key": PROBE, "tenant": "acme", "models": []})
    config["roles"] = {"filed": {"permissions": ["infer:chat"]}}
    config["bindings"] = [{"role": "filed", "subjects": ["key/nobody"]}]
    with Gatehouse(directory, config, arguments=["--workers", "2"]) as gatehouse:
        yield gatehouse


@pytest.fixture
def root(running: Gatehouse) -> Iterator[httpx.Client]:
    with admin(running) as client:
        yield client
        for kind in ("bindings", "roles"):
            for item in client.get(f"/{kind}", params={"source": "store", "limit": 1000}).json()["items"]:
                assert client.delete(f"/{kind}/{item['name']}").status_code == 200


def chat(running: Gatehouse, key: str = KEY, **body: Any) -> httpx.Response:
    body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **body}
    return httpx.post(
        f"{running.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, trust_env=False, timeout=60
    )


def made(response: httpx.Response, status: int = 201) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_role_and_a_binding_are_made_read_changed_and_deleted(root: httpx.Client) -> None:
    role = root.post("/roles", json=CHATTER)
    assert made(role) == {**role.json(), **CHATTER, "confined": True, "description": "", "source": "store", "version": 1}
    bound = root.post("/bindings", json={"name": "b", "role": "chatter", "subjects": ["key/ci"], "when": "request.max_tokens < 9"})
    assert made(bound)["effect"] == "allow" and bound.json()["tenant"] == "*" and bound.headers["etag"] == '"1"'
    assert root.get("/bindings/b").json() == bound.json()
    changed = root.patch("/bindings/b", json={"effect": "deny"}, headers={"if-match": '"1"'})
    assert made(changed, 200)["effect"] == "deny" and changed.json()["when"] == "request.max_tokens < 9" and changed.json()["version"] == 2
    problem(
        root.put("/bindings/b", json={"name": "b", "role": "filed", "subjects": ["key/x"]}, headers={"if-match": '"1"'}),
        412,
        "version_mismatch",
    )
    problem(root.delete("/roles/chatter"), 409, "in_use")
    dry = made(root.put("/roles/chatter?dry_run=true", json={**CHATTER, "permissions": ["infer:*"]}), 200)
    assert dry["diff"] == [{"path": "permissions", "from": ["infer:chat:model/m1"], "to": ["infer:*"]}]
    assert made(root.delete("/bindings/b"), 200) and made(root.delete("/roles/chatter"), 200)
    problem(root.get("/bindings/b"), 404, "not_found")
    sources = {item["name"]: item["source"] for item in root.get("/roles").json()["items"]}
    assert (sources["admin"], sources["filed"]) == ("built-in", "file") and root.get("/roles/filed").json()["source"] == "file"
    assert [(item["name"], item["source"]) for item in root.get("/bindings").json()["items"]] == [("0", "file")]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/roles", {"name": "r", "permissions": ["infer:chta"]}, "permissions[0]", "did you mean 'chat'?"),
        ("/roles", {"name": "r", "permissions": ["infer:*", "admin:kesy:read"]}, "permissions[1]", "did you mean 'keys'?"),
        ("/roles", {"name": "r", "permissions": ["admin:keys:reed"]}, "permissions[0]", "did you mean 'read'?"),
        ("/roles", {"name": "r", "permissions": ["infer:chat:model/m11"]}, "permissions[0]", "did you mean 'm1'?"),
        ("/roles", {"name": "r", "permissions": []}, "permissions", ""),
        ("/bindings", {"name": "b", "role": "fild", "subjects": ["key/a"]}, "role", "did you mean 'filed'?"),
        ("/bindings", {"name": "b", "role": "filed", "subjects": ["key/a", "kei/a"]}, "subjects[1]", "is not a subject"),
        ("/bindings", {"name": "b", "role": "filed", "subjects": []}, "subjects", "needs subjects"),
        ("/bindings", {"name": "7", "role": "filed", "subjects": ["key/a"]}, "name", "digits"),
        ("/bindings", {"name": "b", "role": "filed", "subjects": ["key/a"], "when": "request.colour == 1"}, "when", "colour"),
        ("/bindings", {"name": "b", "role": "filed", "subjects": ["key/a"], "effect": "forbid"}, "effect", "allow, deny"),
        ("/bindings", {"name": "b", "role": "filed", "subjects": ["key/a"], "tenant": "a b"}, "tenant", ""),
        ("/bindings", {"name": "b\n", "role": "filed", "subjects": ["key/a"]}, "name", ""),
    ],
)
def test_mistakes_are_told_with_what_would_be_right(root: httpx.Client, path: str, body: dict[str, Any], param: str, words: str) -> None:
    response = root.post(path, json=body)
    answer = problem(response, 400, response.json()["code"])
    assert answer["code"] in ("invalid_config", "invalid_value")
    assert param in str(answer) and words in str(answer), answer


def test_what_the_file_or_the_program_defines_stays(root: httpx.Client) -> None:
    for name in ("admin", "filed"):
        problem(root.post("/roles", json={**CHATTER, "name": name}), 409, "read_only")
        problem(root.delete(f"/roles/{name}"), 409, "read_only")
    problem(root.delete("/bindings/0"), 409, "read_only")


def test_bindings_decide_in_every_worker_within_a_second(running: Gatehouse, root: httpx.Client) -> None:
    assert chat(running).status_code == 200
    made(root.post("/roles", json=CHATTER))
    wait = {"wait": 60}
    denied = {"name": "no", "role": "chatter", "subjects": ["key/test"], "effect": "deny", "when": 'request.label == "secret"'}
    assert root.post("/bindings", params=wait, json=denied).headers["x-gatehouse-in-force"] == "true"
    for _ in range(8):
        assert chat(running).status_code == 200
        assert chat(running, metadata={"data_label": "secret"}).status_code == 403
    assert root.patch("/bindings/no", params=wait, json={"when": None}).headers["x-gatehouse-in-force"] == "true"
    assert {chat(running).status_code for _ in range(8)} == {403}
    assert root.delete("/bindings/no", params=wait).headers["x-gatehouse-in-force"] == "true"
    assert {chat(running).status_code for _ in range(8)} == {200}
    narrowed = {"name": "some", "role": "chatter", "subjects": ["tenant/acme"], "tenant": "acme", "when": "request.max_tokens <= 5"}
    assert root.post("/bindings", params=wait, json=narrowed).headers["x-gatehouse-in-force"] == "true"
    assert {chat(running).status_code for _ in range(8)} == {200} and {chat(running, max_tokens=6).status_code for _ in range(8)} == {403}


def test_an_admin_binding_says_nothing_about_inference(running: Gatehouse, root: httpx.Client) -> None:
    made(root.post("/bindings?wait=60", json={"name": "old", "tenant": "acme", "principal": "test", "role": "viewer"}))
    assert chat(running).status_code == 200, "a key without a role for inference keeps what it says"
    assert root.get("/bindings/old").json()["subjects"] == ["principal/test"]


def test_deleting_a_role_while_it_is_bound_leaves_no_binding_without_a_role(root: httpx.Client) -> None:
    """Whoever comes first wins, and the other is refused."""
    for number in range(15):
        name = f"race{number}"
        made(root.post("/roles", json={**CHATTER, "name": name}))
        answers: dict[str, int] = {}

        def bind(client: httpx.Client, name: str = name, answers: dict[str, int] = answers) -> None:
            body = {"name": name, "role": name, "subjects": ["key/x"], "effect": "deny"}
            answers["bind"] = client.post("/bindings", json=body).status_code

        def drop(client: httpx.Client, name: str = name, answers: dict[str, int] = answers) -> None:
            answers["drop"] = client.delete(f"/roles/{name}").status_code

        both = [threading.Thread(target=act, args=(root,)) for act in ((bind, drop) if number % 2 else (drop, bind))]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert answers in ({"bind": 201, "drop": 409}, {"bind": 404, "drop": 200}, {"bind": 400, "drop": 200}), answers
    for item in root.get("/bindings?source=store").json()["items"]:
        assert root.get(f"/roles/{item['role']}").status_code == 200


# --- on the admin listener


@pytest.fixture
def give(running: Gatehouse, root: httpx.Client) -> Iterator[Callable[..., httpx.Client]]:
    """Gives the key `probe` a role of these permissions, and nothing else; its client."""
    with admin(running, key=PROBE) as client:

        def as_holder(*permissions: str, **more: Any) -> httpx.Client:
            body = {"name": "probing", "permissions": list(permissions), **more}
            if root.get("/roles/probing").status_code == 404:
                made(root.post("/roles", json=body))
                made(root.post("/bindings", json={"name": "probing", "role": "probing", "subjects": ["key/probe"]}))
            else:
                made(root.put("/roles/probing", json=body), 200)
            return client

        yield as_holder


def test_every_route_opens_to_its_permission_and_to_no_other(give: Callable[..., httpx.Client]) -> None:
    """The matrix of permissions and routes: a role of the one permission gets in; a role of all others does not."""
    operations = table.operations()
    for permission in sorted({operation.permission for operation in operations}):
        asked = [operation for operation in operations if operation.permission == permission]
        assert permission in ALL
        client = give(f"admin:{permission}")
        # `my/...` is for people who have logged in (test_own_keys.py); a key is none
        assert all(attempt(client, operation) != 403 for operation in asked if not operation.path.startswith("my/")), permission
        client = give(*(f"admin:{one}" for one in ALL - {permission}))
        assert all(attempt(client, operation) == 403 for operation in asked), permission


def test_fields_with_a_permission_of_their_own(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    engine = {"name": "e", "runtime": "external"}
    writes: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
        ("keys", "roles"): ("/keys", {"tenant": "acme", "roles": ["viewer"]}),
        ("keys", "priority"): ("/keys", {"tenant": "acme", "priority": "interactive"}),
        ("users", "roles"): ("/users", {"name": "alice@acme", "roles": ["viewer"]}),
        ("tenants", "models"): ("/tenants", {"name": "t9", "models": ["m1"]}),
        ("tenants", "networks"): ("/tenants", {"name": "t9", "networks": ["10.0.0.0/8"]}),
        ("engines", "url"): ("/engines", {**engine, "url": "http://127.0.0.1:9"}),
        ("engines", "api_key"): ("/engines", {**engine, "url": "http://127.0.0.1:9", "api_key": "x" * 40}),
        ("engines", "headers"): ("/engines", {**engine, "url": "http://127.0.0.1:9", "headers": {"a": "b"}}),
        ("engines", "tls"): ("/engines", {**engine, "url": "https://127.0.0.1:9", "tls": {}}),
        ("engines", "dns"): ("/engines", {**engine, "url": "http://vllm.example:9", "dns": {"records": "address"}}),
        ("engines", "joined"): ("/engines", {**engine, "joined": {"machines": ["gpu-*"]}}),
    }
    assert {field for field in FIELDS if field not in writes} == {("endpoints", "address")}
    for field, (path, body) in writes.items():
        client = give(*(f"admin:{one}" for one in ALL - {FIELDS[field]}), confined=False)
        problem(client.post(path, params={"dry_run": "true"}, json=body), 403, "policy_denied")
    client = give("admin:endpoints:read")
    assert all(not item.get("address") for item in client.get("/endpoints").json()["items"])


def test_a_confined_role_stays_in_its_holders_tenant(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    theirs = made(root.post("/keys", json={"tenant": "globex", "models": ["m1"]}))["id"]
    client = give("admin:keys:*", "admin:bindings:*")
    assert {key["tenant"] for key in client.get("/keys").json()["items"]} == {"acme"}
    problem(client.get(f"/keys/{theirs}"), 404, "not_found")
    problem(client.post("/keys", json={"tenant": "globex", "models": ["m1"]}), 403, "policy_denied")
    for tenant in ("globex", "*", "a*", "acm*"):
        body = {"name": "up", "role": "probing", "subjects": ["key/probe"], "tenant": tenant}
        problem(client.post("/bindings", json=body), 403, "policy_denied")
    made(client.post("/bindings", json={"name": "mine", "role": "probing", "subjects": ["key/other"], "tenant": "acme"}))
    for change in ({"tenant": "*"}, {"tenant": "globex"}, {"role": "admin"}, {"role": "operator", "effect": "deny"}):
        problem(client.patch("/bindings/mine", json=change), 403, "policy_denied")
    wide = give("admin:keys:*", "admin:bindings:*", confined=False)
    assert wide.get(f"/keys/{theirs}").status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/roles", {"name": "up", "permissions": ["admin:*"]}),
        ("/roles", {"name": "up", "permissions": ["admin:keys:rotate"]}),
        ("/roles", {"name": "up", "permissions": ["admin:*:read"]}),
        ("/roles", {"name": "up", "permissions": ["admin:keys:write"]}),
        ("/roles", {"name": "up", "permissions": ["admin:roles:create"], "confined": False}),
        ("/roles", {"name": "up", "permissions": ["infer:chat"]}),
        ("/bindings", {"name": "up", "role": "admin", "subjects": ["key/probe"], "tenant": "acme"}),
        ("/bindings", {"name": "up", "role": "tenant-admin", "subjects": ["key/probe"], "tenant": "acme"}),
        ("/bindings", {"name": "up", "role": "filed", "subjects": ["key/probe"], "tenant": "acme"}),
        ("/bindings", {"name": "up", "role": "admin", "principal": "probe", "tenant": "acme"}),
        ("/bindings", {"name": "up", "role": "viewer", "effect": "deny", "subjects": ["principal/a-auditor"], "tenant": "acme"}),
        ("/bindings", {"name": "up", "role": "probing", "subjects": ["key/probe"]}),
    ],
)
def test_nobody_grants_what_they_lack_through_roles_and_bindings(
    give: Callable[..., httpx.Client], root: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    client = give("admin:roles:*", "admin:bindings:*", "admin:keys:read", "admin:resources:apply")
    kind = path.strip("/")
    if body.get("permissions") == ["admin:roles:create"]:
        made(client.post(path, params={"dry_run": "true"}, json=body), 200)  # belongs to no tenant, so nothing is gained
        return
    problem(client.post(path, json=body), 403, "policy_denied")
    problem(client.post("/apply", json={kind: [body]}), 403, "policy_denied")
    if "role" in body:
        body = {**{name: value for name, value in body.items() if name != "principal"}, "subjects": ["key/somebody"]}
    made(root.post(path, json=body))
    for response in (client.delete(f"{path}/up"), client.put(f"{path}/up", json=body), client.patch(f"{path}/up", json={})):
        assert response.status_code in (403, 404), "nor takes it away, nor touches it"
    problem(client.put("/roles/probing", json={"name": "probing", "permissions": ["admin:*"]}), 403, "policy_denied")


def test_a_role_and_its_binding_in_one_write_give_no_more(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    both = {
        "roles": [{"name": "new", "permissions": ["admin:*"]}],
        "bindings": [{"name": "new", "role": "new", "subjects": ["key/probe"], "tenant": "acme"}],
    }
    client = give("admin:roles:*", "admin:bindings:*", "admin:resources:apply")
    problem(client.post("/apply", json=both), 403, "policy_denied")
    assert [item["action"] for item in made(root.post("/apply", json=both), 200)["items"]] == ["created", "created"]
    assert client.get("/audit/records").status_code == 200


def test_a_key_that_roles_give_more_is_not_taken_over(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    made(root.post("/keys", json={"id": "strong", "tenant": "acme", "models": []}))
    client = give("admin:keys:*")
    for subjects in (["key/str*"], ["tenant/acme"], ["principal/strong"]):
        made(root.post("/bindings", json={"name": "s", "role": "operator", "subjects": subjects, "when": "request.bytes == 1"}))
        problem(client.post("/keys/strong/rotate", json={}), 403, "policy_denied")
        assert root.delete("/bindings/s").status_code == 200
    made(client.post("/keys/strong/rotate?dry_run=true", json={}), 200)
    assert root.delete("/keys/strong").status_code == 200


@pytest.mark.usefixtures("alone")
def test_nobody_joins_a_group_that_has_more_rights(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    for kind, name in (("groups", "ops@acme"), ("groups", "plain@acme"), ("users", "mallory@acme"), ("users", "chief@acme")):
        made(root.post(f"/{kind}", json={"name": name}))
    made(root.post("/bindings", json={"name": "ops", "role": "operator", "subjects": ["group/ops"], "tenant": "acme"}))
    made(root.post("/bindings", json={"name": "chief", "role": "auditor", "subjects": ["user/chief"], "tenant": "acme"}))
    client = give("admin:groups:*", "admin:users:*")
    joining = {"user": "mallory@acme"}
    problem(client.post("/groups/ops@acme/add-member", json=joining), 403, "policy_denied")
    problem(client.patch("/users/mallory@acme", json={"groups": ["ops"]}), 403, "policy_denied")
    problem(client.post("/users", json={"name": "eve@acme", "groups": ["ops"]}), 403, "policy_denied")
    problem(client.patch("/users/chief@acme", json={"display_name": "x"}), 403, "policy_denied")
    problem(client.delete("/users/chief@acme"), 403, "policy_denied")
    assert client.post("/groups/plain@acme/add-member", json=joining).status_code in (200, 201)
    assert client.patch("/users/mallory@acme", json={"groups": []}).status_code == 200


@pytest.fixture
def alone(root: httpx.Client) -> Iterator[None]:
    """Takes the users and groups of a test away."""
    yield
    for name in [one["name"] for one in root.get("/bindings?source=store").json()["items"] if one["name"] != "probing"]:
        assert root.delete(f"/bindings/{name}").status_code == 200
    for kind in ("users", "groups"):
        for item in root.get(f"/{kind}?limit=1000").json()["items"]:
            assert root.delete(f"/{kind}/{item['name']}").status_code == 200


@pytest.mark.usefixtures("alone")
def test_members_alone_give_no_inference_and_no_condition(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    for name in ("talk", "open", "night", "keyed", "plain", "bare"):
        rules = {"open": {"models": ["m1"]}, "keyed": {"own_keys": {}}}.get(name, {})
        made(root.post("/groups", json={"name": f"{name}@acme", **rules}))
    for name in ("eve", "rose"):
        made(root.post("/users", json={"name": f"{name}@acme"}))
    reads = {"name": "shift", "role": "operator", "subjects": ["user/eve"], "when": '"night" in principal.groups'}
    made(root.post("/bindings", json={"name": "talk", "role": "filed", "subjects": ["group/talk"]}))
    made(root.post("/bindings", json=reads))
    client = give("admin:groups:members", "admin:groups:read", "admin:users:*")
    eve = {"user": "eve@acme"}
    problem(client.post("/groups/plain@acme/add-member", json=eve), 403, "policy_denied")  # it is asked of whom a condition may give more
    assert root.delete("/bindings/shift").status_code == 200
    assert client.post("/groups/plain@acme/add-member", json=eve).status_code == 200
    made(root.post("/bindings", json={**reads, "subjects": ["tenant/acme"]}))
    for group in ("talk", "open", "night", "keyed"):
        problem(client.post(f"/groups/{group}@acme/add-member", json=eve), 403, "policy_denied")
        problem(client.patch("/users/eve@acme", json={"groups": ["plain", group]}), 403, "policy_denied")
        problem(client.post("/users", json={"name": "adam@acme", "groups": [group]}), 403, "policy_denied")
    assert root.delete("/bindings/shift").status_code == 200
    for group in ("talk", "open", "keyed"):  # what a group forbids is not taken away either
        assert root.post(f"/groups/{group}@acme/add-member", json={"user": "rose@acme"}).status_code == 200
        problem(client.post(f"/groups/{group}@acme/remove-member", json={"user": "rose@acme"}), 403, "policy_denied")
        problem(client.delete("/users/rose@acme"), 403, "policy_denied")
        assert root.post(f"/groups/{group}@acme/remove-member", json={"user": "rose@acme"}).status_code == 200
    assert client.delete("/users/rose@acme").status_code == 200
    client = give("admin:groups:*", "admin:users:*")
    problem(client.patch("/groups/plain@acme", json={"models": ["m1"]}), 403, "policy_denied")
    problem(client.patch("/groups/open@acme", json={"models": []}), 403, "policy_denied")
    problem(client.delete("/groups/open@acme"), 403, "policy_denied")
    problem(client.post("/groups", json={"name": "new@acme", "own_keys": {}}), 403, "policy_denied")
    problem(root.delete("/groups/talk@acme"), 409, "in_use")
    assert client.delete("/groups/bare@acme").status_code == 200
    assert client.patch("/groups/open@acme", json={"description": "x"}).status_code == 200
    client = give("admin:groups:*", "admin:keys:create")  # who may make keys may let others infer
    assert client.post("/groups/open@acme/add-member", json=eve).status_code == 200


@pytest.mark.usefixtures("alone")
def test_a_role_of_the_store_that_a_user_has_stays_and_is_given_by_its_holders_only(
    give: Callable[..., httpx.Client], root: httpx.Client
) -> None:
    made(root.post("/roles", json={"name": "logs", "permissions": ["admin:audit:read"]}))
    made(root.post("/roles", json=CHATTER))
    client = give("admin:users:*", "admin:roles:*")
    problem(client.post("/users", json={"name": "eve@acme", "roles": ["logs"]}), 403, "policy_denied")
    problem(client.post("/users", json={"name": "eve@acme", "roles": ["chatter"]}), 403, "policy_denied")
    problem(root.post("/users", json={"name": "eve@acme", "roles": ["logz"]}), 400, "invalid_value")
    made(root.post("/users", json={"name": "eve@acme", "roles": ["logs"]}))
    problem(client.patch("/users/eve@acme", json={"roles": []}), 403, "policy_denied")
    problem(client.patch("/users/eve@acme", json={"display_name": "x"}), 403, "policy_denied")
    assert "eve@acme" in problem(root.delete("/roles/logs"), 409, "in_use")["detail"]
    assert root.patch("/users/eve@acme", json={"roles": []}).status_code == 200
    assert root.delete("/roles/logs").status_code == 200


def test_a_new_key_has_no_more_by_a_pattern_than_who_makes_it(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    made(root.post("/bindings", json={"name": "any", "role": "operator", "subjects": ["key/key-*"]}))
    client = give("admin:keys:*")
    problem(client.post("/keys", json={"tenant": "acme", "models": ["m1"]}), 403, "policy_denied")
    made(client.post("/keys?dry_run=true", json={"tenant": "acme", "id": "named", "models": ["m1"]}), 200)
    assert root.patch("/bindings/any", json={"subjects": ["key/test"]}).status_code == 200
    problem(client.post("/keys/test/suspend", json={}), 403, "policy_denied")


def test_a_tenant_that_is_bound_or_bounded_is_not_deleted_by_everybody(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    made(root.post("/tenants", json={"name": "t9", "models": ["m1"]}))
    made(root.post("/bindings", json={"name": "t9", "role": "viewer", "subjects": ["tenant/t9"]}))
    client = give("admin:tenants:read", "admin:tenants:delete", confined=False)
    problem(client.delete("/tenants/t9"), 409, "in_use")
    assert root.delete("/bindings/t9").status_code == 200
    problem(client.delete("/tenants/t9"), 403, "policy_denied")
    assert root.delete("/tenants/t9").status_code == 200


def test_deny_wins_on_the_admin_listener_at_once(give: Callable[..., httpx.Client], root: httpx.Client) -> None:
    client = give("admin:*")
    assert client.get("/keys").status_code == client.get("/audit/records").status_code == 200
    made(root.post("/roles", json={"name": "log", "permissions": ["admin:audit:*"]}))
    denied = {"name": "no-log", "role": "log", "subjects": ["tenant/*"], "effect": "deny"}
    problem(root.post("/bindings", json=denied), 409, "own_rights")
    made(root.post("/bindings", json={**denied, "subjects": ["key/pro*", "key/a-auditor"]}))
    problem(client.get("/audit/records"), 403, "policy_denied")
    assert client.get("/keys").status_code == root.get("/audit/records").status_code == 200
    problem(client.delete("/bindings/no-log"), 404, "not_found")  # one for all tenants, which a confined role does not see
    made(root.patch("/bindings/no-log", json={"tenant": "acme"}), 200)
    problem(client.delete("/bindings/no-log"), 403, "policy_denied")
    problem(client.patch("/bindings/no-log", json={"subjects": ["key/nobody"]}), 403, "policy_denied")
    problem(client.post("/keys", json={"tenant": "acme", "roles": ["auditor"]}), 403, "policy_denied")
    assert root.delete("/bindings/no-log").status_code == 200 and client.get("/audit/records").status_code == 200
