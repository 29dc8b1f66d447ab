"""Checks of the caches of answers: what a model names must be configured."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec

LONGEST = 31 * 86_400.0
"""Seconds for which an answer may be kept on disk or in Redis: purges are known for longer."""


def check(spec: ConfigSpec, error: Callable[[str, str], ConfigError]) -> None:
    """Raises the first error."""
    redis = spec.caches.redis
    if redis is not None and redis.server is None and spec.redis is None:
        raise error("caches.redis", "names no Redis: give `server`, or configure `redis`")
    names = {model.name for model in spec.models}
    for index, model in enumerate(spec.models):
        semantic = None if model.cache is None else model.cache.semantic
        if semantic is not None and (semantic.model == model.name or semantic.model not in names):
            what = "is the model itself" if semantic.model == model.name else "is no model here"
            raise error(f"models[{index}].cache.semantic.model", f"{semantic.model!r} {what}; name a model with embeddings from `models`")
        if model.cache is None or model.cache.also_in is None:
            continue
        where = model.cache.also_in
        if getattr(spec.caches, where) is None:
            raise error(f"models[{index}].cache.also_in", f"`caches.{where}` is not configured; `caches: {{{where}: {{}}}}` is enough")
        if model.cache.ttl > LONGEST:
            raise error(f"models[{index}].cache.ttl", "an answer is kept outside of memory for at most 31 days (31d)")
