"""`files.scope: caller`: two keys of one tenant, each with files and batches of its own, through a running gateway."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.adminapi import admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.waiting import until

COLLEAGUE = "sk-colleague-0123456789abcdef01234"
ROOT_KEY = "sk-operator-0123456789abcdef012345"
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
OVER = ("completed", "failed", "expired", "cancelled")


def settings(state_dir: Path, engine: EngineThread, scope: str) -> dict[str, Any]:
    keys = [
        {"id": "app", "key": KEY, "tenant": "acme", "models": ["*"]},
        {"id": "colleague", "key": COLLEAGUE, "tenant": "acme", "models": ["*"], "roles": ["tenant-admin"]},
        {"id": "root", "key": ROOT_KEY, "tenant": "ops", "models": [], "roles": ["admin"]},
    ]
    return configuration(
        state_dir,
        engines=[external("fake", engine.port, slots=8)],
        models=[{"name": "fake", "pool": ["fake"]}],
        identity={"api_keys": {"static": keys}},
        files={"enabled": True, "reserve_bytes": 0, "scope": scope},
        batches={"enabled": True, "lease": "1m"},
        jobs={"enabled": True, "lease": "1m"},
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["one process", "workers"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("scope")
    with Gatehouse(directory, settings(directory / "state", engine, "caller"), arguments=request.param) as running:
        yield running


def upload(client: httpx.Client, lines: int = 1) -> str:
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}]}
    asked = [{"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(lines)]
    content = "\n".join(map(json.dumps, asked)).encode()
    made = client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


def ended(client: httpx.Client, id: str) -> dict[str, Any]:
    until(lambda: client.get(f"/v1/batches/{id}").json()["status"] in OVER, what="the batch is over", seconds=60)
    found: dict[str, Any] = client.get(f"/v1/batches/{id}").json()
    return found


def ids(client: httpx.Client, path: str) -> list[str]:
    return [one["id"] for one in client.get(path).json()["data"]]


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def test_files_and_batches_of_another_key_are_not_there(gateway: Gatehouse) -> None:
    with gateway.client(KEY) as mine, gateway.client(COLLEAGUE) as other:
        file = upload(mine)
        batch = mine.post("/v1/batches", json={**BATCH, "input_file_id": file}).json()["id"]
        over = ended(mine, batch)
        assert over["status"] == "completed", over
        result = over["output_file_id"]
        assert mine.get(f"/v1/files/{result}/content").status_code == 200, "results belong to whoever made the batch"
        calls: list[Callable[[str], httpx.Response]] = [
            lambda id: other.get(f"/v1/files/{id}"),
            lambda id: other.get(f"/v1/files/{id}/content"),
            lambda id: other.delete(f"/v1/files/{id}"),
            lambda id: other.post("/v1/batches", json={**BATCH, "input_file_id": id}),
        ]
        for call in calls:
            for id in (file, result):
                assert error(call(id)) == (404, f"There is no file '{id}'."), "as of one that never was"
            assert error(call("file-none")) == (404, "There is no file 'file-none'.")
        for told in (other.get(f"/v1/batches/{batch}"), other.post(f"/v1/batches/{batch}/cancel")):
            assert error(told) == (404, f"There is no batch '{batch}'.")
        assert ids(other, "/v1/files") == [] and ids(other, "/v1/batches") == []
        own = upload(other)
        assert ids(other, "/v1/files") == [own] and other.get(f"/v1/files/{own}").status_code == 200
        assert own not in ids(mine, "/v1/files") and {file, result} <= set(ids(mine, "/v1/files"))
        assert ids(mine, "/v1/batches") == [batch]
        assert ids(other, f"/v1/files?order=asc&after={file}") == [own]
        assert mine.delete(f"/v1/files/{file}").status_code == 200 and other.delete(f"/v1/files/{own}").status_code == 200


def test_operators_reach_all_and_jobs_only_what_is_their_makers(gateway: Gatehouse) -> None:
    with gateway.client(KEY) as mine, gateway.client(COLLEAGUE) as other:
        file, own = upload(mine), upload(other)
    with admin(gateway, key=ROOT_KEY) as root, admin(gateway, key=COLLEAGUE) as tenant_admin:
        for client in (root, tenant_admin):
            listed = [one["id"] for one in client.get("/client-files").json()["items"]]
            assert {file, own} <= set(listed) and client.get(f"/client-files/{file}").json()["owner"] == "acme/app"
        refused = tenant_admin.post("/jobs", json={"task": {"kind": "warm", "file": file}})
        assert problem(refused, 404, "not_found")["detail"] == f"There is no file '{file}'."
        job = tenant_admin.post("/jobs", json={"task": {"kind": "warm", "file": own}}).json()["id"]
        until(lambda: tenant_admin.get(f"/jobs/{job}").json()["state"] in ("done", "dead", "cancelled"), what="the job is over", seconds=60)
        assert tenant_admin.get(f"/jobs/{job}").json()["result"] == {"answered": 1, "failed": 0}
        assert tenant_admin.delete(f"/client-files/{file}").status_code == 200


def test_a_key_of_the_same_id_does_not_reach_what_the_one_before_had(gateway: Gatehouse) -> None:
    key = {"id": "second", "tenant": "acme", "models": ["*"]}
    with admin(gateway, key=ROOT_KEY) as root:
        with gateway.client(root.post("/keys", json=key).json()["secret"]) as client:
            file = upload(client)
            assert ids(client, "/v1/files") == [file]
        assert root.delete("/keys/second").status_code == 200
        with gateway.client(root.post("/keys", json=key).json()["secret"]) as client:
            assert ids(client, "/v1/files") == [] and client.get(f"/v1/files/{file}").status_code == 404
        assert root.get(f"/client-files/{file}").status_code == 200
        assert root.delete("/keys/second").status_code == 200


def test_a_tenant_that_shared_its_files_keeps_the_owners_that_were_noted(tmp_path: Path, engine: EngineThread) -> None:
    """And what was made before owners were noted is there for operators alone."""
    with Gatehouse(tmp_path, settings(tmp_path / "state", engine, "tenant")) as shared, shared.client(KEY) as mine:
        file, old = upload(mine), upload(mine)
        with shared.client(COLLEAGUE) as other:
            assert ids(other, "/v1/files") == [old, file] and other.get(f"/v1/files/{file}/content").status_code == 200
            batch = other.post("/v1/batches", json={**BATCH, "input_file_id": file}).json()["id"]
            assert ended(mine, batch)["status"] == "completed"
    with closing(sqlite3.connect(tmp_path / "state" / "gatehouse.db")) as database, database:
        database.execute("UPDATE files SET caller = '' WHERE id = ?", (old,))
    with Gatehouse(tmp_path, settings(tmp_path / "state", engine, "caller")) as running:
        with running.client(KEY) as mine, running.client(COLLEAGUE) as other:
            assert ids(mine, "/v1/files") == [file] and ids(mine, "/v1/batches") == []
            assert ids(other, "/v1/batches") == [batch]
            output = other.get(f"/v1/batches/{batch}").json()["output_file_id"]
            assert ids(other, "/v1/files") == [output]
        with admin(running, key=ROOT_KEY) as root:
            assert {old, file} <= {one["id"] for one in root.get("/client-files").json()["items"]}
            assert root.delete(f"/client-files/{old}").status_code == 200
