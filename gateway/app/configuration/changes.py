"""Changes of the configuration while traffic flows: the file's, a text's, the store's.

Each is read, built beside what is in force, and put into force in one step; what was in force before retires when its requests have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.app.certificates import Certificates, check_files
from gateway.app.configuration.history import ConfigHistory
from gateway.app.configuration.snapshots import Built, Plan, SnapshotBuilder
from gateway.app.engines import model_files
from gateway.app.engines.discovery import Discovery
from gateway.app.engines.fleet import Fleet
from gateway.app.events import Events
from gateway.app.store.link import StoreLink, touches_configuration
from gateway.app.telemetry.observing import check as check_telemetry
from gateway.config.convert import PluginSchemas
from gateway.config.expand import NO_MACHINES, Machines, merged_with_copies, with_copies
from gateway.config.load import Loaded, load, parse
from gateway.config.merge import Merged
from gateway.config.reload import Applied, Reloader, Steps
from gateway.config.unchanged import let_go, members, sharing
from gateway.config.unmatched import tenants_of, unmatched
from gateway.core.collecting import uncollected
from gateway.core.errors import ConfigError, EngineChangeFailed, NotFound, StoreUnavailable
from gateway.core.ports import Change
from gateway.core.specs import ConfigSpec
from gateway.core.specs.mtls import MtlsSpec
from gateway.core.tasks import TaskOwner
from gateway.identity import mtls
from gateway.telemetry.metrics import Metrics
from gateway.wire.table import OPERATIONS

log = logging.getLogger("gatehouse")
R = TypeVar("R")
RESTART_ONLY = (
    "listen.data",
    "listen.admin",
    "listen.grpc",
    "state_dir",
    "replica",
    "store",
    "redis",
    "caches.disk",
    "caches.redis",
    "audit",
    "files",
    "batches",
    "jobs",
    "model_sharing",
)
"""Settings that a process reads once, at its start."""
MOST_WARNED = 20
"""Names of models and operations that nothing has, of one configuration, that the log tells of."""
MOST_LOOKED_FOR = 200
"""Tenants of one configuration that the store is asked about."""
TLS = ("listen.tls", "listen.admin_tls")
PROXY_PROTOCOL = ("listen.proxy_protocol", "listen.admin_proxy_protocol")


class Changes:
    """The configuration in force and how another one takes its place. Life: `start`, after the store; the owner ends its tasks.

    loaded: the configuration to start with. environ: what its references and overrides are read from, again at each reload.
    schemas: of the settings of all plug-ins. on_swap: called
    in this order with what is in force from now on; must not fail.
    """

    reloader: Reloader[Built]
    """Set by `start`."""

    def __init__(
        self,
        loaded: Loaded,
        environ: Mapping[str, str],
        schemas: PluginSchemas,
        builder: SnapshotBuilder,
        fleet: Fleet,
        link: StoreLink,
        certificates: Certificates,
        on_swap: list[Callable[[Built], None]],
        events: Events,
        metrics: Metrics,
        owner: TaskOwner,
        discovery: Discovery,
        history: ConfigHistory,
    ) -> None:
        self._read = loaded
        self._environ, self._schemas = environ, schemas
        self._base = Path(loaded.file).resolve().parent
        self._builder, self._fleet, self._link, self.on_swap = builder, fleet, link, on_swap
        self.before_swap: list[Callable[[Built], Awaitable[None]]] = []
        """Called in this order with what comes into force in the next step, unless one of them raises ConfigError."""
        self._certificates = certificates
        self._events, self._metrics, self._owner = events, metrics, owner
        self._built: Built | None = None
        self._resolved: tuple[ConfigSpec, ConfigSpec] | None = None
        """What the file said last, and the same with its models found."""
        self._refresh_due = False
        self._refreshing = 0
        self.lagging = False
        """Whether the store's part could not be put into force when that was tried last."""
        fleet.on_change = self.refresh
        self.machines: Callable[[Merged], Machines] = lambda merged: NO_MACHINES
        """Which joined machines bring which engines; to be set before `start`."""
        self.discovery, self._history = discovery, history

    async def start(self) -> Built:
        """Builds the first configuration, which `begin` puts into force. Raises ConfigError."""
        self._loop = asyncio.get_running_loop()
        await self._check_mtls(self._read.spec.identity.mtls)
        return await self._build(self._read.spec)

    def begin(self, first: Built) -> None:
        """Puts the first configuration into force and follows changes from now on."""
        steps = Steps(
            read=lambda: self._noted(self._load),
            parse=lambda text: self._noted(lambda: self._parse(text)),
            check=self._check,
            build=self._prepare,
            swap=self._apply,
            drain=self._retire,
            schemas=self._schemas,
            applied=self._taken,
        )
        self._history.applied(Applied(None, self._read.spec, self._read.text, self._read.file, "", [], first.snapshot.version))
        self.reloader = Reloader(self._read, first, steps, self._owner)
        self._metrics.gauges.append(self._collect)
        self._swap(first)
        self._owner.spawn(self._warn(self._read.spec), name="warnings of the configuration")

    @property
    def in_force(self) -> Built:
        assert self._built is not None, "the gateway has not been started"
        return self._built

    @property
    def version(self) -> int:
        """Counts the configurations that were in force in this process; 0 before the first one."""
        return 0 if self._built is None else self._built.snapshot.version

    def somebody_can_log_in(self) -> bool:
        """Whether there is a key (one of the file in force, or one that the store has shown) or another way to log in."""
        identity = self.in_force.snapshot.spec.identity
        return bool(identity.api_keys.static) or other_logins(self.in_force.snapshot.spec) or self._link.has_keys

    # --- reading

    def _load(self) -> Loaded:
        with uncollected():
            loaded = load(self._read.file, self._environ, self._schemas)
            read = members(loaded.spec)
            self._read = replace(loaded, spec=sharing(self.reloader.spec, loaded.spec))
            del loaded
            let_go(read)
        return self._read

    def _parse(self, text: str) -> ConfigSpec:
        """A text that an operator sent; its `${file:...}` are relative to the configuration file's folder."""
        with uncollected():
            spec = parse(text, file="the text", environ=self._environ, schemas=self._schemas, folder=self._base)
            read = members(spec)
            spec = sharing(self.reloader.spec, spec)
            let_go(read)
            return spec

    def _noted(self, read: Callable[[], R]) -> R:
        """Runs in a thread; a refusal is counted and recorded on the loop."""
        try:
            return read()
        except ConfigError as error:
            self._loop.call_soon_threadsafe(self._refused, error)
            raise

    def place(self, error: ConfigError) -> ConfigError:
        """Adds to an error about a setting of the file its place in the text that was read last."""
        if isinstance(error, EngineChangeFailed) and error.path is None:
            names = [engine.name for engine in self._read.spec.engines]
            error.path = f"engines[{names.index(error.engine)}]" if error.engine in names else None
        self._read.place(error)
        return error

    # --- building

    async def _check(self, spec: ConfigSpec) -> None:
        """Dry run: what a change would be refused for before an engine is started. Changes nothing. Raises ConfigError."""
        self._refuse_impossible(self.in_force.snapshot.spec, spec)
        await asyncio.to_thread(check_files, spec)
        merged = await self._link.additions.merged(await asyncio.to_thread(model_files.resolve, spec, self._base))
        await self._builder.check(spec, merged, self.in_force)

    async def _prepare(self, spec: ConfigSpec) -> Built:
        """Everything new beside the old, the file's new engines ready."""
        before = self.in_force
        try:
            self._refuse_impossible(before.snapshot.spec, spec)
            await self._certificates.prepare(spec.listen)
            if spec.identity.mtls != before.snapshot.spec.identity.mtls:
                await self._check_mtls(spec.identity.mtls)
            built = await self._build(spec)
            await self._fleet.prepare(before, built)
            for prepare in self.before_swap:
                await prepare(built)
            await self._fleet.enter(built)
        except ConfigError as error:
            self._refused(self.place(error) if spec is self._read.spec else error)
            raise
        return built

    async def _build(self, spec: ConfigSpec) -> Built:
        with uncollected():
            file = await self._resolve(spec)
            found = await self._link.additions.merged(file)
            await asyncio.sleep(0)  # each of these looks at every engine, which takes a millisecond for ten thousand
            merged = merged_with_copies(found)
            await asyncio.sleep(0)
            places = await self.discovery.places(merged)
            await asyncio.sleep(0)
            plan = Plan(self.version + 1, file, merged, self._fleet.plan(merged), places, self.machines(merged))
            await asyncio.sleep(0)
            return await self._builder.build(plan, self._built)

    async def _resolve(self, spec: ConfigSpec) -> ConfigSpec:
        """The file's part with its models found. A file that was read again gives failed sidecars of the store another try."""
        if self._resolved is None or self._resolved[0] is not spec:
            self._resolved = (spec, with_copies(await asyncio.to_thread(model_files.resolve, spec, self._base)))
            self._fleet.reconciler.retry()
        return self._resolved[1]

    def _refuse_impossible(self, before: ConfigSpec, after: ConfigSpec) -> None:
        """Raises ConfigError for what only a restart can change, and for a change that would leave no way to log in."""
        keys = after.identity.api_keys
        if keys != before.identity.api_keys and not (keys.static or self._link.has_keys or after.insecure or other_logins(after)):
            raise ConfigError(
                "the store has no key, so nobody could log in any more; make one first (`gatehouse keys create`)",
                path="identity.api_keys.rely_on_store",
            )
        for path in RESTART_ONLY:
            if _at(before, path) != _at(after, path):
                raise ConfigError("this setting can only be changed by a restart", path=path)
        for path in TLS:
            if (_at(before, path) is None) != (_at(after, path) is None):
                raise ConfigError(
                    "TLS can only be switched on or off by a restart; its files and settings can change at any time", path=path
                )

        for path in PROXY_PROTOCOL:
            if (_at(before, path) == "off") != (_at(after, path) == "off"):
                raise ConfigError("the PROXY protocol can only be switched on or off by a restart", path=path)
        if after.telemetry != before.telemetry:
            check_telemetry(after.telemetry)

    async def _check_mtls(self, spec: MtlsSpec | None) -> None:
        """Refuses files that cannot be used where they are new; later they leave what was read before in force. Raises ConfigError."""
        if spec is not None:
            await asyncio.to_thread(mtls.check, spec)

    # --- in force

    def _swap(self, built: Built) -> None:
        self._built = built
        self._builder.enter(built)
        self.discovery.keep(built.merged)
        for hear in self.on_swap:
            hear(built)
        self.reloader.watch(built.snapshot.spec.watch)

    def _apply(self, built: Built) -> None:
        left_out = self.in_force.merged.left_out
        self._swap(built)
        self._certificates.apply()
        self._fleet.pursue(built)
        self._metrics.reloads["applied"] += 1
        self._events.record("config_applied", "config", {"version": built.snapshot.version})
        for (kind, name), error in built.merged.left_out.items():
            if str(left_out.get((kind, name), "")) != str(error):
                self._events.record("left_out", f"{kind}/{name}", {"reason": str(error)}, outcome="refused")

    def _taken(self, applied: Applied) -> None:
        """A file or a text is in force."""
        self._history.applied(applied)
        self._owner.spawn(self._warn(applied.after), name="warnings of the configuration")

    async def _warn(self, spec: ConfigSpec) -> None:
        """Logs what `check-config` warns of, as far as the store has no such model or tenant either. The build speaks of prices."""
        models, tenants = self.in_force.merged.spec.models, await self._tenants(spec)
        named = (one for one in unmatched(spec, OPERATIONS, models, tenants) if not one[0].startswith("prices["))
        found = await asyncio.to_thread(lambda: list(islice(named, MOST_WARNED + 1)))
        for path, message in found[:MOST_WARNED]:
            warning = ConfigError(message, path=path)
            log.warning("%s", self.place(warning) if spec is self._read.spec else warning)
        if len(found) > MOST_WARNED:
            log.warning("there are more such names: `gatehouse check-config` shows all")

    async def _tenants(self, spec: ConfigSpec) -> list[str]:
        """Of the tenants that only limits name, those that the store has, or may have: not all are looked for."""
        own = tenants_of(spec)
        wanted = sorted({limit.match.tenant for limit in spec.limits} - own) if own is not None else []
        found = wanted[MOST_LOOKED_FOR:]
        store = self._link.store
        for name in wanted[:MOST_LOOKED_FOR]:
            try:
                if "*" in name or (await store.list_keys(tenant=name, limit=1)).items or await store.get("tenants", name):
                    found.append(name)
            except NotFound:
                continue
            except StoreUnavailable:
                found.append(name)
        return found

    async def _retire(self, old: Built) -> None:
        await self._fleet.retire(old, self.in_force)

    def _refused(self, error: ConfigError) -> None:
        """Counts and records a configuration that was not applied."""
        self._metrics.reloads["refused"] += 1
        self._events.record("config_refused", "config", {"reason": str(error)}, outcome="refused")

    def _collect(self) -> Iterable[Metric]:
        """Whether the file or the store has a configuration that is not in force. Who sends one to the admin API is told at once."""
        status = self.reloader.status
        waits = status.error is not None and not (status.failed_source or "").startswith("admin:")
        yield GaugeMetricFamily("gatehouse_config_refused", "Whether the newest configuration was refused", value=float(waits))

    # --- the store

    def heard(self, change: Change) -> None:
        """For the feed: what the store adds to the configuration may have changed."""
        if touches_configuration(change):
            self.refresh()

    def refresh(self) -> None:
        """Rebuilds the configuration in force, once for all calls made before the build begins."""
        if not self._refresh_due:
            self._refresh_due = True
            self._refreshing += 1
            self._owner.spawn(self._refresh(), name="refresh")

    async def _refresh(self) -> None:
        self._refresh_due = False  # a change from now on needs another round
        self.lagging = False
        try:
            await self.reloader.refresh("store")
        except ConfigError as error:
            self.lagging = True
            log.error("the store's changes were not put into force, the configuration stays as it was: %s", error)
        finally:
            self._refreshing -= 1

    @property
    def settled(self) -> bool:
        """Whether the store's part was tried as it has been heard of; `lagging` says how that ended."""
        return not self._refreshing


def other_logins(spec: ConfigSpec) -> bool:
    """Whether there is a way to log in besides API keys."""
    identity = spec.identity
    return bool(identity.plugins or identity.oidc or identity.ldap or identity.local_users or identity.mtls)


def _at(spec: ConfigSpec, path: str) -> object:
    found: object = spec
    for name in path.split("."):
        found = getattr(found, name)
    return found
