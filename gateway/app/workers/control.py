"""The control process's part in serving with workers: the feed's contents, and what it does with each message of a worker."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.configuration.snapshots import Built
from gateway.app.gateway import Gateway
from gateway.app.upgrade.handover import HandOver, HeldWorker
from gateway.app.workers.channel import Handlers
from gateway.app.workers.child import Child, spawn
from gateway.app.workers.figures import Figures, heard
from gateway.app.workers.hub import MISSED_PULSES, Hub, Worker
from gateway.app.workers.key_records import KeyRecords
from gateway.app.workers.messages import (
    Barrier,
    CertificateChanged,
    ConfigChanged,
    Failed,
    FindKey,
    FindPerson,
    Happened,
    KeyChanged,
    KeyFound,
    KeysMissed,
    PersonChanged,
    PersonFound,
    Pulse,
    Ready,
    Replaced,
    Retire,
    RevocationsChanged,
    Scrape,
    Scraped,
    State,
    Stopped,
    StopsChanged,
    TokenKeysChanged,
    Used,
)
from gateway.app.workers.person_records import PersonRecords
from gateway.app.workers.pool import Pool
from gateway.app.workers.settings import without_lists
from gateway.app.workers.telling import Teller, Telling
from gateway.audit.neighbours import holder
from gateway.audit.opening import NO_ENCRYPTION
from gateway.audit.sinks import local_sink
from gateway.core.approvals import Hold, Take
from gateway.core.conversations import FindAnswer, KeepAnswer
from gateway.core.errors import GatehouseError, MasterUnavailable
from gateway.core.log_levels import LogLevels
from gateway.core.logins import BeginLogin, LoginDesk, LoginEnded
from gateway.core.messages import Ask, Message
from gateway.core.ports import Change
from gateway.core.proofs import ClaimProof, ProofClaimed
from gateway.core.secret import Secret
from gateway.core.slices import at_once
from gateway.core.specs import ListenSpec
from gateway.core.standing import Stop
from gateway.core.storage import StoreChange
from gateway.core.tasks import TaskOwner
from gateway.core.tickets import SignTicket, WithdrawTicket
from gateway.core.tokens import Mint, Minted
from gateway.core.vault import CapturesChanged, DataKeyGiven, DataKeyOpened, DataKeysDropped, GiveDataKey, OpenDataKey
from gateway.identity import people
from gateway.identity.revocations import Row
from gateway.limits.lease_book import LeaseBook
from gateway.limits.lease_messages import BookState, LeaseCall
from gateway.routing.mirror_messages import TO_CONTROL
from gateway.server.tls import Material
from gateway.store.feed import CHANGE, RESYNC

log = logging.getLogger("gatehouse.workers")

SCRAPE_SECONDS: Final = 1.0
"""How long a scrape waits for the workers' figures; what was heard last counts for those that are later."""
CATCH_UP_SECONDS: Final = 15.0
"""How long an engine that was removed waits until no worker has routes to it: longer than a worker that hangs lives."""
SECOND_THOUGHT: Final = 0.5
"""How long a worker that was sent SIGTERM waits for its successor to be started: the signal may have been sent to all processes at once."""
COLLECT_SECONDS: Final = 5.0
"""Between two collections without a scrape: what a worker that is killed counted since the last one is lost."""


TICKET_SECONDS: Final = 3.0
"""How long a worker may take to settle a ticket: its receipt is told again then."""
HOLD_SECONDS: Final = 3.0
"""How long questions of workers that are being answered hold up an upgrade."""
REPLACE_SECONDS: Final = 60.0
"""How long workers are patient while another program takes this one's place: a large store takes it some seconds to load."""
Told = TypeVar("Told", bound=Message)


