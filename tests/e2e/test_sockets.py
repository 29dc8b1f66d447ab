"""`/v1/stream`, with the client of the library `websockets`: the messages, policy for each of them, bounds, and how sockets end."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, NARROW_KEY, OTHER_KEY, Gatehouse, configuration, external
from tests.waiting import until

CHAT = "/v1/chat/completions"
SECONDS = 150.0


def body(text: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m1", "messages": [{"role": "user", "content": text}], **fields}


class Client:
    """A socket and what came on it, by id."""

    def __init__(self, wire: ClientConnection) -> None:
        self.wire = wire
        self.got: dict[Any, list[dict[str, Any]]] = {}

    def send(self, **message: Any) -> None:
        self.wire.send(json.dumps(message))

    def ask(self, id: Any, path: str = CHAT, **fields: Any) -> None:
        self.send(type="request", id=id, path=path, body=fields.pop("body", None) or body(**fields))

    def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.wire.recv(SECONDS))
        self.got.setdefault(message.get("id"), []).append(message)
        return message

    def until_done(self, id: Any) -> list[dict[str, Any]]:
        """Everything that came with an id, `done` left out."""
        while not any(message["type"] == "done" for message in self.got.get(id, [])):
            self.receive()
        return [message for message in self.got.pop(id) if message["type"] != "done"]

    def until_done_or_refused(self, id: Any) -> dict[str, Any]:
        """The first message with an id."""
        while not self.got.get(id):
            self.receive()
        return self.got.pop(id)[0]

    def answer(self, id: Any, **request: Any) -> dict[str, Any]:
        self.ask(id, **request)
        found = self.until_done(id)
        assert len(found) == 1
        return found[0]

    def closed(self) -> tuple[int, str]:
        """Waits for the end; the code and the reason."""
        with pytest.raises(ConnectionClosed) as ended:
            while True:
                self.receive()
        close = ended.value.rcvd
        assert close is not None
        return close.code, close.reason


@contextmanager
def opened(gatehouse: Gatehouse, key: str | None = KEY, **options: Any) -> Iterator[Client]:
    headers = {**({"authorization": f"Bearer {key}"} if key else {}), **options.pop("headers", {})}
    url = gatehouse.url.replace("http://", "ws://") + "/v1/stream"
    with connect(url, additional_headers=headers, proxy=None, compression=None, open_timeout=SECONDS, **options) as wire:
        yield Client(wire)


def refused(gatehouse: Gatehouse, **options: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as error, opened(gatehouse, **options):
        pass
    response = error.value.response
    return response.status_code, json.loads(response.body or b"{}")["error"]


def test_whole_answers_and_streams_come_in_messages(gatehouse: Gatehouse, engine: EngineThread) -> None:
    with opened(gatehouse) as client:
        answer = client.answer("a")
        assert answer["type"] == "response" and answer["status"] == 200
        assert answer["body"]["choices"][0]["message"]["content"]
        assert answer["headers"]["x-gatehouse-model"] == "m1"
        assert gatehouse.outcome(answer["headers"]["x-request-id"])["outcome"] == "ok"
        client.ask(7, stream=True)
        events = client.until_done(7)
        assert {event["type"] for event in events} == {"event"} and len(events) > 4
        assert events[-1]["data"]["choices"][0]["finish_reason"] == "stop"
    assert engine.received[-1].header("upgrade") is None and engine.received[-1].header("authorization") is None


def test_the_values_of_the_client_are_forwarded_as_they_came(gatehouse: Gatehouse, engine: EngineThread) -> None:
    with opened(gatehouse) as client:
        client.wire.send(
            '{"type":"request","id":"x","path":"/v1/chat/completions","body":'
            '{"messages":[{"role" : "user","content":"h\\u4e16"}],"model":"m1","top_k":1e2}}'
        )
        assert client.until_done("x")[0]["status"] == 200
    assert engine.received[-1].body == b'{"messages":[{"role" : "user","content":"h\\u4e16"}],"model":"m1","top_k":1e2}'


def test_requests_run_side_by_side_and_one_can_be_cancelled(gatehouse: Gatehouse, engine: EngineThread) -> None:
    engine.play("hold:at=mid*2")
    with opened(gatehouse) as client:
        client.ask("one", stream=True)
        client.ask("two", stream=True)
        engine.holds(2)
        assert client.answer("three")["status"] == 200  # behind two that wait
        while not (client.got.get("one") and client.got.get("two")):
            client.receive()
        client.send(type="cancel", id="one")
        client.send(type="cancel", id="nobody")
        client.until_done("one")
        until(lambda: engine.engine.holding == 1, what="the cancelled request to leave the engine")
        engine.release()
        assert client.until_done("two")[-1]["data"]["choices"][0]["finish_reason"] == "stop"
        assert client.answer("one")["status"] == 200  # an id is free after its `done`


@pytest.mark.parametrize(
    ("message", "id", "status", "code"),
    [
        ({"path": "/v1/models"}, "i", 404, "not_found"),
        ({"path": "/admin/v1/keys"}, "i", 404, "not_found"),
        ({"path": "/v1/chat/completions?x=1"}, "i", 404, "not_found"),
        ({"path": "http://evil/v1/chat/completions"}, "i", 404, "not_found"),
        ({"path": "/v1/%63hat/completions"}, "i", 404, "not_found"),
        ({"path": "/v2/models/../../v1/infer"}, "i", 400, "invalid_request"),
        ({"path": CHAT, "headers": {"authorization": f"Bearer {OTHER_KEY}"}}, "i", 400, "invalid_header"),
        ({"path": CHAT, "headers": {"X-Api-Key": OTHER_KEY}}, "i", 400, "invalid_header"),
        ({"path": CHAT, "headers": {"x-forwarded-for": "10.0.0.1"}}, "i", 400, "invalid_header"),
        ({"path": CHAT, "headers": {"x-gatehouse-agent": "root"}}, "i", 400, "invalid_header"),
        ({"path": CHAT, "headers": {"x-request-id": "a\r\nb: c"}}, "i", 400, "invalid_header"),
        ({"path": CHAT, "method": "GET"}, None, 400, "invalid_message"),
        ({"path": CHAT, "id": ""}, None, 400, "invalid_message"),
        ({"path": CHAT, "id": None}, None, 400, "invalid_message"),
        ({"type": "response"}, None, 400, "invalid_message"),
        ({"path": CHAT, "body": {"model": "m1"}}, "i", 400, "missing_required_parameter"),
        ({"path": CHAT, "body": {"model": "nothing", "messages": []}}, "i", 400, None),
        ({"path": CHAT, "body": [1]}, "i", 400, None),
    ],
)
def test_what_a_message_may_not_say(
    gatehouse: Gatehouse, engine: EngineThread, message: dict[str, Any], id: str | None, status: int, code: str | None
) -> None:
    before = len(engine.received)
    with opened(gatehouse) as client:
        client.send(**{"type": "request", "id": "i", "body": body(), **message})
        answer = client.receive()
        assert (answer["type"], answer["id"], answer["status"]) == ("response", id, status), answer
        assert code is None or answer["body"]["error"]["code"] == code
        assert client.answer("after")["status"] == 200
    assert len(engine.received) == before + 1


def test_each_message_passes_the_policies(gatehouse: Gatehouse, engine: EngineThread) -> None:
    with opened(gatehouse, NARROW_KEY) as client:
        answer = client.answer("a")
        assert answer["status"] == 404 and answer["body"]["error"]["code"] == "model_not_found"
        assert gatehouse.outcome(answer["headers"]["x-request-id"])["principal"] == "narrow"


def test_an_id_names_one_request_at_a_time(gatehouse: Gatehouse, engine: EngineThread) -> None:
    engine.play("hold:at=head")
    with opened(gatehouse) as client:
        client.ask("same")
        engine.holds(1)
        client.ask("same")
        wrong = client.receive()
        assert wrong["id"] is None and wrong["status"] == 400 and wrong["body"]["error"]["param"] == "id"
        engine.release()
        assert client.until_done("same")[0]["status"] == 200


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"key": "wrong"}, 401, "invalid_api_key"),
        ({"headers": {"x-api-key": OTHER_KEY}}, 400, "ambiguous_credentials"),
        ({"origin": "https://evil.example"}, 403, "origin_not_allowed"),
    ],
)
def test_handshakes_that_are_refused(gatehouse: Gatehouse, options: dict[str, Any], status: int, code: str) -> None:
    assert (lambda found: (found[0], found[1]["code"]))(refused(gatehouse, **options)) == (status, code)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("", 426),
        ("upgrade: websocket\r\n", 400),
        ("upgrade: h2c\r\nconnection: upgrade\r\n", 400),
        ("upgrade: websocket\r\nconnection: upgrade\r\n", 426),
        ("upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: short\r\n", 400),
        ("upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\ncontent-length: 3\r\n", 400),
    ],
)
def test_requests_that_are_no_handshakes(gatehouse: Gatehouse, lines: str, status: int) -> None:
    head = f"GET /v1/stream HTTP/1.1\r\nhost: x\r\n{lines}"
    ends = "" if status == 400 and "upgrade:" in lines else "connection: close\r\n"
    answer = gatehouse.raw(f"{head}{ends if 'connection' not in lines else ''}\r\n{'abc' if 'content-length' in lines else ''}".encode())
    assert answer.startswith(b"HTTP/1.1 426 Upgrade Required\r\n" if status == 426 else b"HTTP/1.1 400 Bad Request\r\n"), answer


@pytest.mark.parametrize(
    ("lines", "behind"),
    [
        ("", b"\x81\x82abcd\x1a\x1f"),
        ("", b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", b"0\r\n\r\n"),
        ("transfer-encoding: chunked\r\n", b""),
    ],
    ids=["a frame", "a request", "an empty body", "a body to come"],
)
def test_nothing_may_stand_behind_a_handshake(gatehouse: Gatehouse, lines: str, behind: bytes) -> None:
    """It would be lost, or a proxy in front would read it otherwise than this gateway does."""
    key = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    answer = gatehouse.raw(f"GET /v1/stream HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{key}{lines}\r\n".encode() + behind)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"HTTP/1.1 101" not in answer, answer


def test_the_first_message_may_bring_the_token(gatehouse: Gatehouse, engine: EngineThread) -> None:
    with opened(gatehouse, None) as client:
        assert client.answer("early")["body"]["error"]["code"] == "missing_credentials"
        client.send(type="auth", token=KEY, id="login")
        assert client.until_done("login") == []
        assert client.answer("a")["status"] == 200
        client.send(type="auth", token=KEY)  # again
        client.send(type="auth", token=OTHER_KEY, id="other")
        refusal = client.receive()
        assert refusal["id"] == "other" and refusal["body"]["error"]["code"] == "ambiguous_credentials"
        assert client.answer("b")["status"] == 200
    with opened(gatehouse, None) as client:
        client.send(type="auth", token="wrong")
        with suppress(ConnectionClosed):  # the gateway may be faster
            client.ask("never")
        assert client.closed()[0] == 1008
        assert client.got[None][0]["status"] == 401 and "never" not in client.got


def test_binary_broken_and_oversized_messages_end_a_socket(gatehouse: Gatehouse) -> None:
    with opened(gatehouse) as client:
        client.wire.send(b"\x00\x01")
        assert client.closed()[0] == 1003
    with opened(gatehouse) as client:
        client.wire.send(b'{"type": "\xff"}', text=True)
        assert client.closed()[0] == 1007
    with opened(gatehouse) as client:
        with suppress(ConnectionClosed):  # it may be closed before all of it has left
            client.wire.send("x" * (9 * 1024 * 1024))
        assert client.closed()[0] == 1009
    with opened(gatehouse) as client:
        client.wire.send("not json")
        assert client.receive()["body"]["error"]["code"] == "invalid_json"
        parts = json.dumps({"type": "request", "id": 1, "path": CHAT, "body": body("long " * 20_000)})
        client.wire.send(iter([parts[:10], *(parts[n : n + 7000] for n in range(10, len(parts), 7000))]))
        assert client.until_done(1)[0]["status"] == 200


def test_a_thousand_requests_on_one_socket(gatehouse: Gatehouse, engine: EngineThread) -> None:
    """As many as may are answered; the others are told so at once. None is lost."""
    with opened(gatehouse) as client:
        for number in range(1000):
            client.ask(number)
        statuses = [client.until_done(number)[0]["status"] for number in range(1000)]
        assert set(statuses) <= {200, 429} and statuses.count(200) >= 64
        assert client.answer("last")["status"] == 200


def test_a_client_that_leaves_frees_what_it_asked_for(gatehouse: Gatehouse, engine: EngineThread) -> None:
    engine.play("hold:at=mid")
    with opened(gatehouse) as client:
        client.ask("a", stream=True)
        engine.holds(1)
        client.wire.socket.shutdown(socket.SHUT_RDWR)
        until(lambda: engine.engine.holding == 0, what="the engine's work to end")
    until(lambda: gatehouse.metric("gatehouse_connections") == 0, what="the socket to end")


def test_the_sockets_of_one_caller_are_bounded(launch: Callable[..., Gatehouse], engine: EngineThread, tmp_path: Any) -> None:
    config = configuration(
        tmp_path / "state",
        listen={"sockets": {"max_per_principal": 2, "max_requests": 1}, "cors": {"origins": ["https://chat.example"]}},
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}],
    )
    gatehouse = launch(config).start()
    with opened(gatehouse) as one, opened(gatehouse, origin="https://chat.example") as two:
        assert two.answer("a")["status"] == 200
        assert refused(gatehouse)[0] == 429
        with opened(gatehouse, None) as third:
            third.send(type="auth", token=KEY, id="login")
            assert third.closed()[0] == 1013
        with opened(gatehouse, OTHER_KEY) as other:
            assert other.answer("a")["status"] == 200
        engine.play("hold:at=head")
        one.ask("first")
        engine.holds(1)
        assert one.answer("second")["body"]["error"]["code"] == "concurrency_exceeded"
        engine.release()
        one.until_done("first")
    with opened(gatehouse) as again:
        assert again.answer("a")["status"] == 200
    with opened(gatehouse) as idle, opened(gatehouse) as busy:
        engine.play("hold:at=mid")
        busy.ask("long", stream=True)
        engine.holds(1)
        gatehouse.process.send_signal(15)  # type: ignore[union-attr]
        assert idle.closed() == (1001, "The gateway is shutting down; connect again.")
        assert busy.answer("new")["status"] == 503
        engine.release()
        assert busy.until_done("long")[-1]["data"]["choices"][0]["finish_reason"] == "stop"
        assert busy.closed()[0] == 1001
    assert gatehouse.stop() == 0
