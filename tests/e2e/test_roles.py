"""Roles, bindings and conditions against a running gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.app.main import app
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.e2e.test_admin_policies import ROOT_KEY, admin, config_with_root
from tests.e2e.test_cli import environment

ROLES = {
    "chatter": {"permissions": ["infer:chat:model/m1"]},
    "all": {"permissions": ["infer:*"]},
}
BINDINGS: list[dict[str, Any]] = [
    {"name": "small", "role": "chatter", "subjects": ["key/test"], "when": "request.max_tokens <= 50 && request.bytes < 4096"},
    {"name": "tools", "role": "chatter", "subjects": ["key/test"], "when": 'request.tools == ["search"]'},
    {"name": "no-shell", "role": "all", "effect": "deny", "subjects": ["tenant/*"], "when": '"shell" in request.tools'},
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("roles")
    config = config_with_root(directory / "state", engine, roles=ROLES, bindings=BINDINGS)
    with Gatehouse(directory, config) as gatehouse:
        yield gatehouse


def chat(running: Gatehouse, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], **body}
    return httpx.post(running.url + path, json=body, headers={"authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60)


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def test_conditions_decide_each_request(running: Gatehouse) -> None:
    assert chat(running, max_tokens=50).status_code == 200
    refused = chat(running, max_tokens=51)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "policy_denied")
    assert chat(running).status_code == 403, "a request without a bound is not a small one"
    assert chat(running, max_tokens=51, tools=[tool("search")]).status_code == 200
    assert chat(running, max_tokens=50, tools=[tool("search"), tool("shell")]).status_code == 403
    for hidden in (
        {"type": "function", "name": "shell", "function": {"name": "search", "parameters": {}}},
        {"type": "custom", "custom": {"name": "shell"}, "function": {"name": "search", "parameters": {}}},
    ):
        assert chat(running, max_tokens=50, tools=[hidden]).status_code == 403, "every name counts"
    assert chat(running, max_tokens=50, functions=[{"name": "shell", "parameters": {}}]).status_code == 403
    assert chat(running, max_tokens=5, messages=[{"role": "user", "content": "x" * 5000}]).status_code == 403


def test_a_key_with_a_role_needs_it(running: Gatehouse) -> None:
    refused = chat(running, "/v1/completions", prompt="hi", messages=None)
    assert refused.status_code in (400, 403)
    assert chat(running, model="nothing").status_code == 404


def test_the_audit_log_names_the_rule(running: Gatehouse) -> None:
    answer = chat(running, max_tokens=7)
    assert answer.status_code == 200
    records = running.audit()
    assert any(record.get("rule") == "binding:small" for record in records if record["kind"] == "intent")


def test_explain_shows_each_rule(running: Gatehouse) -> None:
    with admin(running) as client:
        question = {"key": "test", "request": {"model": "m1", "max_tokens": 60, "tools": ["search"]}}
        answer = client.post("/policies:explain", json=question).json()
        assert (answer["allow"], answer["rule"]) == (True, "binding:tools")
        assert [(rule["rule"], rule["effect"], rule["holds"]) for rule in answer["rules"]] == [
            ("binding:no-shell", "deny", False),
            ("models:*", "allow", True),
            ("binding:small", "allow", False),
            ("binding:tools", "allow", True),
        ]
        person = {"principal": {"tenant": "acme", "user": "alice"}, "request": {"model": "m1"}}
        assert client.post("/policies:explain", json=person).json()["rule"] == "default-deny"
        told = {"tenant": "acme", "strength": "mfa", "amr": ["otp"], "auth_time": "2026-01-31T22:00:00Z"}
        late = {"model": "m1", "time": "2026-01-31T22:00:00Z", "label": "secret", "certificate": "ab"}
        assert client.post("/policies:explain", json={"principal": told, "request": late}).json()["allow"] is False
        for wrong in ({"request": {"model": "m1"}}, {**question, **person}, {"key": "test", "request": {"model": "m1", "operation": "x"}}):
            assert client.post("/policies:explain", json=wrong).status_code == 400


@pytest.fixture
def cli(running: Gatehouse, tmp_path: Path) -> Callable[..., Result]:
    def run(*arguments: str, code: int = 0) -> Result:
        environ = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": ROOT_KEY}
        done = CliRunner().invoke(app, list(arguments), env={**environment(tmp_path / "home"), **environ})
        assert done.exit_code == code, (arguments, done.stdout, done.stderr)
        return done

    return run


def test_a_table_of_cases(cli: Callable[..., Result], tmp_path: Path) -> None:
    cases = [
        {"name": "small", "key": "test", "request": {"model": "m1", "max_tokens": 5}, "expect": "allow", "rule": "binding:small"},
        {"name": "large", "key": "test", "request": {"model": "m1", "max_tokens": 500}, "expect": "deny"},
        {"name": "nobody", "principal": {"tenant": "acme", "user": "eve"}, "request": {"model": "m1"}, "expect": "deny"},
    ]
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"cases": cases}))
    cli("policies", "test", str(file))
    file.write_text(yaml.safe_dump({"cases": [{**cases[1], "expect": "allow"}]}))
    assert "different" in cli("policies", "test", str(file), code=1).stdout
    told = cli("policies", "explain", "--key-id", "test", "--model", "m1", "--max-tokens", "500", "--output", "json", code=1).stdout
    assert "binding:small" in told and "request.max_tokens <= 50" in told


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"bindings": [{"role": "chater", "subjects": ["key/a"]}]}, "bindings[0].role: there is no role 'chater'; did you mean 'chatter'?"),
        ({"bindings": [{"role": "all", "subjects": ["alice"]}]}, "bindings[0].subjects[0]: 'alice' is not a subject"),
        (
            {"bindings": [{"role": "all", "subjects": ["key/a"], "when": "request.modell == 'a'"}]},
            "bindings[0].when: column 8: 'modell' is not a field",
        ),
        (
            {"roles": {"r": {"permissions": ["infer:chatt"]}}, "bindings": []},
            "roles.r.permissions[0]: 'infer:chatt' names an unknown operation",
        ),
        ({"roles": {"admin": {"permissions": ["infer:*"]}}, "bindings": []}, "roles.admin: 'admin' is a built-in role"),
        (
            {"roles": {"r": {"permissions": ["infer:chat:model/m2"]}}, "bindings": []},
            "there is no model 'm2', so this permission means nothing",
        ),
    ],
)
def test_what_can_never_match_is_refused(running: Gatehouse, parts: dict[str, Any], message: str) -> None:
    with admin(running) as client:
        text = yaml.safe_dump({**running.config, **parts})
        answer = client.put("/config", params={"dry_run": "true"}, content=text, headers={"content-type": "application/yaml"})
        assert answer.status_code == 422 or answer.status_code == 400, answer.text
        assert message in answer.text.replace("\\u0027", "'"), answer.text
