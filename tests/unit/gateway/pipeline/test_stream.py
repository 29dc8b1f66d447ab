"""Streams: however the engine's bytes are cut into reads, the client gets the same bytes, at event boundaries."""

from __future__ import annotations

import gzip
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import EngineError
from gateway.core.types import ResponseHead, Usage
from gateway.pipeline import stream as relays
from gateway.pipeline.stream import MAX_EVENT_BYTES
from gateway.wire.openai import stream
from gateway.wire.openai.stream import must_be_read
from tests.unit.gateway.pipeline.world import ANSWER, BODY, DONE, SSE_HEAD, STREAM_BODY, USAGE, Client, World, chunk

WITH_USAGE = STREAM_BODY[:-1] + b',"stream_options":{"include_usage":true}}'
EVENTS = st.sampled_from(
    [
        chunk("", role="assistant"),
        chunk("a"),
        chunk("na\u00efve \U0001f600"),
        chunk("ends\n\nhere"),
        chunk(None, finish="stop"),
        b": comment\n\n",
        b"event: message\nid: 7\n" + chunk("named"),
        b'data: {\ndata: "choices": []}\n\n',
        b"data: not json\n\n",
        USAGE,
        b"event: message\n" + USAGE,
        b": ping\n" + USAGE,
    ]
)


def relayed(data: bytes, cuts: list[int], body: bytes = STREAM_BODY) -> tuple[Client, World]:
    """What becomes of an engine's stream that arrives in these pieces."""
    world = World()
    _, client = world.start(body)
    call = world.call.head(SSE_HEAD)
    places = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(places):
        if end > start:
            call.body(data[start:end])
    call.end()
    return client, world


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], bytes, list[int]]:
    events = [*draw(st.lists(EVENTS, max_size=8)), DONE]
    line = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    data = b"".join(events).replace(b"\n", line)
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=12))
    return events, data, cuts


@given(streams())
def test_any_split_of_a_stream_gives_the_same_bytes(case: tuple[list[bytes], bytes, list[int]]) -> None:
    events, data, cuts = case
    client, world = relayed(data, cuts)
    expected = b"".join(event for event in events if b'"usage"' not in event)
    reported = any(b'"usage"' in event for event in events)
    assert client.body == expected
    assert client.complete
    assert world.outcome.outcome == "ok"
    assert world.limiter.reservations[0].settled[0].estimated is not reported  # type: ignore[union-attr]


FINISHED = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'


@pytest.mark.parametrize("usage", [b"", USAGE])
@pytest.mark.parametrize("space", [b"", b" "])
def test_the_record_says_why_a_stream_ended_however_it_is_cut(usage: bytes, space: bytes) -> None:
    last = FINISHED.replace(b'reason":', b'reason":' + space)
    data = chunk('a \\"finish_reason\\":\\"stop\\"') + chunk("b") + last + usage + DONE
    for cut in range(0, len(data), 7):
        client, world = relayed(data, [cut])
        assert client.complete and world.outcome.finish == "length", cut
        assert 0.0 < world.outcome.sent_ms <= world.outcome.first_ms <= world.outcome.duration_ms


