"""An exchange is settled exactly once, whoever finishes first, and gives back all that it holds."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import Struct

from gateway.core.errors import (
    AuditUnavailable,
    AuthenticationError,
    ClientGone,
    EngineError,
    EngineTimeout,
    GatehouseError,
    GuardrailViolation,
    InternalError,
    LimitExceeded,
    Overloaded,
    RequestError,
)
from gateway.core.types import Decision, InferenceRequest, IntentRecord, OutcomeRecord, Peer, Principal, Usage
from gateway.core.waiting import Signal
from gateway.pipeline.exchange import Exchange, chunked
from gateway.pipeline.phases import UNTIMED
from gateway.pipeline.plane import SAMPLE_EVERY
from gateway.pipeline.statuses import outcome_of, status_line
from gateway.telemetry.tracing import Sampler, Trace
from tests.unit.gateway.pipeline.world import ANSWER, BODY, DONE, SSE_HEAD, STREAM_BODY, USAGE, Authorizer, Client, World, chunk, unchunk

Event = Callable[[World, Exchange], None]
ROOT = Path(__file__).parents[4]


def ends(world: World, exchange: Exchange) -> None:
    world.call.body(chunk("b") + USAGE + DONE).end()


def leaves(world: World, exchange: Exchange) -> None:
    exchange.client_gone()


def expires(world: World, exchange: Exchange) -> None:
    exchange.expired(exchange.deadline)


def breaks(world: World, exchange: Exchange) -> None:
    world.call.fail(EngineError("The engine broke off."))


def drains(world: World, exchange: Exchange) -> None:
    exchange.cancel(Overloaded("The gateway is shutting down."))


EVENTS = {"ok": ends, "cancelled": leaves, "timeout": expires, "failed": breaks, "drained": drains}


@pytest.mark.parametrize("order", list(itertools.permutations(EVENTS, 2)), ids="-".join)
def test_a_stream_is_settled_once_by_whoever_is_first(order: tuple[str, str]) -> None:
    world = World()
    exchange, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("", role="assistant") + chunk("a"))
    for name in order:
        EVENTS[name](world, exchange)
    assert client.ends == [True]
    assert len(world.limiter.reservations[0].settled) == 1
    assert world.outcome.outcome == {"drained": "failed"}.get(order[0], order[0])
    assert world.plane.exchanges == set()
    assert world.call.over
    assert [t.count for tallies in world.entry.meter.tallies.values() for t in tallies] == [1]
    assert exchange.driver is None and exchange.relay is None and exchange.call is None


@pytest.mark.parametrize("first", list(EVENTS))
def test_what_a_stream_is_charged(first: str) -> None:
    world = World()
    exchange, _ = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("", role="assistant") + chunk("a") + chunk("b"))
    EVENTS[first](world, exchange)
    expected = Usage(7, 3, 0) if first == "ok" else Usage(len(STREAM_BODY) >> 2, 2, 0, True)
    assert world.limiter.reservations[0].settled == [expected]
    assert world.outcome.estimated is (first != "ok")


@pytest.mark.parametrize("event", [expires, breaks, drains])
def test_an_answer_that_never_came_is_refunded(event: Event) -> None:
    world = World()
    exchange, client = world.start()
    event(world, exchange)
    assert world.limiter.reservations[0].settled == [None]
    assert client.ends == [True]
    assert (world.outcome.prompt_tokens, world.outcome.completion_tokens) == (0, 0)


@pytest.mark.parametrize("body", [BODY, STREAM_BODY])
def test_who_hangs_up_before_the_answer_is_charged_for_the_prompt(body: bytes) -> None:
    """Else a caller's limits would end where it does not wait for answers, and its engines would work for nothing."""
    world = World()
    exchange, _ = world.start(body)
    leaves(world, exchange)
    assert world.limiter.reservations[0].settled == [Usage(len(body) >> 2, 0, 0, True)]
    assert (world.outcome.outcome, world.outcome.prompt_tokens, world.outcome.estimated) == ("cancelled", len(body) >> 2, True)


def test_who_sets_a_deadline_that_the_answer_does_not_meet_is_charged_for_the_prompt_too() -> None:
    """It is to hang up at a moment that is known before."""
    world = World()
    exchange, client = world.start()
    exchange.hurried = True
    expires(world, exchange)
    assert world.limiter.reservations[0].settled == [Usage(len(BODY) >> 2, 0, 0, True)]
    assert (world.outcome.outcome, client.status, world.outcome.charged) == ("timeout", 504, True)


