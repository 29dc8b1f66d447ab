"""One try at one endpoint after another: retries, abandonment, what engines are told and what their errors become."""

from __future__ import annotations

import asyncio
import json
from math import inf
from typing import Any

import pytest

from gateway.core.errors import (
    AuditUnavailable,
    ContextLengthExceeded,
    EngineError,
    EngineTimeout,
    GatehouseError,
    Overloaded,
    RequestError,
)
from gateway.core.ports import AttemptResult
from gateway.core.types import Peer, Principal, ResponseHead
from gateway.pipeline.attempt import engine_error, result_of
from tests.unit.gateway.pipeline.world import BODY, SSE_HEAD, STREAM_BODY, Client, World, chunk


def unsafe(message: str = "The engine broke off.") -> EngineError:
    return EngineError(message)


def safe(*, refused: bool = False, lost: bool = False) -> EngineError:
    error = EngineError("The engine closed the connection.")
    error.safe, error.refused, error.lost = True, refused, lost
    return error


def code_of(client: Client) -> str:
    return str(json.loads(client.body)["error"]["code"])


def body_of(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "expected", "code"),
    [
        (400, body_of(message="bad", code="weird", param="p"), RequestError, 400, "weird"),
        (400, body_of(message="long", code="context_length_exceeded"), ContextLengthExceeded, 400, "context_length_exceeded"),
        (400, body_of(message="The maximum context length is 5", code=400), ContextLengthExceeded, 400, "context_length_exceeded"),
        (400, body_of(message="x", type="exceed_context_size_error"), ContextLengthExceeded, 400, "context_length_exceeded"),
        (422, b"{}", RequestError, 422, "invalid_value"),
        (409, b"", RequestError, 409, "invalid_value"),
        (413, b"", RequestError, 413, "invalid_value"),
        (415, b"", RequestError, 415, "invalid_value"),
        (401, body_of(message="engine key wrong"), EngineError, 502, "engine_failed"),
        (403, b"", EngineError, 502, "engine_failed"),
        (404, b"", EngineError, 502, "engine_failed"),
        (429, b"", Overloaded, 503, "overloaded"),
        (503, b"", Overloaded, 503, "overloaded"),
        (503, body_of(code="model_loading"), EngineError, 503, "model_loading"),
        (504, b"", EngineTimeout, 504, "engine_timeout"),
        (507, b"", EngineError, 507, "insufficient_memory"),
        (500, body_of(message="stack trace"), EngineError, 502, "engine_failed"),
        (302, b"", EngineError, 502, "engine_failed"),
    ],
)
def test_what_an_engines_status_becomes(status: int, body: bytes, kind: type[GatehouseError], expected: int, code: str) -> None:
    error = engine_error(ResponseHead(status, []), body)
    assert type(error) is kind
    assert (error.status, error.code) == (expected, code)


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 16384 tokens. However, you requested 25701 tokens.",
        "You passed 131073 input tokens and requested 0 output tokens. However, the model's context length is only 131072 tokens.",
        "The decoder prompt (length 10127) is longer than the maximum model length of 8192.",
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        "The input (691793 tokens) is longer than the model's context length (540000 tokens).",
        "the request exceeds the available context size, try increasing it",
        "the input length exceeds the context length",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 3974 `inputs` tokens and 1024 `max_new_tokens`",
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
        "prompt is too long: 215000 tokens > 200000 maximum",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ],
)
def test_a_prompt_that_is_too_long_has_one_code_whatever_the_engine(status: int, message: str) -> None:
    """vLLM, SGLang, llama.cpp, Ollama, text-generation-inference, Anthropic, OpenAI."""
    for body in (body_of(message=message, type="BadRequestError", code=400), json.dumps({"error": message}).encode()):
        error = engine_error(ResponseHead(status, []), body)
        assert (type(error), error.status, error.code) == (ContextLengthExceeded, 400, "context_length_exceeded")
        assert error.message == message


