"""Settings of caches that name what is not there are refused, with what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.cache_rules import check
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, ModelSpec
from gateway.core.specs.caches import CacheSpec, CachesSpec, RedisCacheSpec, SemanticSpec


def error(path: str, message: str) -> ConfigError:
    return ConfigError(message, path=path)


def one(**settings: Any) -> dict[str, Any]:
    return {"models": (ModelSpec(name="m", pool=("a",), cache=CacheSpec(**settings)), ModelSpec(name="embed", pool=("a",)))}


@pytest.mark.parametrize(
    ("parts", "path", "words"),
    [
        ({"caches": CachesSpec(redis=RedisCacheSpec())}, "caches.redis", "names no Redis"),
        (one(also_in="disk"), "models[0].cache.also_in", "caches: {disk: {}}"),
        (one(semantic=SemanticSpec(model="m")), "models[0].cache.semantic.model", "is the model itself"),
        (one(semantic=SemanticSpec(model="embd")), "models[0].cache.semantic.model", "is no model here"),
    ],
)
def test_what_is_not_there_is_named(parts: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(ConfigError) as found:
        check(ConfigSpec(version=1, **parts), error)
    assert found.value.path == path
    assert words in str(found.value)


def test_a_model_with_an_embedding_model_beside_it_passes() -> None:
    check(ConfigSpec(version=1, **one(semantic=SemanticSpec(model="embed"))), error)
