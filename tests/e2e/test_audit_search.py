"""Searching the log of a gateway with two workers: by what a request was about, as an auditor of one tenant, after faults; the report."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e.adminapi import KEYS, admin, config, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import OTHER_KEY, Gatehouse, external
from tests.waiting import until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("search")
    models = [{"name": "m1", "pool": ["fake"]}, {"name": "m2", "pool": ["fake"]}]
    settings = config(directory / "state", engine.port, engines=[external("fake", engine.port)], models=models)
    with Gatehouse(directory, settings, arguments=["--workers", "2"]) as gatehouse:
        yield gatehouse


def indexers(gatehouse: Gatehouse) -> list[int]:
    """The processes that keep the index of this gateway."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"gateway.audit.indexer" in command and os.fsencode(str(gatehouse.state_dir / "audit")) in command:
            found.append(int(path.parent.name))
    return found


def found(client: httpx.Client, **asked: str | int) -> list[str]:
    answer = client.get("/audit/search", params={"kind": "request", **asked})
    assert answer.status_code == 200, answer.text
    return [one["request_id"] for one in answer.json()["items"]]


def test_requests_are_found_at_once_by_what_they_were_about(running: Gatehouse) -> None:
    one = running.chat("first").headers["x-request-id"]
    other = running.chat("second", model="m2", key=OTHER_KEY).headers["x-request-id"]
    denied = running.chat("third", model="nothing").headers["x-request-id"]
    for request_id in (one, other, denied):  # each worker has a log of its own
        running.outcome(request_id)
    with admin(running, "auditor") as client:
        assert found(client, model="m2") == [other] == found(client, tenant="globex") == found(client, key="other")
        assert found(client, request_id=one, outcome="ok", operation="chat") == [one]
        assert found(client, outcome="denied", model="nothing", code="model_not_found") == [denied]
        assert found(client, model="m*", limit=1) == [other]
        first = client.get("/audit/search", params={"kind": "request", "limit": 1}).json()
        second = client.get("/audit/search", params={"kind": "request", "limit": 1, "cursor": first["cursor"]}).json()
        assert first["items"][0]["request_id"] != second["items"][0]["request_id"]
        (whole,) = client.get("/audit/search", params={"request_id": one, "records": "true"}).json()["items"]
        assert [record["kind"] for record in whole["records"]] == ["intent", "outcome"] and whole["records"][0]["request_id"] == one
        problem(client.get("/audit/search", params={"cursor": "xxx"}), 400, "invalid_value")
        assert len(indexers(running)) == 1


def test_an_auditor_of_one_tenant_finds_only_its_records(running: Gatehouse) -> None:
    running.outcome(running.chat("acme's").headers["x-request-id"])
    other = running.chat("globex's", key=OTHER_KEY).headers["x-request-id"]
    running.outcome(other)
    with admin(running) as root, admin(running, "none") as client:
        problem(client.get("/audit/search"), 403, "policy_denied")
        role = {"name": "acme-auditor", "permissions": ["admin:records:search", "admin:records:report"]}
        assert root.post("/roles", json=role).status_code == 201
        bound = {"name": "b-auditor", "role": "acme-auditor", "subjects": ["key/a-none"], "tenant": "acme"}
        assert root.post("/bindings?wait=30", json=bound).status_code == 201
        items = client.get("/audit/search", params={"limit": 1000}).json()["items"]
        assert items and {one["tenant"] for one in items} == {"acme"} and found(client, request_id=other) == []
        report = client.get("/audit/report", params={"since": 0}).json()
        assert report["tenants"] == ["acme"] and {row["tenant"] for row in report["accesses"]} == {"acme"} and report["log"] == []
        problem(client.get("/audit/report", params={"since": 0, "tenant": "globex"}), 403, "policy_denied")
        problem(client.get("/audit/report", params={"since": 0, "verify": "true"}), 403, "policy_denied")


def test_the_index_is_kept_through_faults(running: Gatehouse) -> None:
    one = running.chat("before").headers["x-request-id"]
    running.outcome(one)
    with admin(running, "auditor") as client:
        assert found(client, request_id=one) == [one]
        (pid,) = indexers(running)
        os.kill(pid, signal.SIGKILL)
        until(lambda: indexers(running) == [], what="the end of the indexer")
        later = running.chat("after").headers["x-request-id"]
        running.outcome(later)
        until(lambda: client.get("/audit/search").status_code == 200, what="another indexer")
        assert found(client, request_id=one) == [one] and found(client, request_id=later) == [later]
        (pid,) = indexers(running)
        os.kill(pid, signal.SIGKILL)
        until(lambda: indexers(running) == [], what="the end of the indexer")
        for path in running.state_dir.glob("audit-index.sqlite*"):
            path.unlink()
        until(lambda: client.get("/audit/search").status_code == 200, what="another index")
        assert found(client, request_id=one) == [one]


def test_the_commands_search_and_report(running: Gatehouse, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    running.outcome(running.chat("x", model=hostile).headers["x-request-id"])
    given = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["auditor"], "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    def cli(*arguments: str) -> str:
        done = CliRunner().invoke(app, list(arguments), env=given)
        assert done.exit_code == 0, done.output
        return done.output

    assert hostile in cli("audit", "search", "--model", "<script>*", "--since", "1h")
    offline = cli("audit", "search", "--dir", str(running.state_dir / "audit"), "--model", hostile, "--output", "json")
    assert hostile in offline
    page = cli("audit", "report", "--since", "1d")
    assert page.startswith("<!doctype html>") and "Every line is as it was written." in page
    assert hostile not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    to = tmp_path / "report.json"
    cli("audit", "report", "--format", "json", "--no-verify", "--to", str(to))
    assert '"accesses"' in to.read_text()


def test_the_indexer_ends_with_the_gateway(tmp_path: Path, engine: EngineThread) -> None:
    gatehouse = Gatehouse(tmp_path, config(tmp_path / "state", engine.port)).start()
    try:
        with admin(gatehouse, "auditor") as client:
            assert client.get("/audit/search").status_code == 200
        assert len(indexers(gatehouse)) == 1
    finally:
        gatehouse.stop()
    until(lambda: indexers(gatehouse) == [], what="the end of the indexer")
    gatehouse.start()
    try:
        until(lambda: len(indexers(gatehouse)) == 1, what="the index to be kept from the start")
        assert gatehouse.process is not None
        gatehouse.process.kill()
        gatehouse.process.wait(60)
        until(lambda: indexers(gatehouse) == [], what="the end of the indexer")
    finally:
        gatehouse.stop()
