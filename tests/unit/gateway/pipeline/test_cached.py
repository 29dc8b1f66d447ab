"""Answers from the cache: who gets them, what they pass, what is kept of an engine's answer and what is not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gateway.caches.registry import AnswerCaches, ModelCache
from gateway.core.errors import EngineError, LimitExceeded
from gateway.core.prices import LineUp, Price
from gateway.core.specs import ModelSpec
from gateway.core.specs.caches import CacheSpec
from gateway.core.types import Peer, Principal, ResponseHead, Usage
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.pipeline import serve
from tests.unit.gateway.pipeline.world import CHAT, DONE, JSON_HEAD, SSE_HEAD, USAGE, Client, World, chunk
from tests.waiting import reached

ANSWER = (
    b'{"id":"chatcmpl-first","choices":[{"index":0,"message":{"role":"assistant","content":"hello \\"id\\":\\"chatcmpl-first\\""},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}'
)
CUT_SHORT = ANSWER.replace(b'"stop"', b"null")
EMBEDDING = b'{"object":"list","data":[{"index":0,"embedding":[1.0]}],"usage":{"prompt_tokens":2,"total_tokens":2}}'
STREAM = [chunk("hel"), chunk("lo"), chunk(finish="stop"), USAGE, DONE]


def body(content: str = "hi", **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}).encode()


def cached(world: World, **settings: Any) -> ModelCache:
    """Gives the world's model a cache."""
    spec = ModelSpec(name="m", pool=("a",), cache=CacheSpec(**settings))
    made = AnswerCaches(lambda: world.plane.now).of(spec, b"1", b"s" * 32)
    world.entry.cache = made
    assert made is not None
    return made


def asked(world: World, request: bytes | None = None, answer: bytes = ANSWER, **given: Any) -> Client:
    """One request that an engine answers."""
    before = len(world.engine.calls)
    _, client = world.start(body() if request is None else request, **given)
    assert len(world.engine.calls) == before + 1
    world.call.answer(answer)
    assert client.ends
    return client


def found(world: World, request: bytes | None = None, **given: Any) -> Client:
    """One request that no engine is asked for."""
    before = len(world.engine.calls)
    _, client = world.start(body() if request is None else request, **given)
    assert len(world.engine.calls) == before
    assert client.ends
    return client


def test_the_same_request_again_is_answered_without_an_engine() -> None:
    world = World()
    cached(world)
    first, second = asked(world), found(world)
    assert (first.headers["x-gatehouse-cache"], second.headers["x-gatehouse-cache"]) == ("miss", "hit")
    assert first.body == ANSWER
    given = json.loads(second.body)
    assert given["choices"] == json.loads(ANSWER)["choices"]
    assert given["id"].startswith("chatcmpl-")
    assert given["id"] != "chatcmpl-first"
    assert int(second.headers["content-length"]) == len(second.body)


def test_each_hit_has_an_identifier_of_its_own() -> None:
    world = World()
    cached(world)
    asked(world)
    assert len({json.loads(found(world).body)["id"] for _ in range(5)}) == 5


def test_a_hit_is_authorised_limited_recorded_and_settled_like_a_request() -> None:
    world = World()
    cached(world)
    asked(world)
    client = found(world)
    assert "x-ratelimit-limit-requests" in client.headers
    assert len(world.audit.intents) == len(world.audit.outcomes) == 2
    outcome = world.audit.outcomes[1]
    assert (outcome.outcome, outcome.endpoint, outcome.attempts, outcome.sent_ms, outcome.finish) == ("ok", "", 0, 0.0, "stop")
    assert outcome.detail == {"cache": "hit", "cache_key": world.audit.outcomes[0].detail["cache_key"]}  # type: ignore[index]
    assert world.limiter.reservations[1].settled == [Usage(7, 3, 0)]
    world.authorizer.allow = False
    _, refused = world.start(body())
    assert refused.status == 403
    world.authorizer.allow = True
    world.limiter.error = LimitExceeded("Too many.")
    _, limited = world.start(body())
    assert limited.status == 429


def test_a_hit_is_given_once_its_intent_is_durable() -> None:
    world = World()
    cached(world)
    asked(world)
    world.audit.durable = False
    _, client = world.start(body())
    assert not client.written
    world.audit.tickets[-1].set(None)
    assert client.headers["x-gatehouse-cache"] == "hit"


