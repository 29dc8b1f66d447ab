"""What is encrypted of a request: made up from what was sent, bounded, bound to its record, and never a reason for the log to stop."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.audit.encode import encode
from gateway.audit.keyring import DataKey, envelope_of
from gateway.audit.record import MAX_RECORD, Text
from gateway.audit.sealing import Pending, opened, seal_all, text_of_answer, unchunked
from gateway.core.types import IntentRecord, OutcomeRecord

KEY = bytes(range(32))


def key() -> DataKey:
    return DataKey("dk-1", "acme", 1, KEY)


def outcome(text: Any, **changes: Any) -> OutcomeRecord:
    return msgspec.structs.replace(OutcomeRecord(time=12.25, request_id="r1", outcome="ok", status=200), text=text, **changes)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def sealed(records: list[Any]) -> list[Any]:
    """The records, with their texts encrypted."""
    seal_all(records)
    return records


def text_in(record: Any) -> Text:
    """The text in an outcome."""
    envelope = envelope_of(msgspec.json.decode(record.text))
    assert envelope is not None
    return opened(key(), envelope, "outcome", 12.25, "r1")


def stream(*events: Any) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return head + chunked(*(f"data: {text}\n\n".encode() for text in texts))


def delta(text: str, index: int = 0) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}


def test_a_text_is_sealed_for_its_record_and_opens_with_it() -> None:
    waiting = Pending(key(), "acme", [b"pro", b"mpt"], 100)
    records = [IntentRecord(1.5, "r1", "acme", "k", "api_key", "p", "chat", "m", False, 4, text=waiting)]
    (found,) = sealed(records)
    assert "prompt" not in encode(found).decode()
    line = encode(found)
    assert encode(*sealed([found])) == line, "what is written again after a failure is not encrypted again"
    envelope = envelope_of(msgspec.json.decode(found.text))
    assert envelope is not None
    assert opened(key(), envelope, "intent", 1.5, "r1").body == "prompt"
    for place in (("outcome", 1.5, "r1"), ("intent", 1.75, "r1"), ("intent", 1.5, "r2")):
        with pytest.raises(ValueError, match="not encrypted with this key for this record"):
            opened(key(), envelope, *place)
    with pytest.raises(ValueError, match="not encrypted"):
        opened(DataKey("dk-1", "globex", 1, KEY), envelope, "intent", 1.5, "r1")


def test_a_batch_without_texts_is_passed_on_as_it_is() -> None:
    batch = [outcome(None), b"payload"]
    assert sealed(list(batch)) == batch


def test_the_text_of_a_key_that_was_destroyed_meanwhile_is_lost_and_the_record_stays() -> None:
    gone = key()
    waiting = outcome(Pending(gone, "acme", [b"secret"], 100))
    gone.drop()
    (found,) = sealed([waiting])
    assert b'"text":{"lost":"the key was destroyed"}' in encode(found) and b"secret" not in encode(found)


def test_the_answer_is_the_body_or_the_texts_of_the_events() -> None:
    whole = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{"a": "b\xc3\xa9"}'
    assert text_of_answer(whole, 100).body == '{"a": "bé"}'
    found = text_of_answer(stream(delta("Hel"), delta("other", 1), delta("lo"), {"usage": {"x": 1}}, "[DONE]"), 100)
    assert found.texts == {"choices.0.delta.content": "Hello", "choices.1.delta.content": "other"} and not found.cut
    call = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 2, "function": {"arguments": '{"x":'}}]}}]}
    more = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 2, "function": {"arguments": "1}"}}]}}]}
    assert text_of_answer(stream(call, more), 100).texts == {"choices.0.delta.tool_calls.2.function.arguments": '{"x":1}'}
    assert text_of_answer(stream("no json", "[1]"), 100).texts == {"": "no json[1]"}


def test_a_text_is_cut_at_whole_characters_and_says_so() -> None:
    (found,) = sealed([outcome(Pending(key(), "acme", ["ab€".encode()], 4))])
    text = text_in(found)
    assert (text.body, text.cut) == ("ab", True)
    cut = text_of_answer(stream(*(delta("x" * 100) for _ in range(10))), 250)
    assert cut.texts == {"choices.0.delta.content": "x" * (250 - len("choices.0.delta.content"))} and cut.cut
    long = stream(delta("few"), *({"pad": "y" * 200} for _ in range(30)))
    assert text_of_answer(long, 256).cut, "what was gathered ended before the answer did"


@given(st.binary(max_size=40) | st.text("ab€\n", max_size=40).map(str.encode), st.integers(1, 60), st.booleans())
@example(b"a" * 65_535, 1 << 20, False)
@example(b"a" * 65_536, 1 << 20, True)
@example(b"", 1, True)
def test_a_body_that_is_plain_is_kept_as_any_other_is(body: bytes, most: int, answer: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    (found,) = sealed([outcome(Pending(key(), "acme", [head, body] if answer else [body], most, answer=answer))])
    assert text_in(found) == text_of_answer(head + body, most)


@given(st.binary(max_size=400), st.booleans())
@example(b"f" * 40 + b"\r\nmore\r\n", True)
@example(b"4\r\nmo", True)
def test_no_answer_stops_the_log(data: bytes, events: bool) -> None:
    sent = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" if events else b"") + data
    (found,) = sealed([outcome(Pending(key(), "acme", [sent], 64, answer=True))])
    assert b'"text":{' in encode(found)
    unchunked(data)


def test_deeply_nested_and_odd_events_are_kept_or_lost_but_never_raise() -> None:
    nested = '{"choices":' + "[" * 900 + "]" * 900 + "}"
    for event in ("[" * 100_000, nested, '{"choices":[{"delta":{"content":"\\ud800"}}]}', '{"delta": 1e999}'):
        (found,) = sealed([outcome(Pending(key(), "acme", [stream(event)], 1000, answer=True))])
        assert isinstance(found.text, msgspec.Raw)


def test_the_largest_text_fits_into_a_record_beside_everything_else() -> None:
    most = 24 * 1024
    detail = {"guardrails": ["x" * 3000] * 10}
    (found,) = sealed([outcome(Pending(key(), "acme", [b"\x00" * most], most), detail=detail, model="é" * 128)])
    data = encode(found)
    assert len(data) <= MAX_RECORD
    assert envelope_of(json.loads(b'{"seq":1' + b"," + data.removeprefix(b"{"))["text"]) is not None
