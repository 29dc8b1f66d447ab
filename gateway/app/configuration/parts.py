"""The plug-ins of a configuration, built from their settings: those whose settings did not change are kept, the others are new."""

from __future__ import annotations

import asyncio
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.app.configuration.plugin_set import Plugins, at
from gateway.core.asking import Asker
from gateway.core.hooks import Hook
from gateway.core.logins import Logins
from gateway.core.plugins import AuthenticatorContext, GuardrailRow
from gateway.core.ports import Authenticator, KeyStore
from gateway.core.secret import Secret
from gateway.core.shapes import ShapeGuard
from gateway.core.slices import Turns
from gateway.core.specs import ConfigSpec, GuardrailSpec, Spec
from gateway.core.tools import ToolGuard
from gateway.identity.people import People
from gateway.identity.revocations import Revocations
from gateway.identity.token_keys import TokenKeys
from gateway.pipeline.guarded import Guarded, Tally
from gateway.pipeline.shapes import GuardedShape
from gateway.pipeline.tools import GuardedTools
from policies.callers import concerning
from policies.guardrails.prefilter import Prefilter
from policies.guardrails.prefilter import prefilter as prefilter_of


@dataclass(frozen=True)
class Parts:
    """Plug-ins by path and settings (`key_of`), in the configuration's order. logins: in the order in which they are asked. gauges: what
    each of them measures, by name. files: digests of what guardrails have read of the files that their settings name, by name."""

    guardrails: Mapping[bytes, Guarded]
    logins: Mapping[bytes, Authenticator]
    hooks: Mapping[bytes, tuple[str, Hook]] = field(default_factory=dict)
    exporters: Mapping[bytes, object] = field(default_factory=dict)
    prefilter: Prefilter | None = None
    gauges: Mapping[bytes, dict[str, float]] = field(default_factory=dict)
    files: Mapping[bytes, Mapping[str, bytes]] = field(default_factory=dict)

    def triggers(self) -> list[str]:
        """Those of the guardrails that have one, for the scan that stands for all of them."""
        return [guarded.trigger for guarded in self.guardrails.values() if guarded.triggered]

    def living(self) -> list[tuple[str, object]]:
        """(path of its setting, plug-in) of each."""
        guardrails = [(f"guardrails[{number}]", guarded.guardrail) for number, guarded in enumerate(self.guardrails.values())]
        hooks = [(f"hooks[{number}]", hook) for number, (_, hook) in enumerate(self.hooks.values())]
        exporters = [(f"telemetry.exporters[{number}]", exporter) for number, exporter in enumerate(self.exporters.values())]
        return [*(("identity", login) for login in self.logins.values()), *guardrails, *hooks, *exporters]


NONE: Final = Parts({}, {})
AT_ONCE: Final = 256
"""Guardrails that are built in one turn of a thread: waiting for a thread takes longer than building a small one."""


def key_of(settings: object) -> bytes:
    """Two plug-ins are the same object if all their settings are the same."""
    return msgspec.json.encode(settings, order="deterministic", enc_hook=_revealed)


def _revealed(value: object) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(f"{type(value).__name__} is not a setting")


def reads_files(settings: Mapping[str, Any] | Spec) -> bool:
    """Whether settings name a file, which may have changed behind the same name."""
    names = settings.__struct_fields__ if isinstance(settings, Spec) else settings
    return any(name.endswith("_file") for name in names)


def files_of(settings: Mapping[str, Any] | Spec) -> list[Any]:
    """The files that settings name."""
    named = msgspec.structs.asdict(settings) if isinstance(settings, Spec) else settings
    return [value for name, value in named.items() if name.endswith("_file") and value is not None]


