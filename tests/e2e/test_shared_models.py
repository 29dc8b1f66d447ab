"""Model files over two replicas on one PostgreSQL: fetched where an engine needs them, deleted everywhere, given to replicas alone."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app.shared_models.credentials import Credentials, folder_of, host_of
from tests.e2e import adminapi
from tests.e2e.adminapi import problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import ROOT, Gatehouse
from tests.e2e.replicas import replica
from tests.e2e.test_model_files import append, begin
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import until

CHAT = (ROOT / "engines" / "demo" / "artefacts" / "demo-chat.gguf").read_bytes()
ENGINE = {"name": "chat", "runtime": "llama.cpp", "model": "shared.gguf", "slots": 1, "context": 256}


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[list[Gatehouse]]:
    server: PostgresServer = request.getfixturevalue("postgres")
    url, made = server.database(), []
    for number in range(2):
        parts: dict[str, Any] = {"model_sharing": {"listen": "127.0.0.1:0"}, "uploads": {"reserve_bytes": 0}}
        made.append(replica(tmp_path_factory.mktemp(f"sharing{number}"), engine.port, url, replica=f"gw-{number}", **parts))
    made[1].arguments += [] if "--workers" in made[1].arguments else ["--workers", "2"]
    try:
        for gateway in made:
            gateway.launch()
        yield [gateway.await_start() for gateway in made]
    finally:
        codes = [gateway.stop() for gateway in made if gateway.process is not None]
    assert codes == [0, 0], [line for gateway in made for line in gateway.lines]


def add(client: httpx.Client, name: str, data: bytes, **more: Any) -> None:
    id = begin(client, name, data, **more)
    assert append(client, id, data, 0).status_code == 204
    answer = client.post(f"/model-uploads/{id}/complete")
    assert answer.status_code == 201, answer.text


def copies(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in client.get("/model-copies").json()["items"]}


def test_an_engine_runs_at_both_replicas_with_a_model_that_was_uploaded_at_one_and_both_lose_it_with_a_deletion(
    pair: list[Gatehouse],
) -> None:
    with adminapi.admin(pair[0]) as one, adminapi.admin(pair[1]) as two:
        add(one, "shared.gguf", CHAT)
        assert copies(one)["shared.gguf"]["replicas"] == ["gw-0"] and copies(two)["shared.gguf"]["state"] == "absent"
        problem(two.delete("/model-copies/gw-0"), 409, "in_use")
        problem(two.delete("/model-copies/gw-9"), 404, "not_found")
        assert two.get("/model-copies").json()["store"] is None and copies(two)["shared.gguf"]["away"] == []
        taken = two.post("/model-uploads", json={"name": "shared.gguf", "size": 9, "sha256": "0" * 64})
        assert "gw-0" in problem(taken, 409, "already_exists")["detail"]

        assert two.post("/engines", json=ENGINE).status_code == 201, "the model is elsewhere only"
        assert two.post("/models", json={"name": "mc", "pool": ["chat"]}).status_code == 201
        for gateway in pair:
            until(lambda gateway=gateway: gateway.chat(model="mc", max_tokens=4).status_code == 200, seconds=90, what="an answer")
        until(lambda: copies(one)["shared.gguf"]["replicas"] == ["gw-0", "gw-1"], what="the copy")
        assert (pair[1].state_dir / "models" / "shared.gguf").read_bytes() == CHAT
        assert list((pair[1].state_dir / "arriving").iterdir()) == []

        problem(two.delete("/model-files/shared.gguf"), 409, "in_use")
        assert two.delete("/models/mc").status_code == two.delete("/engines/chat").status_code == 200
        until(lambda: two.delete("/model-files/shared.gguf").status_code == 200, what="the deletion, once no engine has it")
        until(lambda: not (pair[0].state_dir / "models" / "shared.gguf").exists(), what="the deletion at the other replica")
        until(lambda: "shared.gguf" not in copies(one), what="the end of it")
        problem(one.post("/engines", json=ENGINE), 400, "invalid_config")


def test_a_deletion_at_the_replica_that_has_no_copy_is_one_at_the_other(pair: list[Gatehouse]) -> None:
    with adminapi.admin(pair[0]) as one, adminapi.admin(pair[1]) as two:
        add(one, "elsewhere.gguf", CHAT)
        gone = two.delete("/model-files/elsewhere.gguf")
        assert gone.status_code == 200 and (gone.json()["source"], gone.json()["size"]) == ("elsewhere", len(CHAT)), gone.text
        until(lambda: not (pair[0].state_dir / "models" / "elsewhere.gguf").exists(), what="the deletion")
        problem(two.delete("/model-files/elsewhere.gguf"), 404, "not_found")


def test_nobody_but_a_replica_is_given_anything(pair: list[Gatehouse], tmp_path: Path) -> None:
    with adminapi.admin(pair[0]) as one:
        add(one, "secret.gguf", CHAT)
        digest = copies(one)["secret.gguf"]["digest"]
    line = next(line for line in pair[0].lines if "model files are shared" in line)
    host, _, port = line.rpartition("told ")[2].split()[0].strip('",}').rpartition(":")

    def asked(context: ssl.SSLContext, name: str = host_of("gw-0")) -> bytes:
        try:
            with socket.create_connection((host, int(port)), timeout=60) as plain, context.wrap_socket(plain, server_hostname=name) as tls:
                tls.sendall(b"GET /v1/models/%s/0 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % digest.encode())
                data = b""
                while part := tls.recv(65536):
                    data += part
                return data
        except OSError:
            return b""

    folder = folder_of(pair[1].state_dir)
    real = ssl.create_default_context(cafile=str(folder / "replicas.pem"))
    real.load_cert_chain(min(folder.glob("client-*.pem")), min(folder.glob("key-*.pem")))
    assert CHAT[:1000] in asked(real), "the other replica's certificate"
    assert asked(real, host_of("gw-7")) == b"", "another replica at this address"

    Credentials(b"f" * 32, tmp_path / "foreign", "gw-1")
    impostor = ssl.create_default_context(cafile=str(folder / "replicas.pem"))
    impostor.load_cert_chain(tmp_path / "foreign" / "client-1.pem", tmp_path / "foreign" / "key-1.pem")
    assert asked(impostor) == b""
    assert asked(ssl.create_default_context(cafile=str(folder / "replicas.pem"))) == b"", "no certificate"
