"""Answers to similar requests: who gets them, what of the request may differ, and what an embedding model can do to it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caches.near import unit
from gateway.caches.registry import AnswerCaches, ModelCache
from gateway.core import slices
from gateway.core.caching import Answer
from gateway.core.errors import AuditUnavailable
from gateway.core.slices import at_once
from gateway.core.specs import ModelSpec
from gateway.core.specs.caches import CacheSpec, SemanticSpec
from gateway.core.types import Principal
from gateway.core.waiting import Signal
from gateway.wire.table import parse
from tests.unit.gateway.pipeline.test_cached import ANSWER, STREAM, asked, body, found
from tests.unit.gateway.pipeline.world import CHAT, SSE_HEAD, World

QUESTION, SAME, NOT = "How do I reset my password?", "hello, how do i reset my password", "How do I not reset my password?"
LONG = 1000
"""Messages."""
VECTOR = unit([1.0 + n % 3 for n in range(32)])


class Vectors:
    """Embeds everything alike at once, the worst of embedding models, or as it is told. held: those that wait."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.vector = VECTOR
        self.hold = self.away = False
        self.held: list[Signal[Any]] = []

    def ask(self, model: str, text: str, labels: frozenset[str], seconds: float) -> Signal[Any] | None:
        assert (model, seconds) == ("embed", 0.1)
        self.texts.append(text)
        if self.away:
            return None
        signal: Signal[Any] = Signal()
        if self.hold:
            self.held.append(signal)
        else:
            signal.set(self.vector)
        return signal


def similar(world: World, tenants: tuple[str, ...] = ("acme",), **settings: Any) -> tuple[ModelCache, Vectors, AnswerCaches]:
    semantic = {name: settings.pop(name) for name in ("words", "threshold", "max_entries") if name in settings}
    spec = ModelSpec(name="m", pool=("a",), cache=CacheSpec(semantic=SemanticSpec(model="embed", **semantic), **settings))
    vectors = Vectors()
    caches = AnswerCaches(lambda: world.plane.now, vectors)  # type: ignore[arg-type]
    made = caches.of(spec, b"1", b"s" * 32, tenants, b"e1")
    world.entry.cache = made
    assert made is not None
    return made, vectors, caches


def counts(caches: AnswerCaches) -> dict[str, int]:
    return caches.statistics()["m"]


def test_a_similar_request_gets_the_answer_and_the_record_says_whose_it_is() -> None:
    world = World()
    _, vectors, caches = similar(world)
    assert asked(world, body(QUESTION)).headers["x-gatehouse-cache"] == "miss"
    again = found(world, body(SAME))
    assert again.headers["x-gatehouse-cache"] == "semantic"
    assert json.loads(again.body)["choices"] == json.loads(ANSWER)["choices"]
    first, second = world.audit.outcomes
    assert (second.outcome, second.endpoint, second.attempts) == ("ok", "", 0)
    key = first.detail["cache_key"]  # type: ignore[index]
    source = world.audit.intents[0].request_id
    assert second.detail == {"cache": "semantic", "cache_key": key, "cache_source": source, "cache_similarity": 1.0}
    assert found(world, body(QUESTION)).headers["x-gatehouse-cache"] == "hit"
    assert vectors.texts == [QUESTION, SAME]
    assert (counts(caches)["semantic"], counts(caches)["hits"], counts(caches)["misses"]) == (1, 1, 1)


def test_it_is_limited_and_charged_like_a_request() -> None:
    world = World()
    similar(world)
    asked(world, body(QUESTION))
    client = found(world, body(SAME))
    assert "x-ratelimit-limit-requests" in client.headers
    assert world.limiter.reservations[1].settled == world.limiter.reservations[0].settled
    world.authorizer.allow = False
    _, refused = world.start(body(SAME))
    assert refused.status == 403


@pytest.mark.parametrize("error", [None, AuditUnavailable("The audit log takes no records.")])
def test_nothing_of_a_request_goes_to_the_embedding_model_before_its_intent_is_durable(error: AuditUnavailable | None) -> None:
    world = World()
    _, vectors, _ = similar(world)
    world.audit.durable = False
    _, client = world.start(body(QUESTION))
    assert vectors.texts == [] and world.engine.calls == []
    if error is not None:
        world.audit.tickets[0].fail(error)
        assert client.status == 503 and vectors.texts == [] and world.engine.calls == []
        return
    world.audit.tickets[0].set(None)
    assert vectors.texts == [QUESTION] and len(world.engine.calls) == 1


