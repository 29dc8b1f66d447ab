"""Files and batches with OpenAI's own client, through a running gateway."""

from __future__ import annotations

import json
import os
import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.adminapi import admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.e2e.test_audit_texts import command
from tests.e2e.test_openai_clients import node
from tests.e2e.test_sinks import workers
from tests.waiting import until

OTHER = "sk-other-tenant-0123456789abcdef01"
FEW = "sk-few-models-0123456789abcdef0123"
POOR_KEY = "sk-poor-0123456789abcdef0123456789"
ROOT_KEY = "sk-operator-0123456789abcdef012345"
THEIR_KEY = "sk-tenant-admin-0123456789abcdef01"
LOOKS_KEY = "sk-viewer-0123456789abcdef01234567"
SETTINGS = {"enabled": True, "reserve_bytes": 0, "max_bytes": "4MiB"}
OVER = ("completed", "failed", "expired", "cancelled")


def keys() -> list[dict[str, Any]]:
    return [
        {"id": "app", "key": KEY, "tenant": "acme", "models": ["*"]},
        {"id": "few", "key": FEW, "tenant": "acme", "models": ["fake"]},
        {"id": "other", "key": OTHER, "tenant": "globex", "models": ["*"]},
        {"id": "poor", "key": POOR_KEY, "tenant": "small", "models": ["*"]},
        {"id": "root", "key": ROOT_KEY, "tenant": "ops", "models": [], "roles": ["operator"]},
        {"id": "theirs", "key": THEIR_KEY, "tenant": "globex", "models": [], "roles": ["tenant-admin"]},
        {"id": "looks", "key": LOOKS_KEY, "tenant": "acme", "models": [], "roles": ["viewer"]},
    ]


def settings(state_dir: Path, engine: EngineThread, **batches: Any) -> dict[str, Any]:
    pool = {"pool": ["fake"], "routing": {"queue": {"size": 64}}}
    return configuration(
        state_dir,
        engines=[external("fake", engine.port, slots=8)],
        models=[{"name": "fake", **pool}, {"name": "secret", **pool}],
        identity={"api_keys": {"static": keys()}},
        limits=[
            {
                "name": "trial",
                "per": "key",
                "match": {"key": "poor"},
                "budget": {"amount": 5, "unit": "requests", "window": {"rolling": "30d"}},
            }
        ],
        files=SETTINGS,
        batches={"enabled": True, "lease": "1m", **batches},  # a gateway that stood still for a while keeps its work
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("batches")
    with Gatehouse(directory, settings(directory / "state", engine)) as running:
        yield running


@pytest.fixture
def clients(gateway: Gatehouse) -> Iterator[Callable[..., openai.OpenAI]]:
    made: list[openai.OpenAI] = []

    def client(key: str = KEY) -> openai.OpenAI:
        made.append(openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, timeout=60))
        return made[-1]

    yield client
    for one in made:
        one.close()


def line(name: str, model: str = "fake", url: str = "/v1/chat/completions", **body: Any) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": f"Hello {name}"}], **body}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def text(*lines: str) -> bytes:
    return "\n".join(lines).encode()


def upload(client: openai.OpenAI, content: bytes, name: str = "in.jsonl") -> str:
    return client.files.create(file=(name, content), purpose="batch").id


def start(client: openai.OpenAI, content: bytes, **more: Any) -> str:
    wanted: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
    return client.batches.create(input_file_id=upload(client, content), **wanted).id


def ended(client: openai.OpenAI, id: str) -> Any:
    until(lambda: client.batches.retrieve(id).status in OVER, what="the batch is over", seconds=60)
    return client.batches.retrieve(id)


