"""Whole records encrypted, as operators meet it: a log that was in the clear before, workers, kills, rotation, shredding, a master that is
away, and a name that is found nowhere."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, ROOT, Gatehouse, configuration, external
from tests.e2e.test_sinks import WAITING, workers
from tests.fakes.http_receiver import HttpReceiver
from tests.waiting import until

OPS = "ops-key-0123456789abcdef0123456789abcdef"
SECRET = "sec-key-0123456789abcdef0123456789abcdef"
CANARY = "zugvogel"
"""In prompts, and as the name of a user, a session and a model."""


def settings(directory: Path, engine: EngineThread, audit: dict[str, Any]) -> dict[str, Any]:
    config = configuration(
        directory / "state",
        engines=[external("e", engine.port)],
        models=[{"name": "m1", "pool": ["e"]}],
        audit={"checkpoint": {"every": "1s"}, **audit},
    )
    config["identity"]["api_keys"]["static"] += [{"id": "secret-key", "key": SECRET, "tenant": "acme", "models": ["*"], "user": CANARY}]
    config["identity"]["api_keys"]["static"] += [{"id": "ops", "key": OPS, "tenant": "ops", "models": [], "roles": ["admin"]}]
    return config


def encrypted(directory: Path, **more: Any) -> dict[str, Any]:
    master = directory / "master.key"
    if not master.exists():
        master.write_bytes(os.urandom(32))
        os.chmod(master, 0o600)
    return {"encryption": {"scope": "record", "master": {"file": "master.key"}, **more}}


def ask(gatehouse: Gatehouse, id: str, key: str = KEY, model: str = "m1") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": f"a {CANARY} flies"}], "user": CANARY}
    with gatehouse.client(key) as client:
        return client.post("/v1/chat/completions", json=body, headers={"x-request-id": id})


def got(gatehouse: Gatehouse, path: str) -> Any:
    """The answer, once the log has been indexed."""

    def indexed() -> Any:
        response = client.get(path)
        return None if response.status_code == 503 and response.json()["code"] == "audit_indexing" else response

    with adminapi.admin(gatehouse, key=OPS) as client:
        response = until(indexed, what="the index")
    assert response.status_code == 200, response.text
    return response


def records(gatehouse: Gatehouse, id: str, count: int = 2, more: str = "") -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        lines = got(gatehouse, f"/audit/export?request_id={id}{more}").text.splitlines()
        return [json.loads(line) for line in lines] if len(lines) >= count else []

    there: list[dict[str, Any]] = until(found, what="the records")
    return there


def found_offline(gatehouse: Gatehouse, *asked: str) -> tuple[int, set[str], str]:
    """What `audit search --dir` finds with the keys of the configuration: the exit code, the requests, and what it remarks."""
    directory = str(gatehouse.state_dir / "audit")
    command = ["audit", "search", "--dir", directory, "--config", str(gatehouse.file), *asked, "--output", "json"]
    done = CliRunner().invoke(app, command)
    return done.exit_code, {one["request_id"] for one in json.loads(done.stdout or "[]") if "request_id" in one}, done.stderr


def posted(gatehouse: Gatehouse, path: str, **body: Any) -> Any:
    with adminapi.admin(gatehouse, key=OPS) as client:
        response = client.post(path, json=body)
    assert response.status_code in (200, 201), response.text
    return response.json()


def told_by_disk(gatehouse: Gatehouse) -> list[str]:
    """The files below the state directory without the store (usage by user) and the texts of policies (keys of the file), that have the
    canary; and the gateway's own log."""
    files = {
        path: content
        for path, content in gatehouse.contents().items()
        if not path.name.startswith("gatehouse.db") and path.parent.name != "policies"
    }
    return [path.name for path in files if CANARY.encode() in files[path]] + [line for line in gatehouse.lines if CANARY in line]


def verified(gatehouse: Gatehouse) -> None:
    report = posted(gatehouse, "/audit/verify")
    assert report["ok"], report["first_problem"]


def test_a_name_is_found_nowhere_and_everybody_who_may_read_finds_it(tmp_path: Path, engine: EngineThread) -> None:
    with closing(HttpReceiver()) as opened, closing(HttpReceiver()) as sealed:
        encrypted_whole(tmp_path, engine, opened, sealed)


