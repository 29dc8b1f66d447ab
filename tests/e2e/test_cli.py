"""`gatehouse` on the command line against a running gateway: what is printed, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.app.main import app
from gateway.audit.journal import Journal
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, ROOT, Gatehouse
from tests.waiting import until

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("cli")
    limits = [{"name": "per-key", "per": "key", "requests": {"rate": 1000}}]
    with Gatehouse(directory, adminapi.config(directory / "state", engine.port, limits=limits)) as gatehouse:
        yield gatehouse


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GATEHOUSE", "XDG"))}
    return {**kept, "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1", **more}


@pytest.fixture
def cli(running: Gatehouse, tmp_path: Path) -> Cli:
    """Runs a command in this process, as an administrator of a gateway that is a process of its own."""

    def run(*arguments: str, code: int = 0, stdin: str | None = None, **more: str) -> Result:
        environ = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["admin"], **more}
        done = CliRunner().invoke(app, list(arguments), env={**environment(tmp_path / "home"), **environ}, input=stdin)
        assert done.exit_code == code, (arguments, done.stdout, done.stderr)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        if code == 1 and done.stderr:
            assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
        return done

    return run


def parsed(done: Result) -> Any:
    return json.loads(done.stdout)


def test_status_shows_the_fleet_at_a_glance(cli: Cli) -> None:
    shown = cli("status").stdout
    for word in ("ready", "m1", "fake", "external", "closed", "per-key", "rate=1000"):
        assert word in shown
    assert "=*" not in shown  # what a limit is not restricted to says nothing
    found = parsed(cli("status", "-o", "json"))
    assert found["ready"] is True and found["models"][0]["name"] == "m1"
    assert yaml.safe_load(cli("status", "--output", "yaml").stdout)["endpoints"][0]["name"] == "fake"


def test_what_goes_wrong_is_one_line(cli: Cli, running: Gatehouse) -> None:
    assert "not valid" in cli("status", code=1, GATEHOUSE_KEY="wrong").stderr
    assert "keys:create" in cli("keys", "create", "--tenant", "acme", code=1, GATEHOUSE_KEY=KEYS["viewer"]).stderr
    assert "no answer from http://127.0.0.1:9" in cli("status", "--url", "http://127.0.0.1:9", code=1).stderr
    assert "not the URL" in cli("status", "--url", "nonsense", code=2).stderr
    assert "no profile 'other'" in cli("status", "--profile", "other", code=1).stderr
    assert "nowhere" in cli("keys", "create", "--tenant", "nowhere", code=1).stderr
    cli("keys", "dance", code=2)
    cli("keys", "create", code=2)
    assert "Usage" in cli("keys", code=2).stdout + cli("keys", "--help").stdout


def test_a_key_from_making_to_refusal(cli: Cli, running: Gatehouse) -> None:
    made = parsed(cli("keys", "create", "--tenant", "acme", "--model", "m*", "--expires", "90d", "--id", "cli", "-o", "json"))
    assert made["secret"].startswith("gh_") and abs(datetime.fromisoformat(made["expires"]).timestamp() - time.time() - 90 * 86400) < 600
    assert running.chat(key=made["secret"]).status_code == 200
    listed = cli("keys", "list")
    assert "cli" in listed.stdout and made["secret"] not in listed.stdout and "file" in listed.stdout
    assert yaml.safe_load(cli("keys", "show", "cli", "-o", "yaml").stdout)["models"] == ["m*"]
    people = cli("keys", "rotate", "cli", "--overlap", "1h")
    new = people.stdout.split()[-1]
    assert new.startswith("gh_") and running.chat(key=new).status_code == 200 and running.chat(key=made["secret"]).status_code == 200
    cli("keys", "revoke", "cli")
    until(lambda: running.chat(key=made["secret"]).status_code == 401)
    assert "dry_run" in cli("keys", "create", "--tenant", "acme", "--dry-run").stdout
    assert "nor a duration" in cli("keys", "create", "--tenant", "acme", "--expires", "soon", code=2).stderr
    assert "dry_run" in cli("keys", "delete", "cli", "--dry-run").stdout
    cli("keys", "delete", "cli")
    assert "no key 'cli'" in cli("keys", "show", "cli", code=1).stderr


def test_a_key_is_changed_and_stays_the_same_key(cli: Cli, running: Gatehouse) -> None:
    made = parsed(cli("keys", "create", "--tenant", "acme", "--model", "m*", "--role", "viewer", "--id", "change-me", "-o", "json"))
    cli(
        "keys", "update", "change-me", "--model", "x*", "--model", "y*", "--cidr", "127.0.0.0/8", "--expires", "30d", "--description", "new"
    )
    now = parsed(cli("keys", "show", "change-me", "-o", "json"))
    assert (now["models"], now["cidrs"], now["roles"], now["description"]) == (["x*", "y*"], ["127.0.0.0/8"], ["viewer"], "new")
    assert abs(datetime.fromisoformat(now["expires"]).timestamp() - time.time() - 30 * 86400) < 600 and now["version"] == 2
    until(lambda: running.chat(key=made["secret"]).status_code in (403, 404), what="the new models")
    planned = parsed(
        cli("keys", "update", "change-me", "--clear", "expires", "--clear", "roles", "--model", "m1", "--dry-run", "-o", "json")
    )
    assert {change["path"] for change in planned["diff"]} == {"models", "roles", "expires"}
    cli("keys", "update", "change-me", "--clear", "expires", "--clear", "roles", "--model", "m1", "--if-version", "2")
    now = parsed(cli("keys", "show", "change-me", "-o", "json"))
    assert (now["models"], now["roles"], now["expires"], now["version"]) == (["m1"], [], None, 3)
    until(lambda: running.chat(key=made["secret"]).status_code == 200, what="the first model again")
    assert "Somebody else has changed it" in cli("keys", "update", "change-me", "--model", "*", "--if-version", "2", code=1).stderr
    assert "configuration file" in cli("keys", "update", "test", "--model", "m1", code=1).stderr
    assert "no key 'nobody'" in cli("keys", "update", "nobody", "--model", "m1", code=1).stderr
    assert "did you mean 10.0.0.0/8?" in cli("keys", "update", "change-me", "--cidr", "10.0.0.1/8", code=1).stderr
    assert "nothing to change" in cli("keys", "update", "change-me", code=2).stderr
    assert "no setting 'tenant'" in cli("keys", "update", "change-me", "--clear", "tenant", code=2).stderr
    assert "both set and cleared" in cli("keys", "update", "change-me", "--model", "*", "--clear", "models", code=2).stderr
    cli("keys", "delete", "change-me")


def test_a_tenant_is_changed(cli: Cli) -> None:
    cli("tenants", "create", "changing", "--display-name", "Old", "--description", "first")
    done = parsed(cli("tenants", "update", "changing", "--display-name", "New", "--model", "m*", "-o", "json"))
    assert (done["display_name"], done["description"], done["models"], done["version"]) == ("New", "first", ["m*"], 2)
    assert "may not have models" in cli("keys", "create", "--tenant", "changing", "--model", "x*", code=1).stderr
    assert "dry_run" in cli("tenants", "update", "changing", "--clear", "models", "--dry-run").stdout
    done = parsed(cli("tenants", "update", "changing", "--clear", "models", "--clear", "description", "--if-version", "2", "-o", "json"))
    assert (done["models"], done["description"], done["version"]) == (["*"], "", 3)
    assert "Somebody else has changed it" in cli("tenants", "update", "changing", "--model", "x", "--if-version", "2", code=1).stderr
    assert "configuration file" in cli("tenants", "update", "acme", "--display-name", "x", code=1).stderr
    cli("tenants", "update", "changing", code=2)
    cli("tenants", "delete", "changing")


def test_tenants_roles_and_bindings(cli: Cli) -> None:
    cli("tenants", "create", "team", "--display-name", "The team")
    assert "The team" in cli("tenants", "list").stdout and "The team" in cli("tenants", "show", "team").stdout
    cli("tenants", "delete", "team")
    assert "no" in cli("tenants", "show", "team", code=1).stderr
    assert "tenant-admin" in cli("roles", "list").stdout and "keys:rotate" in cli("roles", "show", "tenant-admin").stdout
    cli("roles", "bind", "auditor", "--tenant", "acme", "--principal", "a-none", "--name", "b")
    assert "a-none" in cli("roles", "bindings").stdout
    cli("audit", "tail", "-n", "1", GATEHOUSE_KEY=KEYS["none"])
    assert "dry_run" in cli("roles", "unbind", "b", "--dry-run").stdout
    cli("roles", "unbind", "b")
    assert "audit:read" in cli("audit", "tail", code=1, GATEHOUSE_KEY=KEYS["none"]).stderr


def test_engines_and_models(cli: Cli, running: Gatehouse) -> None:
    assert "fake(ready)" in cli("models", "list").stdout and "m1" in cli("models", "show", "m1").stdout
    assert "draining" in cli("engines", "drain", "fake", "--wait").stdout
    assert running.chat().status_code == 503
    assert "ready" in cli("engines", "resume", "fake").stdout
    assert running.chat().status_code == 200
    cli("engines", "breaker", "fake", "open")
    assert parsed(cli("engines", "list", "-o", "json"))[0]["endpoint"]["breaker"]["forced"] == "open"
    cli("engines", "breaker", "fake", "auto")
    assert "was started by Gatehouse" in cli("models", "reload", "m1", code=1).stderr


def test_policies_are_applied_tested_and_listed(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    policies = {"limits": [{"name": "from-file", "match": {"key": "nobody"}, "requests": {"rate": 5}}]}
    file.write_text(yaml.safe_dump(policies))
    assert parsed(cli("policies", "apply", str(file), "-o", "json"))[0]["action"] == "created"
    assert parsed(cli("policies", "apply", str(file), "-o", "json"))[0]["action"] == "unchanged"
    policies["limits"][0]["requests"] = {"rate": 6}
    file.write_text(yaml.safe_dump(policies))
    assert parsed(cli("policies", "apply", str(file), "--dry-run", "-o", "json"))[0]["diff"][0]["to"] == 6.0
    assert parsed(cli("policies", "apply", str(file), "-o", "json"))[0]["action"] == "replaced"
    assert "rate=6" in cli("policies", "show", "limits/from-file").stdout and "from-file" in cli("policies", "list").stdout
    assert "allow" in cli("policies", "explain", "--key-id", "test", "--model", "m1").stdout
    assert "deny" in cli("policies", "explain", "--key-id", "narrow", "--model", "m1", code=1).stdout
    file.write_text(
        yaml.safe_dump({"limits": [{"name": "second", "requests": {"rate": 5, "per": "1m"}}, {"name": "third", "per": "nobody"}]})
    )
    assert "limits/third: per: " in cli("policies", "apply", str(file), code=1).stderr
    assert "second" not in cli("policies", "list").stdout, "all of a file or nothing"
    cli("policies", "delete", "limits/from-file")
    assert "KIND/NAME" in cli("policies", "delete", "from-file", code=2).stderr
    file.write_text("limitz: []")
    assert "must hold" in cli("policies", "apply", str(file), code=1).stderr


def documented_guardrail() -> str:
    """The first example of docs/guardrails.md."""
    page = (ROOT / "docs" / "guardrails.md").read_text(encoding="utf-8")
    return page.split("```yaml\n")[1].split("```")[0]


def test_policies_are_read_as_a_configuration_is(cli: Cli, tmp_path: Path) -> None:
    done = parsed(cli("policies", "apply", "-", "-o", "json", stdin=documented_guardrail()))
    assert {item["kind"] for item in done} == {"guardrails"} and done[0]["action"] == "created"
    assert parsed(cli("policies", "show", f"guardrails/{done[0]['name']}", "-o", "json"))["on"] == ["request", "response"]
    for item in done:
        cli("policies", "delete", f"guardrails/{item['name']}")
    for text, words in (
        ("limits:\n  - {name: d, from: 2026-01-01}", "'from'"),
        ("limits: []\nlimits: []", "twice"),
        ("limits: [{name: a, requests: {rate: 1}}, {name: a, requests: {rate: 2}}]", "limits/a appears twice"),
        ("limits: [", "standard input:2: malformed YAML"),
    ):
        assert words in cli("policies", "apply", "-", code=1, stdin=text).stderr
    (tmp_path / "latin").write_bytes(b"\xff")
    assert "not UTF-8" in cli("policies", "apply", str(tmp_path / "latin"), code=1).stderr


def test_the_audit_log_online_and_offline(cli: Cli, running: Gatehouse, tmp_path: Path) -> None:
    running.outcome(running.chat().headers["x-request-id"])
    assert "outcome" in cli("audit", "tail", "-n", "3").stdout
    assert "as it was written" in cli("audit", "verify").stderr
    assert json.loads(cli("audit", "verify", "--from-segment", "1", "--output", "json").stdout)["writers"][0]["skipped"] is None
    assert "first segment to verify is missing" in cli("audit", "verify", "--from-segment", "99", code=1).stderr
    exported = tmp_path / "export.jsonl"
    cli("audit", "export", "--to", str(exported), "--kind", "outcome")
    assert {json.loads(line)["kind"] for line in exported.read_text().splitlines()} == {"outcome"}
    assert "exists" in cli("audit", "export", "--to", str(exported), code=1).stderr
    pem = tmp_path / "key.pem"
    pem.write_text(cli("audit", "keys").stdout)
    copy = tmp_path / "log"
    copy.mkdir()
    parts = (running.state_dir / "audit").iterdir()
    for part in sorted(parts, key=lambda part: part.suffix == ".jsonl" and part.name.startswith("audit-")):  # the rest tells of their lines
        (copy / part.name).write_bytes(part.read_bytes())
    offline = ("audit", "verify", "--dir", str(copy), "--public-key", str(pem))
    cli(*offline, GATEHOUSE_URL="http://127.0.0.1:9")
    left = Journal(copy / "audit-w9.journal")
    left.append(b',"kind":"event","time":1.0,"event":"e"')
    kept = cli(*offline, code=1, GATEHOUSE_URL="http://127.0.0.1:9").stderr
    assert "audit-w9.journal: 1 record is in the journal" in kept
    left.path.unlink()
    segment = next(copy.glob("audit-*.jsonl"))
    segment.write_text(segment.read_text().replace('"acme"', '"emca"', 1))
    broken = cli(*offline, code=1, GATEHOUSE_URL="http://127.0.0.1:9")
    assert segment.name in broken.stderr
    assert "go together" in cli("audit", "verify", "--dir", str(copy), code=2).stderr
    assert "public key" in cli("audit", "verify", "--dir", str(copy), "--public-key", str(segment), code=1).stderr


def test_the_configuration_is_shown_applied_and_read_again(cli: Cli, running: Gatehouse, tmp_path: Path) -> None:
    shown = cli("config", "show").stdout
    assert yaml.safe_load(shown)["limits"][0]["name"] == "per-key" and KEYS["admin"] not in shown
    file = tmp_path / "new.yaml"
    config = yaml.safe_load(running.file.read_text())
    config["limits"].append({"name": "more", "requests": {"rate": 999}})
    file.write_text(yaml.safe_dump(config))
    planned = parsed(cli("config", "apply", str(file), "--dry-run", "-o", "json"))
    (added,) = planned.pop("diff")
    assert (added["path"], added["from"], added["to"]["requests"]["rate"]) == ("limits.more", None, 999)
    assert planned == {
        "dry_run": True,
        "version": parsed(cli("status", "-o", "json"))["config_version"],
        "changed": ["limits.more"],
        "applied": False,
        "until_restart": True,
    }
    assert "read it again" in cli("config", "apply", str(file), "--if-version", "9999", code=1).stderr
    done = cli("config", "apply", str(file))
    assert "yes" in done.stdout and "a restart" in done.stderr
    assert "is not in the gateway's file" in cli("status").stdout
    assert "limits.more" in cli("config", "reload").stdout
    file.write_text("version: 2")
    assert "version" in cli("config", "apply", str(file), code=1).stderr


def test_login_saves_a_profile_that_only_the_user_can_read(running: Gatehouse, tmp_path: Path) -> None:
    def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment(tmp_path), input=stdin, capture_output=True, text=True, timeout=300)

    refused = run("login", "--url", running.admin_url, "--key", "wrong")
    assert refused.returncode == 1 and not (tmp_path / "gatehouse").exists()
    done = run("login", "--url", running.admin_url, "--key", KEYS["viewer"])
    assert done.returncode == 0 and "acme/a-viewer (viewer)" in done.stdout and KEYS["viewer"] not in done.stdout
    file = tmp_path / "gatehouse" / "profiles.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert run("status").returncode == 0
    assert run("status", "--url", "http://127.0.0.1:9").returncode == 1
    file.chmod(0o644)
    assert "chmod 600" in run("status").stderr


def test_chat_streams_an_answer(cli: Cli, engine: EngineThread, running: Gatehouse) -> None:
    answer = cli("chat", "Hello!", "--model", "m1").stdout
    assert answer.strip()
    conversation = cli("chat", stdin="Hello!\nAgain!\n\n")
    assert len(conversation.stdout.splitlines()) == 2 and "m1 at http://127.0.0.1" in conversation.stderr
    assert [message["role"] for message in json.loads(engine.received[-1].body)["messages"]] == ["user", "assistant", "user"]
    assert (
        "does not exist"
        in cli(
            "chat",
            "Hi",
            "--model",
            "m1",
            code=1,
            GATEHOUSE_KEY="narrow-key-0123456789abcdef0123456789abcd",
            GATEHOUSE_GATEWAY_URL=running.url,
        ).stderr
    )


def test_chat_after_the_login_of_an_administrator_says_which_key_it_needs(cli: Cli) -> None:
    secret = parsed(cli("keys", "create", "--tenant", "acme", "--role", "admin", "--id", "only-admin", "-o", "json"))["secret"]
    for arguments in (("chat", "Hi"), ("chat", "Hi", "--model", "m1")):
        refused = until(lambda a=arguments: (lambda e: e if "--api-key" in e else None)(cli(*a, code=1, GATEHOUSE_KEY=secret).stderr))  # type: ignore[misc]
        assert "GATEHOUSE_API_KEY" in refused
    assert cli("chat", "Hi", "--api-key", KEYS["none"], GATEHOUSE_KEY=secret).stdout.strip()
    assert cli("chat", "Hi", GATEHOUSE_KEY=secret, GATEHOUSE_API_KEY=KEYS["none"]).stdout.strip()
    assert "--api-key" not in cli("chat", "Hi", "--model", "no-such", "--api-key", KEYS["none"], code=1, GATEHOUSE_KEY=secret).stderr


def test_a_key_that_may_call_nothing_is_made_with_a_warning(cli: Cli) -> None:
    made = cli("keys", "create", "--tenant", "acme", "--id", "idle")
    assert made.stderr.startswith("warning: This key may use no model") and "warning" not in made.stdout
    tried = cli("keys", "create", "--tenant", "acme", "--dry-run", "-o", "json")
    assert len(parsed(tried)["result"]["warnings"]) == 1 and "may use no model" in tried.stderr
    for option in ("--model=m*", "--role=viewer"):
        fine = cli("keys", "create", "--tenant", "acme", option, "--dry-run", "-o", "json")
        assert parsed(fine)["result"]["warnings"] == [] and fine.stderr == ""
    cli("keys", "delete", "idle")


def test_engines_run_serves_a_model_without_a_gateway(tmp_path: Path) -> None:
    model = ROOT / "engines" / "demo" / "artefacts" / DEMO_MODEL
    socket = tmp_path / "e.sock"
    command = [sys.executable, "-m", "gateway", "engines", "run", str(model), "--socket", str(socket), "--context", "256"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"engine: unix:{socket}\n"
        process.terminate()
        assert process.wait(90) == 0
    missing = subprocess.run([*command[:5], "nothing.gguf"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (missing.returncode, missing.stderr) == (1, "error: nothing.gguf: no such file or folder\n")


def test_models_are_reloaded_unloaded_and_loaded(real: Gatehouse, tmp_path: Path) -> None:
    config = yaml.safe_load(real.file.read_text())
    config["identity"]["api_keys"]["static"].append(
        {"id": "r", "key": KEYS["admin"], "tenant": "ops", "models": ["*"], "roles": ["operator"]}
    )
    real.file.write_text(yaml.safe_dump(config))
    assert real.process is not None
    real.process.send_signal(1)
    environ = environment(tmp_path, GATEHOUSE_URL=real.admin_url, GATEHOUSE_KEY=KEYS["admin"])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gateway", *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300
        )

    until(lambda: run("models", "list").returncode == 0, what="the new key")
    before = real.engines()
    assert "ready" in run("models", "reload", "demo-chat").stdout
    until(lambda: len(real.engines()) == 1 and real.engines() != before, what="the old engine's end")
    assert "stopped" in run("models", "unload", "demo-chat").stdout
    until(lambda: not real.engines(), what="the end of the process")
    assert "ready" in run("models", "load", "demo-chat").stdout
    assert real.chat(model="demo-chat", max_tokens=3).status_code == 200


def test_options_may_stand_before_the_command(running: Gatehouse, tmp_path: Path) -> None:
    environ = environment(tmp_path, GATEHOUSE_URL="http://127.0.0.1:9", GATEHOUSE_KEY="wrong")
    common = ["--output", "json", "--url", running.admin_url, "--key", KEYS["admin"]]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gateway", *common, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120
        )

    assert json.loads(run("models", "list").stdout)[0]["name"] == "m1"
    assert yaml.safe_load(run("status", "-o", "yaml").stdout)["ready"] is True
    refused = run("check-config", str(tmp_path / "none"))
    assert refused.returncode == 2 and "No such option" in refused.stderr


def test_when_the_log_got_a_new_signing_key_can_be_read(cli: Cli) -> None:
    assert re.search(r"^time +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ *$", cli("audit", "rotate-key").stdout, re.MULTILINE)
    assert isinstance(parsed(cli("audit", "rotate-key", "-o", "json"))["time"], float), "what is signed"


def test_what_is_there_already_is_named(cli: Cli) -> None:
    cli("tenants", "create", "twice")
    assert "The tenant 'twice' already exists." in cli("tenants", "create", "twice", code=1).stderr
    cli("tenants", "delete", "twice")
    cli("keys", "create", "--tenant", "acme", "--model", "m*", "--id", "twice")
    assert "The key 'twice' already exists." in cli("keys", "create", "--tenant", "acme", "--model", "m*", "--id", "twice", code=1).stderr
    cli("keys", "delete", "twice")


def test_a_tenant_that_nobody_has_created_is_told(cli: Cli) -> None:
    made = cli("users", "create", "ann@acmee", "-o", "json")
    assert parsed(made)["name"] == "ann@acmee"
    assert "no tenant 'acmee'" in made.stderr and "did you mean 'acme'?" in made.stderr
    assert "no tenant 'nope'" in cli("groups", "create", "staff@nope").stderr
    assert "warning" not in cli("users", "create", "ann@acme").stderr
    for kind, name in (("users", "ann@acmee"), ("users", "ann@acme"), ("groups", "staff@nope")):
        cli(kind, "delete", name)


def test_users_groups_and_suspensions(cli: Cli) -> None:
    made = parsed(cli("groups", "create", "staff@acme", "--model", "m*", "--own-keys", "3", "--key-life", "30d", "-o", "json"))
    assert made["own_keys"] == {"count": 3, "life": "30d", "login_within": None} and made["models"] == ["m*"]
    cli("groups", "update", "staff@acme", "--description", "everybody", "--clear", "own_keys")
    user = parsed(cli("users", "create", "J\u00fcrgen@acme", "--email", "j@example.com", "--role", "viewer", "-o", "json"))
    assert (user["name"], user["origin"], user["roles"]) == ("J%C3%BCrgen@acme", "local", ["viewer"])
    cli("groups", "add-member", "staff@acme", "J\u00fcrgen@acme")
    assert "J%C3%BCrgen@acme" in cli("groups", "members", "staff@acme", "-o", "json").stdout
    assert "still has members" in cli("groups", "delete", "staff@acme", code=1).stderr
    cli("groups", "remove-member", "staff@acme", "J\u00fcrgen@acme")
    assert parsed(cli("users", "show", "J\u00fcrgen@acme", "-o", "json"))["groups"] == []
    cli("users", "update", "J\u00fcrgen@acme", "--display-name", "J", "--clear", "roles")
    for noun, name in (("users", "J\u00fcrgen@acme"), ("tenants", "globex"), ("keys", "other")):
        assert parsed(cli(noun, "suspend", name, "--why", "a test", "-o", "json"))["suspended"] is True
        assert parsed(cli(noun, "show", name, "-o", "json"))["suspended"] is True
        assert parsed(cli(noun, "resume", name, "-o", "json"))["suspended"] is False
    assert "suspend yourself" in cli("keys", "suspend", "a-admin", code=1).stderr
    assert "J%C3%BCrgen@acme" in cli("users", "list", "--tenant", "acme", "-o", "json").stdout
    assert "staff@acme" in cli("groups", "list", "-o", "json").stdout and "everybody" in cli("groups", "show", "staff@acme").stdout
    cli("users", "delete", "J\u00fcrgen@acme")
    cli("groups", "delete", "staff@acme")
