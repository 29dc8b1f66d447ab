"""Machines that join: two real ones with the demo model behind a gateway with workers, and pretenders that say what none should."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from typer.testing import CliRunner

from gateway.app.joined.authority import Authority
from gateway.app.main import app
from gateway.core.joining import BEATS, JOIN, host_of
from tests import modelsigning
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.harness import DEMO_MODEL, ROOT, Gatehouse
from tests.e2e.joining import CHAT, UP, JoinedMachine, Pretender, gateway_config, token
from tests.e2e.test_cli import environment
from tests.e2e.test_command import engine as served
from tests.waiting import until


@pytest.fixture(scope="module")
def gatehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("gateway")
    config = gateway_config(directory / "state", lease="8s")  # longer than a machine stands still
    with Gatehouse(directory, config, arguments=["--workers", "2"]) as running:
        yield running


@pytest.fixture(scope="module")
def machines(gatehouse: Gatehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[JoinedMachine]]:
    directory, text = tmp_path_factory.mktemp("machines"), token(gatehouse)["token"]
    made = [JoinedMachine(directory, name).start(gatehouse.admin_url, text) for name in ("gpu-1", "gpu-2")]
    try:
        until(lambda: states(gatehouse) == {"chat@gpu-1": "ready", "chat@gpu-2": "ready"}, what="both machines")
        until(lambda: all(gatehouse.chat(max_tokens=1).status_code == 200 for _ in range(16)), what="that each worker knows of one")
        yield made
    finally:
        for machine in made:
            machine.stop()


def states(gatehouse: Gatehouse) -> dict[str, str]:
    with admin(gatehouse) as api:
        return {one["name"]: one["state"] for one in api.get("/endpoints").json()["items"]}


def command(gatehouse: Gatehouse, home: Path, *arguments: str) -> Any:
    """What a command answers, as JSON."""
    environ = {**environment(home), "GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"]}
    done = CliRunner().invoke(app, [*arguments, "--output", "json"], env=environ)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def machine(gatehouse: Gatehouse, name: str) -> dict[str, Any]:
    with admin(gatehouse) as api:
        found: dict[str, Any] = api.get(f"/machines/{name}").json()
    return found


def served_by(gatehouse: Gatehouse, count: int = 6) -> set[str]:
    answers = [gatehouse.chat(max_tokens=1) for _ in range(count)]
    assert [answer.status_code for answer in answers] == [200] * count, answers[-1].text
    return {answer.headers["x-gatehouse-endpoint"] for answer in answers}


def test_machines_join_and_serve_and_tell_how_they_are(gatehouse: Gatehouse, machines: list[JoinedMachine], tmp_path: Path) -> None:
    until(lambda: served_by(gatehouse) == {"chat@gpu-1", "chat@gpu-2"}, what="requests at both")
    told = machine(gatehouse, "gpu-1")
    assert (told["state"], told["serves"], told["drained"]) == ("there", ["chat"], False)
    assert told["engines"][0]["model"] == "demo-chat.gguf" and told["engines"][0]["slots"] == 2
    assert told["load"]["memory_bytes"] > 0
    assert gatehouse.metric("gatehouse_machines", state="there") == 2
    assert [one["name"] for one in command(gatehouse, tmp_path, "machines", "list")] == ["gpu-1", "gpu-2"]
    assert command(gatehouse, tmp_path, "machines", "show", "gpu-1")["address"] == told["address"]
    made = command(gatehouse, tmp_path, "join-tokens", "create", "--machine", "gpu-3", "--engine", "chat", "--ttl", "10m")
    assert made["token"].startswith(f"ghj_{made['id']}_") and made["left"] == 1
    assert made["id"] in {one["id"] for one in command(gatehouse, tmp_path, "join-tokens", "list")}
    assert command(gatehouse, tmp_path, "join-tokens", "revoke", made["id"])["id"] == made["id"]
    assert {"machine_admitted", "machine_joined"} <= {record.get("event") for record in gatehouse.audit()}


def handshake(where: tuple[str, int], host: str, **certificate: str) -> bytes:
    """What comes back on a connection that asks for /health. Raises OSError."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate["cert"], certificate["key"])
    with socket.create_connection(where, timeout=60) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
        secure.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return secure.recv(4096)