def encrypted_whole(tmp_path: Path, engine: EngineThread, opened: HttpReceiver, sealed: HttpReceiver) -> None:
    sinks = [
        {"type": "file"},
        {"type": "http", "name": "opened", "settings": {"url": opened.url, "records": "opened", "history": True}},
        {"type": "http", "name": "sealed", "settings": {"url": sealed.url, "history": True}},
    ]
    with Gatehouse(tmp_path, settings(tmp_path, engine, {})) as before:  # a log in the clear
        assert before.chat("Hello!").status_code == 200
    text = {"text": {"record": "both", "when": [{"tenants": ["acme"]}]}, "sinks": sinks}
    config = settings(tmp_path, engine, {**encrypted(tmp_path), **text})
    with Gatehouse(tmp_path, config, arguments=["--workers", "2"]) as running:
        assert ask(running, "r-1", SECRET).status_code == 200 and ask(running, "r-2", SECRET, model=CANARY).status_code == 404
        assert {ask(running, "r-0", "no-such-key").status_code} == {401}
        assert records(running, "r-1") and records(running, "r-2", 1), "a kill may lose what was answered in the last 5 ms"
        victim = workers(running)[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in workers(running) and len(workers(running)) == 2, what="a new worker")
        assert ask(running, "r-3", SECRET).status_code == 200
        first, last = records(running, "r-1")[:2]
        assert (first["user"], first["principal"], last["user"], last["attempts"]) == (CANARY, "secret-key", CANARY, 1)
        as_it_is = records(running, "r-1", more="&sealed=true")[0]
        assert set(as_it_is) == {"seq", "kind", "time", "request_id", "tenant", "digest", "sealed", "hash"}
        found = until(lambda: got(running, f"/audit/search?user={CANARY}").json()["items"] or None, what="the index")
        assert {"r-1", "r-2"} <= {one["request_id"] for one in found} and found[0]["principal"] == "secret-key"
        assert got(running, "/audit/search?key=nobody").json()["items"] == []
        report = got(running, "/audit/report?since=2020-01-01T00:00:00Z").json()
        assert CANARY in {row["user"] for row in report["callers"]}
        assert CANARY in {one.get("user") for one in got(running, "/audit/records?count=100").json()["items"]}
        until(lambda: running.metric(WAITING, sink="opened") == 0 == running.metric(WAITING, sink="sealed"), what="the sinks")
        until(lambda: any(CANARY.encode() in body for _, body in opened.requests), what="the record at the sink")
        assert not any(CANARY.encode() in body for _, body in sealed.requests)
        until(lambda: sum(row["requests"] for row in got(running, "/usage").json()["items"]) >= 2, what="the usage")
        reconciled = got(running, "/usage:reconcile").json()
        assert (reconciled["difference"], reconciled["unopened"]) == (0, 0)
        verified(running)
        proven(running, tmp_path, "r-1")
        assert told_by_disk(running) == []
        code, whom, _ = found_offline(running, "--user", CANARY)
        assert code == 0 and {"r-1", "r-2"} <= whom and "r-0" not in whom, "beside the running gateway"
    with Gatehouse(tmp_path, config, arguments=["--workers", "2"]) as again:
        posted(again, "/audit/data-keys/rotate", tenant="acme")
        until(lambda: ask(again, "r-4", SECRET).status_code == 200, what="a request after the rotation")
        assert records(again, "r-1")[0]["user"] == CANARY and records(again, "r-4")[0]["user"] == CANARY
        assert records(again, "r-4")[0]["sealed"] != records(again, "r-1")[0]["sealed"]
        plan = got(again, "/audit/data-keys/shred?tenant=acme").json()
        posted(again, "/audit/data-keys/shred?wait=60", tenant="acme", reason="asked for", confirm=plan["digest"])
        until(lambda: records(again, "r-4")[0].get("unopened") == "shredded", what="the shredding")
        assert "user" not in records(again, "r-1")[0]
        searched = got(again, f"/audit/search?user={CANARY}").json()
        assert searched["items"] == [] and searched["unopened"]["shredded"] >= 4, "r-1 to r-4"
        assert got(again, f"/audit/search?tenant=globex&user={CANARY}").json()["unopened"] == {}
        (one,) = got(again, "/audit/search?request_id=r-1").json()["items"]
        assert one["unopened"] == "shredded" and one["outcome"] == "ok"
        report = got(again, "/audit/report?since=2020-01-01T00:00:00Z").json()
        assert report["unopened"]["shredded"] >= 4
        events = {one["event"]: one for one in got(again, "/audit/search?tenant=acme&kind=event").json()["items"]}
        assert {"audit.shred", "admin.audit.shred", "audit.keys_rotated"} <= events.keys() and events["audit.shred"]["tenants"] == ["acme"]
        used = {row["tenant"]: row["requests"] for row in got(again, "/usage").json()["items"]}
        assert ask(again, "r-5", SECRET).status_code == 200 and records(again, "r-5")[0]["user"] == CANARY
        verified(again)
        assert used["acme"] >= 3, "what was used is counted before it is destroyed"
        assert told_by_disk(again) == []
    code, whom, told = found_offline(again, "--user", CANARY)
    assert (code, whom) == (1, {"r-5"}) and "(shredded)" in told, "without a gateway"
    with Gatehouse(tmp_path, settings(tmp_path, engine, {})) as after:  # in the clear again, without keys
        assert after.chat("Hello!").status_code == 200
        assert records(after, "r-5")[0]["unopened"] == "audit.encryption is not configured"
        verified(after)


