"""Prompts that their engine counts: what was guessed too low is made up before a request is recorded and sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import ClientGone, EngineError, EngineTimeout, LimitExceeded
from gateway.core.types import ResponseHead
from tests.unit.gateway.pipeline.world import BODY, Client, Counter, EngineClient, World

PATHS = {b"/v1/chat/completions": b"messages", b"/v1/completions": b"prompt"}


class Counting(World):
    """counter: the engine that counts; its client is not that of the attempts."""

    def __init__(self, counting: str = "tokenize", **options: Any) -> None:
        super().__init__(count_prompts=True, **options)
        self.counter = EngineClient(b"/base")
        self.route.counters = Counter(self.counter, counting, "theirs")

    def counted(self, tokens: int, body: bytes = BODY, path: bytes = b"/v1/chat/completions") -> Client:
        """A request up to its dispatch."""
        _, client = self.start(body, path=path)
        (call,) = self.counter.calls
        call.answer(b'{"count":%d,"tokens":[1,2]}' % tokens)
        return client

    def settled(self) -> list[list[Any]]:
        return [one.settled for one in self.limiter.reservations]


def test_what_was_guessed_too_low_is_reserved_again_before_the_record() -> None:
    world = Counting()
    client = world.counted(500)
    (call,) = world.counter.calls
    lines = call.request_head.split(b"\r\n")
    assert lines[0] == b"POST /base/tokenize HTTP/1.1" and b"authorization: Bearer engine-key" in lines and b"x-request-id: req-1" in lines
    assert json.loads(call.request_body) == {"model": "theirs", "messages": [{"role": "user", "content": "hi"}]}
    assert call.timeouts == (1.0, 1.0)
    assert world.settled() == [[None], []]
    assert len(world.audit.intents) == 1
    world.call.answer()
    assert client.status == 200 and [len(one) for one in world.settled()] == [1, 1]


def test_the_second_estimate_is_what_the_engine_counts() -> None:
    world = Counting()
    seen: list[tuple[int, int]] = []
    reserve = world.limiter.reserve

    def noted(principal: Any, request: Any) -> Any:
        seen.append((request.prompt_tokens, request.counted))
        if not request.counted:
            request.prompt_tokens = 3  # what was learned
        return reserve(principal, request)

    world.limiter.reserve = noted  # type: ignore[method-assign]
    world.counted(500)
    (guess, none), (again, counted) = seen
    assert (again, none, counted) == (guess, 0, 500), "what is learned is learned of the first guess"


def test_what_was_guessed_high_enough_stays() -> None:
    world = Counting()
    world.counted(1)
    assert world.settled() == [[]] and len(world.engine.calls) == 1


@pytest.mark.parametrize("status", [400, 413, 429, 500, 503])
def test_an_engine_that_does_not_say_makes_it_a_token_for_each_byte(status: int) -> None:
    world = Counting()
    exchange, _ = world.start()
    (call,) = world.counter.calls
    call.answer(b"{}", ResponseHead(status, []))
    assert exchange.request is not None and exchange.request.counted == len(call.request_body) and not world.route.uncounteds


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"count":-1}', b'{"count":"9"}', b'{"count":1e300}', b'{"count":99999999999999}', b"\xff"]
)
def test_an_answer_without_a_count_makes_it_a_token_for_each_byte(body: bytes) -> None:
    world = Counting()
    exchange, _ = world.start()
    world.counter.calls[0].answer(body)
    assert exchange.request is not None and exchange.request.counted == len(world.counter.calls[0].request_body)


def test_an_engine_that_takes_too_long_makes_it_a_token_for_each_byte() -> None:
    world = Counting()
    exchange, _ = world.start()
    (call,) = world.counter.calls
    world.plane.now += 0.9
    exchange.expired(world.plane.now)
    assert not call.cancelled
    world.plane.now += 0.2
    exchange.expired(world.plane.now)
    assert call.cancelled and exchange.request is not None and exchange.request.counted == len(call.request_body)
    assert exchange.wake_at > world.plane.now + 1, "the request's own deadline counts again"
    world.counter.calls.clear()
    other, _ = world.start()
    world.counter.calls[0].fail(EngineTimeout("It is silent."))
    assert other.request is not None and other.request.counted > 0 and not world.route.uncounteds


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_engine_that_cannot_count_is_not_asked_for_a_while(status: int) -> None:
    world = Counting()
    exchange, _ = world.start()
    world.counter.calls[0].answer(b"", ResponseHead(status, []))
    assert world.route.uncounteds == 1 and exchange.request is not None and exchange.request.counted == 0
    assert world.settled() == [[]] and len(world.engine.calls) == 1


def test_an_engine_that_is_lost_is_not_asked_for_a_while() -> None:
    world = Counting()
    world.counter.failing.append(EngineError("It refuses connections."))
    world.start()
    assert world.route.uncounteds == 1 and len(world.engine.calls) == 1


def test_a_prompt_that_is_too_much_is_refused_and_never_sent() -> None:
    world = Counting()
    exchange, client = world.start()
    world.limiter.error = LimitExceeded("Too many tokens.", code="tokens_exceeded")
    world.counter.calls[0].answer(b'{"count":500}')
    assert client.status == 429 and exchange.settled
    assert world.settled() == [[None]] and not world.engine.calls and not world.audit.intents


def test_a_client_that_leaves_meanwhile_gets_all_back() -> None:
    world = Counting()
    exchange, _ = world.start()
    exchange.cancel(ClientGone("It has left."))
    assert world.counter.calls[0].cancelled and exchange.settled and world.settled() == [[None]] and not world.engine.calls


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        (b"/v1/completions", {"prompt": "hi", "max_tokens": 5}, (b"/tokenize", {"model": "theirs", "prompt": "hi"})),
        (b"/v1/completions", {"prompt": ["a", "b"]}, None),
        (b"/v1/completions", {"prompt": [1, 2, 3]}, None),
        (b"/v1/embeddings", {"input": "hi"}, None),
        (
            b"/v1/messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
            (b"/tokenize", {"model": "theirs", "messages": [{"role": "user", "content": "hi"}]}),
        ),
        (b"/v1/responses", {"input": "hi"}, (b"/tokenize", {"model": "theirs", "messages": [{"role": "user", "content": "hi"}]})),
    ],
)
def test_the_question_by_api(path: bytes, body: dict[str, Any], asked: tuple[bytes, Any] | None) -> None:
    world = Counting()
    exchange, _ = world.start(json.dumps({"model": "m", **body}).encode(), path=path)
    assert exchange.request is not None and (not exchange.request.foreign or world.engine.calls), "only attempts decide on it"
    if asked is None:
        assert not world.counter.calls and world.engine.calls
    else:
        (call,) = world.counter.calls
        assert call.request_head.split(b" ")[1] == b"/base" + asked[0] and json.loads(call.request_body) == asked[1]


@pytest.mark.parametrize("path", PATHS)
def test_a_sidecar_is_asked_below_the_path_of_the_request(path: bytes) -> None:
    world = Counting("input_tokens")
    body = BODY if path == b"/v1/chat/completions" else b'{"model":"m","prompt":["a","b"]}'
    exchange, _ = world.start(body, path=path)
    (call,) = world.counter.calls
    assert call.request_head.split(b" ")[1] == b"/base" + path + b"/input_tokens" and PATHS[path] in call.request_body
    call.answer(b'{"object":"x","input_tokens":700}')
    assert exchange.request is not None and exchange.request.counted == 700


def test_nobody_is_asked_where_no_limit_counts_tokens_or_no_engine_works() -> None:
    world = Counting()
    world.route.counters = None
    world.start()
    assert len(world.engine.calls) == 1
    other = Counting()
    reserve = other.limiter.reserve

    def uncounting(principal: Any, request: Any) -> Any:
        made = reserve(principal, request)
        made.counts_tokens = False  # type: ignore[union-attr]
        return made

    other.limiter.reserve = uncounting  # type: ignore[method-assign]
    other.start()
    assert not other.counter.calls and len(other.engine.calls) == 1
