"""Whether a resource that is about to be stored could be put into force: it is built beside what is in force and thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from admin.permissions import ROLES
from gateway.app.configuration.changes import Changes
from gateway.app.configuration.plugins import Plugins
from gateway.app.engines.fleet import Fleet
from gateway.app.engines.upstreams import check_address, check_upstream
from gateway.app.identity.access import model_names, unknown_model, unknown_role
from gateway.app.store.link import StoreLink
from gateway.config.convert import with_plain_settings
from gateway.config.limit_rules import check_limit
from gateway.config.merge import Merged, Which
from gateway.core.asking import NobodyToAsk
from gateway.core.errors import ConfigError
from gateway.core.slices import in_slices
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, GuardrailSpec, LimitSpec, RoleSpec
from gateway.core.write_set import NO_OTHERS, WriteSet
from gateway.routing.build import router_steps


@dataclass
class _Supposed:
    """What would be in force after a write. file, generation: what is in force now, as it was read. examined: what the write is about.
    sound: whether nothing else breaks, and the router can be built."""

    file: ConfigSpec
    generation: int
    merged: Merged
    examined: set[Which]
    sound: bool = False

    @cached_property
    def engines(self) -> dict[str, EngineSpec]:
        return {engine.name: engine for engine in self.merged.spec.engines}


class ResourceCheck:
    """Implements admin.ports.ResourceCheck, as far as can be said without starting anything. Errors' paths are within the resource.

    All that one write stores is merged, and its router built, once, for the first of it that is checked."""

    def __init__(self, changes: Changes, link: StoreLink, fleet: Fleet, plugins: Plugins) -> None:
        self._changes, self._additions, self._fleet, self._plugins = changes, link.additions, fleet, plugins
        self._supposed: WeakKeyDictionary[WriteSet, _Supposed] = WeakKeyDictionary()
        self._models: WeakKeyDictionary[WriteSet, dict[str, None]] = WeakKeyDictionary()

    async def __call__(self, kind: str, body: dict[str, Any], writes: WriteSet = NO_OTHERS) -> None:
        if kind == "guardrails":
            await asyncio.to_thread(self._guardrail, body)
        elif kind == "limits":
            check_limit(msgspec.convert(body, LimitSpec), "", lambda path, message: ConfigError(message, path=path))
        elif kind in ("roles", "bindings"):
            await self._rule(kind, body, writes)
        elif kind == "prices":
            await self._after(kind, body, writes)
        elif kind in ("engines", "models"):
            await self._member(kind, body, writes)

    async def _after(self, kind: str, body: dict[str, Any], writes: WriteSet) -> _Supposed:
        """What would be in force. Raises ConfigError."""
        file = self._changes.in_force.file
        await self._additions.read()
        together = str(body["name"]) in writes.of(kind)
        known = self._supposed.get(writes) if together else None
        if known is not None and known.file is file and known.generation == self._additions.generation:
            return known
        wanted = tuple(writes) if together else ((kind, body), *writes)
        examined = {(other, str(one["name"])) for other, one in wanted}
        generation = self._additions.generation
        after = _Supposed(file, generation, await self._additions.candidate(file, wanted, writes.gone), examined)
        if together:
            self._supposed[writes] = after
        return after

    async def _member(self, kind: str, body: dict[str, Any], writes: WriteSet) -> None:
        file, name = self._changes.in_force.file, str(body["name"])
        after = await self._after(kind, body, writes)
        if (error := after.merged.left_out.get((kind, name))) is not None:
            raise error
        if not after.sound:
            before = await self._additions.merged(file)
            for (other, which), error in after.merged.left_out.items():
                if (other, which) not in before.left_out and (other, which) not in after.examined:
                    raise ConfigError(f"then {which!r} of the {other} could not be used: {error}", path="name")
        if kind == "engines":
            engine = after.engines[name]
            if engine.joined is not None:
                pass  # where a machine is is checked when it says so
            elif engine.url is not None and engine.dns is not None:
                check_address(engine.url, file.store.upstreams)  # where the name leads is checked with each answer
            elif engine.url is not None:
                await check_upstream(engine.url, file.store.upstreams)
            else:
                await self._fleet.check_model(engine.model or "")
        if not after.sound:
            spec = after.merged.spec
            await in_slices(router_steps(spec.models, spec.engines, self._fleet.registry, self._plugins.selectors))
            after.sound = True

    async def _rule(self, kind: str, body: dict[str, Any], writes: WriteSet) -> None:
        """A role or a binding: whether it can be read, and what it names is there."""
        spec = self._additions.spec_of(kind, str(body["name"]), body)
        await self._additions.read()
        if isinstance(spec, RoleSpec):
            known = await self._models_known(writes)
            for place, text in enumerate(spec.permissions):
                if message := unknown_model(text, known):
                    raise ConfigError(message, path=f"permissions[{place}]")
        elif isinstance(spec, BindingSpec):
            stored, own = self._additions.by_kind["roles"], self._changes.in_force.file.roles
            others, gone = writes.of("roles"), writes.gone
            usable = spec.role in stored and stored[spec.role].error is None and ("roles", spec.role) not in gone
            if not (spec.role in ROLES or spec.role in others or spec.role in own or usable):
                there = [name for name, one in stored.items() if one.error is None and ("roles", name) not in gone]
                raise ConfigError(unknown_role(spec.role, (*ROLES, *others, *own, *there)), path="role")

    async def _models_known(self, writes: WriteSet) -> Collection[str]:
        """The names of the models in force, and of those that are stored beside the role."""
        known = self._models.get(writes)
        if known is None:
            known = await in_slices(model_names(self._changes.in_force.merged.spec.models))
            known.update(dict.fromkeys(writes.of("models")))
            if writes is not NO_OTHERS:
                self._models[writes] = known
        return known

    def _guardrail(self, body: dict[str, Any]) -> None:
        spec = with_plain_settings(msgspec.convert(body, GuardrailSpec), self._plugins.schemas())
        assert isinstance(spec, GuardrailSpec)
        try:
            self._plugins.guardrail(spec, _no_files, local=False, asker=NobodyToAsk())
        except ConfigError as error:
            raise ConfigError(error.message, path="settings" if spec.type in self._plugins.guardrails else "type") from None


def _no_files(name: str) -> str:
    """Only the configuration file names files of this machine: not an administrator elsewhere, and not for replicas that lack them."""
    raise ValueError("settings that name a file belong in the configuration file; give the values themselves")