def test_a_hit_is_free_where_that_is_configured() -> None:
    world = World()
    cached(world, charge=False)
    asked(world)
    found(world)
    assert [each.settled for each in world.limiter.reservations] == [[Usage(7, 3, 0)], [Usage()]]


def test_a_price_counts_for_hits_that_are_charged() -> None:
    world = World()
    cached(world)
    world.entry.prices = LineUp(((0.0, math.inf, Price("EUR", "v1", request=5)),))
    asked(world)
    found(world)
    assert [outcome.cost for outcome in world.audit.outcomes] == [5, 5]
    world.entry.cache.charge = False  # type: ignore[union-attr]
    found(world)
    assert (world.audit.outcomes[2].cost, world.audit.outcomes[2].currency) == (0, "")


def test_a_stream_is_stored_and_streams_again() -> None:
    world = World()
    cached(world)
    request = body(stream=True)
    _, first = world.start(request)
    world.call.head(SSE_HEAD)
    for event in STREAM:
        world.call.body(event)
    world.call.end()
    assert first.complete
    second = found(world, request)
    assert second.headers["x-gatehouse-cache"] == "hit"
    assert second.headers["content-type"].startswith("text/event-stream")
    assert second.complete
    assert second.body.count(b"data: ") == first.body.count(b"data: ")
    ids = {json.loads(line[6:])["id"] for line in second.body.split(b"\n\n") if line.startswith(b"data: {")}
    assert len(ids) == 1
    assert ids != {"c"}
    assert world.audit.outcomes[1].completion_tokens == 3
    asked(world)  # a whole answer is not made of a stream


@pytest.mark.parametrize(
    ("change", "headers"),
    [
        ({"temperature": 0.5}, {}),
        ({"temperature": None}, {}),
        ({}, {b"cache-control": b"no-store"}),
        ({}, {b"cache-control": b"max-age=60, No-Store"}),
    ],
)
def test_what_is_not_stored(change: dict[str, Any], headers: dict[bytes, bytes]) -> None:
    world = World()
    cached(world)
    asked(world, body(**change), headers=headers)
    asked(world, body(**change))


def test_any_temperature_where_that_is_configured() -> None:
    world = World()
    cached(world, temperature="any")
    asked(world, body(temperature=0.7))
    found(world, body(temperature=0.7))


def test_a_client_may_ask_for_a_new_answer_which_takes_the_place_of_the_old_one() -> None:
    world = World()
    cached(world)
    asked(world)
    again = asked(world, headers={b"cache-control": b"no-cache"}, answer=ANSWER.replace(b"hello", b"howdy"))
    assert again.headers["x-gatehouse-cache"] == "miss"
    assert b"howdy" in found(world).body


def test_a_client_that_wants_nothing_stored_gets_nothing_stored() -> None:
    world = World()
    cached(world)
    asked(world)
    assert asked(world, headers={b"cache-control": b"no-store"}).headers["x-gatehouse-cache"] == "bypass"


@pytest.mark.parametrize(
    ("answer", "head"),
    [
        (CUT_SHORT, JSON_HEAD),
        (ANSWER.replace(b'"stop"', b'"content_filter"'), JSON_HEAD),
        (b'{"error":{"message":"no"}}', ResponseHead(503, [])),
        (b'{"error":{"message":"no"}}', ResponseHead(400, [])),
        (b"not json", JSON_HEAD),
    ],
)
def test_an_answer_that_is_not_whole_is_not_stored(answer: bytes, head: ResponseHead) -> None:
    world = World()
    cached(world)
    for _ in range(2):
        before = len(world.engine.calls)
        world.start(body())
        assert len(world.engine.calls) == before + 1
        world.call.answer(answer, head)


@pytest.mark.parametrize("ends", ["fail", "error event", "too early", "client"])
def test_a_stream_that_breaks_off_is_not_stored(ends: str) -> None:
    world = World()
    cached(world)
    request = body(stream=True)
    exchange, client = world.start(request)
    call = world.call.head(SSE_HEAD).body(STREAM[0])
    if ends == "fail":
        call.fail(EngineError("It broke off."))
    elif ends == "error event":
        call.body(b'data: {"error":{"message":"no"}}\n\n').body(DONE).end()
    elif ends == "too early":
        call.end()
    else:
        exchange.client_gone()
        assert call.cancelled
    assert client.ends
    world.start(request)
    assert len(world.engine.calls) == 2


