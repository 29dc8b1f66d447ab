"""Engines and models of the store behind those of the file: what fits is taken, what does not is left out, with the reason.

The file wins over the same name. Each resource is checked by the file's own rules (gateway.config.validate). One that breaks
them takes nothing else with it: a write is checked before it is stored, so here it is what two replicas wrote at the same
moment, or what a change of the file has left without its engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.config import validate
from gateway.config.convert import nearest, quoted
from gateway.core.errors import ConfigError
from gateway.core.slices import Steps
from gateway.core.specs import ConfigSpec, EngineSpec, ModelSpec

Which = tuple[str, str]
"""Kind (`engines`, `models`) and name of a resource."""


@dataclass(frozen=True)
class Merged:
    """All engines and models, the file's first. left_out: why those of the store that are not among them are not; the errors'
    paths are within the resource."""

    engines: tuple[EngineSpec, ...]
    models: tuple[ModelSpec, ...]
    left_out: dict[Which, ConfigError] = field(default_factory=dict)


def merge(file: ConfigSpec, engines: Iterable[EngineSpec], models: Iterable[ModelSpec]) -> Steps[Merged]:
    """Steps of about the same size, each far below a millisecond."""
    left_out: dict[Which, ConfigError] = {}
    own = {engine.name for engine in file.engines}
    taken = [*file.engines]
    for engine in engines:
        if engine.name not in own:
            try:
                validate.engine(engine, "", _error)
            except ConfigError as error:
                left_out["engines", engine.name] = error
            else:
                taken.append(engine)
            yield
    names = {engine.name for engine in taken}
    fitting = yield from _models(file, tuple(models), names, left_out)
    return Merged(tuple(taken), (*file.models, *fitting), left_out)


def _models(
    file: ConfigSpec, models: Sequence[ModelSpec], engines: set[str], left_out: dict[Which, ConfigError]
) -> Steps[tuple[ModelSpec, ...]]:
    own = {model.name for model in file.models}
    named = {alias: model.name for model in file.models for alias in model.aliases}
    candidates = {model.name: model for model in models if model.name not in own}
    fitting: dict[str, ModelSpec] = {}
    for name, model in candidates.items():
        try:
            if name in named:
                raise _error("name", f"{quoted(name)} is an alias of the model {quoted(named[name])}")
            validate.pool(model, "", engines, _error)
            for place, alias in enumerate(model.aliases):
                other = alias if alias in own or alias in candidates else named.get(alias)
                if other is not None or alias in model.aliases[:place]:
                    raise _error(f"aliases[{place}]", f"{quoted(alias)} is already the name of something else ({other or name})")
        except ConfigError as error:
            left_out["models", name] = error
        else:
            fitting[name] = model
            named.update(dict.fromkeys(model.aliases, name))
        yield
    return (yield from _with_fallbacks(fitting, own, left_out))


def _with_fallbacks(fitting: dict[str, ModelSpec], own: set[str], left_out: dict[Which, ConfigError]) -> Steps[tuple[ModelSpec, ...]]:
    """Those whose fallbacks lead to models that are there, and never back to themselves (Kahn's ordering, 1962)."""
    open_ends = {name: len({f for f in model.fallbacks if f not in own}) for name, model in fitting.items()}
    leaning: dict[str, list[str]] = {}
    for name, model in fitting.items():
        for fallback in set(model.fallbacks) - own:
            leaning.setdefault(fallback, []).append(name)
    yield
    settled = [name for name, count in open_ends.items() if not count]
    for name in settled:  # grows while it is walked
        for other in leaning.get(name, ()):
            open_ends[other] -= 1
            if not open_ends[other]:
                settled.append(other)
    yield
    good = set(settled)
    for name, model in fitting.items():
        if name not in good:
            left_out["models", name] = _no_fallback(model, fitting, own, good)
    return tuple(model for name, model in fitting.items() if name in good)


def _no_fallback(model: ModelSpec, fitting: Mapping[str, ModelSpec], own: set[str], good: set[str]) -> ConfigError:
    for place, name in enumerate(model.fallbacks):
        if name not in own and name not in fitting:
            return _error(f"fallbacks[{place}]", f"there is no model {quoted(name)}; {nearest(name, (*own, *fitting))}")
    trail = [model.name]
    while True:  # each has one that leads on, as none of them is good
        following = next(name for name in fitting[trail[-1]].fallbacks if name not in own and name not in good)
        if following not in fitting:
            return _error("fallbacks", f"the fallback {quoted(trail[-1])} cannot be used itself")
        if following in trail:
            circle = " -> ".join([*trail[trail.index(following) :], following])
            return _error("fallbacks", f"the fallbacks go round in a circle: {circle}")
        trail.append(following)


def _error(path: str, message: str) -> ConfigError:
    return ConfigError(message, path=path.lstrip(".") or None)