def test_who_hangs_up_before_the_engine_has_the_request_is_charged_nothing() -> None:
    world = World()
    world.route.wait = True
    exchange, _ = world.start()
    leaves(world, exchange)
    assert world.limiter.reservations[0].settled == [None]
    assert (world.outcome.outcome, world.outcome.prompt_tokens) == ("cancelled", 0)


def test_the_records_of_a_served_request() -> None:
    world = World()
    _, client = world.start()
    world.call.answer()
    assert client.body == ANSWER
    (intent,), outcome = world.audit.intents, world.outcome
    assert (intent.tenant, intent.principal, intent.credential, intent.peer) == ("acme", "k", "api_key", "192.0.2.1")
    assert (intent.operation, intent.model, intent.stream, intent.bytes) == ("chat", "m", False, len(BODY))
    assert (intent.body_hash, intent.rule, intent.config) == (f"hash-{len(BODY)}", "rule-1", 7)
    assert (outcome.request_id, outcome.outcome, outcome.status, outcome.code) == ("req-1", "ok", 200, "")
    assert (outcome.model, outcome.endpoint, outcome.operation, outcome.attempts) == ("m", "a", "chat", 1)
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens, outcome.estimated) == (7, 3, 2, False)
    assert (outcome.bytes, outcome.body_hash) == (len(ANSWER), f"hash-{len(ANSWER)}")
    assert outcome.peer == "", "the intent has it already"
    assert 0.0 < outcome.sent_ms <= outcome.duration_ms and (outcome.first_ms, outcome.route) == (0.0, "")
    (tally,) = world.entry.meter.tallies["chat"]
    assert (tally.status, tally.outcome, tally.count) == (200, "ok", 1)
    assert world.entry.meter.prompt_tokens == 7


def test_the_head_of_an_answer() -> None:
    world = World()
    _, client = world.start()
    world.call.answer()
    assert client.head.startswith(b"HTTP/1.1 200 OK\r\n")
    headers = client.headers
    assert int(headers.pop("x-gatehouse-overhead-us")) >= 0
    assert headers.pop("date").endswith(" GMT")
    assert headers == {
        "content-type": "application/json",
        "content-length": str(len(ANSWER)),
        "x-request-id": "req-1",
        "x-gatehouse-model": "m",
        "x-gatehouse-endpoint": "a",
        "x-ratelimit-limit-requests": "10",
    }


def test_a_denial_before_the_intent_carries_the_peer() -> None:
    world = World()
    world.limiter.error = LimitExceeded("Too many.", retry_after=1.2345, headers=(("x-ratelimit-remaining-requests", "0"),))
    _, client = world.start()
    assert client.status == 429
    assert client.headers["retry-after"] == "2"
    assert client.headers["retry-after-ms"] == "1235"
    assert client.headers["x-ratelimit-remaining-requests"] == "0"
    outcome = world.outcome
    assert (outcome.outcome, outcome.status, outcome.code, outcome.peer) == ("denied", 429, "rate_limit_exceeded", "192.0.2.1")
    assert outcome.tenant == "acme"
    assert world.audit.intents == []


def test_an_unknown_caller_is_recorded_only_when_the_plane_says_so() -> None:
    world = World()
    asked: list[tuple[str, str, float]] = []

    def first(peer: str, code: str, now: float) -> bool:
        asked.append((peer, code, now))
        return False

    world.plane.first_denial = first
    world.identity.error = AuthenticationError("Bad key.", code="invalid_api_key")
    _, client = world.start(None)
    assert client.status == 401
    assert client.ends == [False], "the body was not read: the connection cannot go on"
    assert client.headers["connection"] == "close"
    assert asked == [("192.0.2.1", "invalid_api_key", 1000.0)]
    assert world.audit.outcomes == []
    assert world.metrics.denials == {(401, "invalid_api_key"): 1}


def test_no_credential_at_all() -> None:
    world = World()
    world.identity.caller = None
    _, client = world.start()
    assert client.status == 401
    assert client.headers["www-authenticate"] == 'Bearer realm="gatehouse"'
    assert client.ends == [True]


def test_an_identity_that_must_be_waited_for() -> None:
    world = World()
    caller, world.identity.caller = world.identity.caller, Signal()
    _, client = world.start(None)
    assert client.reads == 0, "the body is wanted only from callers who are known"
    world.identity.caller.set(caller)  # type: ignore[union-attr]
    assert client.reads == 1


def test_the_body_is_waited_for() -> None:
    world = World()
    exchange, client = world.start(None)
    assert client.reads == 1
    assert world.engine.calls == []
    exchange.body_complete(BODY)
    world.call.answer()
    assert client.status == 200
    assert client.ends == [True]


class Spoiling(Authorizer):
    """Denies, and leaves a request of which no facts can be told."""

    def decide(self, principal: Principal, request: InferenceRequest, peer: Peer, size: int) -> Decision:
        request.fields["tools"] = 5  # type: ignore[assignment]
        return Decision(False, "Not yours.", "rule-1")