def results(client: openai.OpenAI, id: str | None) -> dict[str, dict[str, Any]]:
    if id is None:
        return {}
    found = [json.loads(one) for one in client.files.content(id).text.splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def kept(gateway: Gatehouse) -> set[Path]:
    return set((gateway.state_dir / "files").iterdir())


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
def test_what_was_begun_before_a_halt_is_not_finished(gateway: Gatehouse, path: str) -> None:
    before, kind = kept(gateway), "multipart/form-data; boundary=b" if path == "/v1/files" else "application/json"
    form = '--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n'
    body = (form if path == "/v1/files" else '{"input_file_id": "file-x"}').encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {FEW}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    address = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=60) as begun, admin(gateway, key=ROOT_KEY) as http:
        begun.sendall(head.encode() + b"connection: close\r\n\r\n" + body[:10])
        with gateway.client(FEW) as client:
            assert client.get("/v1/files").status_code == 200, "by now the other request is known"
            assert http.post("/halts", json={"target": "key/few", "reason": "test"}).status_code == 201
            try:
                until(lambda: client.get("/v1/files").status_code == 403, what="the halt")
                begun.sendall(body[10:])
                answer = b"".join(iter(lambda: begun.recv(65536), b""))
            finally:
                assert http.delete("/halts/key/few").status_code == 200
    assert answer.startswith(b"HTTP/1.1 403 ") and b'"code":"halted"' in answer, answer
    until(lambda: kept(gateway) == before, what="the end of what had come")


def test_results_are_kept_no_longer_than_the_client_wants(clients: Any) -> None:
    client = clients()
    id = start(client, text(line("a"), line("b", n="x")), output_expires_after={"anchor": "created_at", "seconds": 3600})
    batch = ended(client, id)
    for made in (client.files.retrieve(batch.output_file_id), client.files.retrieve(batch.error_file_id)):
        assert made.expires_at - made.created_at in (3600, 3601)
    source = upload(client, text(line("a")))
    for wrong in (
        {"anchor": "created_at", "seconds": 5},
        {"anchor": "x", "seconds": 3600},
        {"seconds": 3600},
        {"anchor": "created_at", "seconds": 1e9},
        5,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.batches.create(
                input_file_id=source, endpoint="/v1/chat/completions", completion_window="24h", extra_body={"output_expires_after": wrong}
            )
        assert refused.value.param is not None and refused.value.param.startswith("output_expires_after"), wrong


def test_a_batch_runs_and_its_results_are_whole(clients: Any, gateway: Gatehouse) -> None:
    client = clients()
    id = start(client, text(*(line(f"n{number}") for number in range(40))), metadata={"run": "one"})
    batch = ended(client, id)
    assert batch.status == "completed" and batch.metadata == {"run": "one"} and batch.errors is None and batch.error_file_id is None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (40, 40, 0)
    found = results(client, batch.output_file_id)
    assert set(found) == {f"n{number}" for number in range(40)}
    assert all(one["response"]["status_code"] == 200 and one["response"]["body"]["choices"] for one in found.values())
    assert client.batches.list().data[0].id == id

    def recorded() -> list[dict[str, Any]]:
        there = [one for one in gateway.audit() if one.get("detail", {}).get("batch", {}).get("id") == id]
        return there if len(there) >= 80 else []

    records = until(recorded, what="the records of all lines")
    for kind in ("intent", "outcome"):
        of_kind = [one for one in records if one["kind"] == kind]
        assert sorted(one["detail"]["batch"]["line"] for one in of_kind) == list(range(1, 41))
        assert {one["request_id"] for one in of_kind} == {one["response"]["request_id"] for one in found.values()}
    assert all(str(uuid.UUID(one["request_id"])) == one["request_id"] for one in records)  # as llama_cpp.server wants it
    assert {one["tenant"] for one in records} == {"acme"}


def test_the_client_for_node_runs_a_batch(gateway: Gatehouse) -> None:
    seen = node(gateway, "batch", params={"lines": [line("a"), line("b")], "endpoint": "/v1/chat/completions"})
    assert seen["batch"]["status"] == "completed" and seen["listed"] and seen["deleted"], seen
    assert sorted(one["custom_id"] for one in seen["results"]) == ["a", "b"]


def test_each_line_passes_what_a_request_passes(clients: Any) -> None:
    client = clients(FEW)
    batch = ended(client, start(client, text(line("mine"), line("theirs", model="secret"), line("none", model="nothing"))))
    assert batch.status == "completed" and batch.request_counts.failed == 2
    assert set(results(client, batch.output_file_id)) == {"mine"}
    refused = results(client, batch.error_file_id)
    assert {name: one["response"]["status_code"] for name, one in refused.items()} == {"theirs": 404, "none": 404}


def test_what_is_another_tenants_is_not_there(clients: Any) -> None:
    mine, other = clients(), clients(OTHER)
    file = upload(mine, text(line("one")))
    batch = start(mine, text(line("one")))
    for refused in (
        lambda: other.files.retrieve(file),
        lambda: other.files.content(file),
        lambda: other.files.delete(file),
        lambda: other.batches.retrieve(batch),
        lambda: other.batches.cancel(batch),
        lambda: other.batches.create(input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h"),
        lambda: other.files.list(after="nothing"),
        lambda: other.batches.list(after="nothing"),
    ):
        with pytest.raises(openai.NotFoundError):
            refused()
    assert other.files.list().data == [] and other.batches.list().data == []
    assert other.files.list(after=file, order="asc").data == [] and other.batches.list(after=batch).data == []
    ended(mine, batch)  # its results are kept by now: other tests count files


def test_files_are_deleted_while_they_are_listed(clients: Any) -> None:
    """As clients do it: the next page begins behind a file that is gone."""
    client = clients(FEW)
    made = {upload(client, text(line(str(number)))) for number in range(5)}
    seen = []
    for file in client.files.list(limit=2, order="asc"):
        if file.id in made:
            client.files.delete(file.id)
        seen.append(file.id)
    assert made <= set(seen) and len(seen) == len(set(seen))
    assert made.isdisjoint(file.id for file in client.files.list())


def test_files_come_and_go(clients: Any, gateway: Gatehouse) -> None:
    client, before = clients(), kept(gateway)
    content = text(*(line(f"n{number}") for number in range(5000)))
    made = client.files.create(file=("../../etc/pass\\wd\n.jsonl", content), purpose="batch")
    assert made.bytes == len(content) and made.filename == "wd%0A.jsonl" and made.purpose == "batch"
    assert client.files.content(made.id).content == content
    [sealed] = kept(gateway) - before
    assert b"custom_id" not in sealed.read_bytes()
    second = upload(client, text(line("x")))
    assert [one.id for one in client.files.list(limit=1)][:2] == [second, made.id]
    assert client.files.delete(made.id).deleted and not [one for one in client.files.list() if one.id == made.id]
    assert sealed not in kept(gateway)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        (text(line("a"), line("b"), line("a")), "duplicate_custom_id", 3),
        (text(line("a"), line("b", stream=True)), "invalid_request", 2),
        (text(line("a", url="/v1/embeddings")), "invalid_url", 1),
        (text(line("a"), "{not json"), "invalid_json_line", 2),
        (text(line("a"), line("b" * 600)), "invalid_custom_id", 2),
        (text(line("a", extra="x" * (1 << 20))), "line_too_long", 1),
        (b"\n\n", "empty_file", None),
    ],
)
def test_a_bad_input_fails_with_its_line(clients: Any, content: bytes, code: str, place: int | None) -> None:
    client = clients()
    batch = ended(client, start(client, content))
    assert batch.status == "failed" and batch.output_file_id is None
    assert [(one.code, one.line) for one in batch.errors.data] == [(code, place)]


