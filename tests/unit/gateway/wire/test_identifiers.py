"""The identifier of an answer is cut out wherever it stands, and nothing else is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.caching import Answer
from gateway.core.slices import at_once
from gateway.wire.identifiers import _PORTION, cut, cut_steps


def renewed(body: bytes, stream: bool = False, identity: bytes = b"new") -> bytes:
    parts, prefix = cut(body, stream)
    return Answer([], False, parts, prefix).body(identity)


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"id": "chatcmpl-1", "choices": []}, "chatcmpl-new"),
        ({"choices": [{"message": {"tool_calls": [{"id": "call_1"}]}}], "id": "chatcmpl-1"}, "chatcmpl-new"),
        ({"id": "cmpl-1"}, "cmpl-new"),
        ({"id": "0af3"}, "new"),
        ({"id": "msg_01", "type": "message"}, "msg_new"),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_a_whole_answer_gets_another_identifier(document: dict[str, Any], name: str, separators: tuple[str, str]) -> None:
    assert json.loads(renewed(json.dumps(document, separators=separators).encode())) == {**document, "id": name}


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"id":null}', b'{"id":5}', b"[]", b"not json", b'{"id":""}', b'{"id":"a\\"b"}', b"\xff", b'{"a":' + b"[" * 100_000],
)
def test_what_has_no_plain_identifier_stays(body: bytes) -> None:
    assert cut(body, False) == ([body], b"")
    assert cut(body, True) == ([body], b"")


def test_an_identifier_in_a_text_stays() -> None:
    text = 'The answer is {"id":"chatcmpl-1"}, "id": "chatcmpl-1".'
    found = json.loads(renewed(json.dumps({"id": "chatcmpl-1", "text": text}).encode()))
    assert found == {"id": "chatcmpl-new", "text": text}


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_every_event_of_a_stream_gets_the_same_one(end: bytes) -> None:
    events = [b": hello", b'data: {"id":"chatcmpl-1","choices":[]}', b'data: {"id": "chatcmpl-1"}', b"data: [DONE]"]
    found = renewed(end.join([*events, b""]), stream=True)
    assert found == end.join([*events, b""]).replace(b"chatcmpl-1", b"chatcmpl-new")


@pytest.mark.parametrize("name", ["message", "response"])
def test_events_that_wrap_the_answer(name: str) -> None:
    stream = b'event: start\ndata: {"type":"start","%b":{"id":"msg_1"}}\n\n' % name.encode()
    assert b'"id":"msg_new"' in renewed(stream, stream=True)


@given(st.text(), st.text(min_size=1, max_size=20), st.booleans())
def test_only_the_identifier_changes(text: str, name: str, escaped: bool) -> None:
    document = {"id": name, "choices": [{"message": {"content": text}}], "created": 1}
    body = json.dumps(document, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        found = json.loads(renewed(body))
    except UnicodeDecodeError:
        assert renewed(body) == body
        return
    assert {**found, "id": ""} == {**json.loads(body), "id": ""}


def test_a_long_answer_is_cut_in_slices_wherever_its_identifier_stands() -> None:
    event = b'data: {"id": "chatcmpl-1","choices":[{"delta":{"content":"x"}}]}\n\n'
    begin = _PORTION // len(event) * len(event)
    for shift in range(len(event) + 1):
        body = event * 4 + b":" + b"." * (begin - 5 * len(event) + shift) + b"\n\n" + event * (2 * _PORTION // len(event))
        steps = cut_steps(body, True)
        next(steps)
        next(steps)
        parts, prefix = at_once(steps)
        assert prefix == b"chatcmpl-" and len(parts) == body.count(event) + 1
        assert b'"chatcmpl-1"'.join(parts) == body