@pytest.mark.parametrize(
    "body",
    [
        body_of(message="max_tokens must be at least 1, got -186.", code=400),
        b'{"detail":[{"loc":["body","messages"],"msg":"wrong","input":"what is the context length of this model?"}]}',
        body_of(message="x" * 1000 + " context length"),
    ],
)
def test_what_only_mentions_a_context_is_another_error(body: bytes) -> None:
    error = engine_error(ResponseHead(422, []), body)
    assert (error.status, error.code) == (422, "invalid_value")


@pytest.mark.parametrize(
    ("result", "statuses"),
    [
        (AttemptResult.SUCCESS, (200, 206)),
        (AttemptResult.NEUTRAL, (400, 403, 404, 409, 413, 422, 429, 503, 507)),
        (AttemptResult.FAILURE, (401, 500, 501, 502, 504)),
    ],
)
def test_what_an_engines_status_says_of_its_health(result: AttemptResult, statuses: tuple[int, ...]) -> None:
    """A 401 is about the gateway's own key; other refusals are about the request, and a client must not open a breaker with them."""
    assert {result_of(ResponseHead(status, [])) for status in statuses} == {result}


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize(
    "body", [b"", b"404 page not found", b'{"detail":"Not Found"}', body_of(message="File Not Found", type="not_found_error")]
)
def test_an_engine_without_the_path_cannot_count(status: int, body: bytes) -> None:
    """Clients try again after a status from 500 on."""
    head = ResponseHead(status, [])
    error = engine_error(head, body, True)
    assert (error.status, error.code, error.message) == (400, "unsupported_operation", "The engine of this model cannot count tokens.")
    assert result_of(head, True) is AttemptResult.NEUTRAL


@pytest.mark.parametrize(
    ("status", "body"), [(404, body_of(message="The model `x` does not exist.")), (404, b'{"error":"model \'x\' not found"}'), (500, b"")]
)
def test_an_engine_that_fails_at_a_count_is_told_apart(status: int, body: bytes) -> None:
    error = engine_error(ResponseHead(status, []), body, True)
    assert (error.status, error.code) == (502, "engine_failed")


def test_no_answer_is_a_failure() -> None:
    assert result_of(None) is AttemptResult.FAILURE


def test_an_engines_words_pass_only_about_the_request_and_bounded() -> None:
    long = engine_error(ResponseHead(400, []), body_of(message="x" * 5000, param="messages[0]"))
    assert long.message == "x" * 1000
    assert long.param == "messages[0]"
    assert "secret" not in engine_error(ResponseHead(500, []), body_of(message="secret")).message


@pytest.mark.parametrize("body", [BODY, STREAM_BODY], ids=["whole", "stream"])
def test_an_engine_that_repeats_its_key_does_not_tell_the_client(body: bytes) -> None:
    world = World()
    _, client = world.start(body)
    world.call.answer(body_of(message="Incorrect API key provided: engine-key. Bearer of what?"), ResponseHead(400, []))
    assert json.loads(client.body)["error"]["message"] == "Incorrect API key provided: ********. Bearer of what?"


def test_what_else_an_engine_is_sent_may_be_repeated() -> None:
    sent = b"x-version: 2026-01-01\r\nx-api-key: k1234567\r\nauthorization: Basic k12\r\n"
    error = engine_error(ResponseHead(422, []), body_of(message="Basic k12 and k1234567 of 2026-01-01"), sent=sent)
    assert error.message == "Basic k12 and ******** of 2026-01-01"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":"plain"}', "plain"),
        (b'{"object":"error","message":"no frame","type":"BadRequestError","param":null,"code":400}', "no frame"),
        (b'{"detail":"wrong"}', "wrong"),
        (b'{"detail":[{"loc":["body","x"],"msg":"field required"}]}', '[{"loc":["body","x"],"msg":"field required"}]'),
        (b'{"error":{"message":null}}', "The engine refused the request."),
        (b'{"error":{"message":"\xff"}}', "The engine refused the request."),
        (b"[" * 100_000, "The engine refused the request."),
    ],
)
def test_an_engines_words_are_found_in_each_of_the_usual_forms(body: bytes, message: str) -> None:
    assert engine_error(ResponseHead(400, []), body).message == message