def test_uploads_are_bounded(clients: Any, gateway: Gatehouse) -> None:
    client, before = clients(), kept(gateway)
    with pytest.raises(openai.APIStatusError) as large:
        upload(client, b"x" * (5 << 20))
    assert large.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="compressed"):
        upload(client, b"\x1f\x8b\x08\x00rest")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a", b"{}"), purpose="vision")
    with gateway.client() as http:
        form = {"purpose": (None, "batch"), "file": ("a.jsonl", b"{}")}
        assert http.post("/v1/files", files=form, headers={"content-encoding": "gzip"}).status_code == 415
        assert http.post("/v1/files", content=b"{}").status_code == 415
        assert http.post("/v1/files", content=b"--x\r\n", headers={"content-type": "multipart/form-data; boundary=x"}).status_code == 400
        assert http.get("/v1/files/..%2f..%2fgatehouse.db/content").status_code in (400, 404)
    with gateway.client(key=None) as http:
        assert http.post("/v1/files", files=form).status_code == 401
        assert http.get("/v1/batches").status_code == 401
    until(lambda: kept(gateway) == before, what="the end of what was refused")


@pytest.mark.parametrize("arguments", [[], ["--workers", "2"]], ids=["one process", "workers"])
def test_a_quota_that_is_full_is_not_tried_again(tmp_path: Path, engine: EngineThread, arguments: list[str]) -> None:
    config = settings(tmp_path / "state", engine)
    config["files"] = {**SETTINGS, "max_tenant_files": 1}
    with Gatehouse(tmp_path, config, arguments=arguments) as running, running.client() as http:
        form = {"purpose": (None, "batch"), "file": ("a.jsonl", b"{}")}
        assert http.post("/v1/files", files=form).status_code == 200
        full = http.post("/v1/files", files=form)
        assert (full.status_code, full.json()["error"]["type"]) == (429, "insufficient_quota")
        assert full.json()["error"]["code"] == "file_quota_exceeded" and full.headers["x-should-retry"] == "false"


