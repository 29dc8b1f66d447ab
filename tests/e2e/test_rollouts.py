"""Real sidecars come and go while requests and streams go on: replaced, rolled back, loaded by a request, unloaded when idle."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from gateway.core.units import duration
from tests.e2e.adminapi import KEYS, admin, problem
from tests.e2e.harness import Gatehouse, alive, configuration, errors_of
from tests.e2e.resilience import Load, uncut
from tests.e2e.test_lifecycle import DEMO
from tests.e2e.test_placement import long_model
from tests.waiting import until

Launch = Callable[..., Gatehouse]
STEPS = {"steps": [0.2, 0.5], "step_seconds": 0.5}


def config(directory: Path, model: Path | str = DEMO, **settings: Any) -> dict[str, Any]:
    """The demo model on one sidecar, and an administrator's key."""
    engine = {"name": "chat", "runtime": "llama.cpp", "model": str(model), "slots": 4, "context": 256, "rollout": STEPS, **settings}
    made = configuration(directory / "state", engines=[engine], models=[{"name": "demo-chat", "pool": ["chat"]}])
    key = {"id": "a-admin", "key": KEYS["admin"], "tenant": "acme", "models": ["*"], "roles": ["admin"]}
    made["identity"]["api_keys"]["static"].append(key)
    return made


def chat(gatehouse: Gatehouse) -> httpx.Response:
    return gatehouse.chat(model="demo-chat", max_tokens=3)


def engine(gatehouse: Gatehouse) -> dict[str, Any]:
    with admin(gatehouse) as client:
        found: dict[str, Any] = client.get("/engines/chat").json()
    return found


def put(gatehouse: Gatehouse, wanted: dict[str, Any]) -> httpx.Response:
    with admin(gatehouse) as client:
        return client.put("/config", content=yaml.safe_dump(wanted), headers={"content-type": "application/yaml"})


def events(gatehouse: Gatehouse, kind: str) -> list[dict[str, Any]]:
    return [record["detail"] for record in gatehouse.audit() if record.get("event") == kind and record.get("target") == "chat"]


def test_an_engine_is_replaced_under_load_without_a_lost_request(tmp_path: Path, launch: Launch) -> None:
    with launch(config(tmp_path)) as gatehouse:
        plain = Load(gatehouse, "demo-chat", width=2, max_tokens=8)
        streams = Load(gatehouse, "demo-chat", width=2, max_tokens=40, stream=True)
        try:
            streams.more(3)
            old = engine(gatehouse)["pid"]
            seen: list[float] = []
            done: list[httpx.Response] = []
            with admin(gatehouse) as client:
                changing = threading.Thread(target=lambda: done.append(put(gatehouse, config(tmp_path, version="2"))))
                changing.start()
                while changing.is_alive():
                    rollout = client.get("/models/demo-chat").json()["pool"][0]["rollout"]
                    if rollout is not None and rollout["share"] not in seen:
                        seen.append(rollout["share"])
                changing.join()
            assert done[0].status_code == 200, done[0].text
            assert seen, "operators see that it goes on"
            until(lambda: [detail["share"] for detail in events(gatehouse, "engine_rollout")] == [0.2, 0.5], what="the steps")
            until(lambda: not alive(old), what="the end of the old process")
            streams.more(3)
        finally:
            counts = plain.stop(), streams.stop()
        assert counts == ({200: len(plain.answers)}, {200: len(streams.answers)})
        assert uncut(streams)
        shown = engine(gatehouse)
        assert (shown["version"], shown["rollout"], shown["state"]) == ("2", None, "ready") and len(shown["sha256"]) == 64
        (replaced,) = until(lambda: events(gatehouse, "engine_replaced"), what="the event")
        assert (replaced["version"], replaced["from_version"], replaced["failures"]) == ("2", "1", 0)
        assert replaced["requests"] > 0 and replaced["sha256"] == shown["sha256"]
        assert gatehouse.metric("gatehouse_engine_loaded", engine="chat", version="2") == 1


