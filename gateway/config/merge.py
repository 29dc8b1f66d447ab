"""Merges the store's part of the configuration behind the file's: what fits is taken, what does not is left out with the reason.

For the same name, the file wins. Engines and models are checked by the file's own rules (gateway.config.validate), and one that breaks them
is left out alone. Writes are checked before they are stored, so this happens only if two replicas wrote at the same moment, or a change of
the file removed a model's engine. An unusable limit or guardrail refuses the whole change, because without it less would be protected; so
does an unusable binding that denies. An unusable binding that allows stays, as a role that permits nothing: without it, a key with no other
role would have all rights that the key itself names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gateway.config import label_rules, validate
from gateway.config.candidate_rules import canary_fault, shadow_fault
from gateway.config.convert import nearest, quoted
from gateway.config.pipeline_rules import pipeline_fault
from gateway.core import price_rules
from gateway.core.errors import ConfigError
from gateway.core.slices import Steps, portions
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, GuardrailSpec, LimitSpec, ModelSpec, PriceSpec, RoleSpec, Spec

BINDINGS = 200
"""Roles or bindings between two pauses."""
UNUSABLE = "unusable:"
"""Begins the name of the role, which is nowhere defined, of a binding that cannot be used."""
Which = tuple[str, str]
"""Kind (`engines`, `models`, `roles`, `bindings`) and name of a resource."""
S = TypeVar("S", bound=Spec)
P = TypeVar("P", LimitSpec, GuardrailSpec, PriceSpec)


@dataclass(frozen=True)
class Addition:
    """One resource of the store: its settings, or the error that makes them unusable (a binding may have both). made: when it was created,
    because a name may be used again. denies: a binding that is not known to allow."""

    revision: int
    made: float
    spec: Spec | None
    error: ConfigError | None = None
    denies: bool = False


Additions = Mapping[str, Mapping[str, Addition]]
"""What the store adds, by kind and name."""


@dataclass(frozen=True)
class Merged:
    """A configuration with the store's additions. revisions: of each engine and model of the store that is in it. left_out: why the others
    are not; the errors' paths are within the resource."""

    spec: ConfigSpec
    revisions: dict[Which, int] = field(default_factory=dict)
    left_out: dict[Which, ConfigError] = field(default_factory=dict)


def merge(file: ConfigSpec, additions: Additions, built_in: Collection[str] = ()) -> Steps[Merged]:
    """Yields about evenly, far more often than once a millisecond. Raises ConfigError for a limit, a guardrail or a binding that denies, if
    it cannot be used. built_in: names of roles that bindings may name beside those of the configuration."""
    limits = yield from _policies("limits", additions, LimitSpec, file.limits)
    guardrails = yield from _policies("guardrails", additions, GuardrailSpec, file.guardrails)
    left_out = {(kind, name): one.error for kind in ("engines", "models") for name, one in additions[kind].items() if one.error}
    engines = yield from _engines(file, tuple(_specs(additions["engines"], EngineSpec)), left_out)
    yield
    named = {engine.name for engine in engines} if additions["models"] else set()
    models = yield from _models(file, tuple(_specs(additions["models"], ModelSpec)), named, left_out)
    yield
    own = _own(file, additions)
    yield
    revisions = {
        (kind, name): one.revision
        for kind in ("engines", "models")
        for name, one in additions[kind].items()
        if (kind, name) not in left_out and (kind, name) not in own
    }
    roles, bindings, unusable = yield from merge_access(file, additions, built_in)
    left_out.update(unusable)
    prices = (*file.prices, *(yield from _policies("prices", additions, PriceSpec, file.prices)))
    if len(prices) > len(file.prices):
        yield from price_rules.checking(prices, _in_store)
    for count, one in enumerate(guardrails):
        label_rules.check_guardrail(one, file.labels, f"guardrails.{one.name}", _in_store)
        if count % BINDINGS == 0:
            yield
    spec = msgspec.structs.replace(
        file,
        prices=prices,
        roles=roles,
        bindings=bindings,
        limits=(*file.limits, *limits),
        guardrails=(*file.guardrails, *guardrails),
        engines=engines,
        models=(*file.models, *models),
    )
    return Merged(spec, revisions, left_out)


def _in_store(path: str, message: str) -> ConfigError:
    return ConfigError(message, path=path, file="the store")


def _own(file: ConfigSpec, additions: Additions) -> set[Which]:
    """The engines and models of the file, as far as the store could have one of that name."""
    engines = {("engines", engine.name) for engine in file.engines} if additions["engines"] else set()
    return engines | ({("models", model.name) for model in file.models} if additions["models"] else set())


def _specs(additions: Mapping[str, Addition], wanted: type[S]) -> Iterable[S]:
    return (one.spec for one in additions.values() if isinstance(one.spec, wanted))


def _policies(kind: str, additions: Additions, wanted: type[P], own: tuple[P, ...]) -> Steps[tuple[P, ...]]:
    """What the store adds to the file's own. Raises ConfigError for one that cannot be used."""
    names = {policy.name for policy in own}
    found: list[P] = []
    for some in portions(list(additions.get(kind, {}).items())):
        for name, one in some:
            if one.error is not None:
                raise ConfigError(one.error.message, path=f"{kind}.{name}", file="the store")
        found += [one.spec for _, one in some if isinstance(one.spec, wanted) and one.spec.name not in names]
        yield
    return tuple(found)