def test_the_record_says_when_a_stream_was_asked_for_and_not_when_its_head_came(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    exchange, client = world.start(STREAM_BODY)
    sent = exchange.sent_ns
    now = [sent + 200_000_000]
    monkeypatch.setattr(relays, "perf_counter_ns", lambda: now[0])
    world.call.head(SSE_HEAD)
    assert (exchange.sent_ns, exchange.engine_ns) == (sent, 200_000_000)
    now[0] += 50_000_000
    world.call.body(chunk("a") + FINISHED + DONE)
    now[0] += 30_000_000
    world.call.end()
    assert client.complete and exchange.engine_ns == 280_000_000
    assert world.outcome.first_ms - world.outcome.sent_ms == pytest.approx(250.0, abs=0.002)


@pytest.mark.parametrize("word", [b"<b>", b"", b"x" * 33, "\u00e9".encode(), b"a b"])
def test_what_is_no_finish_reason_is_not_recorded(word: bytes) -> None:
    _, world = relayed(chunk("a") + FINISHED.replace(b"length", word) + DONE, [])
    assert world.outcome.finish == ""


def test_every_single_cut_of_a_stream() -> None:
    for line in (b"\n", b"\r\n", b"\r"):
        data = (chunk("a") + chunk("b") + USAGE + DONE).replace(b"\n", line)
        for cut in range(len(data) + 1):
            client, _ = relayed(data, [cut])
            assert client.body == chunk("a") + chunk("b") + DONE, (line, cut)


def test_one_byte_at_a_time() -> None:
    data = chunk("a") + USAGE + DONE
    client, _ = relayed(data, list(range(len(data))))
    assert client.body == chunk("a") + DONE
    assert client.complete


def test_what_reaches_the_client_ends_at_event_boundaries() -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    whole = chunk("a") + chunk("b")
    world.call.head(SSE_HEAD).body(whole[:-1])
    assert client.body == chunk("a")
    world.call.body(whole[-1:])
    assert client.body == whole


def test_the_head_of_a_stream_goes_out_with_the_engines() -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD)
    assert client.status == 200
    headers = client.headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["transfer-encoding"] == "chunked"
    assert headers["cache-control"] == "no-cache"
    assert "content-length" not in headers


@pytest.mark.parametrize(("body", "kept"), [(STREAM_BODY, False), (WITH_USAGE, True)])
def test_usage_is_withheld_from_a_client_that_did_not_ask(body: bytes, kept: bool) -> None:
    client, world = relayed(chunk("a") + USAGE + DONE, [], body)
    assert (USAGE in client.body) is kept
    assert world.limiter.reservations[0].settled == [Usage(7, 3, 0)]
    assert json.loads(world.call.request_body)["stream_options"] == {"include_usage": True}


def test_usage_in_a_chunk_with_choices_is_read_and_kept() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    client, world = relayed(event + DONE, [])
    assert client.body == event + DONE
    assert world.limiter.reservations[0].settled == [Usage(1, 2, 0)]


@pytest.mark.parametrize("text", ['"usage":{', '"error":', '{"error":{}}', '"usage": {"prompt_tokens":1}'])
def test_words_inside_a_text_are_no_fields(text: str) -> None:
    client, world = relayed(chunk(text) + DONE, [])
    assert client.body == chunk(text) + DONE
    assert world.outcome.outcome == "ok"
    assert world.outcome.estimated


def test_events_of_one_shape_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[bytes] = []

    def search(data: bytes) -> bool:
        searched.append(data)
        return must_be_read(data)

    monkeypatch.setattr(stream, "must_be_read", search)
    first, others = chunk("", role="assistant"), [chunk(f"word {n}") for n in range(50)]
    world = World()
    _, client = world.start(STREAM_BODY)
    call = world.call.head(SSE_HEAD)
    sent = [first, *others, chunk('"quoted"'), chunk("again"), DONE]
    for event in sent:
        call.body(event)
    call.end()
    assert client.body == b"".join(sent)
    assert searched == [first, others[0], chunk('"quoted"'), DONE]
    assert [usage.completion_tokens for usage in world.limiter.reservations[0].settled if usage] == [len(sent) - 1]


def test_an_error_that_is_null_is_none() -> None:
    event = b'data: {"choices":[],"error":null}\n\n'
    assert relayed(event + DONE, [])[0].body == event + DONE


def test_the_end_is_added_when_the_engine_forgot_it() -> None:
    assert relayed(chunk("a") + FINISHED, [])[0].body == chunk("a") + FINISHED + DONE
    assert relayed(chunk("a") + DONE, [])[0].body == chunk("a") + DONE, "it has said that this is the end"


@pytest.mark.parametrize("sent", [b"", chunk("a"), chunk("a") + USAGE])
def test_a_stream_that_says_neither_why_nor_that_it_ends_has_broken_off(sent: bytes) -> None:
    client, world = relayed(sent, [])
    kept = sent.removesuffix(USAGE)
    assert client.body.startswith(kept) and client.body.endswith(DONE)
    assert json.loads(client.body[len(kept) + 6 : -len(DONE)])["error"]["code"] == "engine_failed"
    assert world.outcome.outcome == "failed"