class PartsBuilder:
    """base: the folder that files named in settings are relative to. keys: the API keys of the store. people: what it says of callers.

    record: (event, target, detail) for the audit log. scrape: all metrics, for exporters. revocations, token_keys, logins: the process's.
    asker: asks models for guardrails.
    """

    def __init__(
        self,
        plugins: Plugins,
        keys: KeyStore,
        people: People,
        base: Path,
        record: Callable[[str, str, dict[str, Any]], None],
        scrape: Callable[[], bytes],
        revocations: Revocations | None = None,
        token_keys: TokenKeys | None = None,
        logins: Logins | None = None,
        asker: Asker | None = None,
    ) -> None:
        self._plugins, self._keys, self._people, self._base = plugins, keys, people, base
        self._record, self._scrape = record, scrape
        self._revocations, self._token_keys, self._logins_of_all = revocations, token_keys, logins
        self._asker = asker
        self.selectors = plugins.selectors
        self._turns = Turns()
        self._sweeping: weakref.WeakSet[Any] = weakref.WeakSet()
        self.guardrail_failures: dict[tuple[str, str], int] = {}
        """Numbers of failures, by name and `fail_mode`."""
        self.guardrail_tallies: dict[str, Tally] = {}
        """Tallies by the guardrail's name."""
        self.login_gauges: ChainMap[str, float] = ChainMap()
        """What the authenticators in force measure, by name."""

    async def build(self, spec: ConfigSpec, before: Parts = NONE) -> Parts:
        """Builds guardrails in a thread, because a large list takes long. Raises ConfigError with the setting's path."""
        guardrails: dict[bytes, Guarded] = {}
        files: dict[bytes, Mapping[str, bytes]] = {}
        for start in range(0, len(spec.guardrails), AT_ONCE):
            some = range(start, min(start + AT_ONCE, len(spec.guardrails)))
            guardrails |= await asyncio.to_thread(self._guardrails, spec, some, before, files)
        prefilter, triggers = before.prefilter, Parts(guardrails, {}).triggers()
        if triggers != before.triggers():
            prefilter = await asyncio.to_thread(prefilter_of, triggers)
        gauges: dict[bytes, dict[str, float]] = {}
        logins = self._logins(spec, before, gauges)
        return Parts(guardrails, logins, self._hooks(spec, before), self._exporters(spec, before), prefilter, gauges, files)

    def enter(self, parts: Parts) -> None:
        """These are in force from now on: only what they measure counts."""
        self.login_gauges.maps = list(parts.gauges.values())

    def _guardrails(
        self, spec: ConfigSpec, numbers: Iterable[int], before: Parts, files: dict[bytes, Mapping[str, bytes]]
    ) -> dict[bytes, Guarded]:
        """files: gets what they have read."""
        made: dict[bytes, Guarded] = {}
        for number in numbers:
            wanted = spec.guardrails[number]
            key = key_of(wanted)
            known, read = before.guardrails.get(key), before.files.get(key, {})
            texts: dict[str, str | Exception] = {}
            if known is not None and reads_files(wanted.settings) and not self._unchanged(files_of(wanted.settings), read, texts):
                known = None
            if known is None:
                read = {}
                known = self._guardrail(number, wanted, read, texts)
            made[key] = known
            if read:
                files[key] = read
        return made

    def _unchanged(self, named: list[Any], read: Mapping[str, bytes], texts: dict[str, str | Exception]) -> bool:
        """Whether what was read of these files is what they hold now. A large list is not to be compiled again for nothing: that keeps the
        interpreter from everything else. texts: gets what they hold, or why they cannot be read."""
        if len(read) != len(named) or not all(isinstance(name, str) and name in read for name in named):
            return False  # it read them in a way of its own
        for name in named:
            try:
                texts[name] = self._read_text(name)
            except (OSError, ValueError) as error:
                texts[name] = error
        return all(isinstance(text := texts[name], str) and _digest(text) == known for name, known in read.items())

    def _guardrail(self, number: int, spec: GuardrailSpec, read: dict[str, bytes], texts: Mapping[str, str | Exception]) -> Guarded:
        """read: gets the digests of the files that it reads. texts: of files that were read just now, each only once, so that what was
        compared is what is built."""

        def reading(name: str) -> str:
            text = texts[name] if name in texts else self._read_text(name)
            if isinstance(text, Exception):
                raise text
            read[name] = _digest(text)
            return text

        with at(f"guardrails[{number}].settings", f"the guardrail {spec.name!r}: "):
            guardrail = self._plugins.guardrail(spec, reading, asker=self._asker)
        if hasattr(guardrail, "sweep"):
            self._sweeping.add(guardrail)
        return Guarded(
            guardrail,
            spec.fail_mode == "open",
            self._failed,
            self._turns,
            monitor=spec.mode == "monitor",
            budget=spec.budget,
            tally=self.guardrail_tallies.setdefault(spec.name, Tally()),
            concerns=concerning(spec.tenants, spec.roles),
            label=spec.label or "",
        )

    def sweep(self, now: float) -> None:
        """Lets guardrails drop what they have kept for long enough. now: monotonic seconds."""
        for guardrail in tuple(self._sweeping):
            guardrail.sweep(now)

    def row(self, spec: GuardrailSpec) -> GuardrailRow:
        """The row of its type."""
        return self._plugins.guardrails[spec.type]

    def judge(self, spec: GuardrailSpec, guarded: Guarded) -> ToolGuard | None:
        """The guardrail as one that judges tools; None if it reads texts."""
        if not self._plugins.guardrails[spec.type].judges:
            return None
        return GuardedTools(
            spec.name,
            guarded.guardrail,
            spec.fail_mode == "open",
            self._failed,
            monitor=guarded.monitor,
            concerns=guarded.concerns,
            tally=guarded.tally,
        )

    def shape(self, spec: GuardrailSpec, guarded: Guarded) -> ShapeGuard | None:
        """The guardrail as one that judges the form of answers; None if it does not."""
        if not self._plugins.guardrails[spec.type].shapes:
            return None
        boundary = (spec.name, guarded.guardrail, spec.fail_mode == "open", self._failed)
        return GuardedShape(*boundary, monitor=guarded.monitor, concerns=guarded.concerns, tally=guarded.tally)  # type: ignore[arg-type]

    def _hooks(self, spec: ConfigSpec, before: Parts) -> dict[bytes, tuple[str, Hook]]:
        found: dict[bytes, tuple[str, Hook]] = {}
        for number, wanted in enumerate(spec.hooks):
            key = key_of(wanted)
            known = None if reads_files(wanted.settings) else before.hooks.get(key)
            with at(f"hooks[{number}].settings"):
                found[key] = known or (wanted.name, self._plugins.hook(wanted, self._read_text))
        return found

    def _exporters(self, spec: ConfigSpec, before: Parts) -> dict[bytes, object]:
        found: dict[bytes, object] = {}
        for number, wanted in enumerate(spec.telemetry.exporters):
            key = key_of(wanted)
            known = None if reads_files(wanted.settings) else before.exporters.get(key)
            with at(f"telemetry.exporters[{number}].settings"):
                found[key] = known or self._plugins.exporter(wanted, self._read_text, self._scrape)
        return found

    def _logins(self, spec: ConfigSpec, before: Parts, gauges: dict[bytes, dict[str, float]]) -> dict[bytes, Authenticator]:
        found: dict[bytes, Authenticator] = {}
        for path, row, settings in self._plugins.logins(spec.identity):
            key = path.encode() + key_of(settings)
            known = None if reads_files(settings) else before.logins.get(key)
            measured = gauges[key] = {} if known is None else before.gauges[key]
            context = AuthenticatorContext(
                name=row.name,
                read=self._read_text,
                keys=self._keys,
                record=self._record,
                gauge=measured.__setitem__,
                revocations=self._revocations,
                token_keys=self._token_keys,
                logins=self._logins_of_all,
            )
            if known is None:
                known = self._plugins.authenticator(path, row, settings, context)
                if row.name != "api_keys":  # what the store says of its keys is part of them
                    known = self._people.over(known)
            found[key] = known
        return found

    def _read_text(self, name: str) -> str:
        return (self._base / name).read_text(encoding="utf-8")

    def _failed(self, name: str, mode: str) -> None:
        key = (name, mode)
        self.guardrail_failures[key] = self.guardrail_failures.get(key, 0) + 1
        self._record("guardrail_failed", name, {"fail_mode": mode})


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
