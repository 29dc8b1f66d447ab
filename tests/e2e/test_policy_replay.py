"""`policies diff` and `policies explain --request`: decisions of the past, from the audit log, made again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS, admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.e2e.test_cli import environment
from tests.waiting import until

OTHER = "other-key-0123456789abcdef0123456789abcdef"
NIGHTLY = "nightly-key-0123456789abcdef0123456789abcdef"
THEIR_ADMIN = "their-admin-0123456789abcdef0123456789abcdef"
ROLES = {"chatter": {"permissions": ["infer:chat:model/m1"]}}
BINDINGS = [{"name": "staff", "role": "chatter", "subjects": ["group/staff"], "when": "request.max_tokens <= 50"}]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("replay")
    models = [{"name": "m1", "pool": ["fake"], "aliases": ["gpt"]}, {"name": "m2", "pool": ["fake"]}]
    config = adminapi.config(directory / "state", engine.port, models=models, roles=ROLES, bindings=BINDINGS)
    config["identity"]["api_keys"]["static"] += [
        {"id": "theirs", "key": OTHER, "tenant": "globex", "models": ["*"]},
        {"id": "their-admin", "key": THEIR_ADMIN, "tenant": "globex", "models": [], "roles": ["tenant-admin"]},
        {"id": "nightly", "key": NIGHTLY, "tenant": "acme", "models": ["*"], "user": "nightly", "groups": ["staff", "jobs"]},
    ]
    config["limits"] = [
        {"name": "jobs", "per": "user", "match": {"user": "nightly"}, "requests": {"rate": 1000, "per": "1h"}, "concurrent": 64}
    ]
    with Gatehouse(directory, config, arguments=["--workers", "2"]) as gatehouse:
        traffic(gatehouse)
        yield gatehouse


def chat(running: Gatehouse, key: str, id: str, model: str = "m1", **body: Any) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "my secret words"}], **body}
    headers = {"authorization": f"Bearer {key}", "x-request-id": id}
    response = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, trust_env=False, timeout=60)
    assert response.headers["x-request-id"] == id
    return response.status_code


def traffic(running: Gatehouse) -> None:
    """What was decided: a key with a user and groups, under a condition; two keys without roles."""
    tool = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}
    assert chat(running, NIGHTLY, "n-small", max_tokens=50) == 200
    assert chat(running, NIGHTLY, "n-alias", "gpt", max_tokens=50, metadata={"data_label": "internal"}) == 200
    assert chat(running, NIGHTLY, "n-large", max_tokens=51) == 403
    assert chat(running, NIGHTLY, "n-hidden", "m2", max_tokens=5) == 404
    assert chat(running, KEY, "t-tools", max_tokens=5, tools=[tool]) == 200
    for number in range(3):
        assert chat(running, OTHER, f"o-{number}", "m2", max_tokens=500) == 200
    ids = ("n-small", "n-alias", "n-large", "n-hidden", "t-tools", "o-0", "o-1", "o-2")
    with admin(running) as root:
        until(lambda: all(root.get(f"/policies/decisions/{id}").status_code == 200 for id in ids), what="the records of both workers")


@pytest.fixture
def root(running: Gatehouse) -> Iterator[httpx.Client]:
    with admin(running) as client:
        yield client


def diff(client: httpx.Client, roles: dict[str, Any], bindings: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    response = client.post("/policies:diff", json={"roles": roles, "bindings": bindings, **more})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def changed(found: dict[str, Any]) -> dict[tuple[str, str], tuple[str, str, int]]:
    return {(one["principal"], one["model"]): (one["before"]["rule"], one["after"]["rule"], one["requests"]) for one in found["changes"]}


def test_nothing_changes_by_what_is_in_force(root: httpx.Client) -> None:
    found = diff(root, ROLES, BINDINGS)
    assert (found["decisions"], found["replayed"], found["allowed"], found["denied"], found["changes"]) == (8, 8, 0, 0, [])
    assert found["decided_otherwise_then"] == 0 and found["not_replayed"] == [] and found["complete"]
    assert found["first"].endswith("Z") and found["first"] <= found["last"]


def test_what_other_roles_and_bindings_would_change(root: httpx.Client) -> None:
    wider = diff(root, ROLES, [{**BINDINGS[0], "when": "request.max_tokens <= 51"}])
    assert changed(wider) == {("nightly", "m1"): ("binding:staff", "binding:staff", 1)} and (wider["allowed"], wider["denied"]) == (1, 0)
    assert wider["changes"][0]["request_id"] == "n-large" and wider["changes"][0]["user"] == "nightly"
    without = diff(root, {}, [])
    assert changed(without) == {("nightly", "m1"): ("binding:staff", "models:*", 1), ("nightly", "m2"): ("default-deny", "models:*", 1)}
    assert without["other_rule"] == 2
    shell = {"name": "no", "effect": "deny", "role": "chatter", "subjects": ["tenant/*"]}
    for when, whom in (
        ('"shell" in request.tools', {"test"}),
        ('request.label == "internal"', {"nightly"}),
        ('principal.user == "nightly"', {"nightly"}),
        ('principal.kind == "api_key" && cidr("127.0.0.0/8").containsIP(source.address) && !request.stream', {"nightly", "test"}),
    ):
        found = diff(root, ROLES, [*BINDINGS, {**shell, "when": when}])
        assert {one["principal"] for one in found["changes"]} == whom, when
    beside = diff(root, {}, [{**shell, "name": "m1-only"}], beside=True)
    assert {one["principal"] for one in beside["changes"]} == {"nightly", "test"} and beside["denied"] == 3
    assert diff(root, {}, [], last=3)["decisions"] == 3 and diff(root, {}, [], since="2099-01-01T00:00:00Z")["decisions"] == 0


def test_each_sees_what_is_theirs(running: Gatehouse, root: httpx.Client) -> None:
    assert changed(
        diff(root, {"r": {"permissions": ["infer:chat:model/m1"]}}, [{"role": "r", "subjects": ["tenant/globex"]}], tenant="globex")
    )
    with admin(running, key=THEIR_ADMIN) as theirs:
        found = diff(theirs, {}, [])
        assert found["decisions"] == 3 and found["changes"] == []
        problem(theirs.post("/policies:diff", json={"tenant": "acme"}), 403, "policy_denied")
        assert theirs.get("/policies/decisions/o-1").json()["rule"] == "models:*"
        problem(theirs.get("/policies/decisions/n-large"), 404, "not_found")
    with admin(running, "auditor") as auditor:
        assert diff(auditor, {}, [])["decisions"] == 8 and auditor.get("/policies/decisions/o-1").status_code == 200
    for role in ("viewer", "operator", "none"):
        with admin(running, role) as nobody:
            problem(nobody.post("/policies:diff", json={}), 403, "policy_denied")
            problem(nobody.get("/policies/decisions/o-1"), 403, "policy_denied")


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"roles": {"r": {"permissions": ["infer:chta"]}}}, "roles.r.permissions[0]", "did you mean 'chat'?"),
        ({"roles": {"r": {"permissions": ["infer:chat:model/m11"]}}}, "roles.r.permissions[0]", "did you mean 'm1'?"),
        ({"bindings": [{"role": "chattr", "subjects": ["key/a"]}]}, "bindings[0].role", "no role"),
        ({"bindings": [{"role": "admin", "subjects": ["key/a"], "when": "request.colour == 1"}]}, "bindings[0].when", "colour"),
        ({"bindings": [{"role": "admin", "subjects": ["key/a"]}], "beside": True}, "bindings[0].name", "needs a name"),
        ({"roles": {"admin": {"permissions": ["infer:*"]}}, "beside": True}, "roles.admin", "built-in"),
        ({"bindings": [{"name": "b", "role": "chattr", "subjects": ["key/a"]}], "beside": True}, "bindings.b", "no role"),
        ({"last": 0}, "last", ""),
        ({"last": 100_001}, "last", ""),
        ({"candidates": []}, "candidates", ""),
    ],
)
def test_a_candidate_that_could_not_be_used_is_refused(root: httpx.Client, body: dict[str, Any], param: str, words: str) -> None:
    response = root.post("/policies:diff", json=body)
    answer = problem(response, 400, response.json()["code"])
    assert param in str(answer) and words in str(answer), answer


def test_why_a_request_was_decided_as_it_was(root: httpx.Client) -> None:
    large = root.get("/policies/decisions/n-large").json()
    assert (large["allow"], large["rule"], large["tenant"], large["user"], large["credential"]) == (
        False,
        "binding:staff",
        "acme",
        "nightly",
        "api_key",
    )
    assert large["facts"]["request.max_tokens"] == 51 and large["facts"]["principal.groups"] == ["staff", "jobs"]
    assert large["now"]["rule"] == "binding:staff" and large["unrecorded"] == [] and large["lacking"] == ""
    assert {"rule": "binding:staff", "effect": "allow", "when": "request.max_tokens <= 50", "holds": False} in large["rules"]
    alias = root.get("/policies/decisions/n-alias").json()
    assert alias["allow"] and alias["model"] == "m1" and alias["facts"]["request.label"] == "internal"
    hidden = root.get("/policies/decisions/n-hidden").json()
    assert (hidden["allow"], hidden["model"], hidden["rule"]) == (False, "m2", "default-deny")
    assert root.get("/policies/decisions/t-tools").json()["facts"]["request.tools"] == ["shell"]
    assert "my secret words" not in large["facts"] and "secret" not in json.dumps(large)
    problem(root.get("/policies/decisions/nothing"), 404, "not_found")


@pytest.fixture
def cli(running: Gatehouse, tmp_path: Path) -> Callable[..., Result]:
    def run(*arguments: str, code: int = 0) -> Result:
        where = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["admin"]}
        result = CliRunner().invoke(app, list(arguments), env=environment(tmp_path / "home", **where))
        assert result.exit_code == code, result.output
        return result

    return run


def test_from_the_shell(cli: Callable[..., Result], tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(yaml.safe_dump({"version": 1, "roles": ROLES, "bindings": BINDINGS}))
    assert "8 of 8 decisions made again" in cli("policies", "diff", str(candidate), "--check").output
    candidate.write_text(yaml.safe_dump({"roles": ROLES, "bindings": [{**BINDINGS[0], "when": "request.max_tokens <= 51"}]}))
    assert "1 allowed that are denied" in cli("policies", "diff", str(candidate)).output
    found = json.loads(cli("policies", "diff", str(candidate), "--check", "--last", "100", "--since", "1h", "-o", "json", code=1).stdout)
    assert found["allowed"] == 1 and found["changes"][0]["before"]["allow"] is False
    candidate.write_text("limits: []\n")
    assert "roles or bindings" in cli("policies", "diff", str(candidate), code=1).output
    shown = cli("policies", "explain", "--request", "n-large", code=1).output
    assert "deny" in shown and "binding:staff" in shown and "request.max_tokens" in shown and "now: deny by binding:staff" in shown
    assert json.loads(cli("policies", "explain", "--request", "t-tools", "-o", "json").stdout)["allow"] is True
    assert "--model" in cli("policies", "explain", code=2).output


def test_limits_of_a_user_reach_a_key_that_stands_for_it(root: httpx.Client) -> None:
    answer = root.post("/policies:explain", json={"key": "nightly", "request": {"model": "m1", "max_tokens": 5}}).json()
    assert (answer["allow"], answer["rule"], answer["limits"]) == (True, "binding:staff", ["jobs"])
    assert root.get("/keys/nightly").json()["groups"] == ["staff", "jobs"] and root.get("/keys/nightly").json()["user"] == "nightly"
