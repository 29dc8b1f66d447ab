"""Engines with `runtime: command`: servers of others that the supervisor starts, a real one and such as misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import adminapi
from tests.e2e.harness import DEMO_MODEL, Gatehouse, alive
from tests.waiting import until

Launch = Callable[..., Gatehouse]
ROOT = Path(__file__).parents[2]
DEMO = ROOT / "engines" / "demo" / "artefacts" / DEMO_MODEL
ENGINE_KEY = "engine-key-0123456789abcdef"


def engine(folder: Path, how: str, name: str = "served", **settings: Any) -> dict[str, Any]:
    """An engine of the fake server."""
    folder.mkdir(exist_ok=True)
    options = {
        "command": [sys.executable, "-m", "tests.fakes.command_server", how, "${port}", str(folder)],
        "environment": {"PYTHONPATH": str(ROOT)}, "reads": [str(ROOT)], "writes": [str(folder)],
        "health_interval": "200ms", "health_timeout": "20s", "stop_timeout": "1s", **settings.pop("options", {}),
    }  # fmt: skip
    return {"name": name, "runtime": "command", "options": options, **settings}


def config(tmp_path: Path, *engines: dict[str, Any]) -> dict[str, Any]:
    models = [{"name": f"m{number + 1}", "pool": [one["name"]]} for number, one in enumerate(engines)]
    return adminapi.config(tmp_path / "state", 1, engines=list(engines), models=models)


def pids(folder: Path) -> list[int]:
    """The processes that the server has had so far."""
    try:
        return [int(line) for line in (folder / "pids").read_text().split()]
    except OSError:
        return []


def logged(state_dir: Path) -> Iterator[bytes]:
    """The files of a server's log, which may follow one another meanwhile."""
    for file in (state_dir / "logs").glob("served-*"):
        with contextlib.suppress(FileNotFoundError):
            yield file.read_bytes()


def log_of(state_dir: Path) -> str:
    return b"".join(logged(state_dir)).decode(errors="replace")


def gone(folder: Path) -> None:
    until(lambda: not any(map(alive, pids(folder))), what="the end of all of the server's processes")


@pytest.mark.parametrize("where", ["port", "confined"])
def test_a_real_server_of_others_answers_streams_and_ends(tmp_path: Path, launch: Launch, where: str) -> None:
    """llama_cpp.server, which knows nothing of Gatehouse."""
    command = [sys.executable, "-m", "llama_cpp.server", "--model", "${model}", "--model_alias", "m1", "--port", "${port}",
               "--n_ctx", "${context}", "--api_key", "${key}"]  # fmt: skip
    options = {"command": command, "health": "/v1/models", "start_timeout": "120s", "confine": where == "confined"}
    served = {
        "name": "served",
        "runtime": "command",
        "model": str(DEMO),
        "context": 256,
        "slots": 1,
        "api_key": ENGINE_KEY,
        "options": options,
    }
    with launch(config(tmp_path, served)) as gatehouse:
        answer = gatehouse.chat("What is the capital of France?", max_tokens=12, temperature=0)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]
        assert answer.headers["x-gatehouse-endpoint"] == "served"
        streamed = gatehouse.chat("What is the capital of France?", max_tokens=12, temperature=0, stream=True)
        assert streamed.text.rstrip().endswith("data: [DONE]")
        assert gatehouse.chat(key="wrong-key-0123456789abcdef0123456789abcdef").status_code == 401
        server = until(lambda: _view(gatehouse)["server_pid"], what="the server's number")
        direct = httpx.get(f"{_view(gatehouse)['address']}/v1/models", trust_env=False, timeout=60)
        assert direct.status_code == 401, "the server asks its callers for the engine's key"
        until(lambda: "Uvicorn running on" in log_of(tmp_path / "state"), what="the server's own word in its log")
    assert not alive(server)


def _view(gatehouse: Gatehouse, name: str = "served") -> dict[str, Any]:
    with adminapi.admin(gatehouse) as client:
        found: dict[str, Any] = client.get(f"/engines/{name}").json()
    return found


def answered(gatehouse: Gatehouse, model: str = "m1") -> int:
    """The number of the process that answers, once one does."""

    def ask() -> int | None:
        answer = gatehouse.chat(model=model)
        return int(answer.json()["choices"][0]["message"]["content"].split()[1]) if answer.status_code == 200 else None

    found: int = until(ask, what="an answer")
    return found