def test_a_machines_port_is_for_gateways_alone(gatehouse: Gatehouse, machines: list[JoinedMachine]) -> None:
    first, second = machines
    where, host = first.address, host_of("gpu-1", "chat")
    own = gatehouse.state_dir / "machines"
    gateway = {"cert": str(next(own.glob("gateway-*.pem"))), "key": str(next(own.glob("key-*.pem")))}
    assert handshake(where, host, **gateway).startswith(b"HTTP/1.1 200")
    other = second.directory / "gpu-2" / "machine"
    for certificate in ({}, {"cert": str(other / "certificate.pem"), "key": str(other / "key.pem")}):
        with contextlib.suppress(OSError):  # in TLS 1.3 a client hears of its refusal with its first read
            assert handshake(where, host, **certificate) == b""
    with pytest.raises(OSError):
        handshake(where, host_of("gpu-1", "other"), **gateway)


def test_a_killed_machine_loses_no_request_and_comes_back_without_a_token(gatehouse: Gatehouse, machines: list[JoinedMachine]) -> None:
    first, over, codes = machines[0], threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            codes.append(gatehouse.chat(max_tokens=8).status_code)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    until(lambda: len(codes) > 5, what="requests")
    first.kill()
    until(lambda: machine(gatehouse, "gpu-1")["state"] == "lost", what="the end of the lease")
    until(lambda: states(gatehouse)["chat@gpu-1"] in ("unhealthy", "open"), what="the end of its requests")
    seen = len(codes)
    until(lambda: len(codes) > seen + 3, what="requests at the other")
    over.set()
    for asker in askers:
        asker.join()
    assert set(codes) == {200}
    assert served_by(gatehouse, 4) == {"chat@gpu-2"}
    first.start(gatehouse.admin_url)
    until(lambda: states(gatehouse).get("chat@gpu-1") == "ready", what="the machine again")
    until(lambda: "chat@gpu-1" in served_by(gatehouse, 4), what="requests at it")


def test_a_drained_machine_gets_no_requests_until_it_is_resumed(gatehouse: Gatehouse, machines: list[JoinedMachine]) -> None:
    with admin(gatehouse, "operator") as api:
        assert api.post("/machines/gpu-2/drain").json()["drained"]
        until(lambda: set(states(gatehouse)) == {"chat@gpu-1"}, what="the drain")
        until(lambda: served_by(gatehouse, 4) == {"chat@gpu-1"}, what="requests at the other alone")
        assert machine(gatehouse, "gpu-2")["state"] == "there"
        assert not api.post("/machines/gpu-2/resume").json()["drained"]
    until(lambda: states(gatehouse).get("chat@gpu-2") == "ready", what="the machine again")


def test_tokens_are_for_their_names_their_time_and_their_uses(gatehouse: Gatehouse) -> None:
    one, other = Pretender(gatehouse, "gpu-7"), Pretender(gatehouse, "gpu-7")
    made = token(gatehouse, uses=1)
    secret = str(made["token"])
    wrong = [secret[:-1] + ("A" if secret[-1] != "A" else "B"), "ghj_0123456789abcdef_x", "gh_" + "a" * 40, "ghj_", "x"]
    for text in wrong:
        answer = one.join(text)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_join_token"), text
    assert one.join(secret, "tpu-1").json()["code"] == "invalid_join_token", "the token is for gpu-*"
    assert one.join(secret).status_code == 201
    assert one.join(secret).status_code == 201, "a machine that is known needs no further use"
    assert other.join(secret).json()["code"] == "name_taken"
    assert Pretender(gatehouse, "gpu-8").join(secret).json()["code"] == "invalid_join_token", "it is used up"
    with admin(gatehouse) as api:
        shown = api.get("/join-tokens").text
        assert secret not in shown and made["id"] in shown
        revoked = token(gatehouse)
        assert api.delete(f"/join-tokens/{revoked['id']}").status_code == 200
        assert Pretender(gatehouse, "gpu-8").join(revoked["token"]).json()["code"] == "invalid_join_token"
        assert api.delete("/machines/gpu-7").status_code == 200
    until(lambda: one.beat().json().get("code") == "unknown_machine", what="the removal")  # a change of the store, followed within a second
    with admin(gatehouse, "operator") as api:
        assert api.post("/join-tokens", json={"machines": ["*"], "engines": ["*"]}).status_code == 403