def test_a_request_whose_facts_cannot_be_told_ends_and_is_recorded() -> None:
    world = World()
    world.snapshot.authorizer = Spoiling()  # type: ignore[assignment]
    exchange, client = world.start()
    assert client.status == 403 and client.ends == [True], "the next request of the connection is read"
    assert exchange.settled and [one.settled for one in world.limiter.reservations] == [[Usage()]]
    assert world.outcome.facts is not None and "request.tools" in world.outcome.facts.unrecorded


@pytest.mark.parametrize(
    ("allow", "visible", "model", "status"), [(False, True, "m", 403), (False, False, "m", 404), (True, True, "x", 404)]
)
def test_authorisation(allow: bool, visible: bool, model: str, status: int) -> None:
    world = World()
    world.authorizer.allow, world.authorizer.visible = allow, visible
    _, client = world.start(BODY.replace(b'"m"', b'"%b"' % model.encode()))
    assert client.status == status
    assert world.outcome.outcome == "denied"
    assert [one.settled for one in world.limiter.reservations] == [[Usage()]], "probing costs a request"
    if status == 404:
        assert client.headers.get("x-gatehouse-model") is None


def test_a_hidden_model_and_an_unknown_one_are_the_same_answer() -> None:
    def body(model: str, *, visible: bool) -> bytes:
        world = World()
        world.authorizer.allow = world.authorizer.visible = visible
        return world.start(b'{"model":"%b","messages":[{"role":"user","content":"hi"}]}' % model.encode())[1].body

    assert body("m", visible=False).replace(b"'m'", b"") == body("q", visible=True).replace(b"'q'", b"")


def test_what_is_refused_under_an_alias_exists_for_a_caller_who_knows_only_the_alias() -> None:
    world = World()
    world.authorizer.allow, world.authorizer.hidden = False, {"m"}
    _, client = world.start(BODY.replace(b'"m"', b'"alias"'))
    assert client.status == 403
    assert world.start(BODY)[1].status == 404


def test_an_alias_is_renamed_for_the_engine() -> None:
    world = World()
    world.start(BODY.replace(b'"m"', b'"alias"'))
    assert json.loads(world.call.request_body)["model"] == "m"
    assert world.audit.intents[0].model == "m"


@pytest.mark.parametrize(("tokens", "status"), [(10, 0), (11, 400)])
def test_a_models_bound_on_tokens(tokens: int, status: int) -> None:
    world = World(max_tokens=10)
    _, client = world.start(BODY[:-1] + b',"max_tokens":%d}' % tokens)
    assert (client.status if client.written else 0) == status


def test_a_full_audit_queue_refuses_and_refunds() -> None:
    world = World()
    world.audit.error = AuditUnavailable("The audit log takes no records.")
    _, client = world.start()
    assert client.status == 503
    assert world.engine.calls == []
    assert world.limiter.reservations[0].settled == [None]


def test_a_defect_is_an_internal_error_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.identity.error = ZeroDivisionError("secret detail")
    _, client = world.start()
    assert client.status == 500
    assert b"secret detail" not in client.written
    assert b"req-1" in client.body
    assert "secret detail" in caplog.text
    assert world.outcome.code == "internal_error"


def test_a_defect_in_a_relay_is_settled_too(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    _, client = world.start()
    world.call.head().fail(ZeroDivisionError("oops"))
    assert client.status == 500
    assert world.route.attempts[0].results == ["neutral"]


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (EngineTimeout("x"), "timeout"),
        (EngineError("x"), "failed"),
        (Overloaded("x"), "failed"),
        (InternalError("x"), "failed"),
        (AuditUnavailable("x"), "failed"),
        (RequestError("x"), "denied"),
        (GuardrailViolation("x"), "denied"),
        (LimitExceeded("x"), "denied"),
        (ClientGone("x"), "denied"),
    ],
)
def test_outcomes_words(error: GatehouseError, word: str) -> None:
    assert outcome_of(error) == word


def test_deadlines() -> None:
    world = World(request_timeout=30.0)
    exchange, client = world.start()
    assert (exchange.deadline, exchange.wake_at) == (1030.0, 1030.0)
    exchange.expired(1029.9)
    assert client.ends == []
    exchange.expired(1030.0)
    assert client.status == 504
    assert world.outcome.outcome == "timeout"


def test_a_wake_up_without_a_relay_waits_for_the_deadline() -> None:
    world = World(request_timeout=30.0)
    exchange, _ = world.start(None)
    exchange.wake_at = 1001.0
    exchange.expired(1001.0)
    assert exchange.wake_at == 1030.0


