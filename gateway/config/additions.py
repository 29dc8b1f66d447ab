"""What the store adds to the configuration: limits, guardrails, engines, models, roles and bindings, each read again when it has changed.

A resource that this version or this machine cannot use is kept with its error, so that it is neither forgotten nor applied in part
(gateway.config.merge decides what follows from it).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from gateway.config.convert import NO_PLUGINS, PluginSchemas, with_plain_settings
from gateway.config.merge import Addition, Merged, merge
from gateway.core import bindings
from gateway.core.errors import ConfigError, NotFound, StoreUnavailable
from gateway.core.slices import Steps, in_slices, portions
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, GuardrailSpec, LimitSpec, ModelSpec, PriceSpec, RoleSpec, Spec
from gateway.core.storage import ControlStore, Resource

log = logging.getLogger("gatehouse.config")

KINDS: Final = ("limits", "guardrails", "prices", "engines", "models", "roles", "bindings")
"""Kinds of resources that are part of the configuration."""
_TYPES: Final[dict[str, type[Spec]]] = {
    "limits": LimitSpec,
    "guardrails": GuardrailSpec,
    "prices": PriceSpec,
    "models": ModelSpec,
    "roles": RoleSpec,
    "bindings": BindingSpec,
}
MANY: Final = 64
"""From so many changed resources on, a kind is read as a whole."""
ReadEngine = Callable[[str, dict[str, Any]], EngineSpec]
"""(name, body) -> settings. Raises ConfigError."""


class StoreAdditions:
    """The store's part of the configuration, by kind and name, in the order of the names. `generation` grows with every change read."""

    def __init__(self, store: ControlStore, read_engine: ReadEngine, schemas: PluginSchemas = NO_PLUGINS) -> None:
        self._store, self._read_engine, self._schemas = store, read_engine, schemas
        self._built_in = schemas.roles or ()
        self.by_kind: dict[str, dict[str, Addition]] = {kind: {} for kind in KINDS}
        self.generation = 0
        self._reading = asyncio.Lock()
        self._stale: dict[str, set[str] | None] = dict.fromkeys(KINDS)
        """Kinds with the names that have changed; None: all of them."""
        self._last: tuple[ConfigSpec, int, Merged] | None = None

    async def merged(self, file: ConfigSpec) -> Merged:
        """The file's configuration with the additions behind it.

        While the store does not answer, what was read last counts. Raises ConfigError for a limit, a guardrail or a binding that denies,
        if it cannot be used.
        """
        try:
            await self.read()
        except StoreUnavailable as error:
            log.warning("the store does not answer, so its part of the configuration stays as it was last read: %s", error.message)
        generation = self.generation
        if self._last is None or self._last[0] is not file or self._last[1] != generation:
            self._last = (file, generation, await in_slices(merge(file, self.by_kind, self._built_in)))
        return self._last[2]

    async def candidate(
        self, file: ConfigSpec, wanted: Iterable[tuple[str, dict[str, Any]]], without: Iterable[tuple[str, str]] = ()
    ) -> Merged:
        """What `merged` would return if the store had these resources (kind, body), and not those `without` (kind, name). Raises
        ConfigError for settings that cannot be read."""
        await self.read()
        supposed = {kind: dict(known) for kind, known in self.by_kind.items()}
        for kind, name in without:
            supposed.get(kind, {}).pop(name, None)
        for kind, body in wanted:
            if kind in supposed:
                name = str(body["name"])
                denies = kind == "bindings" and body.get("effect", "allow") != "allow"
                supposed[kind][name] = Addition(0, 0.0, self.spec_of(kind, name, body), denies=denies)
        return await in_slices(merge(file, supposed, self._built_in))

    def changed(self, kind: str, name: str) -> None:
        """Marks a resource to be read again by the next `read`."""
        if kind not in KINDS:
            return
        if kind not in self._stale:
            self._stale[kind] = {name}
        elif (names := self._stale[kind]) is not None:
            names.add(name)

    def forget(self) -> None:
        """Marks everything to be read again, because changes were missed."""
        self._stale = dict.fromkeys(KINDS)

    async def read(self) -> None:
        """Reads what has changed. Raises StoreUnavailable; what was read before then stays, and the rest is read next time."""
        async with self._reading:  # a second caller waits for what the first one is reading
            while self._stale:
                kind = next(iter(self._stale))
                names = self._stale.pop(kind)
                try:
                    await (self._all(kind) if names is None or len(names) > MANY else self._some(kind, names))
                except BaseException:
                    since = self._stale.get(kind, set())
                    self._stale[kind] = None if names is None or since is None else names | since
                    raise
                self.generation += 1

    async def _all(self, kind: str) -> None:
        found: list[Resource] = []
        cursor: str | None = None
        while True:
            page = await self._store.list(kind, limit=1000, cursor=cursor)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                break
        self.by_kind[kind] = await in_slices(self._additions(kind, found))

    def _additions(self, kind: str, found: list[Resource]) -> Steps[dict[str, Addition]]:
        known, read = self.by_kind[kind], {}
        for resource in found:
            before = known.get(resource.name)
            same = before is not None and (before.revision, before.made) == (resource.version, resource.created)
            read[resource.name] = before if before is not None and same else self._addition(resource)
            yield
        return read

    async def _some(self, kind: str, names: set[str]) -> None:
        before = self.by_kind[kind]
        read = dict(before)
        for name in names:
            try:
                read[name] = self._addition(await self._store.get(kind, name))
            except NotFound:
                read.pop(name, None)
        if any((name in read) != (name in before) for name in names):
            read = await in_slices(_in_order(before, read, names))
        self.by_kind[kind] = read

    def _addition(self, resource: Resource) -> Addition:
        kind, name, body = resource.kind, resource.name, resource.body
        denies = kind == "bindings" and body.get("effect", "allow") != "allow"
        try:
            return Addition(resource.version, resource.created, _dated(self.spec_of(kind, name, body), resource.created), denies=denies)
        except ConfigError as error:
            return Addition(resource.version, resource.created, _legible(kind, name, body), error, denies)

    def spec_of(self, kind: str, name: str, body: dict[str, Any]) -> Spec:
        """The settings of a body. Raises ConfigError."""
        if kind == "engines":
            return with_plain_settings(self._read_engine(name, body), self._schemas)
        try:
            found = _converted(kind, name, body)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the store holds one that this version cannot use: {error}") from None
        if isinstance(found, RoleSpec | BindingSpec):
            if self._schemas.rule is not None:
                self._schemas.rule(found)
            return found
        return with_plain_settings(found, self._schemas)


