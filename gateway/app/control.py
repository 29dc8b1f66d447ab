"""What a process holds of the store: the store itself, the API keys that the data plane remembers, the feed of changes, usage.

Nothing here is on the path of a request but a look into the key cache and one addition to the usage. What is counted between
two writes (usage, last use) is lost when the process is killed, at most `WRITE_SECONDS` of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.app import remote
from gateway.config.convert import NO_PLUGINS, PluginSchemas
from gateway.config.merge import Which, merge
from gateway.config.stored import KINDS, Part, StoredParts
from gateway.core.errors import ConfigError, GatehouseError, StoreUnavailable
from gateway.core.feed import LocalFeed
from gateway.core.ports import Change
from gateway.core.slices import in_slices
from gateway.core.specs import ConfigSpec, EngineSpec, GuardrailSpec, LimitSpec, ModelSpec, Spec
from gateway.core.storage import StoreChange
from gateway.core.tasks import TaskOwner
from gateway.identity import keys
from gateway.identity.stored import USED_SECONDS, StoredKeys
from gateway.store.feed import CHANGE, RESYNC, ChangePoller
from gateway.store.pepper import VARIABLE
from gateway.store.store import Store
from gateway.telemetry.usage import UsageLedger, rows

log = logging.getLogger("gatehouse.store")

WRITE_SECONDS = 5.0
PRUNE_SECONDS = 600.0
BATCH = 1000
"""Rows that are written in one transaction."""
S = TypeVar("S", bound=Spec)
P = TypeVar("P", LimitSpec, GuardrailSpec)


@dataclass(frozen=True)
class Whole:
    """A configuration with what the store adds. revisions: of each engine and model of the store that is in it. left_out: of those
    that are not, why; the errors' paths are within the resource."""

    spec: ConfigSpec
    revisions: dict[Which, int] = field(default_factory=dict)
    left_out: dict[Which, ConfigError] = field(default_factory=dict)