@pytest.mark.parametrize("name", [b"", b"event: error\n"])
def test_an_engines_error_event_ends_the_stream_with_ours(name: bytes) -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a") + name + b'data: {"error":{"message":"secret trace"}}\n\n' + chunk("b"))
    assert client.complete
    first, error, end = client.body.split(b"\n\n")[:3]
    assert first + b"\n\n" == chunk("a")
    assert json.loads(error[6:])["error"]["code"] == "engine_failed"
    assert b"secret trace" not in client.body
    assert end + b"\n\n" == DONE
    assert world.call.over
    assert world.outcome.outcome == "failed"


def test_a_stream_cut_inside_an_event_is_an_error() -> None:
    client, world = relayed(chunk("a") + b'data: {"cut', [])
    assert client.complete
    assert client.body.startswith(chunk("a"))
    assert b'"engine_failed"' in client.body
    assert b"cut" not in client.body
    assert world.outcome.outcome == "failed"


@pytest.mark.parametrize("size", [MAX_EVENT_BYTES, 3 * MAX_EVENT_BYTES])
def test_an_event_without_end_is_not_gathered(size: int) -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD)
    data = b"data: " + b"x" * size
    for start in range(0, len(data), 65536):
        world.call.body(data[start : start + 65536])
    assert world.call.over
    assert client.complete
    assert b'"engine_failed"' in client.body


def test_an_event_at_the_bound_passes() -> None:
    event = b"data: " + b"x" * (MAX_EVENT_BYTES - 8) + b"\n\n"
    assert relayed(event + DONE, [100, len(event) - 1])[0].body == event + DONE


def test_comments_while_the_engine_is_silent() -> None:
    world = World(keep_alive=15.0)
    exchange, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD)
    assert exchange.wake_at == 1015.0
    world.plane.now = 1010.0
    world.call.body(chunk("a"))
    exchange.expired(1015.0)
    assert client.body == chunk("a"), "only five seconds of silence"
    assert exchange.wake_at == 1025.0
    exchange.expired(1025.0)
    assert client.body == chunk("a") + b": keep-alive\n\n"
    assert exchange.wake_at == 1040.0
    world.call.body(DONE).end()
    assert client.complete


def test_no_comment_inside_an_event_that_is_held() -> None:
    world = World(keep_alive=15.0)
    exchange, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a")[:20])
    exchange.expired(1015.0)
    world.call.body(chunk("a")[20:] + DONE).end()
    assert client.body == b": keep-alive\n\n" + chunk("a") + DONE


def test_no_comments_before_the_head_or_when_switched_off() -> None:
    world = World(keep_alive=0.0)
    exchange, client = world.start(STREAM_BODY)
    assert exchange.relay is not None
    assert exchange.relay.tick(1100.0) == exchange.deadline
    assert not client.written
    world.call.head(SSE_HEAD)
    assert exchange.relay.tick(1500.0) == exchange.deadline
    assert client.body == b""


def test_the_deadline_comes_before_the_comments() -> None:
    exchange, _ = (world := World(keep_alive=15.0, request_timeout=5.0)).start(STREAM_BODY)
    world.call.head(SSE_HEAD)
    assert exchange.wake_at == exchange.deadline == 1005.0


@pytest.mark.parametrize("kind", [b"application/json", b"text/html", None])
def test_an_engine_that_gives_no_stream_is_heard_as_one(kind: bytes | None) -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    headers = [] if kind is None else [(b"content-type", kind)]
    world.call.answer(ANSWER, ResponseHead(200, headers))
    assert client.headers["content-type"].startswith("text/event-stream") and client.complete
    assert b'"content":"hello"' in client.body and client.body.endswith(DONE) and b"usage" not in client.body
    assert world.limiter.reservations[0].settled == [Usage(7, 3, 2)]


@pytest.mark.parametrize("body", [b"", b"  ", b"<html>502</html>", b"oops", DONE, b"\xff"])
def test_a_whole_answer_that_is_no_json_is_the_engines_failure(body: bytes) -> None:
    world = World()
    _, client = world.start()
    world.call.answer(body)
    assert client.status == 502
    assert json.loads(client.body)["error"]["code"] == "engine_failed"
    assert world.limiter.reservations[0].settled == [None]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [b'{"message":"Provider returned error","code":502}', b'"boom"'])
