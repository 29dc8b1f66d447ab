"""All parts of one process, wired together: what each is given, in which order they start and end. Each part owns one thing:

`store_link` the store · `usage` what was used, counted from the log · `replicas` the others on the store · `fleet` engines and endpoints ·
`builder` Snapshots and their plug-ins ·
`changes` the configuration in force · `plane` the requests · `audit` the log · `events` what happens outside requests ·
`Gauges` what a scrape reads. The listeners and the signals are `process.Process`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from admin import values
from engines.host.handover import HeldEngines
from gateway.app import interpreter
from gateway.app.audit.keeping import Keeping
from gateway.app.audit.legal_holds import LegalHolds
from gateway.app.audit.policy_texts import PolicyTexts
from gateway.app.audit.shipping import Shipping, obey, recovery
from gateway.app.audit.text_keeping import TextKeeping
from gateway.app.caches.book import CacheBook, CacheGauges
from gateway.app.caches.purges import CachePurges
from gateway.app.caches.tiers import CacheTiers, embedder
from gateway.app.certificates import Certificates
from gateway.app.clients.approval_webhook import ApprovalWebhook
from gateway.app.clients.approvals import ApprovalBook, Approvers, Requesters
from gateway.app.clients.kept_answers import AnswerBook
from gateway.app.clients.work import ClientWork
from gateway.app.configuration.changes import Changes
from gateway.app.configuration.history import ConfigHistory
from gateway.app.configuration.parts import PartsBuilder
from gateway.app.configuration.plugins import OURS, Plugins
from gateway.app.configuration.snapshots import Built, SnapshotBuilder
from gateway.app.engines.canary_book import CanaryBook
from gateway.app.engines.discovery import Discovery
from gateway.app.engines.endpoint_loads import Loads
from gateway.app.engines.fleet import Fleet
from gateway.app.engines.rollout_book import RolloutBook
from gateway.app.engines.room import idle
from gateway.app.engines.scaling import Scaling
from gateway.app.engines.tickets import TicketGauges, TicketOffice
from gateway.app.events import Events
from gateway.app.identity.countries import Countries
from gateway.app.identity.halts import LOOK_SECONDS, Halts
from gateway.app.identity.revocations import RevocationBook
from gateway.app.identity.shared_proofs import OnFailure, SharedProofs
from gateway.app.identity.suspensions import Suspensions
from gateway.app.identity.tokens import TokenService
from gateway.app.joined.machines import JoinedMachines
from gateway.app.joined.placement import Placement
from gateway.app.limits.budget_runs import BudgetRuns
from gateway.app.limits.durable import DurableLimits
from gateway.app.limits.shared import SharedLimitsPart
from gateway.app.limits.times import LimitTimes
from gateway.app.limits.usage import UsageCounter, counted
from gateway.app.operator_jobs.work import OperatorJobs
from gateway.app.replicas.replica import replica_id
from gateway.app.replicas.replicas import Replicas
from gateway.app.store.link import StoreLink
from gateway.app.telemetry.engine_gauges import EngineGauges
from gateway.app.telemetry.gauges import Gauges
from gateway.app.telemetry.log_levels import LogLevelBook
from gateway.app.telemetry.observing import Observing
from gateway.app.telemetry.process_gauges import MachineGauges, ProcessGauges
from gateway.app.telemetry.rollout_gauges import RolloutGauges
from gateway.app.telemetry.traffic_gauges import TrafficGauges
from gateway.app.webhooks import Webhooks
from gateway.audit.broker import AuditBroker
from gateway.audit.holds import Holds
from gateway.audit.opening import Opener
from gateway.audit.sinks import local_sink
from gateway.caches.registry import AnswerCaches
from gateway.config.convert import PluginSchemas
from gateway.config.load import Loaded
from gateway.core.caching import Purge
from gateway.core.clock import SystemClock
from gateway.core.errors import GatehouseError
from gateway.core.feed import LocalFeed
from gateway.core.logins import LocalLogins
from gateway.core.network import Networks
from gateway.core.proofs import Claim
from gateway.core.specs import ConfigSpec, IdentitySpec, SessionsSpec
from gateway.core.specs.approvals import ApprovalWebhookSpec
from gateway.core.tasks import TaskOwner
from gateway.identity.floods import FloodTable
from gateway.identity.replays import Replays
from gateway.identity.revocations import Revocations
from gateway.identity.token_keys import TokenKeys
from gateway.pipeline.asking import ModelAsker
from gateway.pipeline.canaries import Trials
from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.pipeline.shadows import Shadows
from gateway.pipeline.ticketing import TicketBook
from gateway.server.tls import Material
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.refused import Refused

log = logging.getLogger("gatehouse")
EXPIRY_SECONDS = 60.0
"""Between two looks for abandoned uploads."""
TOKENS_SECONDS = 60.0
"""Between two looks at the keys of tokens and at revocations that are over."""
RECOVERY_SECONDS = 2.0
"""Between two looks for writers of the audit log that no process has."""


class Gateway:
    """workers: whether other processes serve (gateway.app.workers). Life: `start`, `start_engines`, `aclose`. Raises ConfigError when the
    settings of the store or the audit log cannot be used."""

    def __init__(self, loaded: Loaded, environ: Mapping[str, str], plugins: Plugins = OURS, *, workers: bool = False) -> None:
        spec, base = loaded.spec, Path(loaded.file).resolve().parent
        self.plugins, self.spec = plugins, spec
        """What the process was started with, for the settings that only a restart changes."""
        self._workers = workers
        self.replica = replica_id(Path(spec.state_dir), environ, spec.replica)
        schemas = plugins.schemas()
        self.metrics = Metrics()
        self.scrape: Callable[[], bytes] = self.metrics.scrape
        """All metrics; with workers, theirs too."""
        self.plane = DataPlane(self.metrics)
        self.feed = LocalFeed()
        self.audit = AuditBroker(spec.audit, spec.state_dir, writer=self.replica)
        self.opener = Opener()
        self._recovery = recovery(spec, self.replica, self.audit.prepare)
        obey(spec, self.audit, plugins.sinks)
        self.events = Events(self.audit, self.feed)
        self.shipping = Shipping(spec, self.replica, plugins.sinks, self.events.record, self.opener)
        self.certificates = Certificates(self.events.record)
        self._held: Mapping[str, Material] = {}
        self.countries = Countries(Networks(), self.events.record)
        self.store_link = StoreLink(spec, environ, self.feed, plugins, self.countries.networks)
        logs = local_sink(spec.audit, spec.state_dir, self.replica).directory
        self.usage = UsageCounter(self.store_link.store, logs, self._kept_of_sessions, self.opener)
        self._owner = TaskOwner("gateway")
        link = self.store_link
        self.holds = LegalHolds(link.store, lambda: link.store.derived("legal holds"), Holds(logs, SystemClock()), self._owner)
        self.keeping = Keeping(spec, self.replica, self.shipping.couriers, self.usage, self.events, self.holds.unsure)
        self.fleet = Fleet(spec, base, SystemClock(), self.events, plugins.runtimes, workers=workers)
        self.replicas = Replicas(self.store_link, self.fleet, self.replica, self.events.record, spec.redis)
        self.halts = Halts(self.store_link.store, self.plane.standing, Path(spec.state_dir), self.events.record, self._owner)
        members, holder = self.replicas.members, f"{self.replica}:{self.replicas.members.incarnation}"
        self.limits = DurableLimits(self.store_link.store, holder, lambda: members.live, self._owner, self.events.record)
        self.limit_times = LimitTimes(Path(spec.state_dir), tasks=self._owner)
        told = (lambda: self.plane.current().spec, self.limit_times, self._owner, self.limits.settled, self.opener)
        self.budget_runs = BudgetRuns(self.store_link.store, holder, Path(spec.state_dir), logs, *told)
        self.webhooks = Webhooks(link.store, told[0], self.replica, self._owner, redis=spec.redis, ahead=lambda: members.skew)
        self._watch_refusals()
        self.revocations, self.token_keys = Revocations(), TokenKeys()
        self.logins = LocalLogins(SystemClock(), self.login_key)
        link, known = self.store_link, (self.revocations, self.token_keys, self.logins, ModelAsker(self.plane))
        book = self.revoked = RevocationBook(link.store, self.revocations, self._identity, self._owner, clocks=members.clocks)
        self.tokens = TokenService(link.store, self.token_keys, self.audit, lambda: self._identity().gateway_tokens, self._owner, book)
        parts = PartsBuilder(plugins, link.keys, link.people, base, self.events.record, lambda: self.scrape(), *known)
        self.replays, self.caches = Replays(SystemClock()), AnswerCaches(SystemClock().monotonic, embedder(self.plane))
        self.cache_book = CacheBook(self.caches)
        self.rollout_book = RolloutBook(Trials(Shadows(self.plane, idle)))
        sharing = (self._proofs_on_failure, self._owner, members.clocks)
        self.shared_proofs = None if spec.redis is None else SharedProofs(self.replays, spec.redis, *sharing)
        self.claim: Claim = self.replays.claim if self.shared_proofs is None else self.shared_proofs.claim
        known_there = (self.countries, self.limits.refills, self.claim, self.caches, self.rollout_book.trials)
        self.builder = SnapshotBuilder(self.fleet.registry, self.metrics, link, self.audit, parts, *known_there)
        self.shared_limits = self.builder.shared_limits = None if workers else self._in_redis(spec)
        self.changes = self._changes(loaded, environ, schemas)
        self.suspensions = Suspensions(self.store_link.store, self.plane.standing, self._owner)
        self._keep(spec, base, environ)
        self._make_client_work(holder)
        self.scaling, self.machines, self.tickets = self._scaling(), *self._machines(spec)
        self._observe(spec)
        self._measure(parts)

    def _make_client_work(self, holder: str) -> None:
        """Files and batches, the webhook of approvals, and engines on trial."""
        parts = (self.store_link, self.texts.vault, self.plane, self.countries.networks, self.events.record, self._owner, holder)
        self.work = ClientWork(self.spec, *parts, workers=self._workers, revocations=self.revocations)
        store, record = self.store_link.store, self.events.record
        self.operator_jobs = OperatorJobs(self.spec, store, self.fleet.files, self.work, self.plane, record, self.replica, holder)
        told = (lambda: self.plane.current().spec, self.changes.refresh, self.events.record, self._owner)
        self.rollout_book.canaries = CanaryBook(self.store_link.store, *told)
        self.builder.withdrawn = self.rollout_book.canaries.applied
        self.webhook = ApprovalWebhook(self.approvals, self.store_link.store, self._approvals_webhook, self.events.record, self._owner)

    def _observe(self, spec: ConfigSpec) -> None:
        """What is told of requests in the log and in traces."""
        self.observing = Observing(self.plane, spec.telemetry, self.replica, self._owner)
        self.log_levels = LogLevelBook(self.observing.configured, self.observing.put_levels, self.events.record, self._owner)

    def _keep(self, spec: ConfigSpec, base: Path, environ: Mapping[str, str]) -> None:
        """Where answers are kept that wait for a person, and texts that a policy has recorded."""
        store, record = self.store_link.store, self.events.record
        stands = Requesters(self.plane.standing, store.get_key, self._fixed_keys, SystemClock()).check
        current, owner = self.plane.current, self._owner
        named = Approvers(current).of
        self.approvals = ApprovalBook(store.approvals, lambda: current().spec.approvals, record, owner, named, stands=stands)
        self.plane.conversations = self.answers = AnswerBook(store.kept_answers, lambda: current().spec.responses, self._owner)
        self.texts = TextKeeping(spec, store, base, environ, record, self._owner, self.holds.why, self.opener)
        self.plane.approvals, self.plane.texts, self.plane.records = self.approvals, self.texts.texts, self.texts.records
        vault = self.texts.vault
        self.audit.encrypt(None if vault is None else vault.ring, self.opener)
        if vault is not None:
            vault.settle, vault.forget = self.usage.count, self._forget
        self._back_caches(spec)

    async def _forget(self, tenant: str) -> int:
        """Erases what is kept of a tenant besides its records; how many responses that was. Raises StoreUnavailable."""
        await self.cache_book.purge(Purge(tenant=tenant))
        return await self.answers.shred(tenant)

    def _back_caches(self, spec: ConfigSpec) -> None:
        """Puts the disk and Redis behind the caches in memory, and tells them of purges."""
        vault = self.texts.vault
        tiers = self.cache_tiers = CacheTiers(spec, None if vault is None else vault.ring, lambda: self.builder.salts)
        self.caches.behind = tiers.behind
        if vault is not None:
            vault.dropped.append(self.caches.dropped)
        self.cache_purges = CachePurges(self.store_link.store, self.cache_book.made_up, SystemClock(), self._owner, tiers.disk)
        self.cache_book.tell = self.cache_purges.tell

    async def _start_caches(self) -> None:
        """Runs before anything is served, so that nothing is found on disk that was purged meanwhile."""
        await self.cache_tiers.start(first=True)
        await self.cache_purges.start()
        self.feed.subscribe(self.cache_purges.heard)

    def _changes(self, loaded: Loaded, environ: Mapping[str, str], schemas: PluginSchemas) -> Changes:
        """The configuration in force, and who is told when it changes."""
        link, owner, key = self.store_link, self._owner, partial(self.store_link.store.derived, "configuration history")
        self.policy_texts = PolicyTexts(Path(self.spec.state_dir), schemas, self.events, owner)
        on_swap: list[Callable[[Built], None]] = [
            lambda built: self.limit_times.applied(built.snapshot.spec.limits),
            self.fleet.put_into_force,
            self._serve,
            self._log_as_configured,
            self.policy_texts.heard,
        ]
        self.discovery = Discovery(SystemClock(), lambda: self.changes.refresh(), self.events.record)
        history = ConfigHistory(link.store, key, schemas, self.replica, _differences, owner)
        parts = (self.builder, self.fleet, link, self.certificates, on_swap, self.events, self.metrics, owner, self.discovery, history)
        changes = Changes(loaded, environ, schemas, *parts)
        changes.before_swap.append(lambda built: self.limit_times.prepare(built.snapshot.spec.limits))
        return changes

    def _scaling(self) -> Scaling:
        """Advises how many replicas there should be, and has copies of sidecars follow."""
        fleet, mirror = self.fleet, self.fleet.mirror
        return Scaling(
            lambda: self.changes.in_force.stated,
            lambda: {entry.name: entry for entry in self.plane.current().models.values()}.values(),
            Loads(fleet.registry, mirror),
            lambda entry: entry.route.backlog if mirror is None else mirror.queued(entry.name),
            fleet.supervisor,
            SystemClock(),
        )

    def _machines(self, spec: ConfigSpec) -> tuple[JoinedMachines, TicketOffice]:
        """Machines that have joined, and their engines among the configuration's; direct tickets at them."""
        store, folder = self.store_link.store, Path(spec.state_dir).resolve() / "machines"
        told = (self.fleet.registry, self.changes.refresh, self.events.record, self._owner)
        made = JoinedMachines(store, store.derived, folder, self.replica, SystemClock(), *told)
        self.changes.machines, self.fleet.probe = made.members, made.probe(self.fleet.probe)
        files, traffic = self.replicas.models.contents, self.fleet.traffic
        self.placement = Placement(made, files, traffic, store, self.replicas.members.holder, SystemClock(), *told[1:3])
        return made, self._tickets(made)

    def _tickets(self, machines: JoinedMachines) -> TicketOffice:
        plane = self.plane
        authority = lambda: machines.authorities.machines  # noqa: E731 - it is made when it is first needed
        settings = lambda: None if plane.snapshot is None else plane.snapshot.spec.tickets  # noqa: E731
        told = (self.replicas.members, self.events.record, SystemClock())
        made = TicketOffice(self.store_link.store.derived, machines.ticket_port, authority, settings, *told)
        made.book = self._book = TicketBook(plane, made.withdraw)
        machines.office = made
        return made

    def _watch_refusals(self) -> None:
        """Counts floods of denials and refused connections, for the audit log."""
        self._floods = FloodTable()
        self.plane.first_denial = self._floods.denied
        self._refused = self.plane.refused = Refused()

    def _fixed_keys(self) -> frozenset[str]:
        return frozenset(key.id for key in self.plane.current().spec.identity.api_keys.static)

    def _approvals_webhook(self) -> ApprovalWebhookSpec | None:
        return self.plane.current().spec.approvals.webhook

    def _measure(self, parts: PartsBuilder) -> None:
        """Says what a scrape reads, and what each sweep does."""
        self.plane.listeners.append(lambda: parts.sweep(self.plane.now))
        traffic = TrafficGauges(self.plane, self.fleet.registry, self.audit, self.shipping.couriers, self.store_link.keys, parts)
        gauges = Gauges(self.fleet.supervisor, self.store_link, self.replica, self.replicas.members, self.usage)
        ours = (
            self.tokens,
            self.revoked,
            traffic,
            gauges,
            self.replicas.hints,
            self.replicas.models,
            self.halts,
            self.certificates,
            self._refused,
            self.webhooks,
            self.approvals,
            self.answers,
            self.keeping,
            self.holds,
            self.observing,
            self.scaling,
            self.discovery,
            ProcessGauges(self.plane, "control"),
            MachineGauges.of(self.spec),
            EngineGauges(self.fleet.supervisor, self.fleet.times),
            self.work,
            self.operator_jobs,
            CacheGauges(self.caches),
            RolloutGauges(self.rollout_book.trials),
            self.rollout_book.canaries,
            self.machines,
            TicketGauges(self._book),
        )
        self.metrics.gauges += [part.collect for part in (*ours, self.fleet.connections)]
        if self.shared_proofs is not None:
            self.metrics.gauges.append(self.shared_proofs.collect)
        if self.texts.vault is not None:
            self.metrics.gauges.append(self.texts.vault.collect)

    def login_key(self) -> bytes:
        """What passwords are compared by (gateway.core.logins): the same on all machines that share a store."""
        return self.store_link.store.derived("login proofs")

    def _proofs_on_failure(self) -> OnFailure:
        dpop = self._identity().dpop
        return "closed" if dpop is None else dpop.on_failure

    def _in_redis(self, spec: ConfigSpec) -> SharedLimitsPart | None:
        """Limits of this process in Redis, if there is one."""
        if spec.redis is None:
            return None
        made = SharedLimitsPart(
            spec.redis, self.events.record, lambda: self.replicas.members.processes, self.metrics.not_enforced, self.replica
        )
        self.metrics.gauges.append(made.collect)
        self.audit.named(made.shared.who)
        return made

    # --- life

    async def start(self) -> None:
        """Opens the store and the audit log, puts the configuration into force, starts probing. Engines are started by `start_engines`."""
        await self.certificates.open(self.spec.listen, self._held)
        await self.store_link.start()
        for kept in (self.halts, self.suspensions, self.rollout_book.canaries, self.machines):
            await kept.start()
        await self.budget_runs.begin()
        self.limits.start()
        self.tokens.ahead = self.replicas.members.ahead
        for part in (self.tokens, self.revoked):
            self.feed.subscribe(part.heard)
            await part.start()
        await self.fleet.start()
        if self.shared_limits is not None:
            await self.shared_limits.start()
        if self.shared_proofs is not None:
            await self.shared_proofs.start()
        await self._start_caches()
        first = await self.changes.start()
        await self.texts.prepare()
        await self.shipping.start()
        await self.audit.start()
        self.usage.start()
        self.budget_runs.start()
        self.events.open()
        await self.texts.start()
        await self.holds.start()
        self.keeping.start()
        self.policy_texts.start()
        self.log_levels.start()
        self.changes.begin(first)
        self.feed.subscribe(self.changes.heard)
        await self.tokens.look()
        self._owner.every(TOKENS_SECONDS, self._look_after_tokens, name="tokens")
        for listener in (self.halts, self.suspensions, self.rollout_book.canaries, self.machines, self.texts, self.holds, self.webhooks):
            self.feed.subscribe(listener.heard)
        self.rollout_book.begin(self._owner)
        self.machines.begin()
        self.placement.begin()
        self.webhooks.start()
        self.approvals.start()
        self.answers.start()
        self.feed.subscribe(self.work.heard)
        await self.work.start()
        self.fleet.start_probing()
        self.certificates.watch(self._owner)
        self.countries.watch(self._owner)
        self._owner.every(SWEEP_SECONDS, self._sweep, name="sweep")
        self._owner.every(LOOK_SECONDS, self.halts.look, name="halts")
        self._owner.every(EXPIRY_SECONDS, self.fleet.files.expire, name="uploads")
        self._owner.every(RECOVERY_SECONDS, self._recover, name="audit writers")
        spec = first.snapshot.spec
        log.info("this is the replica %s", self.replica)
        if not self.changes.somebody_can_log_in():
            log.warning("no key can log in yet (401): the first administrator's key is made once the engines are ready")
        if spec.insecure:
            log.warning("INSECURE: this configuration switches protection off (insecure: true)")
        self.events.record("start", "gatehouse", {"config": first.snapshot.version, "insecure": spec.insecure, "replica": self.replica})

    def adopt(self, engines: HeldEngines, certificates: Mapping[str, Material]) -> None:
        """Takes over the sidecars and the certificates of the program before this one. Call before `start`."""
        self._held, self.fleet.registry.seen = certificates, True
        self.fleet.supervisor.adopt(engines)
        self.fleet.reconciler.adopt(one.spec.name for one in engines.sidecars)

    async def start_engines(self) -> None:
        """Starts the sidecars and waits until each is ready. Raises ConfigError with the reason of the first of the file that is not."""
        await self.fleet.start_engines(self.changes.in_force)
        interpreter.tune(self._owner)
        self.operator_jobs.start()
        self.fleet.watch_pressure()
        self.scaling.start()

    async def aclose(self, *, engines: bool = True) -> None:
        """Ends engines, probes, connections and at last the audit log. Requests must have drained before. engines: whether the sidecars end
        too; not if another program has taken them over."""
        await self.operator_jobs.aclose()
        await self.work.aclose()
        await self.scaling.aclose()
        await self.discovery.aclose()
        await self.placement.aclose()
        if engines:
            await self.fleet.stop_engines((self.plane.snapshot or self).spec.listen.drain_timeout)
        else:
            await self.fleet.reconciler.aclose()
        await self.store_link.follow_no_more()
        await self.plane.tasks.aclose()
        await self.fleet.aclose()
        given_back = await self.limits.aclose(give_back=engines)
        await self.budget_runs.aclose(handed=not engines and self._workers, given_back=given_back)
        await self.keeping.aclose()
        await self.observing.aclose()
        await self._owner.aclose()
        await self.builder.aclose()
        if self.shared_limits is not None:
            await self.shared_limits.aclose()
        if self.shared_proofs is not None:
            await self.shared_proofs.aclose()
        await self.cache_tiers.aclose()
        await self.replicas.aclose()
        if engines:
            self.events.record("stop", "gatehouse", {})
        await self.audit.aclose()
        await self.usage.aclose()
        await counted(self.usage)
        with suppress(GatehouseError):  # what cannot be queued now is noticed again after the next start
            await self.webhooks.flush()
        await self.store_link.aclose()
        await self.shipping.aclose()

    # --- the configuration in force

    def _kept_of_sessions(self) -> SessionsSpec:
        return (self.spec if self.plane.snapshot is None else self.plane.current().spec).usage.sessions

    def _identity(self) -> IdentitySpec:
        return self.plane.current().spec.identity

    def _serve(self, built: Built) -> None:
        version = self.metrics.config_version = built.snapshot.version
        self.plane.snapshot = built.snapshot
        self.audit.configured(version)
        users = built.snapshot.spec.identity.users
        self.store_link.logins.limit = users.max if users.create else 0
        self.feed.publish("config", version)

    def _log_as_configured(self, built: Built) -> None:
        self.observing.follow(built.snapshot.spec.telemetry)

    async def _look_after_tokens(self) -> None:
        await self.tokens.look()
        await self.revoked.clear()

    async def _recover(self) -> None:
        await asyncio.to_thread(self._recovery.look)

    async def _sweep(self) -> None:
        self.plane.sweep()
        self.fleet.connections.tick()
        for listener, refused in self._refused.reports(self.plane.now):
            self.events.record("connections_refused", listener, refused, outcome="denied")
        for flood in self._floods.drain(self.plane.now):
            self.events.record("denials", flood.peer, {"code": flood.code, "count": flood.count}, outcome="denied")


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    return values.diff(values.named(before), values.named(after))