class Control:
    """Opens the store and keeps the process in step with it. Life: `start`, `aclose`.

    Raises ConfigError when the store's settings cannot be used.
    """

    def __init__(self, spec: ConfigSpec, environ: Mapping[str, str], feed: LocalFeed, schemas: PluginSchemas = NO_PLUGINS) -> None:
        self.store = Store(spec.store.url, Path(spec.state_dir), keys, given_pepper=environ.get(VARIABLE))
        self._tasks = TaskOwner("control")
        self.keys = StoredKeys(self.store.find_key, self._tasks)
        self.usage = UsageLedger()
        self._poller = ChangePoller(self.store, feed, spec.store.poll_interval)
        self._used: dict[str, float] = {}
        self.parts = StoredParts(self.store, lambda name, body: remote.engine_of(name, body, environ, self.store.unseal), schemas)
        self._last: tuple[ConfigSpec, int, Whole] | None = None
        self._started = self._any_key = False
        self.store.subscribe(self._poller.written)
        feed.subscribe(self._heard)

    @property
    def has_keys(self) -> bool:
        """Whether the store has ever shown a key: then there is a way to log in."""
        return self._any_key

    async def start(self) -> None:
        """Brings the schema up to date and follows the changes from now on. Raises StoreUnavailable, ConfigError."""
        await self.store.start()
        await self._poller.start()
        self._any_key = bool((await self.store.list_keys(limit=1)).items)
        self._tasks.every(WRITE_SECONDS, self.write, name="write usage")
        self._tasks.every(PRUNE_SECONDS, self.store.prune, name="prune")
        self._started = True

    async def aclose(self) -> None:
        """Writes what was counted, and closes. Requests must have ended before."""
        await self._poller.aclose()
        await self._tasks.aclose()
        if self._started:
            await self.write(0.0)
        await self.store.aclose()

    async def merged(self, spec: ConfigSpec) -> Whole:
        """The configuration with what the store has behind its own; its own win over the same names.

        What was read last counts while the store does not answer. Raises ConfigError for a limit or guardrail that this version cannot use.
        """
        try:
            await self.parts.read()
        except StoreUnavailable as error:
            log.warning("what the store adds to the configuration stays as it was read last: %s", error.message)
        generation = self.parts.generation
        if self._last is None or self._last[0] is not spec or self._last[1] != generation:
            self._last = (spec, generation, await self._whole(spec, self.parts.parts))
        return self._last[2]

    async def candidate(self, spec: ConfigSpec, kind: str, name: str, body: dict[str, Any]) -> Whole:
        """What `merged` would give if the store had this resource. Raises ConfigError for settings that cannot be read."""
        await self.parts.read()
        wanted = Part(0, 0.0, self.parts.spec_of(kind, name, body))
        return await self._whole(spec, {**self.parts.parts, kind: {**self.parts.parts[kind], name: wanted}})

    async def _whole(self, spec: ConfigSpec, parts: Mapping[str, Mapping[str, Part]]) -> Whole:
        limits, guardrails = _usable("limits", parts, LimitSpec), _usable("guardrails", parts, GuardrailSpec)
        found = await in_slices(merge(spec, _specs(parts["engines"], EngineSpec), _specs(parts["models"], ModelSpec)))
        left_out = {(kind, name): part.error for kind in ("engines", "models") for name, part in parts[kind].items() if part.error}
        left_out.update(found.left_out)
        own = {("engines", engine.name) for engine in spec.engines} | {("models", model.name) for model in spec.models}
        whole = msgspec.structs.replace(
            spec,
            limits=(*spec.limits, *_others(limits, spec.limits)),
            guardrails=(*spec.guardrails, *_others(guardrails, spec.guardrails)),
            engines=found.engines,
            models=found.models,
        )
        revisions = {
            (kind, name): part.revision
            for kind in ("engines", "models")
            for name, part in parts[kind].items()
            if (kind, name) not in left_out and (kind, name) not in own
        }
        return Whole(whole, revisions, left_out)

    def _heard(self, change: Change) -> None:
        _, kind, payload = change
        if kind == CHANGE:
            assert isinstance(payload, StoreChange)
            if payload.kind == "keys":
                self._any_key = True
                self.keys.changed(payload.name, payload.action)
            self.parts.changed(payload.kind, payload.name)
        elif kind == RESYNC:
            self.keys.clear()
            self.parts.forget()

    async def write(self, interval: float = USED_SECONDS) -> None:
        """Usage and last use into the store, in small transactions. What cannot be written now is kept for the next time.

        interval: each key's last use is written at most once in so many seconds.
        """
        counts = self.usage.take()
        self._used.update(self.keys.take_used(interval))
        try:
            while counts:
                part = dict(islice(counts.items(), BATCH))
                await self.store.add_usage(rows(part))
                counts = {key: numbers for key, numbers in counts.items() if key not in part}
            while self._used:
                used = dict(islice(self._used.items(), BATCH))
                await self.store.touch_keys(used)
                for id in used:
                    del self._used[id]
        except GatehouseError as error:
            log.warning("usage could not be written yet: %s", error.message)
            self.usage.merge(counts)


def touches_configuration(change: Change) -> bool:
    """Whether a change on the feed may have changed what `merged` gives."""
    _, kind, payload = change
    return kind == RESYNC or (kind == CHANGE and payload.kind in KINDS)


def _specs(parts: Mapping[str, Part], wanted: type[S]) -> Iterable[S]:
    return (part.spec for part in parts.values() if isinstance(part.spec, wanted))


def _usable(kind: str, parts: Mapping[str, Mapping[str, Part]], wanted: type[P]) -> tuple[P, ...]:
    """All of a kind. Raises ConfigError when one cannot be used: without it, less would be protected."""
    for name, part in parts[kind].items():
        if part.error is not None:
            raise ConfigError(part.error.message, path=f"{kind}.{name}", file="the store")
    return tuple(_specs(parts[kind], wanted))


def _others(stored: tuple[P, ...], own: tuple[P, ...]) -> tuple[P, ...]:
    names = {policy.name for policy in own}
    return tuple(policy for policy in stored if policy.name not in names)
