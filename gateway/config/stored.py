"""What of the store is part of the configuration: limits, guardrails, engines and models, each read again when it has changed.

One that this version, or this machine, cannot use is kept with its error: a limit or a guardrail that could not be applied must
not be forgotten (the configuration is refused), an engine or a model is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.config.convert import NO_PLUGINS, PluginSchemas, with_plain_settings
from gateway.core.errors import ConfigError, NotFound
from gateway.core.slices import Steps, in_slices
from gateway.core.specs import EngineSpec, GuardrailSpec, LimitSpec, ModelSpec, Spec
from gateway.core.storage import ControlStore, Resource

KINDS: Final = ("limits", "guardrails", "engines", "models")
"""Kinds of resources that are part of what is in force."""
_TYPES: Final[dict[str, type[Spec]]] = {"limits": LimitSpec, "guardrails": GuardrailSpec, "models": ModelSpec}
MANY: Final = 64
"""Changed resources from which a kind is read as a whole."""
OfEngine = Callable[[str, dict[str, Any]], EngineSpec]
"""(name, body) -> settings. Raises ConfigError."""


@dataclass(frozen=True)
class Part:
    """One resource. Either its settings or the error is there. made: when, as a name may be given again."""

    revision: int
    made: float
    spec: Spec | None
    error: ConfigError | None = None


class StoredParts:
    """The parts by kind and name, in the order of their names. `generation` grows with every change that was read."""

    def __init__(self, store: ControlStore, engine_of: OfEngine, schemas: PluginSchemas = NO_PLUGINS) -> None:
        self._store, self._engine_of, self._schemas = store, engine_of, schemas
        self.parts: dict[str, dict[str, Part]] = {kind: {} for kind in KINDS}
        self.generation = 0
        self._reading = asyncio.Lock()
        self._stale: dict[str, set[str] | None] = dict.fromkeys(KINDS)
        """Kinds with the names that have changed; None: all of them."""

    def changed(self, kind: str, name: str) -> None:
        """It is read again by the next `read`."""
        if kind not in KINDS:
            return
        if kind not in self._stale:
            self._stale[kind] = {name}
        elif (names := self._stale[kind]) is not None:
            names.add(name)

    def forget(self) -> None:
        """Changes were missed: everything is read again."""
        self._stale = dict.fromkeys(KINDS)

    async def read(self) -> None:
        """Reads what has changed. Raises StoreUnavailable; then what was read before stays, and is read another time."""
        async with self._reading:  # whoever comes second waits for what the first one is reading
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
        self.parts[kind] = await in_slices(self._parts(kind, found))

    def _parts(self, kind: str, found: list[Resource]) -> Steps[dict[str, Part]]:
        known, parts = self.parts[kind], {}
        for resource in found:
            before = known.get(resource.name)
            same = before is not None and (before.revision, before.made) == (resource.version, resource.created)
            parts[resource.name] = before if before is not None and same else self._part(resource)
            yield
        return parts

    async def _some(self, kind: str, names: set[str]) -> None:
        parts = dict(self.parts[kind])
        for name in names:
            try:
                parts[name] = self._part(await self._store.get(kind, name))
            except NotFound:
                parts.pop(name, None)
        self.parts[kind] = dict(sorted(parts.items()))

    def _part(self, resource: Resource) -> Part:
        try:
            return Part(resource.version, resource.created, self.spec_of(resource.kind, resource.name, resource.body))
        except ConfigError as error:
            return Part(resource.version, resource.created, None, error)

    def spec_of(self, kind: str, name: str, body: dict[str, Any]) -> Spec:
        """The settings of a body. Raises ConfigError."""
        if kind == "engines":
            return self._engine_of(name, body)
        try:
            found: Spec = msgspec.convert({**body, "name": name}, _TYPES[kind])
        except msgspec.ValidationError as error:
            raise ConfigError(f"the store holds one that this version cannot use: {error}") from None
        return with_plain_settings(found, self._schemas)