def test_other_operations_are_stored_too() -> None:
    world = World()
    cached(world)
    request = b'{"model":"m","input":"a text"}'
    asked(world, request, EMBEDDING, path=b"/v1/embeddings")
    assert found(world, request, path=b"/v1/embeddings").body == EMBEDDING


def test_an_operation_that_is_not_named_is_not_stored() -> None:
    world = World()
    cached(world, operations=("chat",))
    request = b'{"model":"m","input":"a text"}'
    asked(world, request, EMBEDDING, path=b"/v1/embeddings")
    assert "x-gatehouse-cache" not in asked(world, request, EMBEDDING, path=b"/v1/embeddings").headers


def test_another_tenant_and_where_so_configured_another_key_gets_nothing() -> None:
    world = World()
    cached(world)
    asked(world)
    world.identity.caller = Principal("k", "globex", "api_key", ("*",))
    asked(world)
    world.identity.caller = Principal("k2", "acme", "api_key", ("*",))
    found(world)
    cached(world, sharing="key")
    asked(world)
    world.identity.caller = Principal("k2", "acme", "api_key", ("*",), user="ann")
    asked(world)
    found(world)


def test_an_answer_larger_than_allowed_passes_and_is_not_stored() -> None:
    world = World()
    cached(world, max_answer_bytes=1024)
    large = ANSWER.replace(b"hello", b"x" * 2000)
    assert asked(world, answer=large).body == large
    asked(world, answer=large)


def test_an_answer_is_kept_for_its_time_to_live() -> None:
    world = World()
    cached(world, ttl=60.0)
    asked(world)
    world.plane.now += 59.0
    found(world)
    world.plane.now += 1.0
    asked(world)


def test_a_hit_of_a_large_stream_waits_for_a_client_that_does_not_read() -> None:
    world = World()
    cached(world)
    request = body(stream=True)
    world.start(request)
    world.call.head(SSE_HEAD)
    for _ in range(100):
        world.call.body(chunk("x" * 1000))
    world.call.body(b"".join(STREAM[2:])).end()

    class Slow(Client):
        """Reads no further once it has got a few KiB."""

        exchange: Any = None

        def send(self, data: bytes) -> None:
            super().send(data)
            if len(self.written) > 30_000 and not self.paused:
                self.paused = True
                self.exchange.pause()

    client = Slow()
    exchange = client.exchange = Exchange(world.plane, world.snapshot, client, CHAT, {}, Peer("192.0.2.1"), b"req-2")
    exchange.body = request
    exchange.run(serve(exchange))
    assert not client.ends
    assert 30_000 < len(client.written) < 60_000
    client.paused = False
    while not client.ends:
        before = len(client.written)
        client.paused = False
        exchange.resume()
        assert len(client.written) > before
    assert client.complete
    assert client.body.count(b"x" * 1000) == 100
    assert len(world.engine.calls) == 1


async def test_a_large_answer_is_kept_and_given_between_other_work() -> None:
    world = World()
    cache = cached(world)
    request = b'{"model":"m","input":"a text"}'
    numbers = ",".join(f"{number * 0.6180339887 % 2 - 1:.7f}" for number in range(60_000))
    answer = EMBEDDING.replace(b"1.0", numbers.encode()).replace(b'{"object"', b'{"id":"embd-first","object"', 1)
    asked(world, request, answer, path=b"/v1/embeddings")
    assert cache._store.statistics().entries == 0  # behind the request that caused it
    await reached(lambda: cache._store.statistics().entries)
    before = len(world.engine.calls)
    _, client = world.start(request, path=b"/v1/embeddings")
    assert not client.ends
    await reached(lambda: client.ends)
    assert len(world.engine.calls) == before and client.headers["x-gatehouse-cache"] == "hit"
    given = json.loads(client.body)
    assert given["data"] == json.loads(answer)["data"] and given["id"].startswith("embd-") and given["id"] != "embd-first"


def test_a_fallback_has_its_own_cache() -> None:
    world = World(fallback=True)
    spec = ModelSpec(name="n", pool=("b",), cache=CacheSpec())
    world.entry.fallbacks[0].cache = AnswerCaches(lambda: 0.0).of(spec, b"1", b"s" * 32)
    for word in ("miss", "hit"):
        world.route.errors.append(EngineError("It is away.", code="no_healthy_endpoint", status=503))
        _, client = world.start(body())
        if word == "miss":
            world.call.answer(ANSWER)
        assert (client.headers["x-gatehouse-model"], client.headers["x-gatehouse-cache"]) == ("n", word)
    assert len(world.engine.calls) == 1
