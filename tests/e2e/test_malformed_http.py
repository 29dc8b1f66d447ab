"""Malformed, oversized and slow requests over raw sockets: the contract's error, the connection closes, nothing reaches an engine."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.waiting import until

BODY = b'{"model":"m1","messages":[{"role":"user","content":"x"}]}'
AUTH = f"Authorization: Bearer {KEY}\r\n".encode()
START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + AUTH
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
GOOD = START + LENGTH + b"\r\n" + BODY


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    """A gateway with small bounds."""
    bounds = {"max_header_bytes": 4096, "max_headers": 20, "max_body_bytes": 10_000, "max_connections_per_peer": 20}
    yield from listening(tmp_path_factory.mktemp("strict"), engine, **bounds)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    """A gateway with the usual bounds and deadlines."""
    yield from listening(tmp_path_factory.mktemp("roomy"), engine)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    """A gateway with short deadlines."""
    yield from listening(tmp_path_factory.mktemp("hasty"), engine, header_timeout=2, body_timeout=2, keep_alive_timeout=1)


def listening(directory: Path, engine: EngineThread, **listen: Any) -> Iterator[Gatehouse]:
    engines, models = [external("fake", engine.port)], [{"name": "m1", "pool": ["fake"]}]
    with Gatehouse(directory, configuration(directory / "state", listen=listen, engines=engines, models=models)) as running:
        yield running


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def header(answer: bytes, name: bytes) -> str:
    (value,) = (line.partition(b": ")[2] for line in answer.split(b"\r\n") if line.startswith(name + b":"))
    return value.decode()


def check(answer: bytes, wanted: int, code: str | None = None) -> None:
    assert status(answer) == wanted, answer
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert b"x-request-id: " in head and b"connection: close" in head.lower()
    if code is not None:
        assert error["code"] == code


@pytest.mark.parametrize(
    "request_bytes",
    [
        START + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        START + LENGTH + LENGTH + b"\r\n" + BODY,
        START + b"Content-Length: 5, 5\r\n\r\nhello",
        START + b"Content-Length: +57\r\n\r\n" + BODY,
        START + b"Content-Length: -1\r\n\r\n",
        START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\r\n\r\n",
        START.replace(b"\r\n", b"\n") + LENGTH.replace(b"\r\n", b"\n") + b"\n" + BODY,
        START + b"X-Folded: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
        START + b"X-Null: a\x00b\r\n" + LENGTH + b"\r\n" + BODY,
        START + b"Bad Name: a\r\n" + LENGTH + b"\r\n" + BODY,
        START + AUTH + LENGTH + b"\r\n" + BODY,
        b"POST /v1/chat/completions HTTP/1.1\r\n" + AUTH + LENGTH + b"\r\n" + BODY,
        START + b"Host: y\r\n" + LENGTH + b"\r\n" + BODY,
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/chat/completions HTTP/9.9\r\nHost: x\r\n\r\n",
        START + b"Expect: something\r\n" + LENGTH + b"\r\n" + BODY,
    ],
)
def test_a_malformed_request_is_400_and_reaches_no_engine(strict: Gatehouse, engine: EngineThread, request_bytes: bytes) -> None:
    before = len(engine.received)
    check(strict.raw(request_bytes), 400)
    assert len(engine.received) == before
    assert strict.chat().status_code == 200


@pytest.mark.parametrize(
    "length",
    [
        b"",
        b" ",
        b"-1",
        b"+57",
        b"5, 5",
        b"57,57",
        b"57, 58",
        b"5 7",
        b"0x39",
        b"5.7",
        b"5_7",
        b"57;",
        b"\x0b57",
        b"57\x0c",
        b"\xa057",
        "\u0665\u0667".encode(),
        b"18446744073709551616",
        b"9" * 5000,
        b"0" * 19 + b"57",
        b"0" * 5000 + b"57",
    ],
)
def test_a_length_that_is_none_is_said_to_be_none(roomy: Gatehouse, engine: EngineThread, length: bytes) -> None:
    before = len(engine.received)
    answer = roomy.raw(START + b"Content-Length:" + length + b"\r\n\r\n" + BODY + GOOD)
    check(answer, 400, "invalid_header")
    assert b"The Content-Length header is not a valid number." in answer
    assert answer.count(b"HTTP/1.1 ") == 1, "nothing behind it is read"
    assert len(engine.received) == before


@pytest.mark.parametrize("other", [b"57", b"58"])
def test_two_lengths_are_refused(strict: Gatehouse, engine: EngineThread, other: bytes) -> None:
    before = len(engine.received)
    answer = strict.raw(START + LENGTH + b"Content-Length: " + other + b"\r\n\r\n" + BODY + GOOD)
    check(answer, 400)
    assert answer.count(b"HTTP/1.1 ") == 1 and len(engine.received) == before


@pytest.mark.parametrize("length", [b"%d", b"  %d", b"%d  ", b"\t%d \t ", b"0%d", b"%d" + b" " * 30])
def test_a_length_among_spaces_is_one(strict: Gatehouse, length: bytes) -> None:
    answer = strict.raw(START + b"Connection: close\r\nContent-Length:" + length % len(BODY) + b"\r\n\r\n" + BODY)
    assert status(answer) == 200 and answer.count(b"HTTP/1.1 ") == 1


def test_too_large(strict: Gatehouse, engine: EngineThread) -> None:
    before = len(engine.received)
    check(strict.raw(START + b"X-Long: " + b"a" * 5000 + b"\r\n\r\n"), 431, "request_too_large")
    check(strict.raw(START + b"X-Long: " + b"a" * 5000), 431, "request_too_large")
    check(strict.raw(START + b"".join(b"X-%d: 1\r\n" % i for i in range(30)) + b"\r\n"), 431, "request_too_large")
    check(strict.raw(START + b"Content-Length: 10001\r\n\r\n"), 413, "request_too_large")
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    check(strict.raw(START + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 4), 413, "request_too_large")
    check(strict.raw(b"POST /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"), 431, "request_too_large")
    assert len(engine.received) == before


def test_a_refused_head_is_recorded_with_its_request_and_address(tmp_path: Path, engine: EngineThread) -> None:
    """In a gateway of its own: of several with one code only the first of a second has a record."""
    heads = {
        "request_too_large": START + b"Content-Length: 99999999\r\n",
        "unsupported_media_type": START + b"Content-Type: text/plain\r\n" + LENGTH,
        "invalid_header": START.replace(b"Host: x\r\n", b"") + LENGTH,
    }
    for running in listening(tmp_path, engine):
        for code, head in heads.items():
            answer = running.raw(head + b"x-request-id: refused-" + code.encode() + b"\r\n\r\n")
            record = running.outcome(f"refused-{code}")
            seen = (record["outcome"], record["status"], record["code"], record["peer"])
            assert seen == ("denied", status(answer), code, "127.0.0.1")
        answer = running.raw(b"nonsense\r\n\r\n")
        check(answer, 400, "invalid_request")
        assert running.outcome(header(answer, b"x-request-id"))["code"] == "invalid_request"


def heard(hasty: Gatehouse, request: bytes) -> bytes:
    """The answer to a request that came in time: a connection on which nothing does, as this process stood still, is closed without one."""

    def answer() -> bytes:
        with suppress(ConnectionError):
            return hasty.raw(request)
        return b""

    found: bytes = until(answer, what="an answer")
    return found


def test_too_slow(hasty: Gatehouse) -> None:
    check(heard(hasty, START), 408, "request_timeout")
    check(heard(hasty, START + LENGTH + b"\r\n" + BODY[:10]), 408, "request_timeout")


def test_an_idle_connection_is_closed_without_a_word(hasty: Gatehouse) -> None:
    assert hasty.raw(b"") == b""
    answer = heard(hasty, GOOD)
    assert status(answer) == 200 and answer.count(b"HTTP/1.1") == 1


def test_a_bad_credential_is_refused_before_the_body(strict: Gatehouse) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 5000\r\n\r\n"
    check(strict.raw(head), 401, "invalid_api_key")


def test_expect_continue_comes_after_the_credential(strict: Gatehouse) -> None:
    host, port = strict.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(START + b"Connection: close\r\nExpect: 100-continue\r\n" + LENGTH + b"\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY)
        answer = b""
        while part := sock.recv(65536):
            answer += part
        assert status(answer) == 200
    refused = strict.raw(START.replace(KEY.encode(), b"wrong") + b"Expect: 100-continue\r\n" + LENGTH + b"\r\n")
    check(refused, 401)


def test_pipelined_requests_are_answered_in_order(strict: Gatehouse, engine: EngineThread) -> None:
    last = GOOD.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\nX-Request-Id: last\r\n")
    answer = strict.raw(GOOD.replace(b"Host: x\r\n", b"Host: x\r\nX-Request-Id: first\r\n") + last)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b"x-request-id: first") < answer.index(b"x-request-id: last")
    before = len(engine.received)
    answer = strict.raw(GOOD + b"NONSENSE\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1 400") == 1
    assert len(engine.received) == before + 1


def test_a_request_in_pieces_is_the_same_request(strict: Gatehouse) -> None:
    host, port = strict.url.removeprefix("http://").split(":")
    request = GOOD.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(request), 7):
            sock.sendall(request[i : i + 7])
        answer = b""
        while part := sock.recv(65536):
            answer += part
    assert status(answer) == 200


def test_connections_are_capped_per_peer(strict: Gatehouse) -> None:
    host, port = strict.url.removeprefix("http://").split(":")
    until(lambda: strict.metric("gatehouse_connections") == 0, what="the end of earlier connections")
    held = [socket.create_connection((host, int(port)), timeout=60) for _ in range(20)]
    try:
        until(lambda: strict.metric("gatehouse_connections") >= 20)
        check(strict.raw(GOOD), 503, "overloaded")
    finally:
        for sock in held:
            sock.close()
    until(lambda: strict.metric("gatehouse_connections") == 0)
    assert strict.chat().status_code == 200


def test_cors_answers_preflights_without_a_credential(tmp_path: Path, engine: EngineThread) -> None:
    config = configuration(
        tmp_path / "state",
        listen={"cors": {"origins": ["https://app.example"]}},
        engines=[external("fake", engine.port)],
        models=[{"name": "m1", "pool": ["fake"]}],
    )
    with Gatehouse(tmp_path, config) as gatehouse, gatehouse.client(None) as client:
        ask = {"origin": "https://app.example", "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        preflight = client.options("/v1/chat/completions", headers=ask)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert client.options("/v1/chat/completions", headers={**ask, "origin": "https://evil.example"}).status_code == 405
        response = client.post(
            "/v1/chat/completions", content=BODY, headers={"authorization": f"Bearer {KEY}", "origin": "https://app.example"}
        )
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        assert client.get("/v1/models", headers={"origin": "https://evil.example"}).headers.get("access-control-allow-origin") is None