def merge_access(
    file: ConfigSpec, additions: Additions, built_in: Collection[str] = ()
) -> Steps[tuple[dict[str, RoleSpec], tuple[BindingSpec, ...], dict[Which, ConfigError]]]:
    """Roles, bindings, and those that cannot be used. Raises ConfigError for a binding that denies, if it cannot be used."""
    left_out: dict[Which, ConfigError] = {}
    roles = yield from _roles(file, additions.get("roles", {}), built_in, left_out)
    yield
    bindings = yield from _bindings(file, additions.get("bindings", {}), roles, built_in, left_out)
    return roles, bindings, left_out


def _roles(
    file: ConfigSpec, added: Mapping[str, Addition], built_in: Collection[str], left_out: dict[Which, ConfigError]
) -> Steps[dict[str, RoleSpec]]:
    roles = dict(file.roles)
    for count, (name, one) in enumerate(added.items()):
        if count % BINDINGS == 0:
            yield
        if name in file.roles:
            continue
        if one.error is not None:
            left_out["roles", name] = one.error
        elif name in built_in:
            left_out["roles", name] = _error("name", f"{quoted(name)} is a built-in role of the admin API")
        elif isinstance(one.spec, RoleSpec):
            roles[name] = one.spec
    return roles


def _bindings(
    file: ConfigSpec, added: Mapping[str, Addition], roles: Collection[str], built_in: Collection[str], left_out: dict[Which, ConfigError]
) -> Steps[tuple[BindingSpec, ...]]:
    known: tuple[str, ...] = ()
    own = {binding.name for binding in file.bindings}
    taken = list(file.bindings)
    for count, (name, one) in enumerate(added.items()):
        if count % BINDINGS == 0:
            yield
        if name in own:
            continue
        spec, error = one.spec, one.error
        if error is None and isinstance(spec, BindingSpec) and spec.role not in roles and spec.role not in built_in:
            known = known or (*roles, *built_in)
            error = _error("role", f"there is no role {quoted(spec.role)}; {nearest(spec.role, known)}")
        if error is None:
            taken.append(spec)  # type: ignore[arg-type]
            continue
        if one.denies:
            path = f"bindings.{name}" + (f".{error.path}" if error.path else "")
            raise ConfigError(error.message, path=path, file="the store")
        left_out["bindings", name] = error
        if isinstance(spec, BindingSpec):
            taken.append(msgspec.structs.replace(spec, role=f"{UNUSABLE}{spec.role}"[:128], when=None))
    return tuple(taken)


def _engines(file: ConfigSpec, engines: Sequence[EngineSpec], left_out: dict[Which, ConfigError]) -> Steps[tuple[EngineSpec, ...]]:
    if not engines:
        return file.engines
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
    return tuple(taken)


def _models(
    file: ConfigSpec, models: Sequence[ModelSpec], engines: set[str], left_out: dict[Which, ConfigError]
) -> Steps[tuple[ModelSpec, ...]]:
    if not models:
        return ()
    file_models = {model.name: model for model in file.models}
    own = set(file_models)
    named = {alias: model.name for model in file.models for alias in model.aliases}
    candidates = {model.name: model for model in models if model.name not in own}
    fitting: dict[str, ModelSpec] = {}
    for name, model in candidates.items():
        try:
            if name in named:
                raise _error("name", f"{quoted(name)} is an alias of the model {quoted(named[name])}")
            if model.pipeline is not None:
                raise _error("pipeline", "is only for models of the configuration file")
            validate.pool(model, "", engines, _error)
            for place, fallback in enumerate(model.fallbacks):
                if why := pipeline_fault(fallback, file_models):
                    raise _error(f"fallbacks[{place}]", why)
            if model.shadow is not None and (why := shadow_fault(model, {**candidates, **file_models})):
                raise _error("shadow.model", why)
            if why := canary_fault(model):
                raise _error("canary.engine", why)
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
    """The models whose fallbacks exist and never lead back to themselves (topological order by Kahn's algorithm, 1962)."""
    open_ends = {name: len({f for f in model.fallbacks if f not in own}) for name, model in fitting.items()}
    leaning: dict[str, list[str]] = {}
    for name, model in fitting.items():
        for fallback in set(model.fallbacks) - own:
            leaning.setdefault(fallback, []).append(name)
    yield
    settled = [name for name, count in open_ends.items() if not count]
    for name in settled:  # grows during the loop
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
    while True:  # each has one that leads on, because none of them is good
        following = next(name for name in fitting[trail[-1]].fallbacks if name not in own and name not in good)
        if following not in fitting:
            return _error("fallbacks", f"the fallback {quoted(trail[-1])} cannot be used itself")
        if following in trail:
            circle = " -> ".join([*trail[trail.index(following) :], following])
            return _error("fallbacks", f"the fallbacks go round in a circle: {circle}")
        trail.append(following)


def _error(path: str, message: str) -> ConfigError:
    return ConfigError(message, path=path.lstrip(".") or None)