def _dated(spec: Spec, made: float) -> Spec:
    """A model that does not say when it was made was made with its resource."""
    if isinstance(spec, ModelSpec) and not spec.created:
        return msgspec.structs.replace(spec, created=int(made))
    return spec


def _in_order(before: Mapping[str, Addition], found: dict[str, Addition], changed: Iterable[str]) -> Steps[dict[str, Addition]]:
    """before: in order. changed: what may be new or gone since; so it is put in its place, and nothing is sorted."""
    names: list[str] = []
    for some in portions(list(before)):
        names += [name for name in some if name in found]
        yield
    for name in changed:
        if name in found and name not in before:
            insort(names, name)
    yield
    ordered: dict[str, Addition] = {}
    for some in portions(names):
        ordered.update([(name, found[name]) for name in some])
        yield
    return ordered


def _converted(kind: str, name: str, body: Mapping[str, Any]) -> Spec:
    """Raises msgspec.ValidationError."""
    if kind == "bindings":
        body = bindings.current(body)
    given = {**body, "name": name}
    if kind == "roles":
        del given["name"]
    found: Spec = msgspec.convert(given, _TYPES[kind])
    return found


def _legible(kind: str, name: str, body: Mapping[str, Any]) -> BindingSpec | None:
    """A binding that cannot be used, as far as it says whom it is about."""
    if kind != "bindings":
        return None
    known = {key: value for key, value in bindings.current(body).items() if key in ("role", "subjects", "tenant")}
    try:
        return msgspec.convert({**known, "name": name}, BindingSpec)
    except msgspec.ValidationError:
        return None