def test_phases_of_a_sampled_exchange_are_timed() -> None:
    world = World()
    for _ in range(SAMPLE_EVERY - 1):
        world.plane.timed()
    world.start()
    world.call.answer()
    counted = {phase for phase, histogram in world.metrics.phases.items() if sum(histogram.counts)}
    assert counted == {
        "authenticate", "parse", "authorise", "reserve", "intent", "select", "durable", "dispatch", "engine", "relay", "settle",
    }  # fmt: skip


def test_a_traced_exchange_is_timed_and_the_engine_is_told_of_its_span() -> None:
    world = World()
    world.plane.sampler = Sampler(0.0, "follow")
    seen: list[tuple[OutcomeRecord, Trace]] = []
    world.plane.observer = SimpleNamespace(calm=-1.0, settled=lambda record, clock, header, head: seen.append((record, clock.trace)))
    exchange, _ = world.start(headers={b"traceparent": b"00-%b-%b-01" % (b"a" * 32, b"b" * 16)})
    trace = exchange.clock.trace
    assert (trace.trace, trace.parent) == ("a" * 32, "b" * 16)
    [(span, _)] = trace.calls
    assert b"traceparent: 00-%b-%b-01\r\n" % (b"a" * 32, span.encode()) in world.call.request_head
    world.call.answer()
    [(record, told)] = seen
    assert (record.outcome, told) == ("ok", trace)
    assert not any(sum(histogram.counts) for histogram in world.metrics.phases.values()), "the histograms are of a fair sample"


def test_an_unsampled_exchange_is_not_timed() -> None:
    world = World()
    world.plane.next_id()
    exchange, _ = world.start()
    assert exchange.clock is UNTIMED
    exchange.clock.mark("parse")
    assert exchange.clock is UNTIMED


def test_engine_time_is_no_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    for module in ("exchange", "attempt", "stream"):
        monkeypatch.setattr(f"gateway.pipeline.{module}.perf_counter_ns", lambda: now)
    world = World()
    now = 40_000
    _, client = world.start()  # the exchange begins at 40 us
    now = 5_040_000
    world.call.head().body(ANSWER)
    world.call.end()
    assert client.headers["x-gatehouse-overhead-us"] == "0"
    assert world.outcome.duration_ms == 5.0


def test_chunks_are_written_and_read_back() -> None:
    assert unchunk(chunked(b"abc") + chunked(b"d" * 300) + b"0\r\n\r\n") == (b"abc" + b"d" * 300, True)


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (200, b"200 OK"),
        (429, b"429 Too Many Requests"),
        (426, b"426 Upgrade Required"),
        (413, b"413 Content Too Large"),
        (529, b"529 Overloaded"),
        (499, b"499 Status"),
    ],
)
def test_status_lines(status: int, line: bytes) -> None:
    assert status_line(status) == line


async def test_a_real_future_can_be_waited_for() -> None:
    world = World()
    future = asyncio.get_running_loop().create_future()
    caller, world.identity.caller = world.identity.caller, future
    _, client = world.start()
    future.set_result(caller)
    while not world.engine.calls:
        await asyncio.sleep(0)
    world.call.answer()
    assert client.status == 200


def test_settling_again_does_nothing() -> None:
    world = World()
    exchange, client = world.start()
    world.call.answer()
    exchange.settle("failed", 500)
    exchange.fail(EngineError("late"))
    exchange.client_gone()
    assert client.ends == [True]
    assert world.outcome.outcome == "ok"


def test_header_values_of_errors_are_latin() -> None:
    world = World()
    world.limiter.error = LimitExceeded("x", headers=(("x-note", "caf\u00e9 \u20ac"),))
    client: Client = world.start()[1]
    assert b"x-note: caf\xe9 ?\r\n" in client.written


@pytest.mark.parametrize(("file", "record"), [("exchange.py", OutcomeRecord), ("pipeline.py", IntentRecord)])
def test_the_values_of_a_record_stand_in_the_order_of_its_fields(file: str, record: type[Struct]) -> None:
    """They stand by position, because msgspec takes seven times as long to match so many names: so each line says which field it is."""
    source = (ROOT / "gateway" / "pipeline" / file).read_text()
    assert source.count(f"{record.__name__}(") == 1
    call = source.partition(f"{record.__name__}(\n")[2]
    depth = len(call) - len(call.lstrip(" "))
    lines = list(takewhile(lambda line: line.startswith(" " * depth), call.splitlines()))
    assert [line.rpartition("# ")[2] for line in lines] == list(record.__struct_fields__)
    assert all(line[depth] != " " for line in lines), "a value on two lines would hide which field is whose"
