"""Whether a resource that is about to be stored could be put into force: it is built beside what is in force and thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from admin.permissions import ROLES
from gateway.app.configuration.changes import Changes
from gateway.app.configuration.plugins import Plugins
from gateway.app.engines.fleet import Fleet
from gateway.app.engines.upstreams import check_address, check_upstream
from gateway.app.identity.access import unknown_model, unknown_role
from gateway.app.store.link import StoreLink
from gateway.config.convert import with_plain_settings
from gateway.config.limits import check_limit
from gateway.core.asking import NobodyToAsk
from gateway.core.errors import ConfigError
from gateway.core.slices import in_slices
from gateway.core.specs import BindingSpec, GuardrailSpec, LimitSpec, RoleSpec
from gateway.routing.build import router_steps


class ResourceCheck:
    """Implements admin.context.ResourceCheck, as far as can be said without starting anything. Errors' paths are within the resource."""

    def __init__(self, changes: Changes, link: StoreLink, fleet: Fleet, plugins: Plugins) -> None:
        self._changes, self._additions, self._fleet, self._plugins = changes, link.additions, fleet, plugins

    async def __call__(
        self, kind: str, body: dict[str, Any], beside: Sequence[tuple[str, dict[str, Any]]] = (), without: Sequence[tuple[str, str]] = ()
    ) -> None:
        if kind == "guardrails":
            await asyncio.to_thread(self._guardrail, body)
        elif kind == "limits":
            check_limit(msgspec.convert(body, LimitSpec), "", lambda path, message: ConfigError(message, path=path))
        elif kind in ("roles", "bindings"):
            await self._rule(kind, body, beside, without)
        elif kind == "prices":
            await self._additions.candidate(self._changes.in_force.file, ((kind, body), *beside), without)
        elif kind in ("engines", "models"):
            await self._member(kind, str(body["name"]), ((kind, body), *beside), without)

    async def _member(self, kind: str, name: str, wanted: Sequence[tuple[str, dict[str, Any]]], without: Sequence[tuple[str, str]]) -> None:
        """wanted: the resource itself, first, and what is stored with it."""
        file = self._changes.in_force.file
        before, after = await self._additions.merged(file), await self._additions.candidate(file, wanted, without)
        if (error := after.left_out.get((kind, name))) is not None:
            raise error
        examined = {(other, str(body["name"])) for other, body in wanted}
        for (other, which), error in after.left_out.items():
            if (other, which) not in before.left_out and (other, which) not in examined:
                raise ConfigError(f"then {which!r} of the {other} could not be used: {error}", path="name")
        if kind == "engines":
            engine = next(e for e in after.spec.engines if e.name == name)
            if engine.joined is not None:
                pass  # where a machine is is checked when it says so
            elif engine.url is not None and engine.dns is not None:
                check_address(engine.url, file.store.upstreams)  # where the name leads is checked with each answer
            elif engine.url is not None:
                await check_upstream(engine.url, file.store.upstreams)
            else:
                await self._fleet.check_model(engine.model or "")
        await in_slices(router_steps(after.spec.models, after.spec.engines, self._fleet.registry, self._plugins.selectors))

    async def _rule(
        self, kind: str, body: dict[str, Any], beside: Sequence[tuple[str, dict[str, Any]]], without: Sequence[tuple[str, str]]
    ) -> None:
        """A role or a binding: whether it can be read, and what it names is there."""
        spec = self._additions.spec_of(kind, str(body["name"]), body)
        await self._additions.read()
        if isinstance(spec, RoleSpec):
            models = self._changes.in_force.merged.spec.models
            known = {name for model in models for name in (model.name, *model.aliases)}
            known.update(str(other["name"]) for each, other in beside if each == "models")
            for place, text in enumerate(spec.permissions):
                if message := unknown_model(text, known):
                    raise ConfigError(message, path=f"permissions[{place}]")
        elif isinstance(spec, BindingSpec):
            stored, own = self._additions.by_kind["roles"], self._changes.in_force.file.roles
            others = {*ROLES, *(str(other["name"]) for each, other in beside if each == "roles")}
            usable = spec.role in stored and stored[spec.role].error is None and ("roles", spec.role) not in without
            if spec.role not in others and spec.role not in own and not usable:
                there = [name for name, one in stored.items() if one.error is None and ("roles", name) not in without]
                raise ConfigError(unknown_role(spec.role, (*others, *own, *there)), path="role")

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