LONG = b'{"error":{"code":"%b","param":"%b"}}' % (b"c" * 65, b"p " * 33)


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b'{"error":null}', b'{"error":[1]}', b"<html>", b'{"error":{"code":5,"param":7}}', LONG]
)
def test_an_engines_error_of_any_form_is_survived(body: bytes) -> None:
    error = engine_error(ResponseHead(400, []), body)
    assert (error.code, error.param) == ("invalid_value", None)


@pytest.mark.parametrize(("given", "expected"), [(b"7", 7.0), (None, 1.0), (b"soon", 1.0), (b"999999", 1.0), (b"-1", 1.0)])
def test_retry_after_of_a_full_engine(given: bytes | None, expected: float) -> None:
    headers = [] if given is None else [(b"retry-after", given)]
    assert engine_error(ResponseHead(503, headers), b"").retry_after == expected


async def test_a_refused_connection_is_tried_elsewhere() -> None:
    world = World()
    world.engine.failing = [safe(refused=True)]
    world.route.retries = [0.0]
    exchange, client = world.start()
    assert [a.results for a in world.route.attempts] == [["refused"], []]
    assert world.route.tried == [(), ("a",)]
    world.call.answer()
    assert client.status == 200
    assert client.headers["x-gatehouse-endpoint"] == "b"
    assert [a.results for a in world.route.attempts] == [["refused"], ["success", "neutral"]]
    assert (exchange.attempts, world.outcome.attempts, world.outcome.endpoint) == (2, 2, "b")
    assert world.entry.meter.retries == 1 and world.outcome.route == "retried"
    assert world.limiter.reservations[0].settled[0] is not None and len(world.limiter.reservations[0].settled) == 1


async def test_a_whole_answer_that_an_engine_that_hangs_owes_is_asked_for_elsewhere() -> None:
    world = World()
    world.route.leaves, world.route.retries = True, [0.0]
    exchange, client = world.start()
    world.call.forsake()
    assert [a.results for a in world.route.attempts] == [["failure"], []]
    world.call.answer()
    assert (client.status, client.headers["x-gatehouse-endpoint"], exchange.attempts) == (200, "b", 2)


async def test_a_whole_answer_is_waited_for_where_nobody_else_can_give_it() -> None:
    world = World()
    world.start()
    world.call.forsake()
    assert [a.results for a in world.route.attempts] == [[]]
    world.call.answer()
    assert world.outcome.attempts == 1


async def test_a_request_that_may_have_ended_two_engines_gets_no_third(caplog: pytest.LogCaptureFixture) -> None:
    world = World(fallback=True)
    world.route.retries = [0.0, 0.0, 0.0]
    _, client = world.start()
    world.call.fail(safe(lost=True))
    world.call.fail(safe(refused=True))  # one that had ended before tells nothing
    assert len(world.engine.calls) == 3 and not caplog.records
    world.call.fail(safe(lost=True, refused=True))
    assert (client.status, code_of(client)) == (502, "engine_failed")
    assert len(world.engine.calls) == 3, "neither another engine nor the fallback"
    assert "no other engine gets it" in caplog.text


async def test_no_retry_when_the_route_says_no() -> None:
    world = World()
    _, client = world.start()
    world.call.fail(safe())
    assert client.status == 502
    assert code_of(client) == "engine_failed"
    assert len(world.engine.calls) == 1
    assert world.route.attempts[0].results[0] == "failure"
    assert world.limiter.reservations[0].settled == [None]


async def test_a_failure_that_may_have_been_served_is_final() -> None:
    world = World()
    world.route.retries = [0.0]
    _, client = world.start()
    world.call.head().fail(unsafe())
    assert client.status == 502
    assert len(world.engine.calls) == 1


