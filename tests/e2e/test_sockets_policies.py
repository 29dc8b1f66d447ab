"""Sockets and what changes while they are open: keys, limits, halts, configurations; TLS and workers; clients that do not read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from websockets.exceptions import InvalidMessage
from websockets.sync.client import ClientConnection, connect

from tests.e2e.adminapi import admin, config
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, configuration, external
from tests.e2e.test_sockets import CHAT, Client, body, opened
from tests.pki import Authority
from tests.steady import at_most
from tests.waiting import until


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("guarded")
    made = config(
        directory / "state",
        engine.port,
        listen={"sockets": {"idle_timeout": "10m"}},
        guardrails=[{"name": "secrets", "type": "denylist", "settings": {"phrases": ["project aurora", "tok3"], "action": "mask"}}],
        limits=[{"name": "few", "match": {"tenant": "globex"}, "requests": {"rate": 2, "per": "1h"}}],
    )
    with Gatehouse(directory, made) as running:
        yield running


def test_limits_and_guardrails_count_for_each_message(guarded: Gatehouse, engine: EngineThread) -> None:
    with opened(guarded) as client:
        client.answer("a", text="fly project aurora fly")
        assert "aurora" not in engine.received[-1].json()["messages"][0]["content"]
        client.ask("b", stream=True)  # the engine says tok0 to tok3
        text = "".join(event["data"]["choices"][0]["delta"].get("content", "") for event in client.until_done("b"))
        assert text and "tok3" not in text
    with opened(guarded, OTHER_KEY) as client:
        answers = [client.answer(number) for number in range(3)]
        assert [answer["status"] for answer in answers] == [200, 200, 429]
        assert answers[2]["body"]["error"]["code"] == "rate_limit_exceeded" and int(answers[2]["headers"]["retry-after"]) > 60
        assert answers[0]["headers"]["x-ratelimit-remaining-requests"] == "1"


def test_a_key_that_is_revoked_counts_no_more_within_a_second(guarded: Gatehouse) -> None:
    with admin(guarded) as client:
        client.put("/tenants/acme", json={"name": "acme"})

        def until_it_counts_no_more() -> float:
            response = client.post("/keys", json={"description": "a key", "tenant": "acme", "models": ["*"]})
            made = response.json()
            assert response.status_code == 201, made
            with opened(guarded, made["secret"]) as asking, opened(guarded, made["secret"]) as idle:
                assert asking.answer("a")["status"] == 200
                client.post(f"/keys/{made['id']}/revoke").raise_for_status()
                revoked = time.monotonic()
                until(lambda: asking.answer("b")["status"] == 401, what="the refusal")
                late = time.monotonic() - revoked
                asking.send(type="auth", token=made["secret"], id="again")
                assert asking.until_done_or_refused("again")["status"] == 401
                assert idle.answer("c")["status"] == 401
            return late

        at_most(1.0, until_it_counts_no_more)


def test_a_halt_ends_what_runs_on_a_socket(guarded: Gatehouse, engine: EngineThread) -> None:
    with admin(guarded) as client, opened(guarded) as asking:
        engine.play("hold:at=mid")
        asking.ask("a", stream=True)
        engine.holds(1)
        halted = client.post("/halts", json={"target": "key/test", "reason": "a drill"})
        assert halted.status_code < 300, halted.text
        assert asking.until_done("a")[-1]["data"]["error"]["code"] == "halted"
        assert asking.answer("b")["body"]["error"]["code"] == "halted"
        client.delete("/halts/key/test").raise_for_status()
        assert until(lambda: asking.answer("c")["status"] == 200, what="the end of the halt")


def test_a_client_that_answers_no_ping_is_found(
    launch: Callable[..., Gatehouse], engines: Callable[..., EngineThread], tmp_path: Path
) -> None:
    """Half-open: the connection is there, and nobody answers. In a gateway of its own: this process answers the pings of all other tests,
    and would be cut off there, too, whenever it stands still."""
    engine = engines()
    pings = {"ping_interval": "1s", "ping_timeout": "3s"}
    gatehouse = launch(config(tmp_path / "state", engine.port, listen={"sockets": pings})).start()
    engine.play("hold:at=mid")
    with opened(gatehouse) as client:
        client.ask("a", stream=True)
        engine.holds(1)
        client.wire.protocol.recv_frame = lambda frame: None  # type: ignore[method-assign]  # reads, and answers no ping
        until(lambda: engine.engine.holding == 0, what="the engine's work to end")


def test_a_client_that_reads_nothing_holds_little_and_pauses_the_engine(guarded: Gatehouse, engine: EngineThread) -> None:
    held = guarded.metric("gatehouse_held_bytes")
    with opened(guarded, max_queue=1) as client:
        engine.play("normal:chunks=4000,size=4000")
        client.ask("a", stream=True)
        until(lambda: guarded.metric("gatehouse_in_flight") == 1, what="the stream to begin")
        client.receive()
        time.sleep(0.5)  # the engine could have sent all of it
        assert guarded.metric("gatehouse_held_bytes") - held < 512 * 1024
        assert guarded.metric("gatehouse_in_flight") == 1
        last = client.until_done("a")[-1]
        assert "choices" in last["data"] and last["data"]["choices"][0]["finish_reason"] == "stop", last


def test_a_reload_closes_no_socket_and_counts_from_the_next_message(guarded: Gatehouse, engine: EngineThread) -> None:
    with opened(guarded) as client:
        engine.play("hold:at=mid")
        client.ask("a", stream=True)
        engine.holds(1)
        changed = {**guarded.config, "models": [*guarded.config["models"], {"name": "m2", "pool": ["fake"]}]}
        guarded.file.write_text(yaml.safe_dump(changed))
        assert client.answer("b", model="m2")["status"] == 404
        guarded.process.send_signal(1)  # type: ignore[union-attr]
        until(lambda: client.answer("c", model="m2")["status"] == 200, what="the reload")
        engine.release()
        assert client.until_done("a")[-1]["data"]["choices"][0]["finish_reason"] == "stop"


def test_a_proxy_that_is_no_longer_trusted_names_nobody_on_an_open_socket(guarded: Gatehouse) -> None:
    def reloaded(trusted: list[str]) -> None:
        listen = {**guarded.config["listen"], "trusted_peers": trusted}
        guarded.file.write_text(yaml.safe_dump({**guarded.config, "listen": listen}))
        guarded.process.send_signal(1)  # type: ignore[union-attr]

    def peer_of(client: Client, id: str) -> str:
        request_id = client.answer(id)["headers"]["x-request-id"]
        guarded.outcome(request_id)  # the intent is before it: in the log itself it may come a moment after the answer
        return str(next(one for one in guarded.audit() if one.get("kind") == "intent" and one.get("request_id") == request_id)["peer"])

    named = {"x-forwarded-for": "203.0.113.5"}

    def believed() -> bool:
        with opened(guarded, headers=named) as client:
            return peer_of(client, "a") == "203.0.113.5"

    reloaded(["127.0.0.1"])
    until(believed, what="the proxy to be trusted")
    with opened(guarded, headers=named) as client:
        assert peer_of(client, "a") == "203.0.113.5"
        reloaded([])
        until(lambda: peer_of(client, "b") == "127.0.0.1", what="the proxy's headers to be ignored")


def test_sockets_over_tls_and_over_workers(launch: Callable[..., Gatehouse], engine: EngineThread, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    made = configuration(
        tmp_path / "state",
        listen={"tls": {"cert": server.cert, "key": server.key}},
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}],
    )
    gatehouse = launch(made)
    gatehouse.arguments = ["--workers", "2"]
    gatehouse.start()
    url = gatehouse.url.replace("https://", "wss://") + "/v1/stream"
    headers = {"authorization": f"Bearer {KEY}"}

    def connected() -> ClientConnection | None:
        """None where this library's two threads were at its TLS connection at the same time, and the request was never sent."""
        try:
            return connect(url, additional_headers=headers, proxy=None, ssl=authority.context(), open_timeout=60)
        except InvalidMessage:
            return None

    for _ in range(4):
        connection: ClientConnection = until(connected, what="a connection")
        with connection as wire:
            client = Client(wire)
            assert client.answer("a")["status"] == 200
            wire.send(json.dumps({"type": "request", "id": "b", "path": CHAT, "body": body("long " * 40_000)}))
            assert client.until_done("b")[0]["status"] == 200