class Workers:
    """The workers of one gateway. data: the listening socket, which its owner closes. Life: `start` once the configuration is in force,
    `ready`, `leave`, `aclose`."""

    def __init__(self, gateway: Gateway, count: int, base: Path, data: socket.socket, environ: Mapping[str, str]) -> None:
        self._gateway, self._count, self._base = gateway, count, base
        self._tasks = TaskOwner("feed")
        self._next: Telling | None = None
        self.handlers = Handlers()
        self.hub = Hub(self.handlers, self._state, self._tasks)
        self._teller = Teller(self.hub.codec)
        self.hub.introduce = self._teller.introduce
        self.hub.pulse = lambda: Pulse(gateway.store_link.has_keys, gateway.store_link.store.lost, gateway.replicas.members.processes)
        self.keys = KeyRecords(gateway.store_link.store.find_key)
        self.people = PersonRecords(gateway.store_link.store.find_person)
        self.approvals, self.answers = gateway.approvals, gateway.answers
        self.figures = Figures(gateway.metrics.collect, lambda: gateway.plane.current().spec.telemetry.tenant_metrics)
        self.logins = LoginDesk(gateway.logins)
        self.hub.on_gone += [self.figures.gone, self.logins.gone]
        self.limits = LeaseBook(self.hub.tell, later=asyncio.get_running_loop().call_later, restock=gateway.limits.refills)
        self.hub.on_joined.append(self.limits.joined)
        self.hub.on_gone += [self.limits.gone, lambda worker: gateway.budget_runs.look_again()]
        logs = local_sink(gateway.spec.audit, gateway.spec.state_dir, gateway.replica).directory
        told = (self._record, self._listen, lambda id: holder(logs, id) is None)
        self.pool = Pool(count, gateway.replica, data, self.hub, lambda f, d: spawn(f, d, environ), *told)
        gateway.work.serve_workers(self.hub, self.handlers)
        office = gateway.tickets
        office.elsewhere = lambda worker, ask: self.hub.ask(worker, ask, TICKET_SECONDS)
        self.handlers.answer(SignTicket, lambda worker, ask: office.sign(ask, worker))
        self.handlers.on(WithdrawTicket, lambda _, wanted: office.withdraw(wanted))
        control_handlers(self.handlers, self)
        if (mirror := gateway.fleet.mirror) is not None:
            self.hub.on_joined.append(lambda worker: mirror.join(worker, partial(self.hub.tell, worker)))
            mirror.caught_up = lambda: self.hub.in_force(self.hub.number, CATCH_UP_SECONDS)
            self.hub.on_leaving.append(mirror.leave)
            self.hub.on_gone.append(mirror.gone)
            for kind in TO_CONTROL:
                self.handlers.on(kind, mirror.heard)
        gateway.metrics.gauges.append(self._gauges)
        gateway.cache_book.asked = gateway.rollout_book.asked = self._asked_all
        gateway.scrape = self.figures.scrape

    # --- life

    def start(self) -> None:
        """Starts the workers, and tells them from now on what changes."""
        first = self._gateway.changes.in_force.snapshot
        self._teller.told(first.spec, first.version)
        self._gateway.changes.before_swap.append(self._pack)
        self._gateway.changes.on_swap.append(self._swapped)
        self._gateway.certificates.on_change.append(self._certificate_changed)
        self._gateway.feed.subscribe(self._heard)
        self._gateway.plane.standing.exchanged.append(self._stopped)
        self._gateway.token_keys.changed.append(self._token_keys)
        self._gateway.revocations.changed.append(self._revoked)
        self._gateway.texts.captures.changed.append(self._captures)
        self._gateway.log_levels.changed.append(self._log_levels)
        if self._gateway.texts.vault is not None:
            self._gateway.texts.vault.dropped.append(self._data_keys_dropped)
        self._tasks.every(COLLECT_SECONDS, self.collect, name="collect figures")
        self.pool.start()

    async def ready(self) -> None:
        """Returns once every worker serves. Raises GatehouseError with the reason when one does not start."""
        await self.pool.ready()

    async def leave(self, delay: float) -> None:
        """Ends the workers: they go on serving for `delay` seconds, then finish what runs. Returns when all have ended."""
        await self.pool.leave(delay)

    def hurry(self) -> None:
        self.pool.hurry()

    async def aclose(self) -> None:
        await self.pool.aclose()
        await self._tasks.aclose()

    # --- replacing the program

    async def hand_over(self) -> tuple[list[HeldWorker], BookState]:
        """Leaves the workers to the program that takes this one's place, and says what it needs to `adopt` them. A worker whose feed has
        ended is left to itself."""
        await self.pool.let_go()
        for worker in self.hub.workers.values():
            if worker.channel is not None and not worker.adopted:  # one of an earlier version may not know the word
                worker.channel.tell(Replaced(REPLACE_SECONDS))
        workers = list(self.hub.workers.values())
        channels = [worker.channel for worker in workers if worker.channel is not None]
        for channel in channels:
            channel.hold()
        limits = self.limits.hand_over()
        await asyncio.gather(*(channel.settled(HOLD_SECONDS) for channel in channels))
        held = []
        for worker in workers:
            if worker.channel is None or worker.state not in ("ready", "draining") or (left := worker.channel.let_go()) is None:
                continue
            feed, unread, asked = left
            known: dict[str, Any] = {
                "id": worker.id,
                "number": worker.number,
                "pid": worker.child.pid,
                "state": worker.state,
                "grace": worker.grace,
            }
            progress: dict[str, Any] = {"acknowledged": worker.acknowledged, "compiled": worker.compiled, "unread": unread, "asked": asked}
            held.append(HeldWorker(feed=feed, **known, **progress))
        await self._tasks.aclose()
        return held, limits

    async def adopt(self, handed: HandOver) -> None:
        """Goes on with the workers that another program has started. Call before `start`, once the configuration is in force."""
        self.hub.number = handed.change
        if handed.figures is not None:
            self.figures.take_over(handed.figures, [held.id for held in handed.workers])
        if handed.limits is not None:
            self.limits.take_over(handed.limits)
        if (mirror := self._gateway.fleet.mirror) is not None:
            mirror.take_over(handed.slots)
        for held in handed.workers:
            worker = Worker(held.id, held.number, Child(held.pid), acknowledged=held.acknowledged, compiled=held.compiled, grace=held.grace)
            worker.move("ready")
            if held.state == "draining":
                worker.move("drain")
            sock = socket.socket(fileno=held.feed)
            sock.setblocking(False)
            await self.hub.adopt(worker, sock, held.unread, held.asked)
            if mirror is not None:
                mirror.join(worker.id, partial(self.hub.tell, worker.id), routes=True)
                if not worker.live:
                    mirror.leave(worker.id)
            self.pool.adopt(worker)
        if handed.limits is not None:
            for left in handed.limits.workers.keys() - self.hub.workers.keys():
                self.limits.gone(left)
        self.hub.change(KeysMissed())  # what the store changed in between, nobody has heard

    async def renew(self, failed: Callable[[str], Awaitable[None]]) -> None:
        """See Pool.renew."""
        await self.pool.renew(failed)

    # --- what workers are told

    def _state(self, worker: str, number: int) -> State:
        told, link = self._teller, self._gateway.store_link
        return State(
            number=number,
            worker=worker,
            replica=self._gateway.replica,
            count=self._count,
            base=str(self._base),
            salts=Secret(self._gateway.builder.salts.hex()),
            logins=Secret(self._gateway.login_key().hex()),
            spec=without_lists(told.spec),
            digests=told.digests,
            version=told.version,
            has_keys=link.has_keys,
            store_lost=link.store.lost,
            stops=self._gateway.plane.standing.sources(),
            tls=self._gateway.certificates.material("tls"),
            token_keys=self._gateway.token_keys.rows,
            revocations=list(self._gateway.revocations.rows().values()),
            captures=self._gateway.texts.captures.until,
            log_levels=self._gateway.log_levels.levels,
        )

    def _certificate_changed(self, name: str, material: Material) -> None:
        if name == "tls":
            self.hub.tell_all(CertificateChanged(material))

    def _stopped(self, source: str, put: list[Stop], dropped: list[str]) -> None:
        def whole() -> Stopped:  # workers of another program may know nothing else
            return Stopped(source, self._gateway.plane.standing.rows(source))

        self.hub.change(StopsChanged(source, [stop.row() for stop in put], dropped), whole=whole)

    def _token_keys(self) -> None:
        self.hub.change(TokenKeysChanged(self._gateway.token_keys.rows))

    def _revoked(self, put: dict[str, Row], dropped: list[str]) -> None:
        self.hub.change(RevocationsChanged(put, dropped))

    def _log_levels(self, levels: LogLevels) -> None:
        self.hub.change(levels)

    def _asked_all(self, question: Ask[Told], seconds: float) -> dict[str, asyncio.Future[Told]]:
        serving = [id for id, worker in self.hub.workers.items() if worker.state != "starting"]
        return {id: self.hub.ask(id, question, seconds) for id in serving}

    def _captures(self, until: dict[str, float]) -> None:
        self.hub.change(CapturesChanged(until))

    def _data_keys_dropped(self, tenant: str | None) -> None:
        self.hub.change(DataKeysDropped(tenant))

    async def mint(self, wanted: Mint) -> Minted:
        return await self._gateway.tokens.mint(wanted)

    async def give_data_key(self, wanted: GiveDataKey) -> DataKeyGiven:
        vault = self._gateway.texts.vault
        if vault is None:
            raise MasterUnavailable("nothing is encrypted here")
        return await vault.give(wanted.tenant)

    async def open_data_key(self, wanted: OpenDataKey) -> DataKeyOpened:
        vault = self._gateway.texts.vault
        return DataKeyOpened(why=NO_ENCRYPTION) if vault is None else await vault.give_opened(wanted.id)

    async def claim(self, proof: ClaimProof) -> ProofClaimed:
        fresh = self._gateway.claim(proof)
        return ProofClaimed(fresh if isinstance(fresh, bool) else await fresh)

    def _swapped(self, built: Built) -> None:
        ready, self._next = self._next, None
        spec = built.snapshot.spec
        if ready is None or not self._teller.fits(ready, spec):
            ready = at_once(self._teller.steps(spec))
        self.hub.change(ConfigChanged(settings=ready.settings, version=built.snapshot.version), ready.frames)
        self._teller.told(spec, built.snapshot.version)

    async def _pack(self, built: Built) -> None:
        """Called before a swap, because it may take long. Raises ConfigError for what cannot be sent to workers."""
        self._next = await self._teller.prepare(built.snapshot.spec)

    def _heard(self, change: Change) -> None:
        _, kind, payload = change
        if kind == CHANGE:
            assert isinstance(payload, StoreChange)
            if payload.kind == "keys":
                self.keys.changed(payload.name)
                self.hub.change(KeyChanged(payload.name, payload.action))
            elif payload.kind in people.KINDS:
                self.people.changed(payload.kind, payload.name)
                self.hub.change(PersonChanged(payload.kind, payload.name))
        elif kind == RESYNC:
            self.people.clear()
            self.keys.clear()
            self.hub.change(KeysMissed())

    # --- what workers say

    async def find_key(self, ask: FindKey) -> KeyFound:
        return KeyFound(await self.keys.find(ask.digest, ask.key.reveal()))

    async def find_person(self, ask: FindPerson) -> PersonFound:
        return PersonFound(await self.people.find(ask.tenant, ask.user, ask.groups))

    def used(self, used: Used) -> None:
        link = self._gateway.store_link
        link.used(used.keys)
        link.logins.saw(used.logins)

    def happened(self, happened: Happened) -> None:
        self._gateway.feed.publish("event", happened.event)

    def is_ready(self, worker: str, message: Ready) -> None:
        found = self.hub.workers.get(worker)
        if found is not None and found.state == "starting":
            found.compiled = message.compiled
            found.move("ready")
            log.info("worker %s serves (process %d)", worker, found.child.pid)

    def has_failed(self, worker: str, message: Failed) -> None:
        found = self.hub.workers.get(worker)
        if found is not None:
            found.reason = message.reason
            log.error("worker %s could not put its settings into force: %s", worker, message.reason)

    def wants_to_end(self, worker: str) -> None:
        """Somebody has sent a worker SIGTERM."""
        self._tasks.spawn(self._replaced(worker), name="replace a worker")

    async def _replaced(self, worker: str) -> None:
        await asyncio.sleep(SECOND_THOUGHT)
        try:
            await self.pool.replace(worker)
        except (GatehouseError, OSError) as error:
            log.error("worker %s was asked to end and goes on: %s", worker, error)

    async def in_force(self, seconds: float) -> bool:
        """Waits at most so long until every serving worker has in force what it has been told and what was changed until now."""
        return await self.hub.in_force(self.hub.change(Barrier()), seconds)

    # --- what is shown

    def views(self) -> list[dict[str, Any]]:
        """The workers as operators see them. lag: changes that it has not put into force yet."""
        now, wall = time.monotonic(), time.time()
        return [
            {
                "id": worker.id,
                "pid": worker.child.pid,
                "state": worker.state,
                "started_at": wall - (now - worker.started),
                "ready": worker.beat.ready,
                "in_flight": worker.beat.in_flight,
                "connections": worker.beat.connections,
                "held_bytes": worker.beat.held_bytes,
                "audit": worker.beat.audit_accepting,
                "lag": self.hub.number - worker.acknowledged,
                "compiled": worker.compiled,
            }
            for worker in sorted(self.hub.workers.values(), key=lambda worker: worker.number)
        ]

    async def replace(self, id: str) -> None:
        """See Pool.replace."""
        await self.pool.replace(id)

    @property
    def in_flight(self) -> int:
        """Requests under way, as of the last second."""
        return sum(worker.beat.in_flight for worker in self.hub.workers.values())

    @property
    def answering(self) -> bool:
        """Whether a worker that serves has answered lately."""
        return any(worker.state == "ready" and worker.missed < MISSED_PULSES for worker in self.hub.workers.values())

    @property
    def serving(self) -> int:
        """How many workers are ready."""
        return sum(worker.state == "ready" for worker in self.hub.workers.values())

    async def collect(self) -> None:
        """Fetches the workers' figures; waits for them SCRAPE_SECONDS at most."""
        asked = [(id, self.hub.ask(id, Scrape(), SCRAPE_SECONDS)) for id, worker in self.hub.workers.items() if worker.state != "starting"]
        for id, answer in asked:
            try:
                scraped = await answer
            except GatehouseError:
                continue  # what it said last counts
            found = await asyncio.to_thread(heard, scraped)
            if id in self.hub.workers:
                self.figures.note(id, found)

    async def exposed(self, accept: str) -> tuple[bytes, str]:
        """The metrics of all processes, as of now, in a format that the scraper accepts, and its media type."""
        await self.collect()
        return await self.figures.exposed(accept)

    def _gauges(self) -> Iterable[Metric]:
        workers = GaugeMetricFamily("gatehouse_workers", "Workers by state", labels=["state"])
        for state in ("starting", "ready", "draining"):
            workers.add_metric([state], sum(worker.state == state for worker in self.hub.workers.values()))
        yield workers
        yield CounterMetricFamily("gatehouse_worker_restarts", "Workers started in the place of one that ended", value=self.pool.restarts)

    def _listen(self) -> ListenSpec:
        return self._gateway.changes.in_force.snapshot.spec.listen

    def _record(self, event: str, target: str, detail: dict[str, Any], outcome: str) -> None:
        self._gateway.events.record(event, target, detail, outcome=outcome)