def test_a_batch_is_cancelled_while_it_runs(clients: Any, engine: EngineThread) -> None:
    client = clients()
    engine.play("hold*6")
    id = start(client, text(*(line(f"n{number}") for number in range(20))))
    engine.holds(6)
    assert client.batches.cancel(id).status == "cancelling"
    with pytest.raises(openai.ConflictError):
        client.files.delete(client.batches.retrieve(id).input_file_id)
    engine.release(6)
    batch = ended(client, id)
    assert batch.status == "cancelled" and 6 <= batch.request_counts.completed <= 12
    done, missed = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert len(done) == batch.request_counts.completed and len(done) + len(missed) == 20 and not done.keys() & missed.keys()
    assert {one["error"]["code"] for one in missed.values()} == {"batch_cancelled"}
    assert client.files.delete(batch.input_file_id).deleted


def test_after_a_kill_every_line_has_an_outcome_and_repeats_are_told(tmp_path: Path, engine: EngineThread) -> None:
    config, before = settings(tmp_path / "state", engine), len(engine.received)
    running = Gatehouse(tmp_path, config).start()
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as client:
        engine.play("normal*10; hold*6")
        id = start(client, text(*(line(f"n{number}") for number in range(30))))
        engine.holds(6)
    running.process.kill()
    running.process.wait(30)
    with Gatehouse(tmp_path, config) as again, openai.OpenAI(base_url=f"{again.url}/v1", api_key=KEY, max_retries=0) as client:
        batch = ended(client, id)
        assert batch.status == "completed" and batch.request_counts.completed == 30
        found = results(client, batch.output_file_id)
        repeated = [one for one in found.values() if one.get("gatehouse", {}).get("attempts", 1) > 1]
        told = httpx.get(f"{again.url}/v1/batches/{id}", headers={"authorization": f"Bearer {KEY}"}, timeout=60).json()["gatehouse"]
        assert len(found) == 30 and told == {"repeated": len(repeated), "unknown": 0}
        # A line that was begun and had not reached the engine when its gateway died is told as repeated, too.
        assert 36 <= len(engine.received) - before <= 30 + len(repeated) <= 38


