"""Model files over the admin API and the command line of a real gateway: cut, resumed, refused; an engine that uses what came."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from admin.cli import upload as sending
from admin.cli.archive import of_file, of_folder
from admin.cli.client import ApiError, Client
from admin.cli.errors import CommandError
from loadtests.llamacpp.random_gguf import Shape, metadata, write
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS, admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import ROOT, Gatehouse
from tests.modelsigning import OTHER, pem, sign
from tests.waiting import until

ARTEFACTS = ROOT / "engines" / "demo" / "artefacts"
CHAT = (ARTEFACTS / "demo-chat.gguf").read_bytes()
OCTETS = {"content-type": "application/offset+octet-stream"}
BOUNDS = {"max_bytes": 8_000_000, "max_open": 6, "reserve_bytes": 0}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("files")
    shared = directory / "shared" / "team"
    shared.mkdir(parents=True)
    (shared / "chat.gguf").write_bytes(CHAT)
    (shared / "broken.gguf").write_bytes(CHAT[:5000])
    config = adminapi.config(directory / "state", engine.port, uploads=BOUNDS, model_dirs=["shared"])
    with Gatehouse(directory, config) as gatehouse:
        yield gatehouse


@pytest.fixture
def root(running: Gatehouse) -> Iterator[httpx.Client]:
    with admin(running) as client:
        yield client
        for upload in client.get("/model-uploads").json()["items"]:
            client.delete(f"/model-uploads/{upload['id']}")


def promise(name: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **more}


def begin(client: httpx.Client, name: str, data: bytes, **more: Any) -> str:
    made = client.post("/model-uploads", json=promise(name, data, **more))
    assert made.status_code == 201, made.text
    assert made.headers["location"].endswith(made.json()["id"])
    return str(made.json()["id"])


def append(client: httpx.Client, id: str, data: bytes, offset: int) -> httpx.Response:
    return client.patch(f"/model-uploads/{id}", content=data, headers={**OCTETS, "upload-offset": str(offset)})


def offset_of(client: httpx.Client, id: str) -> int:
    found = client.head(f"/model-uploads/{id}", headers={"tus-resumable": "1.0.0"})
    assert (found.status_code, found.headers["tus-resumable"], found.headers["cache-control"]) == (200, "1.0.0", "no-store")
    return int(found.headers["upload-offset"])


def cut(gatehouse: Gatehouse, id: str, data: bytes, announced: int) -> None:
    """Announces more than it sends, and goes."""
    host, port = gatehouse.admin_url.removeprefix("http://").split(":")
    head = (
        f"PATCH /admin/v1/model-uploads/{id} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEYS['admin']}\r\n"
        f"content-type: {OCTETS['content-type']}\r\nupload-offset: 0\r\ncontent-length: {announced}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(head.encode() + data)
        until(lambda: httpx.get(f"{gatehouse.admin_url}/livez", trust_env=False, timeout=60).status_code == 200)


def events(gatehouse: Gatehouse, target: str) -> list[tuple[str, str]]:
    return [
        (r.get("outcome", "ok"), r["actor"])
        for r in gatehouse.audit()
        if r.get("event") == "admin.files.write" and r.get("target") == target
    ]


# --- the protocol


def test_an_upload_is_cut_and_resumed(running: Gatehouse, root: httpx.Client) -> None:
    id = begin(root, "resumed.gguf", CHAT)
    cut(running, id, CHAT[:700_000], len(CHAT))
    until(lambda: offset_of(root, id) > 0, what="the first bytes")
    at = until(lambda: (lambda n: n if append(root, id, CHAT[n : n + 1], n).status_code == 204 else None)(offset_of(root, id)))
    assert 0 < at <= 700_000
    response = append(root, id, CHAT[at + 1 : 1_500_000], at + 1)
    assert (response.status_code, response.headers["upload-offset"], response.content) == (204, "1500000", b"")
    wrong = append(root, id, CHAT, 0)
    problem(wrong, 409, "offset_mismatch")
    assert wrong.headers["upload-offset"] == "1500000"
    problem(root.post(f"/model-uploads/{id}/complete"), 409, "upload_incomplete")
    assert root.get("/model-uploads").json()["items"][0]["offset"] == 1_500_000
    append(root, id, CHAT[1_500_000:], 1_500_000)
    assert root.post(f"/model-uploads/{id}/complete", params={"dry_run": "true"}).json()["dry_run"] is True
    done = root.post(f"/model-uploads/{id}/complete")
    assert done.status_code == 201 and done.headers["location"] == "/admin/v1/model-files/resumed.gguf"
    assert done.json()["sha256"] == hashlib.sha256(CHAT).hexdigest() and done.json()["context"] == 2048
    assert (running.state_dir / "models" / "resumed.gguf").read_bytes() == CHAT
    problem(root.post(f"/model-uploads/{id}/complete"), 404, "not_found")
    until(lambda: events(running, "model-files/resumed.gguf").count(("ok", "acme/a-admin")) == 2)
    diffs = [
        r["detail"]["diff"] for r in running.audit() if r.get("target") == "model-files/resumed.gguf" and r.get("outcome", "ok") == "ok"
    ]
    assert all({"path": "sha256", "from": None, "to": hashlib.sha256(CHAT).hexdigest()} in diff for diff in diffs)


def test_what_is_not_as_promised_is_refused_and_gone(running: Gatehouse, root: httpx.Client) -> None:
    for name, data, more, code in (
        ("wrong.gguf", CHAT, {"sha256": "0" * 64}, "checksum_mismatch"),
        ("truncated.gguf", CHAT[:1_000_000], {}, "model_invalid"),
        ("noise.onnx", b"noise", {}, "model_invalid"),
        ("not-a-tar", CHAT, {}, "model_invalid"),
    ):
        id = begin(root, name, data, **more)
        assert append(root, id, data, 0).status_code == 204
        refused = root.post(f"/model-uploads/{id}/complete")
        found = problem(refused, 422, code)
        assert str(running.state_dir) not in found["detail"]
        problem(root.get(f"/model-uploads/{id}"), 404, "not_found")
        problem(root.get(f"/model-files/{name}"), 404, "not_found")
        until(lambda name=name: ("refused", "acme/a-admin") in events(running, f"model-files/{name}"))
    assert not list((running.state_dir / "quarantine").iterdir())


def test_a_folder_travels_as_a_tar(root: httpx.Client) -> None:
    parcel = of_folder(ARTEFACTS / "demo-embed")
    data = b"".join(parcel.blocks())
    id = begin(root, "embedder", data)
    assert append(root, id, data, 0).status_code == 204
    view = root.post(f"/model-uploads/{id}/complete").json()
    assert (view["format"], view["task"], view["opsets"]) == ("folder", "embeddings", {"ai.onnx": 17})
    assert {part["name"] for part in view["parts"]} == {"model.onnx", "config.json", "tokenizer.json"}
    assert view["sha256"] == hashlib.sha256((ARTEFACTS / "demo-embed" / "model.onnx").read_bytes()).hexdigest()


def test_bounds_names_and_conflicts(root: httpx.Client) -> None:
    problem(root.post("/model-uploads", json=promise("m.gguf", b"x" * 8_000_001)), 413, "request_too_large")
    problem(root.post("/model-uploads", json=promise("m.gguf", b"x") | {"size": 10**15}), 400, "invalid_value")
    for name in ("../m.gguf", "a/b.gguf", ".m.gguf", "", "m.gguf\n", "é.gguf"):
        problem(root.post("/model-uploads", json=promise(name, b"x")), 400, "invalid_value")
    problem(root.post("/model-uploads", json=promise("demo-chat.gguf", CHAT, replace=True)), 409, "read_only")
    id = begin(root, "m.gguf", CHAT[:100])
    problem(append(root, id, CHAT[:101], 0), 413, "request_too_large")
    problem(root.patch(f"/model-uploads/{id}", content=b"x", headers={"upload-offset": "0"}), 415, "unsupported_media_type")
    problem(root.patch(f"/model-uploads/{id}", content=b"x", headers=OCTETS), 400, "invalid_header")
    other = root.patch(f"/model-uploads/{id}", content=b"x", headers={**OCTETS, "upload-offset": "0", "tus-resumable": "0.2.2"})
    problem(other, 412, "tus_version")
    assert other.headers["tus-version"] == "1.0.0"
    dry = root.post("/model-uploads", json=promise("dry.gguf", CHAT), params={"dry_run": "true"})
    assert dry.status_code == 200 and len(root.get("/model-uploads").json()["items"]) == 1
    again = [root.post("/model-uploads", json=promise("key.gguf", CHAT), headers={"idempotency-key": "k1"}) for _ in range(2)]
    assert again[0].json()["id"] == again[1].json()["id"] and len(root.get("/model-uploads").json()["items"]) == 2
    for number in range(4):
        begin(root, f"many{number}.gguf", CHAT)
    problem(root.post("/model-uploads", json=promise("one-more.gguf", CHAT)), 409, "too_many_uploads")
    assert root.delete(f"/model-uploads/{id}").status_code == 204
    begin(root, "one-more.gguf", CHAT)


def test_who_may(running: Gatehouse, root: httpx.Client) -> None:
    id = begin(root, "m.gguf", CHAT[:10])
    with admin(running, "viewer") as viewer:
        assert viewer.get("/model-files").status_code == viewer.head(f"/model-uploads/{id}").status_code == 200
        for response in (viewer.post("/model-uploads", json=promise("n.gguf", CHAT)), append(viewer, id, CHAT[:10], 0)):
            problem(response, 403, "policy_denied")
    with admin(running, "operator") as operator:
        assert append(operator, id, CHAT[:10], 0).status_code == 204
    assert root.get("/model-uploads").json()["items"][0]["created_by"] == "acme/a-admin"


def test_what_lies_in_the_directories_is_listed(root: httpx.Client) -> None:
    found = {item["name"]: item for item in root.get("/model-files").json()["items"]}
    assert found["team/chat.gguf"]["source"] == "directory" and found["demo-embed"]["source"] == "bundled"
    assert "truncated" in found["team/broken.gguf"]["problem"]
    one = root.get("/model-files/team%2Fchat.gguf")
    assert one.json()["sha256"] is None and one.headers["etag"]
    assert root.post("/model-files/team%2Fchat.gguf/checksum").json()["sha256"] == hashlib.sha256(CHAT).hexdigest()
    problem(root.delete("/model-files/team%2Fchat.gguf"), 409, "read_only")
    assert {item["source"] for item in root.get("/model-files", params={"source": "bundled"}).json()["items"]} == {"bundled"}


def test_a_restart_in_the_middle(launch: Callable[..., Gatehouse], engine: EngineThread, tmp_path: Path) -> None:
    gatehouse = launch(adminapi.config(tmp_path / "state", engine.port, uploads=BOUNDS)).start()
    with admin(gatehouse) as client:
        id = begin(client, "m.gguf", CHAT)
        assert append(client, id, CHAT[:1_000_000], 0).status_code == 204
    gatehouse.stop(signal.SIGKILL)
    gatehouse = launch(gatehouse.config).start()
    with admin(gatehouse) as client:
        assert offset_of(client, id) == 1_000_000
        assert append(client, id, CHAT[1_000_000:], 1_000_000).status_code == 204
        assert client.post(f"/model-uploads/{id}/complete").json()["sha256"] == hashlib.sha256(CHAT).hexdigest()


# --- the command line


class Flaky(httpx.HTTPTransport):
    """The way to a real gateway; some requests are lost before they are sent, some after they were answered."""

    def __init__(self, faults: str) -> None:
        super().__init__()
        self.faults, self.seen = list(faults), []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request.method)
        fault = self.faults.pop(0) if request.method in ("PATCH", "POST") and self.faults else "."
        if fault == "<":
            raise httpx.ConnectError("lost on the way there", request=request)
        response = super().handle_request(request)
        if fault == ">":
            response.read()
            response.close()
            raise httpx.ReadError("lost on the way back", request=request)
        return response


def sent(gatehouse: Gatehouse, path: Path, name: str, faults: str, attempts: int) -> tuple[dict[str, Any], Flaky]:
    parcel, transport = of_file(path), Flaky(faults)
    with Client(gatehouse.admin_url, KEYS["operator"], transport) as client:
        data = path.read_bytes()
        patience = sending.Patience(lambda seconds: None, attempts)
        begun = sending.begin(client, promise(name, data, replace=False))
        sending.send(client, begun, parcel, lambda offset: None, patience)
        return sending.complete(client, begun, patience), transport


def test_the_sender_survives_what_is_lost(running: Gatehouse, root: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "CHUNK", 500_000)
    path = tmp_path / "m.gguf"
    path.write_bytes(CHAT)
    view, transport = sent(running, path, "flaky.gguf", ".<.><<...<>.", 5)
    assert view["sha256"] == hashlib.sha256(CHAT).hexdigest() and not transport.faults and transport.seen.count("HEAD") == 4
    with pytest.raises(CommandError, match="no answer"):
        sent(running, path, "hopeless.gguf", "." + "<" * 50, 5)
    assert root.get("/model-uploads").json()["items"][0]["name"] == "hopeless.gguf"
    assert sent(running, path, "hopeless.gguf", "", 1)[0]["name"] == "hopeless.gguf"  # the same command again
    with pytest.raises(ApiError, match="already"):
        sent(running, path, "hopeless.gguf", "", 1)


def run(gatehouse: Gatehouse, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *arguments, "--url", gatehouse.admin_url, "--key", KEYS["admin"]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_model_is_added_served_and_removed(launch: Callable[..., Gatehouse], engine: EngineThread, tmp_path: Path) -> None:
    key, model = tmp_path / "vendor.pem", tmp_path / "chat.gguf"
    key.write_bytes(pem())
    model.write_bytes(CHAT)
    config = adminapi.config(tmp_path / "state", engine.port, uploads=BOUNDS, model_signatures={"keys": [str(key)], "required": True})
    gatehouse = launch(config).start()
    unsigned = run(gatehouse, "models", "add", str(model), "--name", "mine.gguf", code=1)
    assert "'mine.gguf' is not signed" in unsigned.stderr and "vendor.pem" in unsigned.stderr and "no signature" in unsigned.stderr
    sign(model)
    added = json.loads(run(gatehouse, "models", "add", str(model), "--name", "mine.gguf", "-o", "json").stdout)
    assert (added["name"], added["sha256"]) == ("mine.gguf", hashlib.sha256(CHAT).hexdigest())
    assert "already exists" in run(gatehouse, "models", "add", str(ARTEFACTS / "demo-chat.gguf"), "--name", "mine.gguf").stderr
    assert "mine.gguf" in run(gatehouse, "models", "files").stdout
    served = {"name": "own", "runtime": "llama.cpp", "model": "mine.gguf", "slots": 1, "context": 256}
    gatehouse.file.write_text(
        yaml.safe_dump({**config, "engines": [*config["engines"], served], "models": [*config["models"], {"name": "own", "pool": ["own"]}]})
    )
    key.write_bytes(pem(OTHER))  # the list is read before each load
    assert "made with another key" in run(gatehouse, "config", "reload", code=1).stderr
    key.write_bytes(pem())
    run(gatehouse, "config", "reload")
    assert gatehouse.chat(model="own", max_tokens=3).status_code == 200
    assert {r["target"] for r in gatehouse.audit() if r.get("event") == "model_refused"} == {"mine.gguf", "own"}
    assert json.loads(run(gatehouse, "models", "files", "mine.gguf", "-o", "json").stdout)["used_by"] == ["own"]
    refused = run(gatehouse, "models", "remove", "mine.gguf", code=1)
    assert "in use by the engine own" in refused.stderr
    gatehouse.file.write_text(yaml.safe_dump(config))
    run(gatehouse, "config", "reload")
    assert run(gatehouse, "models", "remove", "mine.gguf", "--dry-run").stdout
    run(gatehouse, "models", "remove", "mine.gguf")
    assert "no model file" in run(gatehouse, "models", "files", "mine.gguf", code=1).stderr


def test_a_split_model_and_a_folder_are_added(running: Gatehouse, root: httpx.Client, tmp_path: Path) -> None:
    shape = Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32)
    for part in range(2):
        head = {} if part else metadata(shape)
        write(tmp_path / f"s-0000{part + 1}-of-00002.gguf", shape, values={**head, "split.no": part, "split.count": 2})
    added = json.loads(run(running, "models", "add", str(tmp_path / "s-00002-of-00002.gguf"), "-o", "json").stdout)
    assert (added["format"], added["files"], added["problem"]) == ("split", 2, None)
    folder = run(running, "models", "add", str(ARTEFACTS / "demo-embed"), "--name", "own-embed", "-o", "json")
    assert json.loads(folder.stdout)["task"] == "embeddings"
    assert "--name" in run(running, "models", "add", str(tmp_path), "--name", "x.gguf", code=1).stderr
    assert "not aa" in run(running, "models", "add", str(ARTEFACTS / "demo-chat.gguf"), "--sha256", "aa", code=1).stderr
    id = begin(root, "left.gguf", CHAT)
    assert "left.gguf" in run(running, "models", "uploads").stdout
    assert "left.gguf" not in run(running, "models", "uploads", "--delete", id).stdout
