"""The store as a file: dumped, compared, and made equal to one, by the admin API and by `gatehouse dump`, `diff` and `sync`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from admin.resources.sync import KINDS
from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS, admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_cli import environment
from tests.waiting import until

Cli = Callable[..., Result]
SECRET = "sk-0123456789abcdef0123456789abcdef"
REFERENCE = "${env:GATEHOUSE_SECRET_UPSTREAM}"
RATE = {"rate": 5, "per": "1m30s"}


def start(directory: Path, port: int, **parts: Any) -> Gatehouse:
    config = adminapi.config(directory / "state", port, **parts)
    config["limits"] = [{"name": "filed", "requests": {"rate": 1000, "per": "1s"}}]
    return Gatehouse(directory, config, {"GATEHOUSE_SECRET_UPSTREAM": "sk-from-the-environment"})


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    with start(tmp_path_factory.mktemp("first"), engine.port) as gatehouse:
        yield gatehouse


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    with start(tmp_path_factory.mktemp("second"), engine.port) as gatehouse:
        yield gatehouse


@pytest.fixture
def root(first: Gatehouse) -> Iterator[httpx.Client]:
    with admin(first) as client:
        yield client
        empty = {kind: [] for kind in KINDS}
        assert client.post("/sync", params={"delete": "true"}, json=empty).status_code == 200


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def run(gatehouse: Gatehouse, *arguments: str, code: int = 0, **options: Any) -> Result:
        where = {"GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"]}
        result = CliRunner().invoke(app, list(arguments), env=environment(tmp_path / "home", **where), **options)
        assert result.exit_code == code, result.output
        return result

    return run


def fill(client: httpx.Client, port: int) -> None:
    """One of everything, each naming another where it can."""
    url = f"http://127.0.0.1:{port}"
    for path, body in (
        ("/tenants", {"name": "initech", "models": ["m*", "more"], "display_name": "no", "cost_centre": "1e5"}),
        ("/groups", {"name": "staff@initech", "models": ["more"], "own_keys": {"count": 3, "life": "30d"}}),
        ("/roles", {"name": "chatter", "permissions": ["infer:chat:model/m1", "admin:keys:read"], "description": "012"}),
        ("/users", {"name": "ann@initech", "groups": ["staff"], "roles": ["chatter"], "description": "line\nother: [x] ünï"}),
        ("/bindings", {"name": "few", "role": "chatter", "subjects": ["group/staff"], "tenant": "initech", "when": "request.stream"}),
        ("/limits", {"name": "slow", "match": {"tenant": "initech"}, "requests": RATE}),
        ("/guardrails", {"name": "words", "type": "denylist", "settings": {"phrases": ["forbidden"]}}),
        ("/engines", {"name": "plain", "runtime": "external", "url": url, "slots": 8, "api_key": REFERENCE}),
        ("/engines", {"name": "keyed", "runtime": "external", "url": url, "api_key": SECRET, "headers": {"x-key": SECRET}}),
        ("/models", {"name": "more", "pool": [{"engine": "plain", "weight": 2}], "aliases": ["alias"]}),
        ("/prices", {"name": "cheap", "model": "more", "prompt": 1e-7, "completion": 0.1, "from": "2026-01-01T00:00:00Z"}),
        ("/keys", {"id": "ci", "tenant": "initech", "models": ["more"], "limits": ["slow"], "expires": "2030-01-31T00:00:00+01:00"}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 201, (path, answer.text)


def dumped(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/dump")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def actions(answer: httpx.Response) -> set[str]:
    assert answer.status_code == 200, answer.text
    return {f"{item['action']} {item['kind']}/{item['name']}" for item in answer.json()["items"]}


def test_a_dump_has_everything_and_no_secret_and_equals_itself(first: Gatehouse, root: httpx.Client, engine: EngineThread) -> None:
    fill(root, engine.port)
    found = dumped(root)
    assert list(found) == list(KINDS) and SECRET not in json.dumps(found)
    assert {kind: len(items) for kind, items in found.items()} == {**dict.fromkeys(KINDS, 1), "engines": 2}
    assert found["limits"][0]["requests"]["per"] == "1m30s" and found["keys"][0]["expires"] == "2030-01-30T23:00:00Z"
    assert [(one["name"], one["api_key"]) for one in found["engines"]] == [("keyed", "********"), ("plain", REFERENCE)]
    head = root.get("/dump", params={"kinds": "limits,roles"}).json()
    assert {kind for kind, items in head.items() if items is not None} == {"limits", "roles"}
    assert not actions(root.post("/sync:diff", json=found))
    same = root.post("/sync", json=found)
    assert not actions(same) and same.json()["unchanged"] == len(KINDS) + 1
    assert dumped(root) == found
    with admin(first, "tenant-admin") as other:
        problem(other.get("/dump"), 403, "policy_denied")


def test_a_dump_fills_another_gateway(
    first: Gatehouse, second: Gatehouse, root: httpx.Client, engine: EngineThread, cli: Cli, tmp_path: Path
) -> None:
    fill(root, engine.port)
    file = tmp_path / "store.yaml"
    cli(first, "dump", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert "0 differences" in cli(first, "diff", str(file)).output
    wanted = json.loads(cli(first, "dump", "-", "-o", "json").stdout)
    with admin(second) as other:
        answer = problem(other.post("/sync", json=wanted), 400, "invalid_value")
        assert "engines/keyed" in answer["detail"] and "api_key" in answer["detail"]  # a file has no secrets
        for engine_of in wanted["engines"]:
            if engine_of["name"] == "keyed":
                engine_of.update(api_key=SECRET, headers={"x-key": SECRET})
        file = tmp_path / "store.json"
        file.write_text(json.dumps(wanted))
        assert "created limits/slow" in cli(second, "diff", str(file), code=1).output
        assert "keys ci" in cli(second, "sync", str(file), code=1).output  # all the rest is done
        assert actions(other.post("/sync:diff", json=wanted)) == {"missing keys/ci"}
        assert other.post("/keys", json={"id": "ci", "tenant": "initech"}).status_code == 201
        assert "replaced keys/ci" in cli(second, "sync", "-", input=file.read_text()).output
        assert dumped(other) == dumped(root)
        more = other.get("/engines/keyed").json()["settings"]
        assert more["api_key"] == "********" and other.get("/models/more").json()["in_force"]


def test_what_goes_is_named_and_confirmed_and_all_or_nothing(first: Gatehouse, root: httpx.Client, engine: EngineThread, cli: Cli) -> None:
    fill(root, engine.port)
    before = dumped(root)
    less = json.dumps({**before, "limits": [], "tenants": [{**before["tenants"][0], "description": "new"}]})
    dry = cli(first, "sync", "-", "--dry-run", input=less, code=1).output  # a key still names the limit
    assert "keys/" not in dry and "Keys still name the limit 'slow': ci" in dry
    assert dumped(root) == before
    problem(root.post("/sync", params={"delete": "true"}, content=less, headers={"content-type": "application/json"}), 409, "in_use")
    assert dumped(root) == before  # the tenant was not changed either
    wanted = {"limits": [], "keys": [{**before["keys"][0], "limits": []}]}
    answer = problem(root.post("/sync", json=wanted), 409, "would_delete")
    assert "limits/slow" in answer["detail"] and dumped(root) == before
    refused = cli(first, "sync", "-", input=json.dumps(wanted), code=1).output
    assert "deleted limits/slow" in refused and "say --delete" in refused and dumped(root) == before
    shown = cli(first, "sync", "-", "--dry-run", input=json.dumps(wanted)).output
    assert 'limits: ["slow"] -> []' in shown and dumped(root) == before
    cli(first, "sync", "-", "--delete", input=json.dumps(wanted))
    assert dumped(root) == {**before, "limits": [], "keys": wanted["keys"]}


@pytest.mark.parametrize("kind", ["tenants", "groups", "roles", "engines"])
def test_nothing_goes_that_is_in_use(root: httpx.Client, engine: EngineThread, kind: str) -> None:
    fill(root, engine.port)
    before = dumped(root)
    wanted = {kind: [], "prices": []}
    problem(root.post("/sync", params={"delete": "true"}, json=wanted), 409, "in_use")
    problem(root.post("/sync", params={"delete": "true", "dry_run": "true"}, json=wanted), 409, "in_use")
    assert dumped(root) == before


def test_what_names_each_other_goes_and_comes_together(root: httpx.Client, engine: EngineThread) -> None:
    fill(root, engine.port)
    found = dumped(root)
    role, binding, price = found["roles"][0], found["bindings"][0], found["prices"][0]
    wanted = {
        "roles": [{**role, "name": "other"}],
        "bindings": [{**binding, "role": "other"}],
        "users": [{**found["users"][0], "roles": ["other"]}],
        "prices": [{**price, "name": "same-model"}],  # it would overlap with the one that goes
    }
    assert root.post("/sync", params={"delete": "true"}, json=wanted).status_code == 200
    assert dumped(root) == {**found, **wanted}
    everything = {kind: [] for kind in KINDS}
    gone = root.post("/sync", params={"delete": "true", "dry_run": "true"}, json=everything)
    assert len(actions(gone)) == 12 and dumped(root) == {**found, **wanted}
    plan = gone.json()["plan"]
    assert root.delete("/prices/same-model").status_code == 200
    problem(root.post("/sync", params={"delete": "true", "plan": plan}, json=everything), 409, "plan_changed")
    assert root.post("/sync", params={"delete": "true"}, json=everything).status_code == 200
    assert dumped(root) == everything


def test_what_the_configuration_file_has_is_not_touched(root: httpx.Client) -> None:
    for kind, body in (("limits", {"name": "filed", "requests": RATE}), ("keys", {"id": "a-none", "tenant": "acme"})):
        problem(root.post("/sync", json={kind: [body]}), 409, "read_only")
    assert not actions(root.post("/sync", params={"delete": "true"}, json={"limits": [], "keys": [], "engines": [], "models": []}))
    assert root.get("/limits/filed").status_code == root.get("/keys/a-none").status_code == 200


def test_a_sync_needs_the_permissions_of_each_change_and_is_recorded(first: Gatehouse, root: httpx.Client, engine: EngineThread) -> None:
    fill(root, engine.port)
    found = dumped(root)
    with admin(first, "operator") as operator:
        assert dumped(operator) == found
        limit = {**found["limits"][0], "requests": {**RATE, "rate": 6}}
        assert actions(operator.post("/sync", json={"limits": [limit]})) == {"replaced limits/slow"}
        tenant = {**found["tenants"][0], "description": "changed"}
        problem(operator.post("/sync", json={"limits": found["limits"], "tenants": [tenant]}), 403, "policy_denied")
        problem(operator.post("/sync", params={"delete": "true"}, json={"guardrails": []}), 403, "policy_denied")
    assert dumped(root) == {**found, "limits": [{**limit, "requests": {**found["limits"][0]["requests"], "rate": 6}}]}
    records = root.get("/audit/records", params={"count": 100}).json()["items"]
    mine = [one for one in records if one.get("event") == "admin.resources.sync" and one["actor"] == "acme/a-operator"]
    (done,) = (one for one in mine if one.get("outcome", "ok") == "ok")
    assert [entry["path"] for entry in done["detail"]["diff"]] == ["limits/slow.requests.rate"] and done["target"] == "limits/slow"
    assert {one.get("outcome", "ok") for one in mine} == {"begun", "ok", "denied"}


def test_mistakes_say_what_is_wrong(root: httpx.Client, engine: EngineThread) -> None:
    fill(root, engine.port)
    found = dumped(root)
    twice = problem(root.post("/sync", json={"limits": found["limits"] * 2}), 400, "invalid_value")
    assert twice["param"] == "limits/slow"
    assert "nearest is 'limits'" in problem(root.post("/sync", json={"limitz": []}), 400, "invalid_value")["detail"]
    moved = problem(root.post("/sync", json={"keys": [{**found["keys"][0], "tenant": "acme"}]}), 400, "invalid_value")
    assert "initech" in moved["detail"]
    problem(root.get("/dump", params={"kinds": "limits,lamps"}), 400, "invalid_value")
    keyed = next(one for one in found["engines"] if one["name"] == "keyed")
    plain = next(one for one in found["engines"] if one["name"] == "plain")
    bare = root.post("/sync", json={"engines": [{**keyed, "headers": {}}, plain]})
    assert [entry["path"] for entry in bare.json()["items"][0]["diff"]] == ["headers.x-key"]
    kept = root.get("/engines/keyed").json()["settings"]
    assert kept["api_key"] == "********" and kept["headers"] == {}


def test_a_dump_says_what_the_caller_may_not_read(first: Gatehouse, root: httpx.Client, cli: Cli) -> None:
    assert root.post("/tenants", json={"name": "initech"}).status_code == 201
    assert root.post("/roles", json={"name": "few", "permissions": ["admin:resources:dump", "admin:limits:read"]}).status_code == 201
    assert root.post("/bindings", json={"name": "b", "role": "few", "subjects": ["key/a-viewer"]}).status_code == 201
    with admin(first, "viewer") as client:
        found = dumped(client)
        assert found["limits"] == [] and found["keys"] is found["users"] is found["engines"] is None
        problem(client.get("/dump", params={"kinds": "keys"}), 403, "policy_denied")
        problem(client.post("/sync:diff", json={"keys": []}), 403, "policy_denied")
        problem(client.post("/sync", json={"limits": []}), 403, "policy_denied")
    assert "may not read all groups, users" in cli(first, "dump", "-", "--key", KEYS["viewer"], code=1).output
    assert cli(first, "dump", "-", "--kind", "limits", "--key", KEYS["viewer"]).stdout == "limits: []\n"


def test_a_key_does_not_delete_itself_or_take_its_roles(first: Gatehouse, root: httpx.Client) -> None:
    assert root.post("/tenants", json={"name": "initech"}).status_code == 201
    made = root.post("/keys", json={"id": "self", "tenant": "initech", "roles": ["admin"]}).json()
    with admin(first, key=made["secret"]) as client:
        problem(client.post("/sync", params={"delete": "true"}, json={"keys": []}), 409, "own_rights")
        fewer = {"id": "self", "tenant": "initech", "roles": ["viewer"]}
        assert "take roles" in problem(client.post("/sync", json={"keys": [fewer]}), 409, "own_rights")["detail"]
        more = {**fewer, "roles": ["admin", "viewer"]}
        assert client.post("/sync", json={"keys": [more]}).status_code == 200
    assert root.get("/keys/self").json()["roles"] == ["admin", "viewer"]


def test_an_older_file_makes_no_expired_key_valid_again_by_itself(first: Gatehouse, root: httpx.Client, cli: Cli) -> None:
    assert root.post("/tenants", json={"name": "initech"}).status_code == 201
    made = root.post("/keys", json={"id": "old", "tenant": "initech", "roles": ["viewer"]}).json()
    older = {"keys": root.get("/dump", params={"kinds": "keys"}).json()["keys"]}

    def ending() -> str | None:
        """When the key ends now; none where that was over before it was said."""
        soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
        changed = root.patch("/keys/old", json={"expires": soon}, headers={"content-type": "application/merge-patch+json"})
        assert changed.status_code in (200, 400), changed.text
        return soon if changed.status_code == 200 else None

    soon: str = until(ending, what="an end that is to come")
    with admin(first, key=made["secret"]) as client:
        until(lambda: client.get("/models").status_code == 401, what="the end of the key")
        [item] = root.post("/sync:diff", json=older).json()["items"]
        assert (item["action"], item["revives"]) == ("replaced", True)
        answer = problem(root.post("/sync", params={"delete": "true"}, json=older), 409, "would_revive")
        assert "keys/old expired" in answer["detail"]
        refused = cli(first, "sync", "-", "--delete", input=json.dumps(older), code=1).output
        assert "WARNING: this key has expired" in refused and "say --revive" in refused
        still = {"keys": [{**older["keys"][0], "description": "ended", "expires": soon}]}
        assert root.post("/sync", json=still).json()["items"][0]["revives"] is False
        assert client.get("/models").status_code == 401
        cli(first, "sync", "-", "--revive", input=json.dumps(older))
        until(lambda: client.get("/models").status_code == 200, what="the key again")
