"""A distribution with plug-ins, installed for real, serves requests beside ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, ROOT, Gatehouse, configuration, errors_of, external
from tests.waiting import until

PACKAGE = ROOT / "tests" / "plugin_package"
BADGE = "0451"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the example package into."""
    source = tmp_path_factory.mktemp("source") / "package"  # pip builds in the source's folder
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("installed")
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", target, source], check=True, timeout=300)
    return target


def config(directory: Path, engine: EngineThread, **parts: Any) -> dict[str, Any]:
    found = configuration(
        directory / "state",
        engines=[external("fake", engine.port)],
        models=[{"name": "m1", "pool": ["fake"]}, {"name": "held", "pool": ["fake"]}],
        guardrails=[
            {"name": "manners", "type": "shouting", "models": ["m1"]},
            {"name": "approval", "type": "shouting", "models": ["held"], "on": ["request"], "settings": {"letters": 4, "action": "hold"}},
        ],
        hooks=[{"name": "visits", "type": "visits", "settings": {"most": 1000}}],
        audit={"sinks": [{"type": "file"}, {"type": "lines", "settings": {"path": "copy.jsonl"}}]},
        **parts,
    )
    badges = {sha256(BADGE.encode()).hexdigest(): "guard"}
    found["identity"]["plugins"] = {"badge": {"badges": badges, "tenant": "acme", "models": ["m1"]}}
    return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, installed: Path) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("plugins")
    with Gatehouse(directory, config(directory, engine), {"PYTHONPATH": str(installed)}) as made:
        yield made


def test_an_installed_authenticator_lets_its_callers_in_and_no_others(running: Gatehouse) -> None:
    body = {"model": "m1", "messages": [{"role": "user", "content": "hello"}]}
    with running.client(None) as client:
        served = client.post("/v1/chat/completions", json=body, headers={"x-acme-badge": BADGE})
        refused = client.post("/v1/chat/completions", json=body, headers={"x-acme-badge": "1234"})
        hidden = client.post("/v1/chat/completions", json={**body, "model": "held"}, headers={"x-acme-badge": BADGE})
    assert served.status_code == 200
    assert running.outcome(served.headers["x-request-id"])["principal"] == "guard"
    assert (refused.status_code, errors_of(refused)["code"], refused.headers["www-authenticate"]) == (401, "invalid_badge", "Badge")
    assert hidden.status_code == 404
    assert running.chat(key=KEY).status_code == 200 and running.chat(key="x" * 40).status_code == 401


def test_an_installed_guardrail_blocks_requests_and_holds_them(running: Gatehouse, engine: EngineThread) -> None:
    before = len(engine.received)
    blocked = running.chat("GIVE ME EVERYTHING")
    assert (blocked.status_code, errors_of(blocked)["type"], errors_of(blocked)["code"]) == (400, "guardrail_violation", "manners")
    held = running.chat("GIVE ME EVERYTHING", model="held")
    assert (held.status_code, errors_of(held)["type"], errors_of(held)["code"]) == (409, "approval_required", "approval_pending")
    assert held.headers["x-should-retry"] == "false"
    assert len(engine.received) == before
    assert running.chat("give me everything").status_code == 200


def test_a_stream_is_held_for_a_guardrail_that_cannot_follow_it(running: Gatehouse) -> None:
    streamed = running.chat("hello", stream=True)
    assert streamed.status_code == 200 and streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.count("data: {") > 1 and streamed.text.endswith("data: [DONE]\n\n") and '"error"' not in streamed.text


def test_an_installed_sink_gets_every_line_of_the_log(running: Gatehouse) -> None:
    request_id = running.chat("for the log").headers["x-request-id"]
    copy = running.state_dir / "copy.jsonl"
    until(lambda: sum(f'"{request_id}"' in line for line in copy.read_text().splitlines()) == 2, 10.0, "both records of the request")
    copied = copy.read_bytes()  # of the two, the log may be the later one

    def log() -> bytes:
        return b"".join(path.read_bytes() for path in sorted((running.state_dir / "audit").glob("audit-*.jsonl")))

    until(lambda: len(log()) >= len(copied), what="the log")
    assert log().startswith(copied)


def test_an_installed_hook_may_refuse(tmp_path: Path, engine: EngineThread, installed: Path) -> None:
    settings = config(tmp_path, engine)
    settings["hooks"][0]["settings"]["most"] = 1
    with Gatehouse(tmp_path, settings, {"PYTHONPATH": str(installed)}) as made:
        assert made.chat().status_code == 200
        refused = made.chat()
        assert (refused.status_code, errors_of(refused)["message"]) == (403, "Your visits are used up.")
        assert made.chat(key=OTHER_KEY).status_code == 200
    until(lambda: any("ended with 403" in line for line in made.lines), what="the line")


def test_its_settings_are_checked_as_ours_are(tmp_path: Path, engine: EngineThread, installed: Path) -> None:
    file = tmp_path / "gatehouse.yaml"
    made = Gatehouse(tmp_path, config(tmp_path, engine), {"PYTHONPATH": str(installed)})
    command = [sys.executable, "-m", "gateway", "check-config", str(file)]

    def check(environ: dict[str, str]) -> str:
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    assert ": ok (" in check(made.environ)
    good = json.loads(json.dumps(made.config))
    made.config["guardrails"][0]["settings"] = {"leters": 3}
    Gatehouse(tmp_path, made.config)
    assert "guardrails[0].settings.leters: unknown key 'leters'; did you mean 'letters'?" in check(made.environ)
    Gatehouse(tmp_path, good)
    missing = check({**made.environ, "PYTHONPATH": ""})
    assert "audit.sinks[1].type: there is no audit sink 'lines'; known: file" in missing


def test_a_distribution_that_cannot_be_loaded_stops_the_start(tmp_path: Path, engine: EngineThread, installed: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(installed, broken)
    (broken / "acme_gatehouse" / "visits.py").write_text("import no_such_module\n")
    made = Gatehouse(tmp_path, config(tmp_path, engine), {"PYTHONPATH": str(broken)}).launch()
    assert made.ended() == 1
    said = "the plug-in acme_gatehouse.visits:ROW of acme-gatehouse 1.0 cannot be imported: ModuleNotFoundError"
    until(lambda: any(said in line for line in made.lines), 5.0, "the error")
