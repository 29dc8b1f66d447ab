"""The shell's completion against a running gateway, through the protocol that the installed scripts speak."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from admin.cli import completion
from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import ROOT, Gatehouse
from tests.e2e.test_cli import environment

PATIENT = 60.0
"""Seconds for the gateway to answer, where it does: what takes too long offers nothing, and this machine may be busy."""
Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("completion")
    limits = [{"name": "per-key", "per": "key", "requests": {"rate": 1000}}]
    with Gatehouse(directory, adminapi.config(directory / "state", engine.port, limits=limits)) as gatehouse:
        with admin(gatehouse) as client:
            for path, body in (
                ("tenants", {"name": "initech"}),
                ("keys", {"id": "ci", "tenant": "initech", "models": ["*"]}),
                ("limits", {"name": "nightly", "per": "key", "requests": {"rate": 5}}),
                ("engines", {"name": "far", "runtime": "external", "url": "http://127.0.0.1:9"}),
                ("models", {"name": "m2", "pool": ["far"]}),
                ("bindings", {"name": "b1", "tenant": "initech", "principal": "ci", "role": "viewer"}),
            ):
                assert client.post(f"/{path}", json=body).status_code == 201, path
        yield gatehouse


@pytest.fixture
def complete(running: Gatehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What the shell is offered for the last of the words. process: by a process of its own, that prints nothing else."""

    monkeypatch.setattr(completion, "SECONDS", PATIENT)

    def run(*words: str, shell: str = "bash", process: bool = True, patient: bool = True, **more: str) -> list[str]:
        line = {"COMP_WORDS": " ".join(["gatehouse", *words]), "COMP_CWORD": str(len(words))}
        if shell == "zsh":
            line = {"_TYPER_COMPLETE_ARGS": " ".join(["gatehouse", *words])}
        environ = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["admin"], **more}
        environ = {**environment(tmp_path / "home"), **environ, **line, "_GATEHOUSE_COMPLETE": f"complete_{shell}"}
        if not process:
            answer = CliRunner().invoke(app, env=environ, prog_name="gatehouse")
            assert (answer.exit_code, answer.stderr) == (0, ""), answer.output
            return [line for line in answer.stdout.splitlines() if line]
        command = "from gateway.app.start import main; import sys; sys.argv[0] = 'gatehouse'; main()"
        if patient:
            command = f"from admin.cli import completion; completion.SECONDS = {PATIENT}; {command}"
        done = subprocess.run(
            [sys.executable, "-c", command],
            cwd=ROOT,
            env=environ,
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return [line for line in done.stdout.splitlines() if line]

    return run


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["keys", "show", "a-o"], ["a-operator"]),
        (["keys", "revoke", ""], ["ci"]),
        (["keys", "create", "--tenant", "in"], ["initech"]),
        (["keys", "create", "--tenant", "initech", "--limit", ""], ["nightly", "per-key"]),
        (["keys", "update", "ci", "--role", "a"], ["admin", "auditor"]),
        (["tenants", "show", ""], ["acme", "globex", "initech"]),
        (["tenants", "delete", ""], ["initech"]),
        (["roles", "unbind", ""], ["b1"]),
        (["roles", "bind", "viewer", "--tenant", "initech", "--principal", "c"], ["ci"]),
        (["models", "show", "m"], ["m1", "m2"]),
        (["models", "delete", ""], ["m2"]),
        (["models", "create", "m3", "--engine", "f"], ["fake", "far"]),
        (["engines", "drain", "fak"], ["fake"]),
        (["engines", "delete", ""], ["far"]),
        (["engines", "breaker", "fake", "a"], ["auto"]),
        (["policies", "show", "l"], ["limits/"]),
        (["policies", "show", "limits/p"], ["limits/per-key"]),
        (["policies", "delete", "limits/"], ["limits/nightly"]),
        (["usage", "--tenant", "gl"], ["globex"]),
        (["keys", "show", "zz"], []),
        (["tenants", "create", ""], []),
        (["models", "create", ""], []),
        (["engines", "create", ""], []),
    ],
    ids=" ".join,
)
def test_names_that_exist_are_offered(complete: Complete, words: list[str], offered: list[str]) -> None:
    assert complete(*words, process=False) == offered


def test_a_process_offers_the_same(complete: Complete) -> None:
    assert complete("models", "show", "m") == ["m1", "m2"]


def test_zsh_gets_them_in_its_own_form(complete: Complete) -> None:
    assert complete("engines", "drain", "fak", shell="zsh") == ["_arguments '*: :((\"fake\"))'"]


def test_the_options_of_the_line_say_which_gateway_is_asked(complete: Complete, running: Gatehouse) -> None:
    elsewhere = {"GATEHOUSE_URL": "http://127.0.0.1:1", "GATEHOUSE_KEY": "wrong"}
    assert complete("models", "show", "m", **elsewhere) == []
    assert complete("models", "show", "--url", running.admin_url, "--key", KEYS["viewer"], "m", **elsewhere) == ["m1", "m2"]


def test_a_gateway_that_refuses_or_does_not_answer_offers_nothing_and_prints_nothing(complete: Complete) -> None:
    assert complete("keys", "show", "", GATEHOUSE_KEY="wrong") == []
    assert complete("keys", "show", "", process=False, GATEHOUSE_KEY=KEYS["none"]) == []
    assert complete("keys", "show", "", GATEHOUSE_URL="http://127.0.0.1:1") == []
    assert complete("keys", "show", "", process=False, GATEHOUSE_URL="nonsense") == []
    assert complete("keys", "show", "", process=False, GATEHOUSE_PROFILE="missing") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert complete("keys", "show", "", GATEHOUSE_URL=f"http://127.0.0.1:{silent.getsockname()[1]}", patient=False) == []


def test_profiles_are_offered_from_the_file_of_the_user(complete: Complete, running: Gatehouse, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "gatehouse"
    folder.mkdir(parents=True)
    (folder / "profiles.json").write_text(f'{{"work": {{"url": "{running.admin_url}", "key": "{KEYS["admin"]}"}}, "home": {{"url": "x"}}}}')
    (folder / "profiles.json").chmod(0o600)
    assert complete("status", "--profile", "w", process=False) == ["work"]
    bare = {"GATEHOUSE_URL": "", "GATEHOUSE_KEY": ""}
    assert complete("engines", "drain", "--profile", "work", "fak", process=False, **bare) == ["fake"]
