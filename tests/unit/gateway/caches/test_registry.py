"""The caches of a process: what outlives a change of the configuration, and which requests they concern."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from typing import Any

import msgspec
import pytest

from gateway.caches.registry import AHEAD, MOST_LATER, AnswerCaches, ModelCache, cold
from gateway.core.caching import Answer, Looked
from gateway.core.slices import Steps
from gateway.core.specs import ModelSpec
from gateway.core.specs.caches import CacheSpec
from gateway.core.types import InferenceRequest, Principal
from gateway.core.wire import Memory
from gateway.wire.table import parse
from tests.waiting import reached

SECRET = b"s" * 32
CALLER = Principal("k", "acme", "api_key")
ANSWER = Answer([(b"content-type", b"application/json")], True, [b'{"id":', b"}"], b"chatcmpl-")


def model(name: str = "m", **settings: Any) -> ModelSpec:
    return ModelSpec(name=name, pool=("a",), cache=CacheSpec(**settings))


def chat(**fields: Any) -> InferenceRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, **fields}
    return parse(b"/v1/chat/completions", json.dumps(body).encode(), {})


def made(caches: AnswerCaches, spec: ModelSpec, version: bytes = b"1") -> ModelCache:
    found = caches.of(spec, version, SECRET)
    assert found is not None
    return found


def stored(cache: ModelCache, request: InferenceRequest | None = None) -> bytes:
    key = cache.key(CALLER, request or chat())
    cache.store(key, ANSWER, "acme", cache.epoch)
    return key


def test_an_answer_comes_back_as_it_was() -> None:
    cache = made(AnswerCaches(lambda: 0.0), model())
    found = cache.find(stored(cache))
    assert isinstance(found, Answer)
    assert (list(found.headers), found.foreign, found.parts, found.prefix) == (ANSWER.headers, True, ANSWER.parts, ANSWER.prefix)


def test_a_model_without_the_setting_has_no_cache() -> None:
    assert AnswerCaches(lambda: 0.0).of(ModelSpec(name="m", pool=("a",)), b"1", SECRET) is None


def test_a_change_of_other_settings_keeps_what_is_kept() -> None:
    caches = AnswerCaches(lambda: 0.0)
    first = made(caches, model())
    key = stored(first)
    second = made(caches, model(ttl=5.0, charge=False))
    assert second.find(key) is not None
    assert second.flights is first.flights


@pytest.mark.parametrize("change", [{"policy": "lfu"}, {"max_entries": 5}, {"max_bytes": 5000}, {"compress_above": 0}])
def test_other_bounds_begin_anew(change: dict[str, Any]) -> None:
    caches = AnswerCaches(lambda: 0.0)
    first = made(caches, model())
    key = stored(first)
    assert made(caches, model(**change)).find(key) is None


def test_another_version_of_the_model_reaches_nothing_of_before() -> None:
    caches = AnswerCaches(lambda: 0.0)
    first = made(caches, model())
    stored(first)
    second = made(caches, model(), b"2")
    assert second.find(second.key(CALLER, chat())) is None


def test_what_a_model_had_goes_with_it() -> None:
    caches = AnswerCaches(lambda: 0.0)
    cache = made(caches, model())
    stored(cache)
    assert caches.statistics()["m"]["entries"] == 1
    del cache
    gc.collect()
    assert caches.statistics() == {}


def test_purges_by_model_tenant_and_key() -> None:
    caches = AnswerCaches(lambda: 0.0)
    one, two = made(caches, model("one")), made(caches, model("two"))
    keys = [stored(one), stored(two)]
    assert caches.purge(model="two") == 1
    assert [one.find(keys[0]) is None, two.find(keys[1]) is None] == [False, True]
    assert caches.purge(tenant="globex") == 0
    assert caches.purge(tenant="acme") == 1
    key = stored(one)
    stored(one, chat(seed=1))
    assert caches.purge(key=key) == 1
    assert caches.statistics()["one"]["entries"] == 1


@pytest.mark.parametrize(
    ("fields", "concerned"),
    [({}, True), ({"temperature": 0.0}, True), ({"temperature": 0.1}, False), ({"temperature": None}, False), ({"temperature": 2}, False)],
)
def test_only_requests_without_chance(fields: dict[str, Any], concerned: bool) -> None:
    assert made(AnswerCaches(lambda: 0.0), model()).concerns(chat(**fields)) is concerned
    assert made(AnswerCaches(lambda: 0.0), model(temperature="any")).concerns(chat(**fields))


@pytest.mark.parametrize(
    ("given", "zero"), [(b"0", True), (b"0.0", True), (b"-0.0", True), (b"0e5", True), (b"1e-9", False), (b"null", False), (b"", False)]
)
def test_a_temperature_of_zero_in_any_spelling(given: bytes, zero: bool) -> None:
    assert cold(msgspec.Raw(given)) is zero
    assert not cold(None)


def test_requests_of_a_conversation_that_is_kept_are_left_alone() -> None:
    request = chat()
    request.memory = Memory("", keeps=True)
    assert not made(AnswerCaches(lambda: 0.0), model()).concerns(request)


def test_an_answer_of_a_clock_that_was_ahead_is_not_taken() -> None:
    """It would be given until that time has come."""
    cache = made(AnswerCaches(lambda: 0.0), model(ttl=60.0))
    value = msgspec.msgpack.encode(([], False, [b"{}"], b""))
    key = cache.key(CALLER, chat())
    assert cache.taken(key, "acme", Looked(b"", value, 61.0 + AHEAD), cache.epoch) is None and cache.find(key) is None
    assert cache.taken(key, "acme", Looked(b"", value, 59.0 + AHEAD), cache.epoch) is not None and cache.find(key) is not None


async def test_large_answers_are_kept_one_after_the_other_between_other_work_and_not_too_many_of_them() -> None:
    cache = made(AnswerCaches(lambda: 0.0), model())
    done: list[str] = []
    slow = 0.001  # of a step: longer than a slice
    loop = asyncio.get_running_loop()

    def work(name: str) -> Steps[None]:
        for _ in range(3):
            end = time.monotonic() + slow
            while time.monotonic() < end:
                pass
            done.append(name)
            yield

    cache.later(work("one"), MOST_LATER)
    cache.later(work("two"), 1)
    assert cache._store.counted.refused == 1
    cache.later(work("three"), 0)

    def turn() -> None:
        done.append("turn")
        if done.count("three") < 3:
            loop.call_soon(turn)

    loop.call_soon(turn)
    await reached(lambda: done.count("three") == 3)
    assert [name for name in done if name != "turn"] == ["one"] * 3 + ["three"] * 3
    assert done.count("turn") >= 6
    cache.later(work("four"), MOST_LATER)
    await reached(lambda: done.count("four") == 3)
