"""Engines and models as resources of the store: made, checked before they are stored, in force at once, and gone again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import adminapi
from tests.e2e.adminapi import problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, external
from tests.waiting import until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("fleet")
    environ = {"GATEHOUSE_SECRET_UPSTREAM": "sk-from-the-environment"}
    with Gatehouse(directory, adminapi.config(directory / "state", engine.port), environ) as gatehouse:
        yield gatehouse


@pytest.fixture(scope="module")
def root(running: Gatehouse) -> Iterator[httpx.Client]:
    with adminapi.admin(running) as client:
        yield client


@pytest.fixture
def other(engines: Callable[..., EngineThread]) -> EngineThread:
    return engines()


def created(client: httpx.Client, kind: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/{kind}", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/admin/v1/{kind}/{body['name']}" and answer.headers["etag"] == '"1"'
    found: dict[str, Any] = answer.json()
    return found


def served(gatehouse: Gatehouse, model: str, status: int = 200) -> None:
    until(lambda: gatehouse.chat(model=model).status_code == status, what=f"{status} of {model}")


@pytest.fixture
def clean(root: httpx.Client) -> Iterator[None]:
    """What a test made is deleted."""
    yield
    for kind in ("models", "engines"):
        while items := [i for i in root.get(f"/{kind}", params={"source": "store"}).json()["items"]]:
            results = [root.delete(f"/{kind}/{item['name']}").status_code for item in items]
            assert 200 in results, (kind, items)


def test_an_engine_and_its_model_serve_as_soon_as_they_are_made(
    running: Gatehouse, root: httpx.Client, other: EngineThread, clean: None
) -> None:
    made = created(root, "engines", **external("x", other.port), headers={"x-tier": "gold-tier"}, api_key="sk-kept-in-the-store")
    assert (made["source"], made["revision"], made["settings"]["slots"]) == ("store", 1, None)
    created(root, "models", name="mx", pool=["x"], aliases=["mx-latest"])
    served(running, "mx-latest")
    sent = {name: value for name, value in other.received[-1].headers}
    assert (sent["authorization"], sent["x-tier"]) == ("Bearer sk-kept-in-the-store", "gold-tier")
    shown = root.get("/models/mx").json()
    assert (shown["ready"], shown["in_force"], shown["pool"][0]["state"], shown["settings"]["pool"]) == (True, True, "ready", ["x"])
    assert root.get("/engines/x").json()["state"] == "ready"
    assert root.delete("/models/mx").status_code == 200
    served(running, "mx", 404)
    assert root.delete("/engines/x").status_code == 200
    until(lambda: "x" not in [e["name"] for e in root.get("/endpoints").json()["items"]])


def test_secrets_are_shown_nowhere_and_kept_nowhere_in_the_clear(
    running: Gatehouse, root: httpx.Client, other: EngineThread, clean: None
) -> None:
    key, value = "sk-planted-0123456789", "planted-header-value"
    created(root, "engines", **external("x", other.port), headers={"x-secret": value}, api_key=key)
    assert root.patch("/engines/x", json={"weight": 2}).status_code == 200
    answers = [
        root.get(path).text for path in ("/engines", "/engines/x", "/config", "/audit/export", "/audit/records?count=1000", "/status")
    ]
    refused = root.post("/engines", json={**external("x", other.port), "api_key": key})
    stored = (running.state_dir / "gatehouse.db").read_bytes() + (running.state_dir / "gatehouse.db-wal").read_bytes()
    for text in (*answers, refused.text, *running.lines, stored.decode("latin-1"), json.dumps(running.audit())):
        assert key not in text and value not in text
    assert b"sealed:1:" in stored
    masked = root.put("/engines/x", json={**external("x", other.port), "api_key": "********"})
    assert problem(masked, 400, "invalid_value")["param"] == "api_key"


def test_a_patch_keeps_secrets_a_replacement_does_not(running: Gatehouse, root: httpx.Client, other: EngineThread, clean: None) -> None:
    created(root, "engines", **external("x", other.port), api_key="sk-1")
    created(root, "models", name="mx", pool=["x"])

    def sends(key: str | None) -> bool:
        running.chat(model="mx")
        return bool(other.received) and other.received[-1].header("authorization") == key

    until(lambda: sends("Bearer sk-1"))
    assert root.patch("/engines/x", json={"slots": 3}).json()["settings"]["slots"] == 3
    until(lambda: root.get("/engines/x").json()["in_force"])
    assert sends("Bearer sk-1")
    same = root.put("/engines/x?dry_run=true", json={**external("x", other.port), "slots": 3, "api_key": "sk-1"}).json()
    assert same["diff"] == [], "the same secret is no difference"
    found = problem(root.patch("/engines/x", json={"url": "http://127.0.0.1:9"}), 400, "invalid_value")
    assert found["param"] == "api_key" and "send it again" in found["detail"]
    for elsewhere in ({"dns": {"servers": ["192.0.2.1:53"]}}, {"dns": {"records": "srv"}}, {"tls": {"server_name": "other.test"}}):
        found = problem(root.patch("/engines/x", json=elsewhere), 400, "invalid_value")
        assert found["param"] == "api_key" and "send it again" in found["detail"], "nobody has a secret sent to another place unread"
    assert root.patch("/engines/x", json={"api_key": "${env:GATEHOUSE_SECRET_UPSTREAM}"}).status_code == 200
    until(lambda: sends("Bearer sk-from-the-environment"))
    moved = root.patch("/engines/x?dry_run=true", json={"url": "http://127.0.0.1:9"})
    assert moved.status_code == 200, "a reference is no secret, and goes with the engine"
    assert root.put("/engines/x", json=external("x", other.port)).json()["settings"]["api_key"] is None
    until(lambda: sends(None))


@pytest.mark.parametrize(
    ("kind", "body", "param", "words"),
    [
        ("engines", {"runtime": "external"}, None, "'url' is missing"),
        ("engines", {"runtime": "external", "url": "ftp://10.0.0.1"}, "url", "http://"),
        ("engines", {"runtime": "external", "url": "http://10.0.0.1"}, "url", "store.upstreams"),
        ("engines", {"runtime": "external", "url": "http://169.254.169.254"}, "url", "store.upstreams"),
        ("engines", {"runtime": "external", "url": "http://127.0.0.1", "api_key": "${env:HOME}"}, "api_key", "GATEHOUSE_SECRET_"),
        ("engines", {"runtime": "external", "url": "http://127.0.0.1", "api_key": "a\nb"}, "api_key", "cannot carry"),
        ("engines", {"runtime": "external", "url": "http://127.0.0.1", "tls": {"ca": "/etc/passwd"}}, "tls.ca", "no field"),
        ("engines", {"runtime": "llama.cpp", "model": "/etc/passwd"}, "model", "names a path"),
        ("engines", {"runtime": "llama.cpp", "model": "../gatehouse.db"}, "model", "names a path"),
        ("engines", {"runtime": "llama.cpp", "model": "nowhere.gguf"}, "model", "no model 'nowhere.gguf'"),
        ("engines", {"runtime": "onnx", "model": "demo-embed", "options": {"provider": {"a": "b"}}}, "options.provider", "file"),
        ("engines", {"runtime": "llama.cpp", "model": "demo-chat.gguf", "options": {"stal": 2}}, "options.stal", "did you mean 'stall'?"),
        ("engines", {"runtime": "onnx", "model": "demo-embed", "options": {"task": "chat"}}, "options.task", "embeddings"),
        ("engines", {"runtime": "external", "url": "http://127.0.0.1", "options": {"stall": 2}}, "options", "is external"),
        ("models", {"pool": ["nothing"]}, "pool[0]", "there is no engine 'nothing'"),
        ("models", {"pool": []}, "pool", "is empty"),
        ("models", {"pool": ["fake"], "aliases": ["m1"]}, "aliases[0]", "already the name of something else"),
        ("models", {"pool": ["fake"], "fallbacks": ["m2"]}, "fallbacks[0]", "there is no model"),
    ],
)
def test_what_could_not_be_in_force_is_refused_before_it_is_stored(
    root: httpx.Client, kind: str, body: dict[str, Any], param: str | None, words: str
) -> None:
    for query in ("", "?dry_run=true"):
        answer = root.post(f"/{kind}{query}", json={"name": "wrong", **body})
        found = problem(answer, 400, answer.json()["code"])
        assert words in found["detail"] and (param is None or found.get("param") == param), found
    assert root.get(f"/{kind}/wrong").status_code == 404


def test_a_change_that_would_break_another_resource_is_refused(root: httpx.Client, other: EngineThread, clean: None) -> None:
    created(root, "engines", **external("x", other.port))
    created(root, "models", name="mx", pool=["x"])
    created(root, "models", name="my", pool=["fake"], fallbacks=["mx"])
    assert "'mx'" in problem(root.delete("/engines/x"), 409, "in_use")["detail"]
    assert "'my'" in problem(root.delete("/models/mx"), 409, "in_use")["detail"]
    assert "circle" in problem(root.patch("/models/mx", json={"fallbacks": ["my"]}), 400, "invalid_config")["detail"]
    found = problem(root.patch("/engines/x", json={"runtime": "llama.cpp", "url": None, "model": "demo-chat.gguf"}), 400, "invalid_value")
    assert found["param"] == "runtime"


def test_the_files_engines_and_models_are_listed_and_read_only(root: httpx.Client) -> None:
    for kind, name in (("engines", "fake"), ("models", "m1")):
        shown = root.get(f"/{kind}/{name}").json()
        assert (shown["source"], shown["revision"], shown["in_force"]) == ("file", None, True)
        assert [i["name"] for i in root.get(f"/{kind}", params={"source": "file"}).json()["items"]] == [name]
        body = shown["settings"]
        problem(root.put(f"/{kind}/{name}", json={**body, "headers": {}} if kind == "engines" else body), 409, "read_only")
        problem(root.patch(f"/{kind}/{name}", json={}), 409, "read_only")
        problem(root.delete(f"/{kind}/{name}"), 409, "read_only")
        problem(root.post(f"/{kind}", json=body), 409, "read_only")


def test_pages_versions_and_dry_runs(root: httpx.Client, clean: None) -> None:
    for number in range(5):
        created(root, "models", name=f"p{number}", pool=["fake"])
    first = root.get("/models", params={"limit": 3}).json()
    second = root.get("/models", params={"limit": 3, "cursor": first["cursor"]}).json()
    assert [i["name"] for i in first["items"] + second["items"]] == ["m1", "p0", "p1", "p2", "p3", "p4"]
    assert root.get("/models/p0").headers["etag"] == '"1"'
    assert root.patch("/models/p0", json={"max_tokens": 5}, headers={"if-match": '"1"'}).headers["etag"] == '"2"'
    problem(root.patch("/models/p0", json={"max_tokens": 6}, headers={"if-match": '"1"'}), 412, "version_mismatch")
    tried = root.patch("/models/p0?dry_run=true", json={"max_tokens": None, "routing": {"key": "session"}}).json()
    assert tried["diff"] == [{"path": "routing.key", "from": "prefix", "to": "session"}, {"path": "max_tokens", "from": 5, "to": None}]
    assert root.get("/models/p0").json()["settings"]["max_tokens"] == 5
    assert root.patch("/models/p0", json={}, headers={"content-type": "application/merge-patch+json"}).status_code == 200


def test_where_prompts_are_sent_is_the_administrators_business(
    running: Gatehouse, root: httpx.Client, other: EngineThread, clean: None
) -> None:
    created(root, "engines", **external("x", other.port))
    with adminapi.admin(running, "operator") as operator, adminapi.admin(running, "viewer") as viewer:
        problem(operator.post("/engines", json=external("y", other.port)), 403, "policy_denied")
        problem(operator.patch("/engines/x", json={"url": "http://127.0.0.1:9"}), 403, "policy_denied")
        problem(operator.patch("/engines/x", json={"headers": {"x-a": "b"}}), 403, "policy_denied")
        assert operator.patch("/engines/x", json={"slots": 2}).status_code == 200
        assert operator.post("/models", json={"name": "mx", "pool": ["x"]}).status_code == 201
        assert viewer.get("/engines/x").json()["settings"]["url"] is None
        problem(viewer.post("/models", json={"name": "my", "pool": ["x"]}), 403, "policy_denied")


def test_what_the_store_has_survives_a_restart_and_the_file_wins(
    tmp_path: Path, launch: Callable[..., Gatehouse], engine: EngineThread, other: EngineThread
) -> None:
    config = adminapi.config(tmp_path / "state", engine.port)
    gatehouse = launch(config).start()
    with adminapi.admin(gatehouse) as client:
        created(client, "engines", **external("x", other.port), api_key="sk-1")
        created(client, "models", name="mx", pool=["x"])
        created(client, "models", name="my", pool=["fake"])
    served(gatehouse, "mx")
    assert gatehouse.stop() == 0
    gatehouse.lines.clear()
    gatehouse.start()
    assert gatehouse.chat(model="mx").status_code == 200 and other.received[-1].header("authorization") == "Bearer sk-1"
    # the file takes the engine's name, and gives one of its own away that the store's model needs
    config["engines"] = [external("x", engine.port), external("second", engine.port)]
    config["models"] = [{"name": "m1", "pool": ["second"]}]
    gatehouse.file.write_text(json.dumps(config))
    with adminapi.admin(gatehouse) as client:
        assert client.post("/config/reload").json()["applied"] is True
        assert (client.get("/engines/x").json()["source"], client.get("/engines/x").json()["settings"]["api_key"]) == ("file", None)
        left = client.get("/models/my").json()
        assert (left["in_force"], left["ready"]) == (False, False) and "there is no engine 'fake'" in left["reason"]
    assert gatehouse.chat(model="mx").status_code == 200 and gatehouse.chat(model="m1").status_code == 200
    assert gatehouse.chat(model="my").status_code == 404
    refusal = [r for r in gatehouse.audit() if r.get("event") == "left_out"]
    assert refusal and refusal[-1]["target"] == "models/my"


def test_a_new_version_takes_over_and_one_that_fails_does_not(
    tmp_path: Path, launch: Callable[..., Gatehouse], engine: EngineThread
) -> None:
    gatehouse = launch(adminapi.config(tmp_path / "state", engine.port)).start()
    sidecar = {"name": "s", "runtime": "llama.cpp", "model": "demo-chat.gguf", "slots": 2, "context": 256}
    with adminapi.admin(gatehouse) as client:
        created(client, "engines", **sidecar, rollout={"steps": [0.5], "step_seconds": 2})
        created(client, "models", name="ms", pool=["s"])
        until(lambda: gatehouse.chat(model="ms", max_tokens=2).status_code == 200, what="the first version")

        def during(version: str) -> bool:
            """Whether a limit came into force while a version was on its way, which then took over."""
            limit = {"name": f"l{version}", "match": {"key": "nobody"}, "concurrent": 1}
            assert client.patch("/engines/s", json={"version": version, "context": 128}).status_code == 200
            assert client.post("/limits", json=limit).status_code == 201
            until(lambda: limit["name"] in [each["name"] for each in client.get("/status").json()["limits"]], what="the limit")
            under_way = client.get("/engines/s").json()["in_force"] is False
            until(lambda: client.get("/engines/s").json()["in_force"], what="the next version")
            assert client.get("/engines/s").json()["version"] == version
            return under_way

        last = next((version for version in "234" if during(version)), None)  # on a machine that stands still a step may be over
        assert last is not None, "no limit came into force during a rollout"
        assert client.patch("/engines/s", json={"version": "9", "sha256": "0" * 64}).status_code == 200
        shown = until(lambda: (e := client.get("/engines/s").json())["reason"] and e, what="the failure")
        assert (shown["version"], shown["in_force"], shown["settings"]["version"]) == (last, False, "9") and "sha256" in shown["reason"]
        assert gatehouse.chat(model="ms", max_tokens=2).status_code == 200
        event = gatehouse.noted(event="rollout_failed")[0]
        assert (event["target"], event["outcome"]) == ("engines/s", "failed")
        assert gatehouse.stop() == 0  # and one that fails does not keep the gateway from starting
        gatehouse.lines.clear()
        gatehouse.start()
    with adminapi.admin(gatehouse) as client:
        shown = client.get("/engines/s").json()
        assert not shown["in_force"] and shown["state"] != "ready" and "sha256" in shown["reason"]
        assert gatehouse.chat().status_code == 200 and gatehouse.chat(model="ms").status_code == 503
        assert client.patch("/engines/s", json={"sha256": None}).status_code == 200
        until(lambda: gatehouse.chat(model="ms", max_tokens=2).status_code == 200, what="the healing")
        assert client.delete("/models/ms").status_code == client.delete("/engines/s").status_code == 200
        until(lambda: not gatehouse.engines(), what="the end of the sidecar")