async def test_nothing_is_retried_after_the_first_byte() -> None:
    world = World()
    world.route.retries = [0.0, 0.0]
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a"))
    world.call.fail(safe())
    assert len(world.engine.calls) == 1
    assert client.complete and client.body.endswith(b"data: [DONE]\n\n")
    assert b'"engine_failed"' in client.body
    assert world.outcome.outcome == "failed"


async def test_a_retry_waits_as_long_as_the_route_says(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), []

    def call_later(delay: float, callback: Any, *values: Any) -> Any:
        timers.append((delay, callback, values))
        return loop.call_soon(lambda: None)

    monkeypatch.setattr(loop, "call_later", call_later)
    world = World()
    world.route.retries = [0.125]
    _, client = world.start()
    world.call.fail(safe())
    assert len(world.engine.calls) == 1
    ((delay, callback, values),) = timers
    assert delay == 0.125
    callback(*values)
    assert len(world.engine.calls) == 2
    world.call.answer()
    assert client.status == 200


async def test_a_client_that_leaves_during_the_pause_before_a_retry_costs_nothing_more() -> None:
    world = World()
    world.route.retries = [30.0]
    exchange, client = world.start()
    world.call.fail(safe())
    exchange.client_gone()
    assert client.ends == [True]
    assert len(world.engine.calls) == 1
    assert world.outcome.outcome == "cancelled"


@pytest.mark.parametrize("body", [BODY, STREAM_BODY], ids=["whole", "stream"])
@pytest.mark.parametrize("status", [429, 503])
def test_what_an_engine_has_no_room_for_goes_to_another_one(status: int, body: bytes) -> None:
    world = World()
    world.route.elsewhere = True
    exchange, client = world.start(body)
    world.call.answer(b'{"error":{"message":"full"}}', ResponseHead(status, [(b"retry-after", b"7")]))
    assert world.route.refused == [("a", 7.0)] and world.route.attempts[0].results == ["neutral"]
    world.call.answer()
    assert client.status == 200 and b"full" not in client.body
    assert (exchange.attempts, world.outcome.attempts, world.outcome.route) == (2, 2, "retried")
    assert [attempt.results[0] for attempt in world.route.attempts] == ["neutral", "success"]


def test_a_client_that_leaves_before_another_engine_has_its_request_pays_for_nothing() -> None:
    world = World()
    world.route.elsewhere = True
    exchange, _ = world.start()
    world.route.wait = True
    world.call.answer(b"{}", ResponseHead(429, []))
    exchange.client_gone()
    assert [reservation.settled for reservation in world.limiter.reservations] == [[None]]
    assert (world.outcome.outcome, world.outcome.route, world.outcome.attempts) == ("cancelled", "retried queued", 1)
    assert world.route.abandoned


def test_where_no_other_engine_is_open_the_client_is_told_when_to_come_again() -> None:
    world = World()
    _, client = world.start()
    world.call.answer(b"{}", ResponseHead(503, [(b"retry-after", b"7")]))
    assert (client.status, code_of(client), client.headers["retry-after"]) == (503, "overloaded", "7")
    assert world.route.refused == [("a", 7.0)] and len(world.engine.calls) == 1


def test_a_queued_request_that_is_cancelled_leaves_the_queue() -> None:
    world = World()
    world.route.wait = True
    exchange, _ = world.start()
    exchange.client_gone()
    assert world.route.abandoned == world.route.queue
    assert world.engine.calls == []
    assert world.limiter.reservations[0].settled == [None]


def test_a_queued_request_goes_on_when_its_slot_is_granted() -> None:
    world = World()
    world.route.wait = True
    _, client = world.start()
    world.route.queue[0].set(world.route.grant())
    world.call.answer()
    assert client.status == 200
    assert world.route.abandoned == []
    assert world.outcome.route == "queued"