def test_workers_share_files_and_one_that_is_killed_loses_no_line(tmp_path: Path, engine: EngineThread) -> None:
    config, content = settings(tmp_path / "state", engine), text(*(line(f"n{number}") for number in range(40)))
    before = len(engine.received)
    with Gatehouse(tmp_path, config, arguments=["--workers", "2"]) as running:
        engine.play("normal*4; hold*4")
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=9) as client:
            file = upload(client, content)
            id = client.batches.create(input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h").id
            engine.holds(4)
            for _ in range(8):  # connections of their own: the kernel spreads them over the workers
                with httpx.Client(base_url=f"{running.url}/v1", headers={"authorization": f"Bearer {KEY}"}, timeout=60) as other:
                    assert other.get(f"/files/{file}/content").content == content
                    assert other.get(f"/batches/{id}").json()["status"] == "in_progress"
                    assert other.delete(f"/files/{file}").status_code == 409
            victim = workers(running)[0]  # has one of the four at least: each has four slots and leaves one free
            os.kill(victim, signal.SIGKILL)
            until(lambda: victim not in workers(running), what="the end of the worker")
            engine.release_all()
            batch = ended(client, id)
            found = results(client, batch.output_file_id)
            repeated = [one for one in found.values() if one.get("gatehouse", {}).get("attempts", 1) > 1]
            assert batch.status == "completed" and len(found) == 40 and 1 <= len(repeated) <= 8
            assert batch.model_extra["gatehouse"] == {"repeated": len(repeated), "unknown": 0}
            # A line that was begun and had not reached the engine when its worker died is told as repeated, too.
            assert 41 <= len(engine.received) - before <= 40 + len(repeated)


def test_engines_that_turn_lines_away_fail_none_and_a_spent_budget_fails_the_rest(clients: Any, engine: EngineThread) -> None:
    client, poor = clients(), clients(POOR_KEY)
    engine.play("status:code=503*3; status:code=429*3")
    batch = ended(client, start(client, text(*(line(f"n{number}") for number in range(12)))))
    assert (batch.status, batch.request_counts.completed, batch.model_extra["gatehouse"]["repeated"]) == ("completed", 12, 0)
    batch = ended(poor, start(poor, text(*(line(f"n{number}") for number in range(9)))))
    refused = results(poor, batch.error_file_id)
    assert batch.request_counts.completed == 5 and {one["response"]["status_code"] for one in refused.values()} == {429}


def test_operators_see_and_end_what_clients_have(clients: Any, engine: EngineThread, gateway: Gatehouse, tmp_path: Path) -> None:
    client = clients()
    engine.play("hold*6")
    id = start(client, text(*(line(f"n{number}") for number in range(20))))
    engine.holds(6)
    file = client.batches.retrieve(id).input_file_id
    root, theirs, looks = (admin(gateway, key=key) for key in (ROOT_KEY, THEIR_KEY, LOOKS_KEY))
    with root, theirs, looks:
        listed = root.get("/batches", params={"tenant": "acme", "state": "in_progress", "limit": 1}).json()
        assert [one["id"] for one in listed["items"]] == [id] and listed["cursor"] is None
        assert (
            root.get(f"/batches/{id}").json()["creator"] == "acme/app" and root.get(f"/client-files/{file}").json()["owner"] == "acme/app"
        )
        first = root.get("/client-files", params={"limit": 1}).json()
        assert first["items"][0]["id"] == file
        assert file not in root.get("/client-files", params={"cursor": first["cursor"]}).text
        for path in (f"/batches/{id}", f"/client-files/{file}"):
            assert theirs.get(path).status_code == 404 and looks.get(path).status_code in (403, 404)
        assert theirs.get("/batches").json()["items"] == [] and theirs.get("/batches", params={"tenant": "acme"}).status_code == 403
        assert theirs.post(f"/batches/{id}/cancel").status_code == 404 and theirs.delete(f"/client-files/{file}").status_code == 404
        assert root.delete(f"/client-files/{file}").json()["code"] == "file_in_use"

        def ran(*arguments: str) -> Any:
            found = command(tmp_path, gateway, ROOT_KEY, *arguments, "--output", "json")
            assert found.exit_code == 0, found.output
            return json.loads(found.stdout)

        assert [one["id"] for one in ran("batches", "list", "--tenant", "acme", "--state", "in_progress")] == [id]
        dry = ran("batches", "cancel", id, "--dry-run")
        assert dry["diff"] == [{"path": "state", "from": "in_progress", "to": "cancelling"}]
        assert client.batches.retrieve(id).status == "in_progress"
        assert ran("batches", "cancel", id)["state"] == "cancelling" and ran("batches", "show", id)["state"] == "cancelling"
        engine.release(6)
        assert ended(client, id).status == "cancelled"
        assert file in [one["id"] for one in ran("files", "list")]
        assert ran("files", "delete", file)["id"] == file and root.get(f"/client-files/{file}").status_code == 404

    def told() -> set[tuple[str, str]]:
        return {(one["event"], one["actor"]) for one in gateway.audit() if one["kind"] == "event" and one.get("target") in (id, file)}

    wanted = {("batch_cancelled", "ops/root"), ("file_deleted", "ops/root"), ("batch_created", "acme/app")}
    until(lambda: wanted <= told(), what="the records")
    about = [one for one in gateway.audit() if one["kind"] == "event" and one.get("target") in (id, file)]
    assert {"file_uploaded", "batch_created"} <= {one["event"] for one in about}
    assert all(one.get("tenants") == ["acme"] for one in about), "by which the tenant's auditors and legal holds find them"


def test_a_batch_leaves_slots_free(clients: Any, engine: EngineThread, gateway: Gatehouse) -> None:
    client = clients()
    engine.play("hold*6")
    id = start(client, text(*(line(f"n{number}") for number in range(12))))
    engine.holds(6)
    assert gateway.chat("interactive", model="fake").status_code == 200
    engine.release(6)
    assert ended(client, id).request_counts.completed == 12