def test_an_error_with_the_status_200_is_the_engines_failure(error: bytes, stream: bool) -> None:
    world = World()
    _, client = world.start(STREAM_BODY if stream else BODY)
    world.call.answer(b'{"error":%b,"user_id":"u"}' % error)
    assert client.status == 502
    assert json.loads(client.body)["error"]["code"] == "engine_failed" and b"boom" not in client.body and b"Provider" not in client.body
    assert world.limiter.reservations[0].settled == [None]


@pytest.mark.parametrize("error", [b"null", b'""', b"{}", b"false"])
def test_an_answer_may_say_that_there_was_no_error(error: bytes) -> None:
    world = World()
    _, client = world.start()
    body = b'{"error":%b,"choices":[{"message":{"content":"hello"}}]}' % error
    world.call.answer(body)
    assert (client.status, client.body) == (200, body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_compressed_answer_is_refused_as_that(stream: bool) -> None:
    world = World()
    _, client = world.start(STREAM_BODY if stream else BODY)
    kind = b"text/event-stream" if stream else b"application/json"
    world.call.answer(gzip.compress(ANSWER), ResponseHead(200, [(b"Content-Encoding", b"gzip"), (b"content-type", kind)]))
    assert client.status == 502 and "compressed" in json.loads(client.body)["error"]["message"]


@pytest.mark.parametrize("body", [b' \n{"a":1}', b"[]", b'{"text":"\xff"}'])
def test_a_whole_answer_is_not_read_further_than_to_its_first_mark(body: bytes) -> None:
    world = World()
    _, client = world.start()
    world.call.answer(body)
    assert (client.status, client.body) == (200, body)


@pytest.mark.parametrize("usage", [b"null", b"{}", b'{"prompt_tokens":"many"}', b'{"prompt_tokens":null,"completion_tokens":null}'])
def test_an_answer_of_an_engine_that_does_not_count_is_charged_by_estimate(usage: bytes) -> None:
    world = World()
    _, client = world.start()
    body = b'{"choices":[{"message":{"content":"hello"}}],"usage":%b}' % usage
    world.call.answer(body)
    assert client.body == body
    assert world.limiter.reservations[0].settled == [Usage(len(BODY) >> 2, len(body) >> 2, 0, True)]
    assert world.outcome.estimated


def test_the_media_type_of_a_stream_may_be_written_in_capitals() -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.head(ResponseHead(200, [(b"content-type", b"Text/Event-Stream; Charset=UTF-8")])).body(chunk("a") + DONE).end()
    assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert client.body == chunk("a") + DONE


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n"])
def test_an_end_without_its_empty_line_is_an_end(end: bytes) -> None:
    client, world = relayed(chunk("a") + end, [])
    assert client.body == chunk("a") + DONE
    assert world.outcome.outcome == "ok"


OTHER_HEADS = [
    ResponseHead(200, headers)
    for headers in (
        [],
        [(b"content-type", b"")],
        [(b"content-type", b"text/plain; charset=utf-8")],
        [(b"content-type", b"application/json")],
    )
]


@pytest.mark.parametrize("head", OTHER_HEADS)
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n\r\n", b": ok\n\n"])
def test_a_stream_under_another_type_is_one_however_it_is_cut(head: ResponseHead, before: bytes) -> None:
    data = before + chunk("a") + chunk("b") + USAGE + DONE
    expected = relayed(data, [])[0].body
    for cut in range(len(data) + 1):
        world = World()
        _, client = world.start(STREAM_BODY)
        call = world.call.head(head)
        assert not client.written
        for piece in (data[:cut], data[cut:]):
            if piece:
                call.body(piece)
        call.end()
        assert (client.status, client.body) == (200, expected), cut
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8" and client.complete
        assert world.limiter.reservations[0].settled == [Usage(7, 3, 0)] and world.outcome.outcome == "ok"


def test_its_first_event_reaches_the_client_before_the_second_comes() -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.head(OTHER_HEADS[0]).body(b"dat").body(chunk("a")[3:])
    assert client.body == chunk("a")
    world.call.fail(EngineError("broken"))
    assert client.status == 200 and b'"engine_failed"' in client.body and client.complete


@pytest.mark.parametrize("body", [b"data", b"\n" * 2000, b"error: data: x", b"Data: x\n\n"])
def test_what_is_neither_a_stream_nor_json_is_the_engines_failure(body: bytes) -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.answer(body, OTHER_HEADS[2])
    assert client.status == 502 and json.loads(client.body)["error"]["code"] == "engine_failed"


def test_a_refusal_that_begins_like_a_stream_is_none() -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.answer(chunk("a") + DONE, ResponseHead(500, []))
    assert client.status == 502


def test_a_stream_without_a_type_is_not_taken_compressed() -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.answer(chunk("a") + DONE, ResponseHead(200, [(b"content-encoding", b"br")]))
    assert client.status == 502 and "compressed" in json.loads(client.body)["error"]["message"]


def test_an_engines_refusal_of_a_stream_is_an_http_error() -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.answer(b'{"error":{"message":"too long","code":"context_length_exceeded"}}', ResponseHead(400, []))
    assert client.status == 400
    assert json.loads(client.body)["error"]["code"] == "context_length_exceeded"


def test_a_whole_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "MAX_ANSWER_BYTES", 100)
    world = World()
    _, client = world.start()
    world.call.head().body(b"x" * 60).body(b"x" * 41)
    assert client.status == 502
    assert world.call.over


