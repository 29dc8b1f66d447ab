"""Streams through the whole gateway: framing, usage, failures in the middle, clients that leave or do not read."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.waiting import until


def events(text: str) -> list[Any]:
    """The data of each event; [DONE] as the string it is."""
    found = []
    for block in text.split("\n\n"):
        for line in block.splitlines():
            if line.startswith("data: "):
                data = line[6:]
                found.append(data if data == "[DONE]" else json.loads(data))
    return found


def stream(gatehouse: Gatehouse, **fields: Any) -> tuple[list[Any], str]:
    response = gatehouse.chat(stream=True, **fields)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text), response.headers["x-request-id"]


def test_a_stream_ends_with_done_and_its_usage_is_withheld(gatehouse: Gatehouse, engine: EngineThread) -> None:
    found, request_id = stream(gatehouse)
    assert found[-1] == "[DONE]" and found.count("[DONE]") == 1
    assert all(e == "[DONE]" or e["choices"] for e in found)
    assert engine.received[-1].json()["stream_options"] == {"include_usage": True}
    outcome = gatehouse.outcome(request_id)
    assert outcome["completion_tokens"] > 0 and not outcome.get("estimated")


def test_usage_is_given_to_a_client_that_asks(gatehouse: Gatehouse) -> None:
    found, _ = stream(gatehouse, stream_options={"include_usage": True})
    assert found[-2]["usage"]["completion_tokens"] > 0
    found, _ = stream(gatehouse, stream_options={"include_usage": False})
    assert all(e == "[DONE]" or e["choices"] for e in found)


def test_one_byte_at_a_time_is_the_same_stream(gatehouse: Gatehouse, engine: EngineThread) -> None:
    plain, _ = stream(gatehouse)
    engine.play("dribble")
    dribbled, _ = stream(gatehouse)

    def contents(found: list[Any]) -> list[Any]:
        return [e if e == "[DONE]" else e["choices"][0]["delta"] for e in found]

    assert contents(dribbled) == contents(plain)


def test_a_stream_is_one_whatever_its_engine_calls_it(gatehouse: Gatehouse, engine: EngineThread) -> None:
    for step in ("normal:media=text/plain", "normal:media=", "dribble:media=application/json", "until_close:media="):
        engine.play(step)
        found, request_id = stream(gatehouse)
        assert found[-1] == "[DONE]" and "error" not in json.dumps(found), step
        outcome = gatehouse.outcome(request_id)
        assert outcome["outcome"] == "ok" and not outcome.get("estimated"), step


def test_a_failure_in_the_middle_is_an_error_event_and_done(gatehouse: Gatehouse, engine: EngineThread) -> None:
    for step in ("reset:at=mid", "close:at=mid", "half_event", "garbage:at=mid"):
        engine.play(step)
        found, request_id = stream(gatehouse)
        assert found[-1] == "[DONE]", step
        assert found[-2]["error"]["type"] == "engine_error", step
        assert gatehouse.outcome(request_id)["outcome"] == "failed"
    assert gatehouse.chat().status_code == 200


def test_a_failure_before_the_first_byte_is_a_status(gatehouse: Gatehouse, engine: EngineThread) -> None:
    engine.play("status:code=500")
    response = gatehouse.chat(stream=True)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "engine_failed"


def raw_stream(gatehouse: Gatehouse, **fields: Any) -> socket.socket:
    """A raw connection on which a stream has been asked for."""
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "x"}], "stream": True, **fields}).encode()
    host, port = gatehouse.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def test_a_client_that_leaves_cancels_the_engine_and_is_charged(gatehouse: Gatehouse, engine: EngineThread) -> None:
    engine.play("normal:chunks=10000,interval=0.005")
    sock = raw_stream(gatehouse)
    received = b""
    while received.count(b"data: ") < 5:
        received += sock.recv(65536)
    request_id = received.split(b"x-request-id: ")[1].split(b"\r\n")[0].decode()
    sock.close()
    until(lambda: engine.received[-1].cancelled is not None, what="the cancellation at the engine")
    outcome = gatehouse.outcome(request_id)
    assert outcome["outcome"] == "cancelled"
    assert outcome["completion_tokens"] >= 3 and outcome["estimated"]
    until(lambda: gatehouse.metric("gatehouse_endpoint_in_flight", endpoint="fake") == 0, what="the free slot")


def test_a_client_that_does_not_read_pauses_the_engine(gatehouse: Gatehouse, engine: EngineThread) -> None:
    gatehouse.chat()
    before = _resident(gatehouse)
    engine.play("normal:chunks=4000,size=8000")  # few enough that the engine is done long before `stream.send_timeout` ends it
    sock = raw_stream(gatehouse)
    received = until(lambda: next((r for r in engine.received[-1:] if r.step.chunks == 4000 and r.done is not None), None))
    assert received.sent > 30 * 1024 * 1024
    assert _resident(gatehouse) - before < 8
    assert received.cancelled is None
    assert gatehouse.metric("gatehouse_in_flight") == 1
    sock.close()
    until(lambda: gatehouse.metric("gatehouse_in_flight") == 0, what="the settlement")


def _resident(gatehouse: Gatehouse) -> float:
    assert gatehouse.process is not None
    pages = int(Path(f"/proc/{gatehouse.process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20