def test_a_machine_that_wants_signatures_serves_no_model_without_one(
    gatehouse: Gatehouse, machines: list[JoinedMachine], tmp_path: Path
) -> None:
    model, key = tmp_path / "signed.gguf", tmp_path / "key.pem"
    shutil.copy(ROOT / "engines/demo/artefacts" / DEMO_MODEL, model)
    key.write_bytes(modelsigning.pem())
    engine = {**CHAT, "model": str(model)}
    third = JoinedMachine(tmp_path / "m", "gpu-3", [engine], model_signatures={"keys": [str(key)], "required": True})
    third.start(gatehouse.admin_url, token(gatehouse)["token"])

    def reason() -> str:
        with admin(gatehouse) as api:
            told = api.get("/machines/gpu-3").json().get("engines") or [{}]
        return str(told[0].get("reason"))

    try:
        until(lambda: "not signed" in reason() and "no signature" in reason(), what="the refusal")
        modelsigning.sign(model, modelsigning.OTHER)
        until(lambda: "not signed" in reason() and "no signature" not in reason(), what="the refusal of another's signature")
        assert "chat@gpu-3" not in states(gatehouse)
        modelsigning.sign(model)
        until(lambda: "chat@gpu-3" in served_by(gatehouse), what="requests there")
    finally:
        third.stop()
    with admin(gatehouse) as api:
        assert api.delete("/machines/gpu-3").status_code == 200
    until(lambda: set(states(gatehouse)) == {"chat@gpu-1", "chat@gpu-2"}, what="its end")
    until(lambda: served_by(gatehouse) == {"chat@gpu-1", "chat@gpu-2"}, what="requests at the others alone")


def test_a_machine_that_was_away_for_longer_than_its_certificate_lasts_comes_back_by_itself(
    gatehouse: Gatehouse, machines: list[JoinedMachine], tmp_path: Path
) -> None:
    made = token(gatehouse, uses=1)
    fourth = JoinedMachine(tmp_path / "m", "gpu-4").start(gatehouse.admin_url, made["token"])
    try:
        for arguments in ([], [made["token"]]):  # also where its unit names a token that is used up, and was revoked
            until(lambda: "chat@gpu-4" in served_by(gatehouse), what="requests there")
            fourth.stop()
            certificate = tmp_path / "m" / "gpu-4" / "machine" / "certificate.pem"
            current = x509.load_pem_x509_certificate(certificate.read_bytes())
            key = current.public_key()
            assert isinstance(key, Ed25519PublicKey)
            issuer, then = Authority.of(b"m" * 32, "machines"), datetime.now(UTC) - timedelta(days=30)
            certificate.write_text(issuer.issue(key, "gpu-4", ["*.gpu-4.joined.gatehouse"], then, 7, serves=True))
            with admin(gatehouse) as api:
                api.delete(f"/join-tokens/{made['id']}")
            fourth.start(gatehouse.admin_url, *arguments)
        until(lambda: "chat@gpu-4" in served_by(gatehouse), what="requests there again")
        assert x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc > datetime.now(UTC)
    finally:
        fourth.stop()
    with admin(gatehouse) as api:
        assert api.delete("/machines/gpu-4").status_code == 200
    until(lambda: served_by(gatehouse) == {"chat@gpu-1", "chat@gpu-2"}, what="requests at the others alone")


def test_a_server_of_others_on_a_machine_answers_behind_its_port(
    gatehouse: Gatehouse, machines: list[JoinedMachine], tmp_path: Path
) -> None:
    fifth = JoinedMachine(tmp_path / "m", "gpu-11", [served(tmp_path / "s", "well", "chat")])
    fifth.start(gatehouse.admin_url, token(gatehouse)["token"])
    try:
        until(lambda: "chat@gpu-11" in served_by(gatehouse), what="requests there")
    finally:
        fifth.stop()
    with admin(gatehouse) as api:
        assert api.delete("/machines/gpu-11").status_code == 200
    until(lambda: served_by(gatehouse) == {"chat@gpu-1", "chat@gpu-2"}, what="requests at the others alone")


HOSTILE = [
    {"engines": [{**UP, "slots": -1}]},
    {"engines": [{**UP, "in_use": 10**30}]},
    {"engines": [{**UP, "kv_used": 1e9}]},
    {"engines": [{**UP, "clearance": ["*"]}]},
    {"engines": [UP] * 65},
    {"address": "a" * 65},
    {"sequence": 0},
    {"drained": False},
]