def test_a_whole_answer_in_pieces() -> None:
    world = World()
    _, client = world.start()
    call = world.call.head()
    for place in range(0, len(ANSWER), 7):
        call.body(ANSWER[place : place + 7])
    assert not client.written
    call.end()
    assert client.body == ANSWER


def test_time_to_the_first_chunk_is_counted_once() -> None:
    _, world = relayed(chunk("a") + chunk("b") + DONE, [5, 60, 100])
    assert sum(world.entry.meter.ttft.counts) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("crlf", [False, True])
def test_the_attempt_hears_of_the_first_event_only(crlf: bool) -> None:
    world = World()
    world.start(STREAM_BODY)
    events = [event.replace(b"\n", b"\r\n") if crlf else event for event in (chunk("a"), chunk("b"))]
    call = world.call.head(SSE_HEAD)
    (attempt,) = world.route.attempts
    assert attempt.begun == 0  # an engine that hangs may send a head, too
    call.body(events[0]).body(events[1]).body(DONE).end()
    assert attempt.begun == 1 and attempt.results[0] == "success"


def test_bytes_are_counted_without_the_transfer_coding() -> None:
    _, world = relayed(chunk("a") + USAGE + DONE, [9])
    assert world.outcome.bytes == len(chunk("a") + DONE)


def test_a_failure_after_the_first_byte_keeps_what_was_counted() -> None:
    world = World()
    world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("", role="assistant") + chunk("a")).fail(EngineError("broken"))
    assert world.limiter.reservations[0].settled == [Usage(len(STREAM_BODY) >> 2, 1, 0, True)]


