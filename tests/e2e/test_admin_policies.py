"""Limits and guardrails that are made over the admin API are in force at once, without a restart, and survive one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, external
from tests.waiting import until

ROOT_KEY = "root-key-0123456789abcdef0123456789abcdef"
LIMIT = {"name": "few", "per": "key", "match": {"key": "narrow"}, "requests": {"rate": 1, "per": 3600}}


def config_with_root(state_dir: Path, engine: EngineThread, **parts: Any) -> dict[str, Any]:
    config = configuration(state_dir, engines=[external("fake", engine.port, slots=64)], models=[{"name": "m1", "pool": ["fake"]}], **parts)
    root = {"id": "root", "key": ROOT_KEY, "tenant": "ops", "models": ["*"], "roles": ["admin"]}
    config["identity"]["api_keys"]["static"].append(root)
    return config


@pytest.fixture
def running(tmp_path: Path, engine: EngineThread, launch: Callable[..., Gatehouse]) -> Iterator[Gatehouse]:
    yield launch(config_with_root(tmp_path / "state", engine)).start()


def admin(gatehouse: Gatehouse) -> httpx.Client:
    headers = {"authorization": f"Bearer {ROOT_KEY}"}
    return httpx.Client(base_url=f"{gatehouse.admin_url}/admin/v1", headers=headers, trust_env=False, timeout=90)


def names(gatehouse: Gatehouse) -> list[str]:
    with admin(gatehouse) as client:
        return [limit["name"] for limit in client.get("/status").json()["limits"]]


def test_a_limit_of_the_store_is_in_force_and_goes_again(running: Gatehouse) -> None:
    with admin(running) as client:
        assert client.post("/limits", json={**LIMIT, "match": {"key": "test"}}).status_code == 201
        until(lambda: names(running) == ["few"])
        assert running.chat("one").status_code == 200
        refused = running.chat("two")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        answer = client.post("/policies:explain", json={"key": "test", "request": {"model": "m1"}}).json()
        assert (answer["allow"], answer["limits"]) == (True, ["few"])
        assert client.delete("/limits/few").status_code == 200
        until(lambda: names(running) == [])
        assert running.chat("three").status_code == 200


def test_a_guardrail_of_the_store_blocks_and_survives_a_restart(running: Gatehouse) -> None:
    guardrail = {"name": "words", "type": "denylist", "on": ["request"], "settings": {"phrases": ["forbidden fruit"]}}
    with admin(running) as client:
        assert running.chat("forbidden fruit").status_code == 200
        assert client.post("/guardrails", json=guardrail).status_code == 201
        until(lambda: running.chat("forbidden fruit").status_code == 400)
    assert running.stop() == 0
    running.lines.clear()
    running.start()
    assert running.chat("forbidden fruit").status_code == 400
    assert running.chat("harmless").status_code == 200


def test_a_guardrail_that_cannot_be_built_is_refused(running: Gatehouse) -> None:
    with admin(running) as client:
        for broken in (
            {"type": "nothing"},
            {"type": "denylist", "settings": {"phrases": "x"}},
            {"type": "denylist", "settings": {"phrases_file": "/etc/passwd"}},
        ):
            answer = client.post("/guardrails", json={"name": "broken", **broken})
            assert answer.status_code == 400, answer.text
            assert "root:" not in answer.text
        assert client.get("/guardrails").json()["items"] == []


def test_a_change_of_the_file_keeps_what_the_store_says(running: Gatehouse) -> None:
    with admin(running) as client:
        assert client.post("/limits", json=LIMIT).status_code == 201
        until(lambda: names(running) == ["few"])
        assert client.post("/config/reload").json()["applied"] is True
    assert names(running) == ["few"]


def test_durations_are_shown_as_the_configuration_has_them_and_taken_back_so(running: Gatehouse) -> None:
    body = {**LIMIT, "requests": {"rate": 1, "per": 90}}
    with admin(running) as client:
        made = client.post("/limits", json=body).json()
        assert made["requests"]["per"] == "1m30s"
        settings = {name: made[name] for name in ("name", "per", "match", "requests")}
        tried = client.put("/limits/few?dry_run=true", json={**settings, "requests": {"rate": 1, "per": "2h"}}).json()
        assert tried["diff"] == [{"path": "requests.per", "from": "1m30s", "to": "2h"}]
        assert client.put("/limits/few", json=settings).json()["requests"] == made["requests"]
        until(lambda: names(running) == ["few"])
        assert client.get("/status").json()["limits"][0]["requests"]["per"] == "1m30s"
        engine = client.get("/engines/fake").json()
        assert engine["settings"]["timeouts"]["connect"] == "2s"
        config = client.get("/config").json()["config"]
        assert config["engines"][0]["timeouts"]["connect"] == "2s"
        assert config["listen"]["drain_timeout"] == "30s"
        key = client.post("/keys", json={"id": "k", "tenant": "acme", "models": ["*"]}).json()["id"]
        rotated = client.post(f"/keys/{key}/rotate?dry_run=true", json={"overlap": "90m"}).json()
        assert {"path": "overlap", "from": None, "to": "1h30m"} in rotated["diff"]


def test_cases_of_decisions_are_checked(running: Gatehouse) -> None:
    asked = {"key": "test", "request": {"model": "m1"}}
    stranger = {"principal": {"tenant": "elsewhere"}, "request": {"model": "m1"}}
    with admin(running) as client:
        rule = client.post("/policies:explain", json=asked).json()["rule"]
        cases = [
            {**asked, "expect": "allow", "rule": rule},
            {**stranger, "name": "a stranger", "expect": "allow"},
            {**stranger, "expect": "deny", "rule": "another"},
        ]
        answer = client.post("/policies:test", json={"cases": cases}).json()
        assert not answer["passed"]
        shown = [(item["case"], item["allow"], item["passed"]) for item in answer["items"]]
        assert shown == [("cases[0]", True, True), ("a stranger", False, False), ("cases[2]", False, False)]
        assert client.post("/policies:test", json={"cases": cases[:1]}).json()["passed"]
        for key, status, param in (("nobody", 404, "cases[1]"), (None, 400, "cases[1].key")):
            refused = client.post("/policies:test", json={"cases": [cases[0], {**cases[0], "key": key}]})
            told = refused.json()
            assert (refused.status_code, told["detail"][:9], told["param"]) == (status, "cases[1]:", param)
        assert client.post("/policies:test", json={"cases": []}).status_code == 400


def test_what_is_switched_off_is_not_found(running: Gatehouse) -> None:
    with admin(running) as client:
        for path in ("/jobs", "/job-schedules", "/batches", "/client-files", "/jobs/one", "/batches/one", "/client-files/one"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
            assert "not enabled" in answer.json()["detail"], path