def test_a_full_queue_is_said_before_the_first_byte() -> None:
    world = World()
    world.route.errors = [Overloaded("The queue is full.", retry_after=2.0)]
    _, client = world.start()
    assert client.status == 503
    assert client.headers["retry-after"] == "2"
    assert world.outcome.attempts == 0


@pytest.mark.parametrize("body", [BODY, STREAM_BODY])
def test_a_client_that_leaves_ends_the_engines_call(body: bytes) -> None:
    world = World()
    exchange, client = world.start(body)
    if body is STREAM_BODY:
        world.call.head(SSE_HEAD).body(chunk("a"))
    exchange.client_gone()
    assert world.call.cancelled
    assert world.route.attempts[0].results == ["neutral"]
    written = bytes(client.written)
    world.call.body(chunk("b"))
    assert client.written == written


def test_a_deadline_ends_the_engines_call_so_that_nothing_follows_the_last_chunk() -> None:
    world = World()
    exchange, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a"))
    exchange.expired(exchange.deadline)
    assert world.call.cancelled
    assert client.complete
    assert b'"engine_timeout"' in client.body
    world.call.body(chunk("b"))
    assert client.complete
    assert world.outcome.outcome == "timeout"


def test_nothing_is_sent_before_the_intent_is_durable() -> None:
    world = World()
    world.audit.durable = False
    _, client = world.start()
    assert world.engine.calls == []
    assert len(world.route.attempts) == 1
    world.audit.tickets[0].set(None)
    world.call.answer()
    assert client.status == 200


def test_an_intent_that_cannot_be_written_refuses_the_request() -> None:
    world = World()
    world.audit.durable = False
    _, client = world.start()
    world.audit.tickets[0].fail(AuditUnavailable("The audit log takes no records."))
    assert client.status == 503
    assert code_of(client) == "audit_unavailable"
    assert world.engine.calls == []
    assert world.route.attempts[0].results == ["neutral"]


def test_the_engine_is_told_from_an_allow_list() -> None:
    world = World()
    world.engine.base_path = b"/base"
    world.route.upstream_model = "inner"
    world.identity.caller = Principal("k", "acme", "api_key", ("*",), priority="batch")
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {b"authorization": b"Bearer gh_client", b"cookie": b"a=b", b"x-forwarded-for": b"1.2.3.4", b"traceparent": trace}
    exchange, _ = world.start(headers=headers)
    line, *lines = world.call.request_head.decode().removesuffix("\r\n").split("\r\n")
    assert line == "POST /base/v1/chat/completions HTTP/1.1"
    assert dict(entry.split(": ", 1) for entry in lines) == {
        "content-type": "application/json",
        "x-request-id": "req-1",
        "x-gatehouse-priority": "batch",
        "x-gatehouse-deadline-ms": "100000",
        "authorization": "Bearer engine-key",
        "traceparent": trace.decode(),
    }
    assert json.loads(world.call.request_body)["model"] == "inner"
    assert world.call.timeouts == (inf, inf)
    assert exchange.attempts == 1


def test_white_space_around_a_traceparent_does_not_go_on() -> None:
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    world = World()
    world.start(headers={b"traceparent": b"\t" + trace + b"  "})
    assert b"\r\ntraceparent: " + trace + b"\r\n" in world.call.request_head


def test_an_invalid_traceparent_is_dropped() -> None:
    world = World()
    world.start(headers={b"traceparent": b"00-zz"})
    assert b"traceparent" not in world.call.request_head


@pytest.mark.parametrize(("trusted", "expected"), [(True, b"s-1"), (False, None)])
def test_a_routing_header_counts_from_trusted_peers_only(trusted: bool, expected: bytes | None) -> None:
    world = World(key="session")
    world.start(headers={b"x-session-id": b"s-1"}, peer=Peer("192.0.2.1", trusted))
    assert world.route.sessions == [expected]


@pytest.mark.parametrize(
    ("status", "result"), [(200, "success"), (400, "neutral"), (429, "neutral"), (503, "neutral"), (507, "neutral"), (500, "failure")]
)
def test_what_an_answer_says_of_the_endpoints_health(status: int, result: str) -> None:
    world = World()
    world.start()
    world.call.answer(b"{}", ResponseHead(status, []))
    assert world.route.attempts[0].results[0] == result


