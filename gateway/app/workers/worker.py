"""A data worker: the parts of the process that serves requests, wired together. It owns nothing that lasts but its audit chain.

What gateway.app.gateway is to the process with the store, this is to a worker. Everything that it knows comes over the feed: a worker
imports neither the store nor what hosts engines nor the admin API (a test holds that).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import Metric

from gateway.app import compiled, interpreter
from gateway.app.audit.shipping import obey
from gateway.app.audit.texts import records_of, texts_of
from gateway.app.caches.book import CacheGauges
from gateway.app.caches.tiers import CacheTiers, embedder
from gateway.app.configuration.assembly import Assembled, Assembler
from gateway.app.configuration.parts import NONE, PartsBuilder
from gateway.app.configuration.plugin_set import Plugins
from gateway.app.engines.connections import Connections
from gateway.app.engines.room import idle
from gateway.app.engines.tickets import TicketGauges
from gateway.app.events import Events
from gateway.app.identity.countries import Countries
from gateway.app.limits.shared import SharedLimitsPart
from gateway.app.telemetry.observing import Observing
from gateway.app.telemetry.process_gauges import ProcessGauges
from gateway.app.telemetry.rollout_gauges import RolloutGauges
from gateway.app.telemetry.traffic_gauges import TrafficGauges
from gateway.app.workers.channel import Channel, FeedClosed, Handlers
from gateway.app.workers.figures import told
from gateway.app.workers.kept_answers import FeedAnswers, FeedDesk
from gateway.app.workers.messages import (
    Barrier,
    Beat,
    CertificateChanged,
    FindKey,
    FindPerson,
    Happened,
    KeyChanged,
    KeysMissed,
    PersonChanged,
    Pulse,
    Ready,
    Replaced,
    RevocationsChanged,
    Scrape,
    Scraped,
    State,
    Stopped,
    StopsChanged,
    TokenKeysChanged,
    Used,
)
from gateway.app.workers.share import share_of
from gateway.app.workers.store_feed import StoreFeed
from gateway.app.workers.tickets import FeedTickets, ticket_handlers
from gateway.app.workers.worker_batches import WorkerWork, work_handlers
from gateway.audit.broker import AuditBroker
from gateway.audit.keyring import DataKey, KeyRing
from gateway.audit.opening import FromLoop, Opener
from gateway.audit.writers import claim
from gateway.caches.registry import AnswerCaches
from gateway.core.caching import CachesAsked
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.collecting import uncollected
from gateway.core.errors import ConfigError, Overloaded
from gateway.core.feed import LocalFeed
from gateway.core.log_levels import LogLevels
from gateway.core.logins import RemoteLogins
from gateway.core.network import Networks
from gateway.core.people import PersonRecord
from gateway.core.ports import Change, Limiter
from gateway.core.proofs import ClaimProof
from gateway.core.rollouts import RolloutsAsked
from gateway.core.secret import Secret
from gateway.core.slices import in_slices
from gateway.core.specs import ConfigSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.standing import Stop
from gateway.core.storage import KeyRecord
from gateway.core.tasks import TaskOwner
from gateway.core.tokens import Mint, Minted
from gateway.core.vault import CapturesChanged, DataKeyGiven, DataKeysDropped, GiveDataKey, OpenDataKey
from gateway.identity.floods import FloodTable
from gateway.identity.people import People
from gateway.identity.revocations import Revocations
from gateway.identity.stored import StoredKeys
from gateway.identity.token_keys import TokenKeys
from gateway.limits.estimates import Estimates, bounds_of
from gateway.limits.lease_messages import LeaseRecall, LeaseReply
from gateway.limits.leased import LeasedLimiter
from gateway.limits.shares import Shares
from gateway.pipeline.asking import ModelAsker
from gateway.pipeline.canaries import Trials
from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.pipeline.shadows import Shadows
from gateway.pipeline.ticketing import TicketBook
from gateway.routing.follower import Follower
from gateway.routing.mirror_messages import TO_WORKER
from gateway.routing.registry import EndpointRegistry
from gateway.routing.shedding import PressureMonitor, cgroup_limit
from gateway.server.health import Health
from gateway.server.tls import Contexts, Material, context_of
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.refused import Refused
from policies.limits import LimitRules, nothing

log = logging.getLogger("gatehouse")
FIND_SECONDS: Final = 6.0
"""How long the look-up of a key may take: a little longer than the store's own deadline."""
ISSUE_SECONDS: Final = 10.0
"""How long the signature of a token may take: what the audit log and the store need at most."""
CLAIM_SECONDS: Final = 2.0
"""How long it may take to say whether a proof was used before, or whether a password may be tried."""
REPORT_SECONDS: Final = 1.0