@pytest.mark.parametrize("tenants", [(), ("globex",), ("*",), ("acm",)])
def test_it_is_off_for_all_tenants_that_have_not_asked(tenants: tuple[str, ...]) -> None:
    world = World()
    _, vectors, _ = similar(world, tenants)
    asked(world, body(QUESTION))
    asked(world, body(SAME))
    assert vectors.texts == []


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"user": "ann"},
        {"max_tokens": 7},
        {"stop": ["x"]},
        {"stream": True},
        {"response_format": {"type": "json_object"}},
        {"n": 2},
        {"logit_bias": {"1": 2}},
        {"messages": [{"role": "system", "content": "Be rude."}, {"role": "user", "content": SAME}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": SAME}]},
        {"messages": [{"role": "user", "content": NOT}]},
    ],
)
def test_nothing_but_the_words_of_the_last_question_may_differ(change: dict[str, Any]) -> None:
    world = World()
    similar(world)
    asked(world, body(QUESTION))
    before = len(world.engine.calls)
    world.start(body(SAME, **change))
    assert len(world.engine.calls) == before + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"tool_choice": "none"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
        {"messages": [{"role": "user", "name": "ann", "content": QUESTION}]},
        {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "To"}]},
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "user", "content": QUESTION}]},
        {"messages": [{"role": "user", "content": "\u4f60\u597d\u5417"}]},
    ],
)
def test_requests_of_other_kinds_are_not_compared(fields: dict[str, Any]) -> None:
    world = World()
    _, vectors, _ = similar(world)
    world.start(body(QUESTION, **fields))
    assert world.engine.calls
    assert vectors.texts == []


def test_a_stream_is_given_as_a_stream() -> None:
    world = World()
    similar(world)
    _, first = world.start(body(QUESTION, stream=True))
    world.call.head(SSE_HEAD)
    for event in STREAM:
        world.call.body(event)
    world.call.end()
    second = found(world, body(SAME, stream=True))
    assert second.headers["x-gatehouse-cache"] == "semantic"
    assert second.headers["content-type"].startswith("text/event-stream")
    assert second.complete
    assert second.body.count(b"data: ") == first.body.count(b"data: ")


def test_another_version_of_the_model_its_guardrails_or_the_embedding_model_starts_anew() -> None:
    world = World()
    _, _, caches = similar(world, deduplicate=False)
    asked(world, body(QUESTION))
    spec = ModelSpec(name="m", pool=("a",), cache=CacheSpec(deduplicate=False, semantic=SemanticSpec(model="embed")))
    for version, embeds in ((b"2", b"e1"), (b"1", b"e2")):
        world.entry.cache = caches.of(spec, version, b"s" * 32, ("acme",), embeds)
        assert caches.statistics()["m"]["entries"] == 1
        before = len(world.engine.calls)
        world.start(body(SAME))
        assert len(world.engine.calls) == before + 1
    world.entry.cache = caches.of(spec, b"1", b"s" * 32, ("acme",), b"e1")
    assert found(world, body(SAME)).headers["x-gatehouse-cache"] == "semantic"


def test_nobody_waits_where_there_is_nothing_to_compare_with_and_the_answer_is_learned_later() -> None:
    world = World()
    _, vectors, caches = similar(world)
    vectors.hold = True
    asked(world, body(QUESTION))
    asked(world, body(SAME))
    vectors.held[0].set(VECTOR)
    vectors.held[1].set(None)
    assert counts(caches)["unembedded"] == 1
    before = len(world.engine.calls)
    _, waits = world.start(body("Please: " + QUESTION))
    assert (len(world.engine.calls), waits.written) == (before, b"")
    vectors.held[2].set(VECTOR)
    assert waits.headers["x-gatehouse-cache"] == "semantic"


@pytest.mark.parametrize("how", ["away", "fails", "another size", "far"])
def test_an_embedding_model_that_does_not_help_is_a_miss(how: str) -> None:
    world = World()
    _, vectors, _ = similar(world)
    asked(world, body(QUESTION))
    vectors.away = how == "away"
    vectors.vector = {"fails": None, "another size": unit([1.0] * 8), "far": unit([-1.0] * 32)}.get(how, VECTOR)
    assert asked(world, body(SAME)).headers["x-gatehouse-cache"] == "miss"


def test_identical_requests_that_wait_for_a_vector_share_one_call() -> None:
    world = World()
    _, vectors, _ = similar(world)
    asked(world, body(QUESTION))
    vectors.hold = True
    clients = [world.start(body(SAME))[1] for _ in range(3)]
    before = len(world.engine.calls)
    for signal in vectors.held:
        signal.set(unit([-1.0] * 32))
    assert len(world.engine.calls) == before + 1
    world.call.answer(ANSWER)
    assert sorted(client.headers["x-gatehouse-cache"] for client in clients) == ["joined", "joined", "miss"]