def test_a_client_that_does_not_read_pauses_the_engine_from_the_start() -> None:
    world = World()
    world.route.wait = True
    exchange, client = world.start(STREAM_BODY)
    client.paused = True
    world.route.queue[0].set(world.route.grant())
    assert world.call.paused
    exchange.resume()
    assert not world.call.paused
    exchange.pause()
    assert world.call.paused


def test_a_fallback_answers_when_the_pool_cannot() -> None:
    world = World(fallback=True)
    world.route.errors = [EngineError("No endpoint is healthy.", code="no_healthy_endpoint", status=503)]
    _, client = world.start()
    assert len(world.other.attempts) == 1
    world.call.answer()
    assert client.status == 200


def test_a_fallback_is_not_asked_about_a_denial_or_after_the_first_byte() -> None:
    world = World(fallback=True)
    world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a")).fail(unsafe())
    assert world.other.attempts == []


# --- how long an engine may take


def test_an_answer_that_is_not_streamed_may_be_silent_for_its_total() -> None:
    world = World()
    _, client = world.start(BODY)
    assert world.call.timeouts == (inf, inf), "silence before a whole answer is work"
    world.call.answer()
    assert client.status == 200
    world.start(STREAM_BODY)
    assert world.call.timeouts == (12.0, 6.0)


def test_the_total_ends_a_whole_answer_and_is_not_tried_again() -> None:
    world = World()
    world.route.retries = [0.0]
    exchange, client = world.start(BODY)
    assert exchange.wake_at == 1100.0
    exchange.expired(1099.9)
    assert client.ends == []
    exchange.expired(1100.0)
    assert client.status == 504
    assert json.loads(client.body)["error"]["code"] == "engine_timeout"
    assert world.call.cancelled and len(world.engine.calls) == 1
    assert world.route.attempts[0].results[0] == "failure"
    assert world.outcome.outcome == "timeout"


def test_the_total_ends_a_stream_with_an_error_event() -> None:
    world = World()
    exchange, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("a"))
    exchange.expired(1015.0)
    assert client.ends == []
    exchange.expired(1100.0)
    assert client.complete and b'"engine_timeout"' in client.body
    assert client.body.startswith(chunk("a"))
    assert world.call.cancelled
    assert world.route.attempts[0].results[0] == "neutral", "it worked until its time was over"


def test_comments_keep_a_streams_wake_up_within_the_total() -> None:
    world = World(keep_alive=99.0)
    exchange, _ = world.start(STREAM_BODY)
    world.plane.now = 1050.0
    world.call.head(SSE_HEAD)
    assert exchange.wake_at == 1100.0


# --- whose cached prefixes a request may use


def test_our_engines_get_the_salt_of_the_isolation_domain_as_a_header() -> None:
    world = World()
    world.route.salting = "header"
    world.start(BODY)
    world.identity.caller = Principal("other", "rival", "api_key", ("*",))
    world.start(BODY)
    first, second = [call.request_head.partition(b"x-gatehouse-cache-salt: ")[2][:32] for call in world.engine.calls]
    assert len(first) == 32 and int(first, 16) and first != second
    assert b"cache_salt" not in world.call.request_body


def test_external_engines_get_it_as_a_field_and_a_clients_own_is_dropped() -> None:
    own = BODY[:-1] + b',"cache_salt":"mine"}'
    world = World()
    world.start(own)
    assert b"cache_salt" not in world.call.request_body
    assert b"cache-salt" not in world.call.request_head
    world.route.salting = "cache_salt"
    world.route.upstream_model = "inner"
    world.start(own)
    sent = json.loads(world.call.request_body)
    assert len(sent["cache_salt"]) == 32 and sent["model"] == "inner"
    assert b"cache-salt" not in world.call.request_head
