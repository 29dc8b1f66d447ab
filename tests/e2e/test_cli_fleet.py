"""`gatehouse engines` and `gatehouse models`: those of the store, made on the command line and from files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, external
from tests.e2e.test_cli import environment, parsed

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("cli-fleet")
    with Gatehouse(directory, adminapi.config(directory / "state", engine.port)) as gatehouse:
        yield gatehouse


@pytest.fixture
def cli(running: Gatehouse, tmp_path: Path) -> Cli:
    """Runs a command in this process, as an administrator of a gateway that is a process of its own."""

    def run(*arguments: str, code: int = 0) -> Result:
        environ = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["admin"]}
        done = CliRunner().invoke(app, list(arguments), env={**environment(tmp_path / "home"), **environ})
        assert done.exit_code == code, (arguments, done.stdout, done.stderr)
        return done

    return run


def test_an_engine_and_a_model_are_made_and_deleted(running: Gatehouse, cli: Cli, engine: EngineThread) -> None:
    url = f"http://127.0.0.1:{engine.port}"
    made = cli(
        "engines", "create", "x", "--runtime", "external", "--upstream", url, "--slots", "4", "--api-key", "sk-1", "--wait", "-o", "json"
    )
    assert (parsed(made)["in_force"], parsed(made)["settings"]["slots"]) == (True, 4) and "sk-1" not in made.stdout
    assert "in_force" in cli("models", "create", "mx", "--engine", "x", "--engine", "fake=0.5", "--alias", "my", "--wait").stdout
    assert running.chat(model="my").status_code == 200
    shown = parsed(cli("models", "show", "mx", "-o", "json"))
    assert shown["settings"]["pool"] == ["x", {"engine": "fake", "weight": 0.5, "model": None}]
    assert "mx" in cli("models", "list").stdout and "x" in cli("engines", "list").stdout
    assert "'mx' still names this engine" in cli("engines", "delete", "x", code=1).stderr
    assert "deleted" in cli("models", "delete", "mx").stderr
    assert parsed(cli("engines", "delete", "x", "--dry-run", "-o", "json"))["dry_run"] is True
    cli("engines", "delete", "x")
    assert all(e["name"] != "x" for e in parsed(cli("engines", "list", "-o", "json")))


def test_a_file_is_applied_once_and_changes_are_seen(running: Gatehouse, cli: Cli, engine: EngineThread, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    wanted = {"models": [{"name": "mf", "pool": ["f"]}], "engines": [external("f", engine.port, api_key="sk-1")]}
    file.write_text(yaml.safe_dump(wanted))
    done = parsed(cli("engines", "apply", str(file), "--wait", "-o", "json"))
    assert [(d["kind"], d["action"]) for d in done] == [("engines", "created"), ("models", "created")]
    assert running.chat(model="mf").status_code == 200
    assert {d["action"] for d in parsed(cli("models", "apply", str(file), "-o", "json"))} == {"unchanged"}
    wanted["engines"][0]["slots"] = 7
    file.write_text(yaml.safe_dump(wanted))
    done = parsed(cli("engines", "apply", str(file), "--dry-run", "-o", "json"))
    assert done[0] == {"kind": "engines", "name": "f", "action": "replaced", "diff": [{"path": "slots", "from": None, "to": 7}]}
    cli("engines", "apply", str(file), "--wait")
    assert parsed(cli("engines", "show", "f", "-o", "json"))["settings"]["slots"] == 7
    del wanted["engines"][0]["api_key"]
    file.write_text(yaml.safe_dump(wanted))
    assert {d["action"] for d in parsed(cli("engines", "apply", str(file), "-o", "json"))} == {"unchanged"}, "a secret left out stays"
    assert running.chat(model="mf").status_code == 200 and engine.received[-1].header("authorization") == "Bearer sk-1"
    wanted["engines"][0]["url"] = "http://127.0.0.1:9"
    file.write_text(yaml.safe_dump(wanted))
    assert "belongs to the old url" in cli("engines", "apply", str(file), code=1).stderr
    wanted["engines"][0].update(url=f"http://127.0.0.1:{engine.port}", api_key=None)
    file.write_text(yaml.safe_dump(wanted))
    cli("engines", "apply", str(file), "--wait")
    assert running.chat(model="mf").status_code == 200 and engine.received[-1].header("authorization") is None
    wanted["models"].append({"name": "mg", "pool": ["nowhere"]})
    wanted["engines"][0]["slots"] = 9
    file.write_text(yaml.safe_dump(wanted))
    assert "models/mg: " in cli("engines", "apply", str(file), code=1).stderr
    assert parsed(cli("engines", "show", "f", "-o", "json"))["settings"]["slots"] == 7, "all of a file or nothing"
    cli("models", "delete", "mf")
    cli("engines", "delete", "f")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("engines", "create", "x", "--runtime", "external"), "'url' is missing"),
        (("engines", "create", "x", "--runtime", "llama.cpp", "--model", "/etc/passwd"), "names a path"),
        (("models", "create", "x", "--engine", "nothing"), "there is no engine"),
        (("engines", "delete", "fake"), "is defined in the configuration file"),
        (("engines", "apply", "/nowhere.yaml"), "No such file"),
    ],
)
def test_what_is_refused_is_one_line(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    done = cli(*arguments, code=1)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and words in done.stderr


def test_wrong_usage_is_exit_code_2(cli: Cli) -> None:
    assert "ENGINE=WEIGHT" in cli("models", "create", "x", "--engine", "a=b", code=2).stderr
    assert "write 90s" in cli("keys", "rotate", "x", "--overlap", "soon", code=2).stderr


def test_waiting_says_why_a_version_is_not_in_force(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    wrong = {"name": "s", "runtime": "llama.cpp", "model": "demo-chat.gguf", "slots": 1, "context": 128, "sha256": "0" * 64}
    file.write_text(yaml.safe_dump({"engines": [wrong]}))
    assert "sha256" in cli("engines", "apply", str(file), "--wait", "--timeout", "300", code=1).stderr
    cli("engines", "delete", "s")
