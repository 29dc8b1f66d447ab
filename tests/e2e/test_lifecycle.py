"""Starting, stopping and reloading: bad input gives one clear line and exit code 1, and nothing is left running."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, alive, configuration, external
from tests.waiting import until

Launch = Callable[..., Gatehouse]
DEMO = Path(__file__).parents[2] / "engines" / "demo" / "artefacts" / "demo-chat.gguf"


def fake_config(tmp_path: Path, engine: EngineThread, **parts: Any) -> dict[str, Any]:
    return configuration(tmp_path / "state", engines=[external("fake", engine.port)], models=[{"name": "m1", "pool": ["fake"]}], **parts)


def sidecar_config(tmp_path: Path, model: str, **settings: Any) -> dict[str, Any]:
    return configuration(
        tmp_path / "state",
        engines=[{"name": "chat", "runtime": "llama.cpp", "model": model, "slots": 2, "context": 256, **settings}],
        models=[{"name": "demo-chat", "pool": ["chat"]}],
    )


def refused(gatehouse: Gatehouse, *words: str) -> None:
    """The process ends with code 1 and one line that has these words; no child is left."""
    gatehouse.launch()
    assert gatehouse.ended() == 1
    until(lambda: any(line.startswith("error: ") for line in gatehouse.lines), what="the error line")
    errors = [line for line in gatehouse.lines if line.startswith("error: ")]
    assert len(errors) == 1, gatehouse.lines
    for word in words:
        assert word in errors[0], errors[0]
    assert not any("Traceback" in line for line in gatehouse.lines), gatehouse.lines


def test_a_truncated_model(tmp_path: Path, launch: Launch) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(DEMO.read_bytes()[:100_000])
    gatehouse = launch(sidecar_config(tmp_path, str(cut)))
    refused(gatehouse, "gatehouse.yaml:", "engines[0]", "chat", "cut.gguf")
    assert not list((tmp_path / "state" / "run").glob("*/s.sock"))


def test_a_file_that_is_no_model(tmp_path: Path, launch: Launch) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"this is no model" * 100)
    refused(launch(sidecar_config(tmp_path, str(wrong))), "chat", "magic")


def test_a_checksum_that_does_not_fit(tmp_path: Path, launch: Launch) -> None:
    refused(launch(sidecar_config(tmp_path, str(DEMO), sha256="0" * 64)), "chat", "sha256")


def test_a_missing_model(tmp_path: Path, launch: Launch) -> None:
    refused(launch(sidecar_config(tmp_path, "nowhere.gguf")), "gatehouse.yaml:", "engines[0].model", "nowhere.gguf")


def test_a_device_that_is_not_there(tmp_path: Path, launch: Launch) -> None:
    refused(launch(sidecar_config(tmp_path, str(DEMO), device="cuda:63")), "cuda:63", "fallback")


def test_a_device_that_falls_back_loudly(tmp_path: Path, launch: Launch) -> None:
    with launch(sidecar_config(tmp_path, str(DEMO), device="cuda:63", fallback="cpu")) as gatehouse:
        assert any("WARNING" in line and "falling back to cpu" in line for line in gatehouse.lines)
        assert gatehouse.chat(model="demo-chat", max_tokens=3).status_code == 200
        assert gatehouse.noted(event="engine_fallback")


@pytest.mark.parametrize("listener", ["data", "admin"])
def test_a_port_in_use(tmp_path: Path, engine: EngineThread, launch: Launch, listener: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(launch(fake_config(tmp_path, engine, listen={listener: address})), "gatehouse.yaml:", f"listen.{listener}", address)


def test_a_state_directory_that_cannot_be_written(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    (tmp_path / "file").write_text("")
    config = fake_config(tmp_path, engine)
    config["state_dir"] = str(tmp_path / "file" / "state")
    refused(launch(config), "gatehouse.yaml:", "state_dir", "state directory")


def test_configurations_that_cannot_be(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    broken = launch(fake_config(tmp_path, engine))
    broken.file.write_text("version: 1\nlisten: {data: [}\n")
    refused(broken, "gatehouse.yaml:2")
    twice = fake_config(tmp_path, engine)
    twice["engines"] *= 2
    refused(launch(twice), "fake", "engines[1]")
    nowhere = fake_config(tmp_path, engine)
    nowhere["models"][0]["pool"] = ["fale"]
    refused(launch(nowhere), "fale", "fake")
    unknown = fake_config(tmp_path, engine)
    unknown["lisen"] = {}
    refused(launch(unknown), "lisen", "listen")


def test_a_reload_that_is_asked_for_while_it_starts_does_not_end_it(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    gatehouse = launch(fake_config(tmp_path, engine)).launch()
    until(lambda: any("the hot path" in line for line in gatehouse.lines), what="the beginning of the start")
    assert gatehouse.process is not None
    while not any(line.startswith("admin: ") for line in gatehouse.lines):
        assert gatehouse.process.poll() is None, gatehouse.lines
        gatehouse.process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    assert gatehouse.stop() == 0


def test_nobody_can_log_in_is_refused(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    config = fake_config(tmp_path, engine)
    del config["identity"]
    refused(launch(config), "insecure")


def refuses(url: str) -> bool:
    """Whether a gateway takes no more requests."""
    try:
        return httpx.get(f"{url}/readyz", trust_env=False, timeout=60).status_code != 200
    except httpx.TransportError:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_leaves_nothing(tmp_path: Path, engine: EngineThread, launch: Launch, number: int) -> None:
    config = sidecar_config(tmp_path, str(DEMO))
    config["engines"].append(external("fake", engine.port))
    config["models"].append({"name": "m1", "pool": ["fake"]})
    gatehouse = launch(config).start()
    sidecars = gatehouse.engines()
    assert sidecars
    engine.play("hold:at=mid,chunks=40")
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(gatehouse.chat(stream=True)))
    thread.start()
    until(lambda: gatehouse.metric("gatehouse_in_flight") == 1)
    assert gatehouse.process is not None
    gatehouse.process.send_signal(number)
    until(lambda: refuses(gatehouse.url), what="the drain")
    engine.release()
    assert gatehouse.ended() == 0
    thread.join(60)
    assert answers[0].text.endswith("data: [DONE]\n\n") and "error" not in answers[0].text
    assert not any(alive(pid) for pid in sidecars)
    assert not list((tmp_path / "state" / "run").glob("*/s.sock"))
    told = [line for line in gatehouse.lines if "endpoint chat: " in line]
    assert [line.partition("chat: ")[2].partition(" (")[0] for line in told[-2:]] == ["ready -> draining", "draining -> down"]
    assert not any("WARNING" in line for line in told), "a stop that was asked for is nothing to warn of"


def test_kill_9_takes_the_sidecars_along(tmp_path: Path, launch: Launch) -> None:
    gatehouse = launch(sidecar_config(tmp_path, str(DEMO))).start()
    sidecars = gatehouse.engines()
    assert gatehouse.process is not None
    gatehouse.process.kill()
    gatehouse.process.wait(60)
    until(lambda: not any(alive(pid) for pid in sidecars), what="the end of the sidecars")


def test_a_second_start_repairs_and_continues_the_log(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    config = fake_config(tmp_path, engine)
    gatehouse = launch(config).start()
    request_id = gatehouse.chat().headers["x-request-id"]
    gatehouse.outcome(request_id)
    assert gatehouse.process is not None
    gatehouse.process.kill()
    gatehouse.process.wait(60)
    newest = max((tmp_path / "state" / "audit").glob("audit-*.jsonl"))
    with newest.open("ab") as file:
        file.write(b'{"seq":999,"torn')
    with launch(config) as again:
        assert again.outcome(request_id)["outcome"] == "ok"
        assert again.chat().status_code == 200
    sequence = [r["seq"] for r in again.audit() if "seq" in r]
    assert sequence == sorted(sequence) and len(set(sequence)) == len(sequence)


def test_sighup_reloads_and_an_invalid_file_changes_nothing(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    config = fake_config(tmp_path, engine)
    with launch(config) as gatehouse:
        assert gatehouse.process is not None
        assert gatehouse.chat(model="m2").status_code == 404
        engine.play("hold:at=mid,chunks=40")
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(gatehouse.chat(stream=True)))
        thread.start()
        until(lambda: gatehouse.metric("gatehouse_in_flight") == 1)
        config["models"].append({"name": "m2", "pool": ["fake"]})
        config["identity"]["api_keys"]["static"] = [k for k in config["identity"]["api_keys"]["static"] if k["key"] != OTHER_KEY]
        gatehouse.file.write_text(yaml.safe_dump(config))
        os.kill(gatehouse.process.pid, signal.SIGHUP)
        until(lambda: gatehouse.metric("gatehouse_config_version") == 2, what="the reload")
        assert gatehouse.chat(model="m2").status_code == 200
        assert gatehouse.chat(key=OTHER_KEY).status_code == 401
        engine.release()
        thread.join(60)
        assert answers[0].text.endswith("data: [DONE]\n\n") and "error" not in answers[0].text

        gatehouse.file.write_text("version: 1\nmodels: 7\n")
        os.kill(gatehouse.process.pid, signal.SIGHUP)
        until(lambda: gatehouse.metric("gatehouse_config_reloads_total", result="refused") == 1, what="the refusal")
        assert gatehouse.chat(model="m2", key=KEY).status_code == 200
        until(lambda: any("not applied" in line and "models" in line for line in gatehouse.lines), what="the line about it")


def test_a_full_disk_refuses_and_heals(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    """RLIMIT_FSIZE stands for a full disk: a write beyond it fails with EFBIG."""
    config = fake_config(tmp_path, engine)
    config["audit"] = {"sinks": [{"type": "file", "segment_bytes": 100_000_000}]}
    with launch(config) as gatehouse:
        assert gatehouse.process is not None
        assert gatehouse.chat().status_code == 200
        before = len(engine.received)

        soft, hard = resource.prlimit(gatehouse.process.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        refusal = until(lambda: (r := gatehouse.chat()).status_code == 503 and r, what="the refusal")
        assert refusal.json()["error"]["code"] == "audit_unavailable"
        count = len(engine.received)
        assert count == before
        with gatehouse.client(None) as client:
            assert client.get("/readyz").status_code == 503
        resource.prlimit(gatehouse.process.pid, resource.RLIMIT_FSIZE, (soft, hard))
        until(lambda: gatehouse.chat().status_code == 200, what="the healing")
