"""Texts in the audit log, as their users meet them: a gateway with two workers, policies, debug captures, two people, shredding."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, configuration, external
from tests.e2e.test_cli import environment
from tests.waiting import until

ADA, BOB, EVE, EVA, OPS = (f"{name}-key-0123456789abcdef0123456789abcdef" for name in ("ada", "bob", "eve", "eva", "ops"))
PROMPT = "the falcon flies at midnight"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    directory, engine = tmp_path_factory.mktemp("texts"), EngineThread()
    (directory / "master.key").write_bytes(os.urandom(32))
    os.chmod(directory / "master.key", 0o600)
    rules = [{"tenants": ["acme"], "keys": ["test"]}, {"roles": ["watched"], "models": ["m1"]}]
    config = configuration(
        directory / "state",
        engines=[external("e", engine.port)],
        models=[{"name": "m1", "pool": ["e"]}],
        audit={"encryption": {"master": {"file": "master.key"}}, "text": {"record": "both", "when": rules, "max_bytes": 2048}},
        roles={
            "revealer": {"permissions": ["admin:audit:reveal", "admin:audit:approve"]},
            "watched": {"permissions": ["infer:chat:model/m1"]},
        },
        bindings=[{"role": "revealer", "subjects": ["key/eve", "key/eva", "key/bob"]}],
    )
    config["identity"]["api_keys"]["static"] += [
        {"id": "ops", "key": OPS, "tenant": "ops", "models": [], "roles": ["admin"]},
        {"id": "ada", "key": ADA, "tenant": "audit", "models": [], "roles": ["admin"], "user": "ada"},
        {"id": "bob", "key": BOB, "tenant": "acme", "models": [], "user": "bob"},
        {"id": "eve", "key": EVE, "tenant": "acme", "models": []},
        {"id": "eva", "key": EVA, "tenant": "acme", "models": []},
    ]
    with Gatehouse(directory, config, arguments=["--workers", "2"]) as gatehouse:
        yield gatehouse
    engine.close()


def ask(gatehouse: Gatehouse, id: str, key: str = KEY, text: str = PROMPT, **fields: Any) -> httpx.Response:
    body = {"model": "m1", "messages": [{"role": "user", "content": text}], **fields}
    with gatehouse.client(key) as client:
        response = client.post("/v1/chat/completions", json=body, headers={"x-request-id": id})
    assert response.status_code == 200, response.text
    return response


def records(gatehouse: Gatehouse, id: str, count: int = 2) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        with adminapi.admin(gatehouse, key=OPS) as client:
            lines = client.get(f"/audit/export?request_id={id}").text.splitlines()
        return [json.loads(line) for line in lines] if len(lines) >= count else []

    there: list[dict[str, Any]] = until(found, what="the records")
    return there


def post(gatehouse: Gatehouse, path: str, by: str, **body: Any) -> httpx.Response:
    with adminapi.admin(gatehouse, key=by) as client:
        return client.post(path, json=body) if body else client.post(path)


def asked(gatehouse: Gatehouse, request_id: str, key: str = OPS) -> str:
    records(gatehouse, request_id)
    response = post(gatehouse, "/audit/reveals", key, request_id=request_id, reason="a complaint")
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def revealed(gatehouse: Gatehouse, request_id: str) -> list[dict[str, Any]]:
    id = asked(gatehouse, request_id)
    assert post(gatehouse, f"/audit/reveals/{id}/approve", ADA, reason="fine").status_code == 200
    found: list[dict[str, Any]] = post(gatehouse, f"/audit/reveals/{id}/fetch", OPS).json()["texts"]
    return found


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def everything(gatehouse: Gatehouse) -> bytes:
    """What the gateway has written: its state directory and its own log."""
    return b"".join(gatehouse.contents().values()) + "\n".join(gatehouse.lines).encode()


def command(tmp_path: Path, gatehouse: Gatehouse, key: str, *arguments: str) -> Result:
    environ = {**environment(tmp_path), "GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": key}
    return CliRunner().invoke(app, list(arguments), env=environ)


def test_texts_are_kept_by_rule_encrypted_and_revealed_by_two(running: Gatehouse) -> None:
    ask(running, "whole-1")
    answer = ask(running, "stream-1", stream=True).text
    first, second = records(running, "whole-1")
    assert set(first["text"]) == set(second["text"]) == {"v", "key", "salt", "n", "data"}
    prompt, whole = revealed(running, "whole-1")
    assert running.metric("gatehouse_audit_master_up") == 1 and running.metric("gatehouse_audit_data_keys") >= 1
    assert problem(post(running, "/audit/reveals", OPS, request_id="whole-*", reason="all of them")) == (400, "invalid_value")
    assert PROMPT in prompt["text"]["body"] and prompt["kind"] == "intent"
    assert json.loads(whole["text"]["body"])["choices"][0]["message"]["content"]
    _, streamed = revealed(running, "stream-1")
    text = streamed["text"]["texts"]["choices.0.delta.content"]
    assert text and all(word in answer for word in text.split())
    assert PROMPT.encode() not in everything(running)


def test_without_a_rule_no_text_is_in_the_log(running: Gatehouse) -> None:
    ask(running, "other-1", OTHER_KEY)
    assert all("text" not in record for record in records(running, "other-1"))
    assert problem(post(running, "/audit/reveals", OPS, request_id="other-1", reason="curious")) == (404, "not_found")


def test_no_api_leaves_a_text_where_no_rule_says_so(running: Gatehouse) -> None:
    planted = "the secret is kestrel"
    chat = {"model": "m1", "messages": [{"role": "user", "content": planted}], "metadata": {"note": planted}}
    bodies = {
        "/v1/chat/completions": [chat, {**chat, "stream": True}, {**chat, "messages": []}, {**chat, "model": "unknown"}],
        "/v1/completions": [{"model": "m1", "prompt": planted}, {"model": "m1", "prompt": planted, "stream": True}],
        "/v1/embeddings": [{"model": "m1", "input": [planted]}],
        "/v1/rerank": [{"model": "m1", "query": planted, "documents": [planted]}],
        "/v1/classify": [{"model": "m1", "input": planted}],
        "/v2/models/m1/infer": [{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [planted]}]}],
    }
    with running.client(OTHER_KEY) as client:
        for path, sent in bodies.items():
            for body in sent:
                client.post(path, json=body, headers={"x-request-id": "planted-1"})
    records(running, "planted-1", 8)
    assert b"kestrel" not in everything(running)


def test_long_texts_are_cut(running: Gatehouse) -> None:
    ask(running, "long-1", text="x" * 5000)
    assert revealed(running, "long-1")[0]["text"]["cut"]


def test_nobody_reveals_alone_nor_by_a_second_key_and_each_step_counts_once(running: Gatehouse) -> None:
    ask(running, "r-1")
    id = asked(running, "r-1", EVE)
    assert problem(post(running, f"/audit/reveals/{id}/fetch", EVE)) == (409, "reveal_not_approved")
    assert problem(post(running, f"/audit/reveals/{id}/approve", EVE, reason="me")) == (403, "self_approval")
    assert problem(post(running, f"/audit/reveals/{id}/approve", EVA, reason="my other key")) == (403, "self_approval")
    assert problem(post(running, f"/audit/reveals/{id}/approve", BOB, reason="my key with a name")) == (403, "self_approval")
    assert post(running, f"/audit/reveals/{id}/approve", ADA, reason="fine").json()["decided_by"] == "audit/ada"
    assert problem(post(running, f"/audit/reveals/{id}/approve", ADA, reason="again")) == (409, "reveal_not_pending")
    assert problem(post(running, f"/audit/reveals/{id}/fetch", ADA)) == (403, "not_the_requester")
    assert post(running, f"/audit/reveals/{id}/fetch", EVE).json()["texts"][0]["state"] == "text"
    assert problem(post(running, f"/audit/reveals/{id}/fetch", EVE)) == (409, "reveal_not_approved")
    denied = asked(running, "r-1", EVE)
    assert post(running, f"/audit/reveals/{denied}/deny", ADA, reason="no").json()["state"] == "denied"
    assert problem(post(running, f"/audit/reveals/{denied}/fetch", EVE)) == (409, "reveal_not_approved")
    with adminapi.admin(running, key=OPS) as client:
        lines = [json.loads(line) for line in client.get("/audit/export?event=audit.reveal*").text.splitlines()]
    steps = [line["event"] for line in lines if line["target"] == id and line.get("outcome", "ok") == "ok"]
    assert steps == ["audit.reveal_asked", "audit.reveal_decided", "audit.revealed"]
    assert sum(line.get("outcome") == "denied" for line in lines if line["target"] == id) == 4


def test_whoever_may_reveal_in_one_tenant_does_not_learn_of_others(running: Gatehouse) -> None:
    post(running, "/captures?wait=60", OPS, key="other", reason="a ticket")
    ask(running, "g-1", OTHER_KEY)
    id = asked(running, "g-1")
    with adminapi.admin(running, key=OPS) as client:
        assert client.delete("/captures/other?wait=60").status_code == 200
    assert problem(post(running, "/audit/reveals", EVE, request_id="g-1", reason="curious")) == (404, "not_found")
    with adminapi.admin(running, key=EVE) as client:
        assert client.get(f"/audit/reveals/{id}").status_code == 404
        assert id not in client.get("/audit/reveals").text
        assert client.get("/audit/data-keys").status_code == 403 and client.get("/audit/records").status_code == 403
    assert problem(post(running, f"/audit/reveals/{id}/approve", EVE, reason="curious")) == (404, "not_found")


def test_a_debug_capture_is_in_force_everywhere_and_ends_by_itself(running: Gatehouse, tmp_path: Path) -> None:
    tries = itertools.count()
    ends = 0.0

    def captured() -> bool:
        """Whether there was a request before the end: none is where the machine stands still for as long."""
        nonlocal ends
        made = command(tmp_path, running, OPS, "audit", "capture", "other", "--for", "2s", "--why", "ticket 17", "-o", "json")
        assert made.exit_code == 0, made.output
        ends = datetime.fromisoformat(json.loads(made.output)["until"]).timestamp()
        ids = [f"debug-{next(tries)}" for _ in range(8)]
        for id in ids:
            ask(running, id, OTHER_KEY)
        before = [record for id in ids for record in records(running, id) if record["time"] < ends - 0.5]
        assert all("text" in record for record in before)
        return bool(before)

    until(captured, what="a capture")
    until(lambda: time.time() > ends, what="the end of the capture")
    ask(running, "debug-after", OTHER_KEY)
    assert all("text" not in record for record in records(running, "debug-after"))

    def told() -> bool:
        with adminapi.admin(running, key=OPS) as client:
            return "its time is over" in client.get("/audit/export?event=audit.capture_ended").text

    until(told, what="the event of its end")
    assert command(tmp_path, running, OPS, "audit", "captures", "-o", "json").output.strip() == "[]"
    assert problem(post(running, "/captures", OPS, key="nobody", reason="x")) == (404, "not_found")


def test_shredding_takes_two_steps_and_leaves_every_proof(running: Gatehouse, tmp_path: Path) -> None:
    ask(running, "shred-1")
    assert revealed(running, "shred-1")[0]["state"] == "text"
    first = command(tmp_path, running, OPS, "audit", "shred", "acme", "--why", "asked for")
    assert first.exit_code == 1 and "--confirm " in first.output
    digest = first.output.split("--confirm ")[1].split()[0]
    rotated = command(tmp_path, running, OPS, "audit", "keys", "rotate", "--tenant", "acme")
    assert rotated.exit_code == 0, rotated.output
    stale = command(tmp_path, running, OPS, "audit", "shred", "acme", "--why", "asked for", "--confirm", digest)
    assert stale.exit_code == 1, "there is another key by now"
    digest = json.loads(command(tmp_path, running, OPS, "audit", "shred", "acme", "--why", "x", "--dry-run", "-o", "json").output)["digest"]
    assert command(tmp_path, running, OPS, "audit", "hold", "acme", "--why", "case 7").exit_code == 0
    held = command(tmp_path, running, OPS, "audit", "shred", "acme", "--why", "asked for", "--confirm", digest)
    assert held.exit_code != 0 and "case 7" in held.output and revealed(running, "shred-1")[0]["state"] == "text"
    assert command(tmp_path, running, OPS, "audit", "release", "acme", "--why", "closed").exit_code == 0
    done = command(tmp_path, running, OPS, "audit", "shred", "acme", "--why", "asked for", "--confirm", digest, "-o", "json")
    assert done.exit_code == 0, done.output
    assert {text["state"] for text in revealed(running, "shred-1")} == {"shredded"}
    until(lambda: {text["state"] for text in fresh(running)} == {"text"}, what="a new key in every worker")
    verified = post(running, "/audit/verify", OPS).json()
    assert verified["ok"], verified["first_problem"]
    listed = json.loads(command(tmp_path, running, OPS, "audit", "keys", "list", "--tenant", "acme", "-o", "json").output)
    assert [one["state"] for one in listed][-1] == "active" and {one["state"] for one in listed[:-1]} == {"shredded"}
    assert command(tmp_path, running, OPS, "audit", "keys").output.count("-----BEGIN PUBLIC KEY") == 1


_count = iter(range(1000))


def fresh(gatehouse: Gatehouse) -> list[dict[str, Any]]:
    id = f"fresh-{next(_count)}"
    ask(gatehouse, id)
    return revealed(gatehouse, id)
