"""What the answers of a model depend on besides the request, as far as the configuration says it: a part of the key of each kept answer."""

from __future__ import annotations

from hashlib import blake2b

from gateway.app.configuration.parts import key_of, reads_files
from gateway.core.specs import ConfigSpec, EngineSpec, ModelSpec
from policies.patterns import matches


def version_of(model: ModelSpec, spec: ConfigSpec, version: int) -> bytes:
    """Differs where the engines of the model run something else, its guardrails are others, or answers are kept for another time: what was
    kept for a longer one is not given any more. version: of the configuration, which counts where a guardrail reads a file, as the file may
    have changed.

    Copies of an engine and the addresses of a name run the same, and come and go.
    """
    engines = {engine.name: engine for engine in spec.engines}
    members = [(member, None) if isinstance(member, str) else (member.engine, member.model) for member in model.pool]
    runs = {key_of((_runs(engines[name]), own)) for name, own in members if name in engines}
    guardrails = [guard for guard in spec.guardrails if any(matches(pattern, model.name) for pattern in guard.models)]
    read = version if any(reads_files(guard.settings) for guard in guardrails) else 0
    ttl = None if model.cache is None else model.cache.ttl
    parts = [model.upstream_model, model.unknown_fields, model.engine_tools, sorted(runs), guardrails, read, ttl]
    return blake2b(key_of(parts), digest_size=32).digest()


def _runs(engine: EngineSpec) -> tuple[object, ...]:
    url = None if "@" in engine.name else engine.url
    return (engine.runtime, engine.version, engine.model, engine.sha256, engine.context, engine.options, engine.headers, url)