def control_handlers(handlers: Handlers, workers: Workers) -> None:
    """What the control process does with each message of a worker."""
    handlers.answer(FindKey, lambda _, ask: workers.find_key(ask))
    handlers.answer(FindPerson, lambda _, ask: workers.find_person(ask))
    handlers.answer(Mint, lambda _, wanted: workers.mint(wanted))
    handlers.answer(ClaimProof, lambda _, proof: workers.claim(proof))
    handlers.answer(BeginLogin, workers.logins.begin)
    handlers.on(LoginEnded, workers.logins.ended)
    handlers.answer(Hold, lambda _, wanted: workers.approvals.keep(wanted))
    handlers.answer(Take, lambda _, wanted: workers.approvals.give(wanted))
    handlers.answer(KeepAnswer, lambda _, wanted: workers.answers.kept(wanted))
    handlers.answer(FindAnswer, lambda _, wanted: workers.answers.found(wanted))
    handlers.answer(GiveDataKey, lambda _, wanted: workers.give_data_key(wanted))
    handlers.answer(OpenDataKey, lambda _, wanted: workers.open_data_key(wanted))
    handlers.on(Used, lambda _, used: workers.used(used))
    handlers.on(Happened, lambda _, happened: workers.happened(happened))
    handlers.on(Ready, workers.is_ready)
    handlers.on(Failed, workers.has_failed)
    handlers.on(LeaseCall, workers.limits.heard)
    handlers.on(Retire, lambda worker, _: workers.wants_to_end(worker))
    handlers.on(Scraped, lambda worker, scraped: workers.figures.note(worker, heard(scraped)))