def test_tensors_keep_the_length_of_their_json_part() -> None:
    world = World()
    body: dict[str, Any] = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}
    _, client = world.start(json.dumps(body).encode(), path=b"/v2/models/m/infer")
    answer = b'{"model_name":"m","outputs":[{"name":"y","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}}]}'
    head = ResponseHead(200, [(b"inference-header-content-length", b"%d" % len(answer))])
    world.call.answer(answer + b"\x01\x00\x00\x00", head)
    assert client.headers["inference-header-content-length"] == str(len(answer))
    assert client.headers["content-type"] == "application/octet-stream"
    assert client.body == answer + b"\x01\x00\x00\x00"
    assert world.limiter.reservations[0].settled == [Usage(2)]
    assert world.outcome.detail == {"outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "elements": 1, "hash": "hash-4"}]}
    assert world.outcome.body_hash == f"hash-{len(answer)}"


# --- line ends, comments, byte order marks


@pytest.mark.parametrize("behind", [b"\n", b"\r\n", b": bye\n", b": bye\n\n", b": bye", b"\n\n\n"])
def test_what_says_nothing_behind_the_end_is_no_broken_event(behind: bytes) -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a") + DONE).body(behind).end()
    assert client.complete and b"error" not in client.body
    assert world.outcome.outcome == "ok"
    assert world.route.attempts[0].results[0] == "success"


@pytest.mark.parametrize("behind", [b"\n", b": bye\n", b": bye"])
def test_what_says_nothing_is_no_broken_event_where_the_engine_forgot_the_end(behind: bytes) -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a") + FINISHED).body(behind).end()
    assert client.body == chunk("a") + FINISHED + DONE
    assert world.outcome.outcome == "ok"


def test_an_event_whose_lines_end_in_cr_is_forwarded_at_once() -> None:
    world = World()
    _, client = world.start(STREAM_BODY)
    call = world.call.head(SSE_HEAD)
    call.body(chunk("a").replace(b"\n", b"\r"))
    assert client.body == chunk("a")
    call.body(chunk("b").replace(b"\n", b"\r"))
    assert client.body == chunk("a") + chunk("b")


def test_a_crlf_may_be_cut_anywhere() -> None:
    data = (chunk("a") + chunk("b") + DONE).replace(b"\n", b"\r\n")
    for cut in range(1, len(data)):
        assert relayed(data, [cut])[0].body == chunk("a") + chunk("b") + DONE


@pytest.mark.parametrize("cut", [1, 2, 3, 10])
def test_a_byte_order_mark_hides_nothing(cut: int) -> None:
    data = b"\xef\xbb\xbf" + USAGE + chunk("a") + DONE
    client, world = relayed(data, [cut])
    assert client.body == chunk("a") + DONE
    assert world.limiter.reservations[0].settled == [Usage(7, 3, 0)]


def test_comments_are_life_but_no_tokens() -> None:
    comment = b": working\n\n"
    world = World()
    _, client = world.start(STREAM_BODY)
    call = world.call.head(SSE_HEAD)
    call.body(comment)
    assert world.route.attempts[0].begun == 0, "no event has come yet"
    call.body(chunk("", role="assistant") + comment).body(comment + chunk("a")).body(comment).body(DONE).end()
    assert client.body.count(comment) == 4
    assert [usage.completion_tokens for usage in world.limiter.reservations[0].settled if usage] == [2]


@pytest.mark.parametrize("space", [b" ", b"\t", b"  "])
def test_a_space_before_the_colon_hides_neither_usage_nor_an_error(space: bytes) -> None:
    client, world = relayed(chunk("a") + USAGE.replace(b'"usage":', b'"usage"' + space + b":") + DONE, [])
    assert client.body == chunk("a") + DONE
    assert world.limiter.reservations[0].settled == [Usage(7, 3, 0)]
    world = World()
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(b'data: {"error"' + space + b':{"message":"secret"}}\n\n')
    assert b"engine_failed" in client.body and b"secret" not in client.body


@given(st.lists(st.integers(0, 400), max_size=4), st.sampled_from([chunk("late"), USAGE, b"data: {", b"\n\njunk", DONE + chunk("late")]))
def test_what_an_engine_sends_behind_the_end_marker_reaches_nobody(cuts: list[int], behind: bytes) -> None:
    whole = chunk("a") + FINISHED + DONE
    data = whole + behind
    client, world = relayed(data, [min(cut, len(data)) for cut in cuts])
    assert client.body == whole and client.complete
    assert world.outcome.outcome == "ok" and world.call.cancelled, "its connection is not used again"


def test_an_engine_that_fails_or_falls_silent_behind_the_end_marker_has_answered() -> None:
    for fails in (True, False):
        world = World()
        _, client = world.start(STREAM_BODY)
        call = world.call.head(SSE_HEAD).body(chunk("a") + DONE)
        if fails:
            call.fail(EngineError("The engine closed the connection in the middle of its answer."))
        else:
            world.plane.now += relays.LAG
            world.plane.exchanges.copy().pop().expired(world.plane.now)
            assert call.cancelled
        assert client.body == chunk("a") + DONE and client.complete and world.outcome.outcome == "ok"
