"""`gatehouse roles` and `gatehouse bindings` against a running gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_cli import environment

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("cli-roles")
    with Gatehouse(directory, adminapi.config(directory / "state", engine.port)) as gatehouse:
        yield gatehouse


@pytest.fixture
def cli(running: Gatehouse, tmp_path: Path) -> Cli:
    def run(*arguments: str, code: int = 0) -> Result:
        where = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["admin"]}
        result = CliRunner().invoke(app, list(arguments), env=environment(tmp_path / "home", **where))
        assert result.exit_code == code, result.output
        return result

    return run


def test_roles_and_bindings_from_the_shell(cli: Cli, tmp_path: Path) -> None:
    cli("roles", "create", "chatter", "--permission", "infer:chat:model/m1", "--permission", "admin:keys:read", "--description", "chats")
    shown = json.loads(cli("roles", "show", "chatter", "-o", "json").stdout)
    assert shown["permissions"] == ["infer:chat:model/m1", "admin:keys:read"] and shown["confined"]
    cli(
        "bindings",
        "create",
        "few",
        "--role",
        "chatter",
        "--subject",
        "group/a",
        "--subject",
        "user/b",
        "--tenant",
        "acme",
        "--when",
        "true",
    )
    bound = json.loads(cli("bindings", "show", "few", "-o", "json").stdout)
    assert (bound["subjects"], bound["effect"], bound["when"], bound["tenant"]) == (["group/a", "user/b"], "allow", "true", "acme")
    cli("bindings", "create", "none", "--role", "chatter", "--subject", "agent/*", "--deny")
    assert {item["name"] for item in json.loads(cli("bindings", "list", "-o", "json").stdout)} == {"few", "none"}
    assert "is still bound" in cli("roles", "delete", "chatter", code=1).output
    file = tmp_path / "access.yaml"
    file.write_text("roles: {chatter: {permissions: ['infer:chat']}}\nbindings: [{name: few, role: chatter, subjects: [key/x]}]\n")
    assert "replaced" in cli("roles", "apply", str(file), "--dry-run").stdout
    done = json.loads(cli("bindings", "apply", str(file), "-o", "json").stdout)
    assert [(item["name"], item["action"]) for item in done] == [("chatter", "replaced"), ("few", "replaced")]
    assert json.loads(cli("bindings", "show", "few", "-o", "json").stdout)["subjects"] == ["key/x"]
    file.write_text("bindings: [{name: wrong, role: chattr, subjects: [key/x]}]\n")
    assert "did you mean 'chatter'?" in cli("bindings", "apply", str(file), code=1).output
    cli("bindings", "delete", "few"), cli("bindings", "delete", "none"), cli("roles", "delete", "chatter")
    assert "chatter" not in cli("roles", "list").stdout