def proven(gatehouse: Gatehouse, directory: Path, request_id: str) -> None:
    """A proof shows what is sealed, and holds for whoever has nothing but the public key; a changed one does not."""
    key = gatehouse.state_dir / "keys" / "audit-signing.pub.pem"

    def proof() -> dict[str, Any] | None:
        with adminapi.admin(gatehouse, key=OPS) as client:
            response = client.get(f"/audit/proofs/{request_id}")
        return response.json() if response.status_code == 200 else None

    found = until(proof, what="a checkpoint")
    assert json.loads(found["proofs"][0]["opened"]["record"])["user"] == CANARY
    (directory / "bundle.zip").write_bytes(got(gatehouse, f"/audit/bundles/{request_id}").content)
    changed = json.loads(json.dumps(found))
    changed["proofs"][0]["opened"]["record"] = changed["proofs"][0]["opened"]["record"].replace(CANARY, "somebody")
    for name, what, code in (("proof.json", found, 0), ("changed.json", changed, 1), ("bundle.zip", None, 0)):
        if what is not None:
            (directory / name).write_text(json.dumps(what))
        command = [sys.executable, str(ROOT / "scripts" / "verify-proof"), str(key), str(directory / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
    assert "proven: principal" in done.stdout and "proven: outcome" in done.stdout


def test_without_its_master_nothing_is_served_nor_started_and_nothing_is_lost(tmp_path: Path, engine: EngineThread) -> None:
    config = settings(tmp_path, engine, encrypted(tmp_path, cache="2s"))
    master, hidden = tmp_path / "master.key", tmp_path / "hidden.key"
    with Gatehouse(tmp_path, config) as running:
        assert ask(running, "m-1").status_code == 200
        master.rename(hidden)
        refused = until(lambda: response if (response := ask(running, "m-2")).status_code == 503 else None, what="the end of the cache")
        assert refused.json()["error"]["code"] == "audit_unavailable"
        forwarded = len(engine.received)
        assert ask(running, "m-3").status_code == 503 and running.metric("gatehouse_audit_master_up") == 0
        hidden.rename(master)
        until(lambda: ask(running, "m-4").status_code == 200, what="the master")
        assert len(engine.received) == forwarded + 1
        outcome = records(running, "m-3", 1)[0]
        assert outcome["kind"] == "outcome" and outcome["status"] == 503
        verified(running)
    master.rename(hidden)
    refused_start = Gatehouse(tmp_path, config).launch()
    assert refused_start.ended() != 0 and any("master key cannot be used" in line for line in refused_start.lines)
    hidden.rename(master)
    with Gatehouse(tmp_path, config) as again:
        assert ask(again, "m-5").status_code == 200 and records(again, "m-1")[0]["principal"] == "test"
        verified(again)
    with closing(sqlite3.connect(again.state_dir / "gatehouse.db")) as store:
        (wrapped,) = store.execute("SELECT count(*) FROM audit_keys WHERE state = 'active'").fetchone()
    assert wrapped == 2, "one of the tenant, one of what belongs to none"
