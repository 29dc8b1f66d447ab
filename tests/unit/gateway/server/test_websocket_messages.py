"""What clients may say on a socket, and how answers become messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import LimitExceeded, RequestError
from gateway.pipeline.exchange import LAST_CHUNK, chunked
from gateway.server.websocket_messages import Auth, Cancel, MessageWriter, Request, done, own_headers, read, refused, written_id

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def test_the_three_messages() -> None:
    request = read(b'{"type":"request","id":"a","path":"/v1/x","body": {"a" : 1e2}}')
    assert isinstance(request, Request) and bytes(request.body) == b'{"a" : 1e2}'
    assert isinstance(read(b'{"type":"cancel","id":7}'), Cancel)
    auth = read(b'{"type":"auth","token":"t"}')
    assert isinstance(auth, Auth) and auth.id is None
    assert written_id("1") != written_id(1) and done(written_id('a"b')) == b'{"type":"done","id":"a\\"b"}'


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff", "invalid_json"),
        (b"[]", "invalid_message"),
        (b'{"type":"event","id":1}', "invalid_message"),
        (b'{"type":"request","id":1,"path":"/"}', "invalid_message"),
        (b'{"type":"request","id":1,"path":"/","body":{},"method":"GET"}', "invalid_message"),
        (b'{"type":"request","id":-1,"path":"/","body":{}}', "invalid_message"),
        (b'{"type":"request","id":1.5,"path":"/","body":{}}', "invalid_message"),
        (b'{"type":"cancel","id":"%b"}' % (b"x" * 129), "invalid_message"),
        (b'{"type":"auth","token":""}', "invalid_message"),
        (b'{"type":"request","id":1,"path":"/","body":{"a":1},"body":{}}', "invalid_message"),
        (b'{"type":"request","id":1,"path":"/","path":"/x","body":{}}', "invalid_message"),
        (b'{"type":"request","id":1,"i\\u0064":2,"path":"/","body":{}}', "invalid_message"),
        (b'{"type":"request","id":1,"path":"/","body":{},"headers":{},"headers":{}}', "invalid_message"),
        (b'{"type":"request","id":1,"path":"/","body":{},"headers":{"traceparent":"a","traceparent":"b"}}', "invalid_message"),
        (b'{"type":"request","id":1,"path":"/","body":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
    ],
)
def test_what_is_no_message(data: bytes, code: str) -> None:
    with pytest.raises(RequestError) as error:
        read(data)
    assert error.value.code == code


@given(
    st.text(':\\"au', min_size=1, max_size=8), st.text(":/\\u", max_size=8), JSON, st.dictionaries(st.text(":a"), st.text(":b")) | st.none()
)
def test_no_colon_in_a_text_is_taken_for_a_key(id: str, path: str, body: Any, headers: dict[str, str] | None) -> None:
    document = {"type": "request", "id": id, "path": path, "body": body, **({} if headers is None else {"headers": headers})}
    message = read(json.dumps(document).replace(":a", "\\u003aa").encode())
    assert isinstance(message, Request) and (message.id, message.path) == (id, path) and json.loads(bytes(message.body)) == body


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_reading_gives_a_message_or_says_why_not(data: bytes) -> None:
    try:
        assert isinstance(read(data), Request | Cancel | Auth)
    except RequestError as error:
        assert error.status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer x"},
        {"x-api-key": "x"},
        {"Forwarded": "for=1.2.3.4"},
        {"host": "x"},
        {":proved": "x"},
        {"x-request-id": "a", "X-Request-ID": "b"},
        {"traceparent": "a\nb"},
        {"traceparent": "x" * 1025},
        {"traceparent": "é"},
        {"traceparent": " x"},
    ],
)
def test_headers_that_a_request_may_not_have(headers: dict[str, str]) -> None:
    with pytest.raises(RequestError) as error:
        own_headers(headers)
    assert error.value.param == "headers"


def test_headers_that_a_request_may_have() -> None:
    assert own_headers({"X-Request-ID": "a", "anthropic-version": "b"}) == {b"x-request-id": b"a", b"anthropic-version": b"b"}


def written(*pieces: bytes) -> list[dict[str, Any]]:
    writer = MessageWriter(b'"i"')
    return [json.loads(message) for piece in pieces for message in writer.feed(piece)]


@given(JSON, st.integers(1, 5))
def test_a_whole_answer_is_one_response(value: Any, pieces: int) -> None:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ndate: x\r\ncontent-length: %d\r\nx-request-id: r\r\n\r\n" % len(body)
    size = -(-len(body) // pieces)
    found = written(head, *(body[n : n + size] for n in range(0, len(body), size)))
    headers = {"x-request-id": "r", "content-type": "application/json"}
    assert found == [{"type": "response", "id": "i", "status": 200, "headers": headers, "body": value}]


def test_a_body_that_is_no_json_becomes_base64() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 3\r\n\r\n\x00\x01\x02"
    assert written(head)[0]["body"] == "AAEC"


def test_each_event_is_a_message_and_comments_and_the_end_are_none() -> None:
    events = b'data: {"a":1}\n\n: keep-alive\n\nevent: x\ndata: {"b":\ndata: 2}\n\n'
    found = written(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        chunked(events),
        chunked(b'data: {"c":3}\n\ndata: [DONE]\n\n') + LAST_CHUNK,
    )
    assert [message["data"] for message in found] == [{"a": 1}, {"b": 2}, {"c": 3}]


@given(st.text(max_size=40))
def test_what_an_engine_sends_never_ends_a_message_early(text: str) -> None:
    """An event that is not one JSON value is a string in its message."""
    data = text.replace("\n", "").replace("\r", "").encode("utf-8", "replace") + b'},"id":"other"'
    found = written(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunked(b"data: " + data + b"\n\n"))
    assert all(message["id"] == "i" and set(message) == {"type", "id", "data"} for message in found)


def test_a_refusal_says_when_to_try_again() -> None:
    found = json.loads(refused(b"1", LimitExceeded("Slow down.", retry_after=1.2), b"req-1"))
    assert found["headers"] == {"x-request-id": "req-1", "retry-after": "2", "retry-after-ms": "1200"} and found["status"] == 429