def test_what_a_machine_says_changes_nothing_that_it_may_not_decide(gatehouse: Gatehouse, machines: list[JoinedMachine]) -> None:
    liar = Pretender(gatehouse, "gpu-9")
    assert liar.join(token(gatehouse, engines=["other"])["token"]).status_code == 201
    for fields in HOSTILE:
        assert liar.beat(**fields).json()["code"] == "invalid_value", fields
    nan = msgspec.json.encode({"session": "", "sequence": 1, "address": "127.0.0.1:9", "load": {"load": 0.5}}).replace(b"0.5", b"NaN")
    assert liar.post(f"{JOIN}/gpu-9/{BEATS}", nan).json()["code"] == "invalid_value"
    assert liar.beat().status_code == 200
    assert machine(gatehouse, "gpu-9")["serves"] == [], "its token is for another engine"
    path = f"{JOIN}/gpu-1/{BEATS}"
    said = msgspec.json.encode({"session": "", "sequence": 1, "address": "127.0.0.1:9", "leaving": True, "engines": []})
    assert liar.post(path, said).json()["code"] == "unknown_machine", "another's name"
    again = msgspec.json.encode({"session": liar.session, "sequence": liar.sequence, "address": "127.0.0.1:9", "leaving": True})
    assert liar.post(f"{JOIN}/gpu-9/{BEATS}", again).json()["code"] == "stale_beat", "a sequence number counts once"
    assert "BEGIN CERTIFICATE" in until(lambda: (answer := liar.beat(renew=True)).status_code == 200 and answer.text, what="a certificate")
    copy = Pretender(gatehouse, "gpu-9")
    copy.key = liar.key

    def refused_copy() -> bool:  # once a machine stood still for its lease, its session is anybody's who has the key
        return liar.beat().status_code == 200 and copy.beat().json().get("code") == "machine_in_use"

    until(refused_copy, what="the refusal of a copy of the key while the machine is there")
    outside = Pretender(gatehouse, "gpu-6")
    assert outside.join(token(gatehouse)["token"]).status_code == 201
    assert outside.beat(address="169.254.169.254:80").status_code == 200
    told = until(lambda: (found := machine(gatehouse, "gpu-6"))["reason"] and found, what="the refusal")
    assert told["serves"] == [] and "is not where machines may be" in told["reason"]
    impostor = Pretender(gatehouse, "gpu-5")
    assert impostor.join(token(gatehouse)["token"]).status_code == 201
    host, port = machines[0].address
    assert impostor.beat(address=f"{host}:{port}").status_code == 200

    def refused() -> bool:
        impostor.beat(address=f"{host}:{port}")
        return states(gatehouse).get("chat@gpu-5") not in (None, "ready")

    until(refused, what="the refusal of another machine's certificate")
    with admin(gatehouse) as api:
        for name in ("gpu-5", "gpu-6", "gpu-9"):
            assert api.delete(f"/machines/{name}").status_code == 200
    until(lambda: set(states(gatehouse)) == {"chat@gpu-1", "chat@gpu-2"}, what="the end of the removed")
    until(lambda: served_by(gatehouse) == {"chat@gpu-1", "chat@gpu-2"}, what="requests at both in each worker")


def test_a_removed_machine_vanishes_and_one_that_leaves_ends_well(gatehouse: Gatehouse, machines: list[JoinedMachine]) -> None:
    first, second = machines
    with admin(gatehouse) as api:
        assert api.delete("/machines/gpu-1").status_code == 200
    until(lambda: set(states(gatehouse)) == {"chat@gpu-2"}, what="the end of its engines")
    until(lambda: served_by(gatehouse, 6) == {"chat@gpu-2"}, what="requests at the other alone, in each worker")
    assert first.process is not None and first.process.wait(60) == 1
    until(lambda: any("was removed" in line for line in first.lines), what="its last words")
    assert second.stop() == 0
    until(lambda: set(states(gatehouse)) == {"chat"}, what="the end of the one that left")
    until(lambda: gatehouse.chat().status_code == 503, what="that no worker has one")
    assert gatehouse.noted(event="machine_left")