def test_a_new_model_that_does_not_work_changes_nothing(tmp_path: Path, launch: Launch) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(DEMO.read_bytes()[:100_000])
    with launch(config(tmp_path)) as gatehouse:
        load = Load(gatehouse, "demo-chat", width=2, max_tokens=8)
        try:
            load.more(2)
            pid = engine(gatehouse)["pid"]
            found = problem(put(gatehouse, config(tmp_path, broken, version="2")), 502, "engine_failed")
            assert "engine 'chat'" in found["detail"] and "broken.gguf" in found["detail"]
            dumb = problem(put(gatehouse, config(tmp_path, version="3", warmup={"prompt": "x " * 2000})), 502, "rolled_back")
            assert "rolled back: its new process did not pass the warm-up: /v1/completions answered 400" in dumb["detail"]
            load.more(2)
        finally:
            counts = load.stop()
        assert counts == {200: len(load.answers)}
        shown = engine(gatehouse)
        assert (shown["pid"], shown["version"], shown["state"], shown["rollout"]) == (pid, "1", "ready", None)
        until(lambda: [detail["version"] for detail in events(gatehouse, "engine_rolled_back")] == ["2", "3"], what="the events")
        until(lambda: len(gatehouse.engines()) == 1, what="the end of the new processes")


def test_the_first_request_loads_a_lazy_model_and_silence_unloads_it(tmp_path: Path, launch: Launch) -> None:
    with launch(config(tmp_path, lifecycle={"load": "lazy", "idle_ttl": 5})) as gatehouse:
        assert gatehouse.engines() == []
        with gatehouse.client(None) as client:
            assert client.get("/readyz").json()["models"] == {"demo-chat": "ready"}
        answers: list[httpx.Response] = []
        threads = [threading.Thread(target=lambda: answers.append(chat(gatehouse))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert [answer.status_code for answer in answers] == [200] * 6
        ready = until(lambda: events(gatehouse, "engine_ready"), what="the event")
        assert len(ready[0]["sha256"]) == 64
        assert len(ready) <= 1 + len(events(gatehouse, "engine_unloaded")), "six requests, one load"
        first = engine(gatehouse)
        until(lambda: not gatehouse.engines(), what="the unload")
        until(lambda: engine(gatehouse)["state"] == "stopped", what="the stopped state")
        unloaded = until(lambda: events(gatehouse, "engine_unloaded"), what="the event")[0]
        assert unloaded["reason"] == "idle for 5 s"
        assert chat(gatehouse).status_code == 200
        assert engine(gatehouse)["pid"] != first["pid"]


def test_requests_at_any_moment_of_an_unload_are_served(tmp_path: Path, launch: Launch) -> None:
    with launch(config(tmp_path, lifecycle={"idle_ttl": 0.001})) as gatehouse:
        with gatehouse.client() as client:
            body = {"model": "demo-chat", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}
            seen = set()
            end = time.monotonic() + 240
            while len(events(gatehouse, "engine_unloaded")) < 3:
                assert time.monotonic() < end, "three unloads did not come"
                seen.add(client.post("/v1/chat/completions", json=body).status_code)
        assert seen == {200}


def test_a_lazy_model_that_does_not_fit_is_507_for_all_who_wait(tmp_path: Path, launch: Launch) -> None:
    model = tmp_path / "model.gguf"
    long_model(model, 4_000_000)
    with launch(config(tmp_path, model, context=4_000_000, slots=1024, lifecycle={"load": "lazy"})) as gatehouse:
        for _ in range(3):
            answer = chat(gatehouse)
            assert answer.status_code == 507
            assert errors_of(answer)["code"] == "insufficient_memory"
        assert len(events(gatehouse, "engine_wanted")) == 1, "it is not tried again for each request"
        shown = engine(gatehouse)
        assert shown["reason_code"] == "insufficient_memory" and "MiB needed" in shown["reason"]
        with admin(gatehouse) as client:
            found = problem(client.post("/models/demo-chat/load"), 507, "insufficient_memory")
            assert "MiB needed" in found["detail"] and "MiB free" in found["detail"]


def test_a_replacement_that_does_not_fit_is_refused_and_the_old_one_serves(tmp_path: Path, launch: Launch) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(DEMO, model)
    with launch(config(tmp_path, model, context=4_000_000, slots=32)) as gatehouse, admin(gatehouse) as client:
        long_model(tmp_path / "long.gguf", 4_000_000).replace(model)
        pid = engine(gatehouse)["pid"]
        found = problem(client.post("/models/demo-chat/reload"), 507, "insufficient_memory")
        assert "MiB needed" in found["detail"] and "stop_first" in found["detail"]
        assert chat(gatehouse).status_code == 200
        assert engine(gatehouse)["pid"] == pid


def test_a_pinned_engine_needs_force(tmp_path: Path, launch: Launch) -> None:
    settings = {"pinned": True, "idle_ttl": 0.1}
    with launch(config(tmp_path, lifecycle=settings)) as gatehouse, admin(gatehouse) as client:
        idle = duration(engine(gatehouse)["idle"])
        until(lambda: duration(engine(gatehouse)["idle"]) > idle + 1.2, what="more than a second of silence")
        assert engine(gatehouse)["state"] == "ready", "never unloaded for being idle"
        found = problem(client.post("/models/demo-chat/unload"), 409, "pinned")
        assert problem(client.post("/models/demo-chat/unload?dry_run=true"), 409, "pinned")["detail"] == found["detail"]
        assert "force" in found["detail"]
        answer = client.post("/models/demo-chat/unload", params={"force": "true"})
        assert answer.json()["engines"] == [{"engine": "chat", "state": "stopped", "version": "1"}]
        assert chat(gatehouse).status_code == 503
        assert client.post("/models/demo-chat/load").status_code == 200
        assert chat(gatehouse).status_code == 200


def test_a_reload_of_a_model_replaces_its_process(tmp_path: Path, launch: Launch) -> None:
    with launch(config(tmp_path, rollout={"steps": []})) as gatehouse, admin(gatehouse) as client:
        old = engine(gatehouse)["pid"]
        assert client.post("/models/demo-chat/reload", params={"stop_first": "true"}).status_code == 200
        assert engine(gatehouse)["pid"] != old
        until(lambda: not alive(old), what="the end of the old process")
        os.kill(engine(gatehouse)["pid"], signal.SIGKILL)
        until(lambda: chat(gatehouse).status_code == 200, what="the restart of the new one")


def test_an_embedding_engine_is_replaced_after_it_has_embedded(short_path: Path, launch: Launch) -> None:
    made = config(short_path)
    made["engines"].append({"name": "embed", "runtime": "onnx", "model": "demo-embed", "rollout": {"steps": []}})
    made["models"].append({"name": "demo-embed", "pool": ["embed"]})
    with launch(made) as gatehouse, admin(gatehouse) as client:
        assert client.post("/models/demo-embed/reload").status_code == 200
        counts = client.get("/engines/embed").json()
        assert counts["task"] == "embeddings" and len(counts["sha256"]) == 64
        until(lambda: len(list(short_path.glob("state/run/embed-*/s.sock"))) == 1, what="the end of the old process")
        (socket,) = short_path.glob("state/run/embed-*/s.sock")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=60) as sidecar:
            assert 'gatehouse_sidecar_requests_total{path="/v1/embeddings",status="200"} 1' in sidecar.get("http://x/metrics").text
        with gatehouse.client() as data:
            answer = data.post("/v1/embeddings", json={"model": "demo-embed", "input": "Hello"})
        assert answer.status_code == 200, answer.text
