"""Prompts that their engine counts: what was guessed too low is made up before a request is recorded and sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import ClientGone, EngineError, EngineTimeout, LimitExceeded
from gateway.core.types import ResponseHead
from gateway.pipeline import counting
from gateway.pipeline.exchange import Exchange
from tests.unit.gateway.pipeline.world import BODY, Client, Counter, EngineClient, World

PATHS = {b"/v1/chat/completions": b"messages", b"/v1/completions": b"prompt"}


class Counting(World):
    """counter: the engine that counts; its client is not that of the attempts."""

    def __init__(self, counting: str = "tokenize", **options: Any) -> None:
        super().__init__(**{"count_prompts": True, **options})
        self.counter = EngineClient(b"/base")
        self.route.counters = Counter(self.counter, counting, "theirs")

    def counted(self, tokens: int, body: bytes = BODY, path: bytes = b"/v1/chat/completions") -> Client:
        """A request up to its dispatch."""
        _, client = self.start(body, path=path)
        (call,) = self.counter.calls
        call.answer(b'{"count":%d,"tokens":[1,2]}' % tokens)
        return client

    def cautious(self, exchange: Exchange) -> bool:
        """Whether the exchange has reserved the most that its prompt can have, and says of it what was guessed."""
        guess, counted, most, cautious, _ = self.limiter.reserved[-1]
        assert exchange.request is not None and exchange.request.prompt_tokens == guess == len(BODY) // 4
        return cautious and counted == 0 and len(BODY) <= most <= len(BODY) + 300 and len(self.engine.calls) >= 1

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
    assert world.cautious(exchange) and not world.route.uncounteds


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"count":-1}', b'{"count":"9"}', b'{"count":1e300}', b'{"count":99999999999999}', b"\xff"]
)
def test_an_answer_without_a_count_makes_it_a_token_for_each_byte(body: bytes) -> None:
    world = Counting()
    exchange, _ = world.start()
    world.counter.calls[0].answer(body)
    assert world.cautious(exchange)


def test_an_engine_that_takes_too_long_makes_it_a_token_for_each_byte() -> None:
    world = Counting()
    exchange, _ = world.start()
    (call,) = world.counter.calls
    world.plane.now += 0.9
    exchange.expired(world.plane.now)
    assert not call.cancelled
    world.plane.now += 0.2
    exchange.expired(world.plane.now)
    assert call.cancelled and world.cautious(exchange)
    assert exchange.wake_at > world.plane.now + 1, "the request's own deadline counts again"
    world.counter.calls.clear()
    other, _ = world.start()
    world.counter.calls[0].fail(EngineTimeout("It is silent."))
    assert world.cautious(other) and not world.route.uncounteds


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
        (b"/v1/embeddings", {"input": "hi"}, (b"/tokenize", {"model": "theirs", "prompt": "hi"})),
        (b"/v1/embeddings", {"input": ["hi", "ho"]}, None),
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


def test_nobody_is_asked_where_there_is_plenty() -> None:
    world = Counting("input_tokens")
    world.limiter.short = False
    world.start()
    assert not world.counter.calls and len(world.engine.calls) == 1 and world.settled() == [[]]


def test_a_refusal_of_what_seemed_plenty_is_tried_with_the_guess() -> None:
    world = Counting("input_tokens")
    world.limiter.short = False
    reserve, asked = world.limiter.reserve, []

    def reserving(principal: Any, request: Any) -> Any:
        asked.append(request.most)
        if len(asked) == 1:
            raise LimitExceeded("There was less.", code="tokens_exceeded")
        world.limiter.short = True
        return reserve(principal, request)

    world.limiter.reserve = reserving  # type: ignore[method-assign]
    exchange, _ = world.start()
    world.counter.calls[0].answer(b'{"input_tokens":7}')
    assert asked[0] < asked[1] == counting.MOST and exchange.request is not None and exchange.request.counted == 7


def test_a_refusal_that_counting_would_not_change_is_final() -> None:
    world = Counting("input_tokens")
    world.limiter.error = LimitExceeded("Too many.", code="rate_limit_exceeded")
    _, client = world.start()
    assert client.status == 429 and not world.counter.calls


def test_an_engine_of_ours_that_does_not_work_makes_it_a_token_for_each_byte() -> None:
    world = Counting("input_tokens", count_prompts="auto")
    world.entry.counts_prompts, world.route.counters = True, None
    exchange, _ = world.start()
    assert world.cautious(exchange)


@pytest.mark.parametrize("failure", [EngineError("It refuses connections."), 404])
def test_an_engine_of_ours_is_asked_again_whatever_it_says(failure: Any) -> None:
    world = Counting("input_tokens")
    exchange, _ = world.start()
    if failure == 404:
        world.counter.calls[0].answer(b"{}", ResponseHead(404, []))
    else:
        world.counter.calls[0].fail(failure)
    assert world.cautious(exchange) and not world.route.uncounteds


def test_engines_elsewhere_that_cannot_count_leave_the_guess() -> None:
    world = Counting()
    world.route.counters = None
    world.start()
    assert len(world.engine.calls) == 1 and world.settled() == [[]]


def test_texts_for_embeddings_are_counted_too() -> None:
    world = Counting("input_tokens")
    exchange, _ = world.start(b'{"model":"m","input":["a","b"]}', path=b"/v1/embeddings")
    (call,) = world.counter.calls
    assert call.request_head.split(b" ")[1] == b"/base/v1/embeddings/input_tokens"
    call.answer(b'{"input_tokens":70}')
    assert exchange.request is not None and exchange.request.counted == 70


def test_pairs_are_not_counted_and_reserve_the_most() -> None:
    world = Counting("input_tokens")
    world.start(b'{"model":"m","query":"' + b"q" * 400 + b'","documents":["a","b","c","d"]}', path=b"/v1/rerank")
    guess, counted, most, cautious, _ = world.limiter.reserved[-1]
    assert not world.counter.calls and cautious and not counted and most > 1600 and 400 < guess < 450


@pytest.mark.parametrize(("body", "path"), [(b'{"model":"m","messages":[]}', b"/v1/chat/completions/input_tokens")])
def test_what_costs_no_tokens_is_not_counted(body: bytes, path: bytes) -> None:
    world = Counting("input_tokens")
    world.start(body, path=path)
    assert not world.counter.calls


def test_images_are_counted_however_few_bytes_they_have() -> None:
    world = Counting()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    exchange, _ = world.start(json.dumps({"model": "m", "messages": [{"role": "user", "content": [image]}]}).encode())
    assert exchange.request is not None and exchange.request.most == counting.MOST


def test_a_stream_that_is_given_up_is_charged_what_its_engine_said_of_its_prompt() -> None:
    world = Counting("input_tokens")
    world.limiter.short = False
    exchange, _ = world.start(BODY[:-1] + b',"stream":true}')
    world.call.receiver.on_head(ResponseHead(200, [(b"content-type", b"text/event-stream"), (b"x-gatehouse-prompt-tokens", b"321")]))
    exchange.cancel(ClientGone("It has left."))
    ((usage,),) = world.settled()
    assert usage is not None and usage.prompt_tokens == 321 and usage.estimated


def test_a_fallback_is_reserved_anew_by_its_own_count_and_in_the_limits_of_the_model_asked_for() -> None:
    world = Counting("input_tokens", fallback=True)
    world.entry.fallbacks[0].counts_prompts = True
    theirs = EngineClient(b"/theirs")
    world.other.counters = Counter(theirs, "input_tokens", None)
    exchange, client = world.start()
    world.counter.calls[0].answer(b'{"input_tokens":50}')
    world.call.answer(b'{"error":{"message":"no"}}', ResponseHead(500, []))
    (call,) = theirs.calls
    assert json.loads(call.request_body)["model"] == "n"
    call.answer(b'{"input_tokens":900}')
    assert [(counted, model) for _, counted, _, _, model in world.limiter.reserved] == [(0, "m"), (50, "m"), (0, "m"), (900, "m")]
    assert world.settled()[:-1] == [[None]] * 3 and world.settled()[-1] == []
    world.call.answer()
    assert client.status == 200 and exchange.request is not None and exchange.request.model == "n"


def test_a_fallback_for_which_limits_have_no_room_does_not_stand_in() -> None:
    world = Counting("input_tokens", fallback=True)
    _, client = world.start()
    world.counter.calls[0].answer(b'{"input_tokens":50}')
    world.limiter.error = LimitExceeded("Too much money.", code="insufficient_quota")
    world.call.answer(b'{"error":{"message":"no"}}', ResponseHead(500, []))
    assert client.status >= 500 and len(world.engine.calls) == 1 and all(one == [None] for one in world.settled())
