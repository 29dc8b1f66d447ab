"""The first start of a gateway that has no key in its file: from nothing to an answer with the command line alone."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, errors_of, external, first_keys
from tests.e2e.test_cli import environment
from tests.waiting import until


def test_a_newcomer_with_keys_of_the_store_only(tmp_path: Path, engine: EngineThread) -> None:
    config = configuration(
        tmp_path / "state",
        engines=[external("fake", engine.port)],
        models=[{"name": "m1", "pool": ["fake"]}],
        identity={"api_keys": {"rely_on_store": True}},
    )
    gatehouse = Gatehouse(tmp_path, config)
    gatehouse.prepared = False

    def cli(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, list(arguments), env=environment(tmp_path / "home"))
        assert done.exit_code == code, (arguments, done.stdout, done.stderr)
        return done.stdout

    def printed() -> list[str]:
        return first_keys(gatehouse)

    with gatehouse:
        assert any("no key can log in yet" in line for line in gatehouse.lines)
        (first,) = printed()
        assert not any("gh_" in line for line in gatehouse.lines), "what is printed here goes into journals"
        assert "no_keys" not in httpx.get(f"{gatehouse.url}/readyz", trust_env=False, timeout=60).json()
        refused = gatehouse.chat(key="gh_" + "0" * 39)
        assert (refused.status_code, errors_of(refused)["code"]) == (401, "invalid_api_key")
        assert gatehouse.chat(key=first).status_code in (403, 404), "an administrator's key uses no model"

        assert "(admin)" in cli("login", "--url", gatehouse.admin_url, "--key", first)
        cli("tenants", "create", "home")
        made = json.loads(cli("keys", "create", "--tenant", "home", "--model", "m1", "--id", "mine", "-o", "json"))
        assert gatehouse.chat(key=made["secret"]).status_code == 200
        root = json.loads(cli("keys", "create", "--tenant", "home", "--role", "admin", "--id", "root", "-o", "json"))["secret"]
        cli("login", "--url", gatehouse.admin_url, "--key", root)
        cli("keys", "delete", "bootstrap-admin")
        until(lambda: gatehouse.chat(key=first).status_code == 401, what="the end of the first key")

    gatehouse.lines.clear()
    with gatehouse:
        assert printed() == [] and not any("no key can log in yet" in line for line in gatehouse.lines)
        assert gatehouse.chat(key=made["secret"]).status_code == 200
        assert "mine" in cli("keys", "list", "--url", gatehouse.admin_url, "--key", root)