def test_what_the_server_is_told_and_what_not(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / "served"
    served = engine(folder, "well", api_key=ENGINE_KEY, headers={"x-site": "a"}, prefix_salt="cache_salt")
    with launch(config(tmp_path, served)) as gatehouse:
        answered(gatehouse)
        asked = json.loads((folder / "asked").read_text())
        assert asked["headers"]["authorization"] == f"Bearer {ENGINE_KEY}" and asked["headers"]["x-site"] == "a"
        assert asked["body"]["cache_salt"], "the isolation of prompts is the engine's own field"
        assert "x-gatehouse-cache-salt" not in asked["headers"]
        until(lambda: "this is the log of well" in log_of(tmp_path / "state"), what="the server's own word in its log")
    gone(folder)


def test_a_flooded_log_is_bounded_and_shown_to_who_may_read_it(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / "served"
    with launch(config(tmp_path, engine(folder, "flood", health={"interval": "1s"}))) as gatehouse:
        answered(gatehouse)
        with adminapi.admin(gatehouse) as client:
            # in whichever file: lines of the flood may follow it
            said = lambda: any(b"of the log were dropped" in text for text in logged(tmp_path / "state"))  # noqa: E731
            until(said, what="the word about what was dropped")
            shown = client.get("/engines/served/log", params={"lines": 5}).json()
            assert shown["engine"] == "served" and len(shown["lines"]) == 5
        assert sum(map(len, logged(tmp_path / "state"))) < 34 * 1024 * 1024
        with adminapi.admin(gatehouse, "viewer") as client:
            assert client.get("/engines/served/log").status_code == 403
        out = subprocess.run(
            [sys.executable, "-m", "gateway", "engines", "log", "served", "-n", "3", "--url", gatehouse.admin_url],
            env={**os.environ, "GATEHOUSE_KEY": adminapi.KEYS["operator"]}, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert len(out.stdout.splitlines()) == 3
    gone(folder)


def test_a_killed_server_and_a_killed_sidecar_come_back_and_leave_nothing(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / "served"
    with launch(config(tmp_path, engine(folder, "leaves"))) as gatehouse:
        first = answered(gatehouse)
        os.kill(first, signal.SIGKILL)
        until(lambda: not alive(first))
        second = until(lambda: (pid := answered(gatehouse)) != first and pid, what="another process")
        until(lambda: len([pid for pid in pids(folder) if alive(pid)]) == 2, what="only the second server and its child")
        sidecar = _view(gatehouse)["pid"]
        os.kill(sidecar, signal.SIGKILL)
        until(lambda: not alive(second), what="the end of the server with its sidecar")
        until(lambda: (pid := answered(gatehouse)) != second and pid, what="a third process")
        assert _view(gatehouse)["restarts"] == 2
    gone(folder)


def test_a_server_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / "served"
    with launch(config(tmp_path, engine(folder, "leaves"))) as gatehouse:
        answered(gatehouse)
        assert len(pids(folder)) == 2
    gone(folder)


def test_when_the_gateway_is_killed_the_server_ends(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / "served"
    gatehouse = launch(config(tmp_path, engine(folder, "leaves")))
    gatehouse.start()
    answered(gatehouse)
    assert gatehouse.process is not None
    gatehouse.process.kill()
    gatehouse.process.wait(60)
    gone(folder)


def test_a_server_that_hangs_is_restarted(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / "served"
    with launch(config(tmp_path, engine(folder, "hang", options={"health_timeout": "1s"}))) as gatehouse:
        first = answered(gatehouse)
        (folder / "hang").touch()
        until(lambda: not alive(first), what="the end of the server that hangs")
        (folder / "hang").unlink()
        assert answered(gatehouse) != first
    gone(folder)


def test_one_that_dies_of_a_request_is_a_502_and_comes_back(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / "served"
    with launch(config(tmp_path, engine(folder, "die"))) as gatehouse:
        assert gatehouse.chat().status_code in (502, 503)
        until(lambda: _view(gatehouse)["restarts"] >= 1 and _view(gatehouse)["state"] == "ready", what="its return")
    gone(folder)


def lines_without(launch: Launch, tmp_path: Path, how: str, seconds: int) -> list[str]:
    """What a gateway says that ends because its engine has not come within so many seconds."""
    folder = tmp_path / "served"
    gatehouse = launch(config(tmp_path, engine(folder, how, options={"start_timeout": f"{seconds}s"})))
    gatehouse.launch()
    assert gatehouse.ended() == 1
    until(lambda: any(line.startswith("error: ") for line in gatehouse.lines), what=f"the reason, in {gatehouse.lines}")
    gone(folder)
    return gatehouse.lines


def test_one_that_ends_is_an_error_at_the_start(tmp_path: Path, launch: Launch) -> None:
    lines = lines_without(launch, tmp_path, "crash", 120)
    assert any("ended with code 7 before it was ready" in line for line in lines), lines


def test_one_that_never_comes_is_an_error_at_the_start(tmp_path: Path, launch: Launch) -> None:
    for seconds in (2, 10, 50):  # on a slow machine it does not even listen within the first of them
        lines = lines_without(launch, tmp_path, "never", seconds)
        assert any(f"was not ready within {seconds} s: " in line for line in lines), lines
        if any("GET /health answered 503" in line for line in lines):
            return
    raise AssertionError("the reason never says what the server has answered")


def test_of_a_group_one_engine_is_loaded_at_a_time_and_requests_wait_for_their_turn(tmp_path: Path, launch: Launch) -> None:
    lifecycle = {"load": "lazy", "group": "gpu"}
    one, two = (engine(tmp_path / name, "well", name, lifecycle=lifecycle) for name in ("one", "two"))
    with launch(config(tmp_path, one, two)) as gatehouse:
        assert pids(tmp_path / "one") == pids(tmp_path / "two") == []
        first = answered(gatehouse, "m1")
        second = answered(gatehouse, "m2")
        assert not alive(first) and alive(second)
        assert alive(answered(gatehouse, "m1")) and not alive(second)
    gone(tmp_path / "one")
    gone(tmp_path / "two")


def test_an_idle_server_is_unloaded_and_comes_back_for_a_request(tmp_path: Path, launch: Launch) -> None:
    folder = tmp_path / "served"
    with launch(config(tmp_path, engine(folder, "well", lifecycle={"load": "lazy", "idle_ttl": "1s"}))) as gatehouse:
        first = answered(gatehouse)
        until(lambda: not alive(first), what="the unloading")
        assert answered(gatehouse) != first
    gone(folder)


def test_declared_memory_that_is_not_there_is_an_error(tmp_path: Path, launch: Launch) -> None:
    gatehouse = launch(config(tmp_path, engine(tmp_path / "served", "well", options={"memory_bytes": "4096GiB"})))
    gatehouse.launch()
    assert gatehouse.ended() == 1
    until(lambda: any("does not fit into memory" in line for line in gatehouse.lines), what=f"the reason, in {gatehouse.lines}")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"options": {"command": ["server"]}}, "names neither ${port} nor ${socket}"),
        ({"options": {"command": ["./server", "${port}"]}}, "absolute path"),
        ({"options": {"command": ["server", "${prot}"]}}, "a reference must be"),
        ({"lifecycle": {"group": "gpu"}}, "set lifecycle.load to lazy"),
        ({"url": "http://127.0.0.1:1"}, "is only for external engines"),
    ],
)
def test_settings_that_cannot_work_are_named_before_anything_starts(
    tmp_path: Path, launch: Launch, settings: dict[str, Any], words: str
) -> None:
    gatehouse = launch(config(tmp_path, engine(tmp_path / "served", "well", **settings)))
    gatehouse.launch()
    assert gatehouse.ended() == 1
    until(lambda: any("gatehouse.yaml" in line and words in line for line in gatehouse.lines), what=f"the reason, in {gatehouse.lines}")
    assert pids(tmp_path / "served") == []


def test_the_admin_api_starts_no_programs(tmp_path: Path, launch: Launch) -> None:
    with launch(config(tmp_path, engine(tmp_path / "served", "well"))) as gatehouse, adminapi.admin(gatehouse) as client:
        body = {"name": "mine", "runtime": "command", "options": {"command": ["/bin/sh", "-c", "id", "${port}"]}}
        answer = client.post("/engines", json=body)
        assert answer.status_code in (400, 409, 422), answer.text
        assert "belong in the configuration file" in answer.text
