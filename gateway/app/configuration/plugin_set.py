"""The tables of plug-ins, one for each kind, and how what they describe is built.

WORKER has those that a data worker needs. The whole set is gateway.app.configuration.plugins, which also loads the store's databases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import gateway.guardrails
import gateway.identity
import gateway.telemetry.exporters
import policies.guardrails
from admin.permissions import ROLES
from engines.runtimes import RUNTIMES, RuntimeRow
from gateway.app.identity import access
from gateway.audit.sinks import SINKS
from gateway.config.convert import PluginSchemas
from gateway.core.asking import Asker
from gateway.core.errors import ConfigError
from gateway.core.hooks import Hook
from gateway.core.plugins import (
    GROUP,
    AuthenticatorContext,
    AuthenticatorRow,
    Context,
    ExporterContext,
    ExporterRow,
    GuardrailContext,
    GuardrailRow,
    HookRow,
    SelectorRow,
    SinkRow,
    StoreRow,
    Table,
    built,
)
from gateway.core.ports import Authenticator, Guardrail
from gateway.core.specs import ExporterSpec, GuardrailSpec, HookSpec, IdentitySpec
from gateway.routing.build import SELECTORS
from policies.guardrails.pseudonyms.guardrail import PseudonymVault


@contextmanager
def at(path: str, prefix: str = "") -> Iterator[None]:
    """Adds the path of the setting to a ConfigError raised inside."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(prefix + error.message, path=path) from None


@dataclass(frozen=True, slots=True)
class Plugins:
    """One table for each kind."""

    authenticators: Table[AuthenticatorRow]
    guardrails: Table[GuardrailRow]
    sinks: Table[SinkRow]
    selectors: Table[SelectorRow]
    runtimes: Table[RuntimeRow]
    hooks: Table[HookRow]
    exporters: Table[ExporterRow]
    stores: Table[StoreRow]

    @property
    def tables(self) -> tuple[Table[Any], ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def schemas(self) -> PluginSchemas:
        """The settings of every plug-in and the names of the roles, for reading a configuration."""
        return PluginSchemas(
            authenticators=self.authenticators.schemas(),
            guardrails=self.guardrails.schemas(),
            engines=self.runtimes.schemas(),
            sinks=self.sinks.schemas(),
            selectors=self.selectors.schemas(),
            hooks=self.hooks.schemas(),
            exporters=self.exporters.schemas(),
            roles=ROLES.keys(),
            access=partial(access.check, built_in=ROLES.keys()),
            rule=access.Rules(ROLES.keys()).check,
        )

    # --- from settings to what they describe

    def guardrail(self, spec: GuardrailSpec, read: Callable[[str], str], *, local: bool = True, asker: Asker | None = None) -> Guardrail:
        """Raises ConfigError with one sentence. local: the settings come from the configuration file."""
        row = self.guardrails[spec.type]
        return built(
            row.build,
            row.settings,
            spec.settings,
            GuardrailContext(name=spec.name, read=read, local=local, asker=asker, pseudonyms=PseudonymVault),
        )

    def hook(self, spec: HookSpec, read: Callable[[str], str]) -> Hook:
        """Raises ConfigError with one sentence."""
        row = self.hooks[spec.type]
        return built(row.build, row.settings, spec.settings, Context(name=spec.name, read=read))

    def exporter(self, spec: ExporterSpec, read: Callable[[str], str], scrape: Callable[[], bytes]) -> object:
        """Raises ConfigError with one sentence."""
        row = self.exporters[spec.type]
        return built(row.build, row.settings, spec.settings, ExporterContext(name=spec.type, read=read, scrape=scrape))

    def logins(self, identity: IdentitySpec) -> list[tuple[str, AuthenticatorRow, Any]]:
        """(path, row, settings) of every configured authenticator, in the order in which they are asked."""
        found = []
        for row in sorted(self.authenticators, key=lambda row: row.last):
            if row.within:
                entries = enumerate(getattr(identity, row.within))
                asked = [(number, each) for number, each in entries if getattr(each, row.name) is not None]
                found += [(f"identity.{row.within}[{number}].{row.name}", row, each) for number, each in asked]
                continue
            ours = row.name in IdentitySpec.__struct_fields__
            settings = getattr(identity, row.name) if ours else identity.plugins.get(row.name)
            path = f"identity.{row.name}" if ours else f"identity.plugins.{row.name}"
            if isinstance(settings, tuple):
                found += [(f"{path}[{number}]", row, each) for number, each in enumerate(settings)]
            elif settings is not None and getattr(settings, "enabled", True):
                found.append((path, row, settings))
        return found

    def authenticator(self, path: str, row: AuthenticatorRow, settings: Any, context: AuthenticatorContext) -> Authenticator:
        """Raises ConfigError with the path."""
        with at(path):
            return built(row.build, row.settings, settings, context)


WORKER: Final = Plugins(
    authenticators=Table(AuthenticatorRow, gateway.identity.ROWS),
    guardrails=Table(GuardrailRow, (*policies.guardrails.ROWS, *gateway.guardrails.ROWS)),
    sinks=SINKS,
    selectors=SELECTORS,
    runtimes=RUNTIMES,
    hooks=Table(HookRow, ()),
    exporters=Table(ExporterRow, gateway.telemetry.exporters.ROWS),
    stores=Table(StoreRow, ()),
)
"""The plug-ins that Gatehouse brings, without the stores."""


def with_installed(ours: Plugins, found: Iterable[EntryPoint] | None = None) -> Plugins:
    """These plug-ins and those of every installed distribution. Imports code of third parties: call it once, when a process starts.

    Raises ConfigError, naming the distribution, for an import that fails, an object that is not a row, and a name that is taken.
    """
    plugins = ours
    for entry in sorted(entry_points(group=GROUP) if found is None else found, key=lambda entry: (entry.name, entry.value)):
        plugins = _joined(plugins, entry, f"the plug-in {entry.value} of {_distribution(entry)}")
    return plugins


def _joined(plugins: Plugins, entry: EntryPoint, what: str) -> Plugins:
    try:
        row = entry.load()
    except Exception as error:  # boundary: whatever a third party's module raises while it is imported
        raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    for field in fields(plugins):
        table: Table[Any] = getattr(plugins, field.name)
        if isinstance(row, table.row):
            if row.name in table:
                raise ConfigError(f"{what} is the {table.kind} {row.name!r}, and there is one of that name already; rename it")
            return replace(plugins, **{field.name: table.joined([row])})
    kinds = ", ".join(table.row.__name__ for table in plugins.tables)
    raise ConfigError(f"{what} is {type(row).__name__}; it must be one of {kinds} (gateway.core.plugins)")


def _distribution(entry: EntryPoint) -> str:
    return "an unknown distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