class Worker:
    """Made from the state that the control process sent. Life: `start`, `aclose`. Raises ConfigError."""

    def __init__(self, state: State, channel: Channel, plugins: Plugins) -> None:
        self.id, self._channel, self._stored, self._count = state.worker, channel, StoreFeed(channel), state.count
        spec = share_of(state.spec, state.count)
        self._first = state
        self._facts = Pulse(state.has_keys, state.store_lost)
        self.metrics = Metrics()
        self.plane = DataPlane(self.metrics)
        for source, stops in state.stops.items():
            self.stopped(Stopped(source, stops))
        self.feed = LocalFeed()
        self.feed.subscribe(self._happened)
        self.audit = AuditBroker(spec.audit, spec.state_dir, sink=claim(spec.audit, spec.state_dir, state.replica, state.worker))
        obey(spec, self.audit, plugins.sinks)
        self.events = Events(self.audit, self.feed)
        self._owner = TaskOwner("worker")
        self.plane.approvals = FeedDesk(self._stored, self._owner)
        self.plane.conversations = FeedAnswers(self._stored, self._owner)
        self._keep(spec, state.captures)
        self.people = People(self._find_person, self._owner)
        self.countries = Countries(Networks(), self.events.record)
        self.keys = StoredKeys(self._find_key, self._owner, self.people, networks=self.countries.networks)
        self.revocations, self.token_keys = Revocations(), TokenKeys()
        self.revocations.replace(state.revocations)
        self.work = WorkerWork(spec, channel, self.plane, self.people, self.countries.networks, self.events.record, self.revocations)
        self.connections = Connections()
        self.registry = EndpointRegistry(SystemClock(), SystemEntropy(), self.connections.client)
        self.follower = Follower(self.registry, channel.tell)
        self._floods = FloodTable()
        self.plane.first_denial = self._floods.denied
        self._refused = self.plane.refused = Refused()
        self.token_keys.replace(state.token_keys)
        logins = RemoteLogins(bytes.fromhex(state.logins.reveal()), lambda wish: channel.ask(wish, CLAIM_SECONDS), channel.tell)
        known = (self.revocations, self.token_keys, logins, ModelAsker(self.plane))
        self._parts = PartsBuilder(plugins, self.keys, self.people, Path(state.base), self.events.record, self.metrics.scrape, *known)
        self.plane.listeners.append(lambda: self._parts.sweep(self.plane.now))
        salts, loop = bytes.fromhex(state.salts.reveal()), asyncio.get_running_loop()
        self._estimates = Estimates()
        self.shares = Shares(channel.tell, loop.call_soon, loop.call_later, learn=self._estimates.learn, noted=self.metrics.not_enforced)
        self.caches = AnswerCaches(SystemClock().monotonic, embedder(self.plane))
        self._cache_tiers = self._behind_caches(spec, salts)
        self.trials = Trials(Shadows(self.plane, idle))
        known_there = (self.countries, self._claim, self.caches, self.trials)
        self._assembler = Assembler(self.registry, self.metrics, self.audit, self._parts, self._limiter, lambda: salts, *known_there)
        self.shared_limits = None if spec.redis is None else self._in_redis(spec.redis, state)
        if self.work.files is not None:
            self.metrics.gauges.append(self.work.files.collect)
        traffic = TrafficGauges(self.plane, self.registry, self.audit, (), self.keys, self._parts)
        self.metrics.gauges += [traffic.collect, self._refused.collect, CacheGauges(self.caches).collect, self._tickets()]
        self.metrics.gauges += [RolloutGauges(self.trials).collect, self.connections.collect]
        self.health = self._health(state.replica)
        memory = cgroup_limit()
        self._pressure = PressureMonitor(self._shed, None if memory is None else memory // (state.count + 1))
        self.observing = Observing(self.plane, spec.telemetry, state.replica, self._owner, worker=state.worker)
        self.metrics.gauges += [self.observing.collect, ProcessGauges(self.plane, self.id).collect]
        self._assembled: Assembled | None = None
        self._newest: tuple[ConfigSpec, int] | None = None
        self._building = asyncio.Lock()
        self.tls: Contexts | None = None
        """What connections get; set by `start` where the data listener has TLS."""
        self._material = state.tls

    def _health(self, replica: str) -> Health:
        store_lost, seen = lambda: self._facts.store_lost, lambda: self.registry.seen
        return Health(self.plane, store_lost, self._somebody_can_log_in, replica, seen=seen)

    def _keep(self, spec: ConfigSpec, captures: dict[str, float]) -> None:
        """What of the audit log is encrypted, and whose texts are kept."""
        self.ring = KeyRing(self._data_key, self._owner)
        self.opener = Opener(FromLoop(self._opened_key, asyncio.get_running_loop()))
        self.audit.encrypt(self.ring, self.opener)
        self.texts = self.plane.texts = texts_of(spec.audit, self.ring)
        self.plane.records = records_of(spec.audit, self.ring)
        self.captures_changed(CapturesChanged(captures))

    def _behind_caches(self, spec: ConfigSpec, salts: bytes) -> CacheTiers:
        """The disk and Redis behind the memory of the caches of answers."""
        made = CacheTiers(spec, None if spec.audit.encryption is None else self.ring, lambda: salts)
        self.caches.behind = made.behind
        return made

    def _tickets(self) -> Callable[[], Iterable[Metric]]:
        """Direct tickets that this worker gives; what is counted of them."""
        self.ticket_desk = FeedTickets(self._channel)
        self.tickets = TicketBook(self.plane, self.ticket_desk.withdraw)
        return TicketGauges(self.tickets).collect

    def _in_redis(self, spec: RedisSpec, state: State) -> SharedLimitsPart:
        """Limits of this process in Redis."""
        made = SharedLimitsPart(
            spec, self.events.record, lambda: max(state.count, self._facts.processes), self.metrics.not_enforced, state.replica
        )
        self.metrics.gauges.append(made.collect)
        self.audit.named(made.shared.who)
        return made

    # --- life

    async def start(self) -> None:
        """Puts the state into force. Raises ConfigError."""
        self.observing.put_levels(self._first.log_levels)
        await self._take_certificate()
        if self.shared_limits is not None:
            await self.shared_limits.start()
        await self._cache_tiers.start(first=False)
        async with self._building:
            if self.plane.snapshot is None:  # a change may have overtaken it
                with uncollected():
                    await self._put_into_force(self._first.spec, self._first.version)
        await self.audit.start()
        await self.work.start()
        self.events.open()
        self.countries.watch(self._owner)
        self._owner.every(SWEEP_SECONDS, self._sweep, name="sweep")
        self._owner.every(REPORT_SECONDS, self._report, name="report")
        interpreter.tune(self._owner)
        self._pressure.start()
        self.events.record("worker_started", self.id, {"config": self._first.version, "writer": self.audit.writer})

    def ready(self) -> None:
        """Tells the control process that requests are served."""
        self._channel.tell(Ready(compiled.active()))

    async def aclose(self) -> None:
        """Ends connections and at last the audit log. Requests must have drained before."""
        self._pressure.close()
        self.follower.close()
        await self.plane.tasks.aclose()
        await self.registry.aclose()
        await self.observing.aclose()
        await self._owner.aclose()
        await self._assembler.aclose()
        if self.shared_limits is not None:
            await self.shared_limits.aclose()
        await self._cache_tiers.aclose()
        self.events.record("worker_stopped", self.id, {})
        await self.audit.aclose()
        await self._report()
        self._channel.tell(await self.scrape())

    # --- the configuration in force

    async def apply(self, spec: ConfigSpec, version: int) -> None:
        """Returns once this configuration, or a later one, is in force. Raises ConfigError."""
        if self._newest is None or self._newest[1] < version:
            self._newest = (spec, version)
        async with self._building:
            newest, version = self._newest
            if self.plane.snapshot is None or self.plane.snapshot.version < version:
                with uncollected():
                    await self._put_into_force(newest, version)

    async def _put_into_force(self, whole: ConfigSpec, version: int) -> None:
        spec = share_of(whole, self._count)
        before = NONE if self._assembled is None else self._assembled.parts
        made = self._assembled = await self._assembler.assemble(version, spec, before)
        await in_slices(self.registry.entering(made.router))
        self.registry.activate(made.router)
        self._parts.enter(made.parts)
        self.metrics.config_version = version
        self.plane.snapshot = made.snapshot
        self.audit.configured(version)
        self.observing.follow(spec.telemetry)

    def _limiter(self, spec: ConfigSpec, rules: LimitRules, version: int, places: bool) -> Limiter:
        self._estimates.bounds = bounds_of(spec.models)
        if self.shared_limits is not None:
            return self.shared_limits.limiter(spec, rules, places)
        estimate = nothing if places else self._estimates.estimate
        return LeasedLimiter(rules, self.shares, estimate=estimate, version=version)

    def stopped(self, change: Stopped) -> None:
        self.plane.standing.replace(change.source, map(Stop.of, change.stops))

    def stops_changed(self, change: StopsChanged) -> None:
        self.plane.standing.change(change.source, map(Stop.of, change.put), change.dropped)

    async def _take_certificate(self) -> None:
        """The certificate to start with. Raises ConfigError."""
        used = None
        while used is not self._material:  # a change may have overtaken it
            used = self._material
            assert used is not None
            try:
                self.tls = Contexts(await asyncio.to_thread(context_of, used))
            except (OSError, ValueError) as error:
                raise ConfigError(f"the certificate cannot be used: {error}", path="listen.tls") from None

    def certificate_changed(self, change: CertificateChanged) -> None:
        """The last one told counts."""
        self._material = change.tls
        self._owner.spawn(self._exchange_certificate(change.tls), name="certificate")

    async def _exchange_certificate(self, material: Material) -> None:
        try:
            context = await asyncio.to_thread(context_of, material)
        except (OSError, ValueError) as error:
            log.error("the new certificate cannot be used, the one before stays: %s", error)
            return
        if self._material is material and self.tls is not None:
            self.tls.current = context

    # --- tokens

    async def issue(self, wanted: Mint) -> Minted:
        """Has the control process sign a token. Raises what it raises."""
        return await self._channel.ask(wanted, ISSUE_SECONDS)

    def _claim(self, proof: ClaimProof) -> Awaitable[bool]:
        """Asks the control process, which knows of all workers. Raises Overloaded when it does not answer."""

        async def asked() -> bool:
            try:
                return (await self._channel.ask(proof, CLAIM_SECONDS)).fresh
            except FeedClosed:
                raise Overloaded("Used proofs cannot be looked up at the moment.", code="proofs_unavailable", retry_after=1.0) from None

        return self._owner.wait(asked(), name="claim a proof")

    def token_keys_changed(self, change: TokenKeysChanged) -> None:
        self.token_keys.replace(change.rows)

    def revoked(self, change: RevocationsChanged) -> None:
        self.revocations.apply(change.put, change.dropped)

    # --- keys

    async def _find_key(self, digest: bytes, key: str) -> KeyRecord | None:
        return (await self._stored.ask(FindKey(digest, Secret(key)), FIND_SECONDS)).record

    async def _find_person(self, tenant: str, user: str, groups: tuple[str, ...]) -> PersonRecord:
        return (await self._stored.ask(FindPerson(tenant, user, groups), FIND_SECONDS)).record

    async def _data_key(self, tenant: str) -> DataKeyGiven:
        return await self._channel.ask(GiveDataKey(tenant), FIND_SECONDS)

    async def _opened_key(self, id: str) -> DataKey | str:
        found = await self._channel.ask(OpenDataKey(id), FIND_SECONDS)
        return found.why if found.given is None else DataKey.of(found.given)

    def data_keys_dropped(self, change: DataKeysDropped) -> None:
        self.ring.drop(change.tenant)
        self.opener.drop(change.tenant)
        self.caches.dropped(change.tenant)

    def captures_changed(self, change: CapturesChanged) -> None:
        if self.texts is not None:
            self.texts.debug(change.until)

    def key_changed(self, change: KeyChanged) -> None:
        self._facts = Pulse(True, self._facts.store_lost, self._facts.processes)
        self.keys.changed(change.id, change.action)
        self.work.forget()

    def person_changed(self, change: PersonChanged) -> None:
        self.people.changed(change.kind, change.name)
        self.work.forget()

    def wait_longer(self, seconds: float) -> None:
        """Another program takes the place of the control process."""
        self._channel.wait_longer(seconds)
        self.shares.wait_longer(seconds)

    def keys_missed(self) -> None:
        self.people.clear()
        self.keys.clear()
        self.work.forget()

    def _somebody_can_log_in(self) -> bool:
        identity = self.plane.current().spec.identity
        return bool(identity.api_keys.static or identity.plugins) or self._facts.has_keys

    # --- what is reported

    def pulse(self, facts: Pulse) -> Beat:
        """Notes what the control process says, and says how this worker is."""
        self._facts = facts
        metrics = self.metrics
        return Beat(metrics.in_flight(), metrics.connections(), metrics.held_bytes(), self.health.welcome(), self.audit.accepting)

    async def scrape(self) -> Scraped:
        return await asyncio.to_thread(told, list(self.metrics.collect()))

    async def _report(self) -> None:
        keys, logins = self.keys.take_used(), self.people.take_seen()
        if keys or logins:
            self._channel.tell(Used(keys=keys, logins=logins))

    def _happened(self, change: Change) -> None:
        _, kind, payload = change
        if kind == "event":
            self._channel.tell(Happened(payload))

    def _shed(self, level: int) -> None:
        log.warning("load shedding: level %d", level)
        self.registry.shedding = level
        self.events.record("load_shedding", self.id, {"level": level})

    async def _sweep(self) -> None:
        self.plane.sweep()
        self.connections.tick()
        for listener, refused in self._refused.reports(self.plane.now):
            self.events.record("connections_refused", listener, refused, outcome="denied")
        for flood in self._floods.drain(self.plane.now):
            detail: dict[str, Any] = {"code": flood.code, "count": flood.count}
            self.events.record("denials", flood.peer, detail, outcome="denied")


def worker_handlers(handlers: Handlers, worker: Worker) -> None:
    """What a worker does with each message of the control process. Those that it may end upon are process.WorkerProcess's."""
    handlers.change(KeyChanged, lambda _, change: worker.key_changed(change))
    handlers.change(Stopped, lambda _, change: worker.stopped(change))
    handlers.change(PersonChanged, lambda _, change: worker.person_changed(change))
    handlers.change(TokenKeysChanged, lambda _, change: worker.token_keys_changed(change))
    handlers.change(StopsChanged, lambda _, change: worker.stops_changed(change))
    handlers.change(RevocationsChanged, lambda _, change: worker.revoked(change))
    handlers.change(KeysMissed, lambda _, change: worker.keys_missed())
    handlers.change(DataKeysDropped, lambda _, change: worker.data_keys_dropped(change))
    handlers.change(LogLevels, lambda _, levels: worker.observing.put_levels(levels))
    handlers.change(CapturesChanged, lambda _, change: worker.captures_changed(change))
    handlers.on(CertificateChanged, lambda _, change: worker.certificate_changed(change))
    ticket_handlers(handlers, worker.tickets)
    handlers.change(Barrier, lambda _, change: None)
    for kind in TO_WORKER:
        handlers.on(kind, lambda _, message: worker.follower.apply(message))
    handlers.on(Replaced, lambda _, told: worker.wait_longer(told.seconds))
    handlers.on(LeaseReply, lambda _, reply: worker.shares.heard(reply))
    handlers.on(LeaseRecall, lambda _, recall: worker.shares.recalled(recall))
    handlers.answer(Pulse, lambda _, ask: worker.pulse(ask))
    handlers.answer(Scrape, lambda _, ask: worker.scrape())
    handlers.answer(CachesAsked, lambda _, ask: worker.caches.asked(ask))
    handlers.answer(RolloutsAsked, lambda _, ask: worker.trials.told())
    work_handlers(handlers, worker.work)
