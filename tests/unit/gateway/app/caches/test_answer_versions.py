"""What makes kept answers unreachable: another engine, other guardrails. What does not: copies, addresses, other settings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.app.caches.answer_versions import version_of
from gateway.core.specs import ConfigSpec, EngineSpec, GuardrailSpec, ModelSpec, PoolMemberSpec
from gateway.core.specs.caches import CacheSpec

ENGINE = EngineSpec(name="a", runtime="external", url="http://a")
MODEL = ModelSpec(name="m", pool=("a",))
GUARD = GuardrailSpec(name="g", type="denylist", settings={"phrases": ["x"]})


def version(
    model: ModelSpec = MODEL, engines: tuple[EngineSpec, ...] = (ENGINE,), guards: tuple[GuardrailSpec, ...] = (GUARD,), number: int = 1
) -> bytes:
    return version_of(model, ConfigSpec(version=1, engines=engines, models=(model,), guardrails=guards), number)


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://b"},
        {"version": "2"},
        {"options": {"x": 1}},
        {"context": 4096},
        {"model": "other"},
        {"runtime": "onnx"},
        {"headers": {"x-deployment": "2"}},
    ],
)
def test_an_engine_that_runs_something_else(change: dict[str, Any]) -> None:
    assert version(engines=(msgspec.structs.replace(ENGINE, **change),)) != version()


@pytest.mark.parametrize("change", [{"weight": 2.0}, {"slots": 4}, {"queue": 1}, {"clearance": ("*",)}])
def test_an_engine_that_runs_the_same(change: dict[str, Any]) -> None:
    assert version(engines=(msgspec.structs.replace(ENGINE, **change),)) == version()


def test_copies_and_addresses_come_and_go() -> None:
    copy = msgspec.structs.replace(ENGINE, name="a~2")
    assert version(msgspec.structs.replace(MODEL, pool=("a", "a~2")), (ENGINE, copy)) == version()
    places = tuple(msgspec.structs.replace(ENGINE, name=f"a@10.0.0.{n}:80", url=f"http://10.0.0.{n}") for n in (1, 2))
    both = version(msgspec.structs.replace(MODEL, pool=(places[0].name, places[1].name)), places)
    assert both == version(msgspec.structs.replace(MODEL, pool=(places[0].name,)), places)


def test_a_pool_that_names_another_model_of_its_engine() -> None:
    assert version(msgspec.structs.replace(MODEL, pool=(PoolMemberSpec(engine="a", model="other"),))) != version()
    assert version(msgspec.structs.replace(MODEL, upstream_model="other")) != version()


def test_guardrails_that_concern_the_model() -> None:
    assert version(guards=()) != version()
    assert version(guards=(msgspec.structs.replace(GUARD, settings={"phrases": ["y"]}),)) != version()
    other = GuardrailSpec(name="h", type="denylist", models=("n*",))
    assert version(guards=(GUARD, other)) == version()


def test_a_file_that_may_have_changed_counts_with_each_configuration() -> None:
    reading = msgspec.structs.replace(GUARD, settings={"phrases_file": "words.txt"})
    assert version(guards=(reading,), number=2) != version(guards=(reading,), number=1)
    assert version(number=2) == version(number=1)


def test_an_answer_that_was_kept_for_another_time_is_another() -> None:
    """One of three days ago is not given where answers are kept for an hour now."""
    kept = [msgspec.structs.replace(MODEL, cache=CacheSpec(ttl=ttl)) for ttl in (7 * 86_400.0, 3600.0)]
    assert version(kept[0]) != version(kept[1])
    assert version(msgspec.structs.replace(kept[0], cache=CacheSpec(ttl=7 * 86_400.0, charge=False))) == version(kept[0])
