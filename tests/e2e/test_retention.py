"""A gateway whose closed segments go to a real S3 server (moto's) and away, while it serves; holds; another signing key; proofs of what
is left."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from gateway.audit.crypto import load_verifier
from gateway.audit.sinks.file import list_segments
from gateway.audit.verify import verify_log
from tests.e2e.adminapi import KEYS, admin, config, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, ROOT, Gatehouse
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, Any]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key-id", aws_secret_access_key="secret")
    client.create_bucket(Bucket="audit", ObjectLockEnabledForBucket=True)
    yield url, client
    server.stop()


def objects(client: Any) -> set[str]:
    return {one["Key"] for one in client.list_objects_v2(Bucket="audit").get("Contents", [])}


def numbers(running: Gatehouse) -> list[int]:
    return [number for found in list_segments(running.state_dir / "audit").values() for number, _ in found]


def proven(running: Gatehouse, found: dict[str, Any], tmp_path: Path, key: Path) -> str:
    file = tmp_path / "proof.json"
    file.write_text(json.dumps(found))
    done = subprocess.run([sys.executable, ROOT / "scripts" / "verify-proof", key, file], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_segments_are_archived_and_taken_away_and_all_is_still_proven(tmp_path: Path, engine: EngineThread, s3: tuple[str, Any]) -> None:
    url, client = s3
    archive = {"bucket": "audit", "prefix": "gw/", "endpoint": url, "access_key": "key-id", "secret_key": "secret", "lock_for": "1h"}
    audit = {
        "sinks": [{"type": "file", "segment_bytes": 8000}],
        "checkpoint": {"every": "0.5s", "copies": [{"folder": str(tmp_path / "second")}, {"archive": True}]},
        "retention": {"delete_after": "1s", "archive": archive},
    }
    first = tmp_path / "first.pem"
    with Gatehouse(tmp_path, config(tmp_path / "state", engine.port, audit=audit)) as running, admin(running) as api:
        first.write_bytes((running.state_dir / "keys" / "audit-signing.pub.pem").read_bytes())
        held = api.post("/audit/holds", json={"tenant": "ci", "why": "case 7"})
        assert held.status_code == 201 and held.json()["items"][0]["actor"]
        assert {running.chat(f"hello {number}").status_code for number in range(30)} == {200}
        until(lambda: "gw/audit-" in " ".join(objects(client)), what="the archive", seconds=60)
        until(lambda: running.metric("gatehouse_audit_archive_waiting_bytes") == 0)
        assert 1 in numbers(running) and running.metric("gatehouse_audit_archive_up") == 1

        rotated = api.post("/audit/keys").json()
        assert rotated["previous"] != rotated["key"]
        assert [one["current"] for one in api.get("/audit/keys").json()["items"]] == [False, True]
        answer = running.chat("after the change")
        request = answer.headers["x-request-id"]
        running.outcome(request)  # before it is in the log, a proof of the intent alone would do
        until(lambda: api.get(f"/audit/proofs/{request}").status_code == 200, what="a checkpoint")
        until(lambda: api.get("/audit/consistency", params={"writer": running_writer(api), "first": 2}).status_code == 200)
        assert "proven: 2 records" in proven(running, api.get(f"/audit/proofs/{request}").json(), tmp_path, first)
        consistency = api.get("/audit/consistency", params={"writer": running_writer(api), "first": 2})
        cli(running, "audit", "prove", request, "--bundle", str(tmp_path / "bundle.zip"))
        command = [sys.executable, ROOT / "scripts" / "verify-proof", first, tmp_path / "bundle.zip"]
        evidence = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert evidence.returncode == 0 and "proven: the text of policy" in evidence.stdout, evidence
        assert "not proven" not in evidence.stdout and "route" in evidence.stdout
        assert "goes on from checkpoint 2" in proven(running, consistency.json(), tmp_path, first)

        with admin(running, "auditor") as auditor:
            assert [one["tenant"] for one in auditor.get("/audit/holds").json()["items"]] == ["ci"]
            problem(auditor.delete("/audit/holds/ci", params={"why": "x"}), 403, "policy_denied")
            problem(auditor.post("/audit/keys"), 403, "policy_denied")
        cli(running, "audit", "hold", "beta", "--why", "case 8")
        assert "RELEASED" in cli(running, "audit", "release", "beta", "--why", "a mistake").upper()
        listed = cli(running, "audit", "holds")
        assert "case 7" in listed and "beta" not in listed
        assert "id" in cli(running, "audit", "rotate-key", "--dry-run")
        assert re.search(r"^time +\d{4}-\d\d-\d\dT[\d:]+Z", cli(running, "audit", "rotate-key"), re.MULTILINE)
        assert re.search(r"T[\d:]+Z", cli(running, "audit", "consistency", "1", "--writer", running_writer(api)))
        assert "inclusion" in cli(running, "audit", "consistency", "1", "--writer", running_writer(api), "--output", "json")
        (released,) = api.delete("/audit/holds/ci", params={"why": "closed"}).json()["items"]
        assert (released["tenant"], released["why"]) == ("ci", "case 7") and released["released"] > released["since"]
        problem(api.delete("/audit/holds/ci", params={"why": "again"}), 404, "not_found")
        until(lambda: 1 not in numbers(running), what="the first segment to be taken away", seconds=60)
        report = api.post("/audit/verify").json()
        assert report["ok"] and report["writers"][0]["expired"] > 0, report["first_problem"]
    assert KEY and verify_log(running.state_dir / "audit", load_verifier(first)).ok
    restored = tmp_path / "restored"
    restored.mkdir()
    for name in sorted(objects(client)):
        client.download_file("audit", name, str(restored / name.removeprefix("gw/")))
    assert {path.suffix for path in restored.iterdir()} == {".zst", ".json", ".jsonl"}
    copied = verify_log(running.state_dir / "audit", load_verifier(first), checkpoints=tmp_path / "second")
    assert copied.ok, copied.problems


def running_writer(api: Any) -> str:
    return str(api.post("/audit/verify").json()["writers"][0]["writer"])


def cli(running: Gatehouse, *arguments: str) -> str:
    environ = {**running.environ, "GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["admin"]}
    command = [sys.executable, "-m", "gateway", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