@pytest.mark.parametrize("control", ["no-cache", "no-store"])
def test_a_client_that_wants_no_cache_gets_no_similar_answer(control: str) -> None:
    world = World()
    similar(world)
    asked(world, body(QUESTION))
    asked(world, body(SAME), headers={b"cache-control": control.encode()})


@pytest.mark.parametrize("purge", [{}, {"tenant": "acme"}, {"key": "its own"}])
def test_a_purge_covers_it(purge: dict[str, Any]) -> None:
    world = World()
    _, _, caches = similar(world)
    asked(world, body(QUESTION))
    if "key" in purge:
        purge = {"key": bytes.fromhex(world.audit.outcomes[0].detail["cache_key"])}  # type: ignore[index]
    assert caches.purge(**purge) == 1
    asked(world, body(SAME))


def test_an_answer_that_is_purged_while_the_vector_is_awaited_is_not_learned() -> None:
    world = World()
    _, vectors, caches = similar(world)
    vectors.hold = True
    asked(world, body(QUESTION))
    caches.purge()
    asked(world, body(QUESTION))
    vectors.held[0].set(VECTOR)
    assert not caches._stores["m"].near
    vectors.held[1].set(VECTOR)
    assert len(caches._stores["m"].near) == 1


def test_an_answer_that_has_expired_is_not_given_to_similar_requests_either() -> None:
    world = World()
    _, _, caches = similar(world, ttl=60.0)
    asked(world, body(QUESTION))
    world.plane.now += 61
    asked(world, body(SAME))
    assert len(caches._stores["m"].near) == 1


def test_a_tenant_that_takes_its_wish_back_leaves_no_vectors() -> None:
    world = World()
    _, vectors, caches = similar(world)
    asked(world, body(QUESTION))
    spec = ModelSpec(name="m", pool=("a",), cache=CacheSpec(semantic=SemanticSpec(model="embed")))
    world.entry.cache = caches.of(spec, b"1", b"s" * 32, ("globex",), b"e1")
    assert not caches._stores["m"].near
    asked(world, body(SAME))
    assert vectors.texts == [QUESTION]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["acme", "globex", "acme\0", "key\0acme"]), st.sampled_from("ab"), st.sampled_from(["", "u"]), st.booleans()
        ),
        min_size=2,
        max_size=12,
    ),
    st.sampled_from(["tenant", "key"]),
)
def test_no_answer_passes_to_another_isolation_domain(callers: list[tuple[str, str, str, bool]], sharing: Any) -> None:
    """Even where an embedding model finds everything alike."""
    world = World()
    cache, _, _ = similar(world, ("acme", "globex", "acme\0", "key\0acme"), sharing=sharing)
    kept: dict[str, tuple[str, ...]] = {}
    for number, (tenant, key, user, polite) in enumerate(callers):
        principal = Principal(key, tenant, "api_key", user=user)
        mine = (tenant,) if sharing == "tenant" else (tenant, key, user)
        request = parse(CHAT, body(SAME if polite else QUESTION), {})
        question = at_once(cache.question(principal, request))
        assert question is not None
        near = cache.nearest(question)
        assert (near is not None) == (mine in kept.values())
        if near is not None:
            assert kept[near.source] == mine
        own = cache.key(principal, request)
        answer = cache.find(own)
        if answer is None and near is None:
            cache.store(own, Answer([], False, [b"x"]), tenant, cache.epoch)
            cache.learn(question, own, str(number), cache.epoch)
            kept[str(number)] = mine


def long(question: str, *changes: str) -> bytes:
    """A request with a long conversation before its question. changes: the first messages of it."""
    said = [*changes, *[f"{number} " + "lorem ipsum " * 30 for number in range(LONG - len(changes))], question]
    return body(messages=[{"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(said)])


async def test_a_long_conversation_is_compared_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time for a slice, every step is a turn."""
    monkeypatch.setattr(slices, "SLICE", 0.0)
    world = World()
    similar(world)
    for request, word in ((long(QUESTION), "miss"), (long(SAME), "semantic"), (long(SAME, "another beginning"), "miss")):
        taken, (_, client) = 0, world.start(request)
        while not client.ends:
            taken += 1
            await asyncio.sleep(0)
            if world.engine.calls and not world.call.over:
                world.call.answer(ANSWER)
        assert taken > 2 * LONG and client.headers["x-gatehouse-cache"] == word
