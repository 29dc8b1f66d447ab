"""A replacement of a real sidecar that an operator takes back, under load, from the command line and over the admin API."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import yaml
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e.adminapi import KEYS, admin, problem
from tests.e2e.harness import Gatehouse
from tests.e2e.resilience import Load, uncut
from tests.e2e.test_cli import environment
from tests.e2e.test_rollouts import Launch, config, engine, events
from tests.waiting import until

SLOW = {"steps": [0.5], "step_seconds": 3600}


def shifting(gatehouse: Gatehouse, name: str = "chat") -> None:
    def moved() -> bool:
        with admin(gatehouse) as client:
            rollout = client.get(f"/engines/{name}").json()["rollout"]
        return rollout is not None and rollout["share"] == 0.5

    until(moved, 240, "half of the traffic")


def put(gatehouse: Gatehouse, wanted: dict[str, Any]) -> httpx.Response:
    """Waits as long as the change goes on, which ends when the test says so."""
    with admin(gatehouse) as client:
        return client.put("/config", content=yaml.safe_dump(wanted), headers={"content-type": "application/yaml"}, timeout=600)


def test_a_change_of_the_file_is_taken_back_under_load(tmp_path: Path, launch: Launch) -> None:
    with launch(config(tmp_path, rollout=SLOW)) as gatehouse, admin(gatehouse) as client:

        def cli(*arguments: str, code: int = 0) -> str:
            given = {**environment(tmp_path / "home"), "GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"]}
            done = CliRunner().invoke(app, list(arguments), env=given)
            assert done.exit_code == code, (arguments, done.stdout, done.stderr)
            return done.stdout + done.stderr

        assert "No engine of the model 'demo-chat' is being replaced" in cli("models", "abort", "demo-chat", code=1)
        streams = Load(gatehouse, "demo-chat", width=3, max_tokens=30, stream=True)
        try:
            pid = engine(gatehouse)["pid"]
            done: list[httpx.Response] = []
            changing = threading.Thread(target=lambda: done.append(put(gatehouse, config(tmp_path, rollout=SLOW, version="2"))))
            changing.start()
            shifting(gatehouse)
            streams.more(6, 240)
            planned = client.post("/models/demo-chat/abort?dry_run=true").json()
            assert planned["dry_run"] is True and engine(gatehouse)["rollout"] is not None
            assert "chat" in cli("models", "abort", "demo-chat")
            changing.join(120)
            assert "rolled back: aborted by acme/a-admin" in problem(done[0], 502, "rolled_back")["detail"]
            streams.more(3, 240)
        finally:
            counts = streams.stop()
        assert counts == {200: len(streams.answers)} and uncut(streams), "no request was lost on the way there and back"
        shown = engine(gatehouse)
        assert (shown["pid"], shown["version"], shown["state"], shown["rollout"]) == (pid, "1", "ready", None)
        problem(client.post("/models/demo-chat/abort"), 409, "no_rollout")
        assert "aborted by acme/a-admin" in client.get("/status").json()["config"]["refused"]
        (back,) = until(lambda: events(gatehouse, "engine_rolled_back"), what="the event")
        assert (back["version"], back["to_version"]) == ("2", "1")

        def recorded() -> list[dict[str, Any]]:
            return [r for r in gatehouse.audit() if r.get("event") == "admin.models.abort" and r.get("outcome", "ok") == "ok"]

        (record,) = until(recorded, what="the record of who did it")
        assert record["target"] == "models/demo-chat" and record["actor"] == "acme/a-admin"
        until(lambda: len(gatehouse.engines()) == 1, what="the end of the new process")


def test_an_engine_of_the_store_goes_back_and_waits_for_the_next_write(tmp_path: Path, launch: Launch) -> None:
    wanted = {"name": "more", "runtime": "llama.cpp", "model": "demo-chat.gguf", "slots": 2, "context": 256, "rollout": SLOW}
    with launch(config(tmp_path)) as gatehouse, admin(gatehouse) as client:
        assert client.post("/engines", json=wanted).status_code == 201
        assert client.post("/models", json={"name": "m-more", "pool": ["more"]}).status_code == 201

        def state() -> dict[str, Any]:
            found: dict[str, Any] = client.get("/engines/more").json()
            return found

        until(lambda: state()["state"] == "ready", seconds=240, what="the engine")
        assert client.patch("/engines/more", json={"version": "2"}).status_code == 200
        shifting(gatehouse, "more")
        assert client.post("/models/m-more/abort").json()["engines"] == [{"engine": "more", "state": "ready", "version": "1"}]
        until(lambda: state()["failed"], what="the reason")
        assert "aborted by acme/a-admin" in state()["reason"] and state()["in_force"] is False
        assert client.patch("/engines/more", json={"rollout": {"steps": []}}).status_code == 200
        until(lambda: state()["version"] == "2" and state()["in_force"], seconds=240, what="the second try")
