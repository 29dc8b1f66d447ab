"""One run of `gatehouse serve`: reads the configuration, binds, builds, serves, drains. Loads nothing of the command line's libraries."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import uvloop

from admin.app import create_app
from admin.context import Ports
from admin.ports import LimitControl
from gateway.app import compiled
from gateway.app.admin_ports import CurrentAuthenticator, LocalAuditLog, ModelControls, PolicyTrial, logins
from gateway.app.audit.index import AuditIndex
from gateway.app.configuration.in_force import InForce
from gateway.app.configuration.plugins import OURS, Plugins, installed
from gateway.app.configuration.resource_check import ResourceCheck
from gateway.app.data_side import DataSide
from gateway.app.engines.fleet_view import FleetView
from gateway.app.gateway import Gateway
from gateway.app.guardrails.trial import GuardrailTrial
from gateway.app.identity import first_administrator
from gateway.app.identity.key_holders import KeyHolders
from gateway.app.identity.policy_replay import PolicyReplay
from gateway.app.identity.role_book import RoleBook
from gateway.app.joined.door import Door
from gateway.app.limits.budget_ledger import BudgetLedger
from gateway.app.limits.shared_states import SharedLimitStates
from gateway.app.limits.states import LimitStates
from gateway.app.quickstart import Credentials, environment, greeting
from gateway.app.replicas.replica import StateLock, prepared
from gateway.app.sockets import Sockets, listening, shared_by_workers
from gateway.app.sockets import handed as handed_sockets
from gateway.app.systemd import ServiceManager, given_sockets, take_variables
from gateway.app.telemetry.observing import log_as_configured
from gateway.app.telemetry.troubles import Troubles
from gateway.app.telemetry.vitals import Vitals
from gateway.app.upgrade.children import reap_others
from gateway.app.upgrade.handover import HandOver, become, handled, last_signals, take
from gateway.app.upgrade.upgrader import Upgrader
from gateway.app.workers.control import Workers
from gateway.audit.sinks import local_sink
from gateway.config.load import Loaded, load
from gateway.core.clock import SystemClock
from gateway.core.collecting import uncollected
from gateway.core.errors import ConfigError, GatehouseError, one_line
from gateway.core.feed import STOPPING
from gateway.core.specs import ConfigSpec, ListenSpec
from gateway.core.tasks import TaskOwner
from gateway.core.tokens import TokenDesk
from gateway.limits.account import Account
from gateway.limits.redis.book import BucketBook
from gateway.server.health import Health
from gateway.server.leaving import Leaving
from gateway.server.listener import address_of, admin_server
from gateway.server.open_files import raise_limit, too_few
from gateway.telemetry.scraping import exposed_aside
from policies.patterns import within

log = logging.getLogger("gatehouse")

_AGAIN: Final = {
    2: "asked to leave again: requests under way end with an error",
    3: "asked to leave a third time: clients get no time to read their answers",
}
FIRST_LOOK_SECONDS = 2.0
"""How long a start waits for the first answer of an engine that runs elsewhere before it says that it is ready."""
SPARE_SECONDS = 15.0
"""What the end takes at most beside requests under way and sidecars."""


def fail(message: str) -> int:
    """Prints one line on standard error; returns the exit code 1."""
    print(f"error: {one_line(message)}", file=sys.stderr)
    return 1


def serve(config: Path, *, quickstart: bool = False, workers: int = 0) -> int:
    """Serves in the foreground until a signal ends it; returns the exit code. quickstart: make keys at the first start and print them.
    workers: processes that serve requests beside this one; 0: this one serves them."""
    try:
        handed = take(os.environ)
    except ConfigError as error:
        return fail(str(error))
    environ = dict(os.environ)
    take_variables(os.environ)
    credentials: Credentials | None = None
    if quickstart:
        try:
            credentials = environment(environ)
        except OSError as error:
            return fail(f"the state directory cannot be used: {error.strerror}: {error.filename}")
        except ConfigError as error:
            return fail(str(error))
    try:
        plugins = installed()
        with uncollected():
            loaded = load(config, environ, plugins.schemas())
    except ConfigError as error:
        return fail(str(error))
    try:
        log_as_configured(loaded.spec.telemetry)
    except ConfigError as error:
        loaded.place(error)
        return fail(str(error))
    log.info("the hot path %s", "is compiled" if compiled.active() else "runs from its sources")
    if said := too_few(raise_limit(), loaded.spec.listen.max_connections, workers):
        log.warning("%s", said)
    process = Process(loaded, environ, credentials, plugins, workers, handed)
    try:
        code: int = uvloop.run(process.run())
    except OSError as error:
        log.exception("what the system refused has ended the gateway")
        return fail(str(error))
    except ConfigError as error:
        loaded.place(error)
        return fail(str(error))
    except GatehouseError as error:
        return fail(error.message)
    if process.successor is not None:
        assert process.upgrader is not None
        try:
            become(process.upgrader.command(), process.upgrader.environment(), process.successor, process.leaving.asked.is_set)
        except OSError as error:
            return fail(f"the new program could not be started: {error.strerror}")
    return code


def troubles(gateway: Gateway, workers: Workers | None) -> Troubles:
    """What is wrong in the parts of a gateway that has started."""
    vault, limits, proofs = gateway.texts.vault, gateway.shared_limits, gateway.shared_proofs
    made = Troubles(
        [gateway.certificates.troubles, gateway.keeping.troubles, *([] if vault is None else [vault.troubles])],
        limits=lambda: limits is None or limits.shared.up,
        proofs=lambda: proofs is None or proofs.up or gateway.plane.current().spec.identity.dpop is None,
        fault=lambda: gateway.audit.fault,
        damaged=lambda: gateway.audit.damaged,
        measured=gateway.builder.login_gauges,
        figures=None if workers is None else workers.figures,
    )
    gateway.feed.subscribe(made.heard)
    return made


def admin_ports(gateway: Gateway, health: Health, gateway_url: str, workers: Workers | None, upgrader: Upgrader) -> Ports:
    """What the admin API is given once the gateway has started. gateway_url: where clients find the data listener."""
    log = LocalAuditLog(gateway.spec.audit, gateway.spec.state_dir, gateway.opener)
    logs = local_sink(gateway.spec.audit, gateway.spec.state_dir, gateway.replica).directory
    index = AuditIndex(logs, Path(gateway.spec.state_dir), opener=gateway.opener)
    gateway.texts.reveals.indexed = index.of_request
    plane, fleet, changes, link = gateway.plane, gateway.fleet, gateway.changes, gateway.store_link
    found = troubles(gateway, workers)
    return Ports(
        authenticator=CurrentAuthenticator(plane),
        config=changes.reloader,
        roles=RoleBook(link.additions, lambda: changes.in_force.file, country=gateway.countries.networks.country),
        fleet=FleetView(
            fleet, changes, plane, health, gateway.replica, gateway_url, time.time(), workers, gateway.placement.view, found.view
        ),
        control=ModelControls(fleet.supervisor, fleet.traffic),
        policies=PolicyTrial(plane, gateway.countries.networks.country),
        holders=KeyHolders(link.store, plane.standing, gateway.countries.networks, plane.current, SystemClock()),
        replays=PolicyReplay(link.additions, lambda: changes.in_force.file, plane.current, log, gateway.countries.networks.country),
        guardrails=GuardrailTrial(plane),
        audit=gateway.audit,
        audit_reader=log,
        audit_index=index,
        feed=gateway.feed,
        files=fleet.files,
        model_copies=gateway.replicas.models,
        matches=within,
        store=link.store,
        replicas=gateway.replicas.members.view,
        reconcile=_reconcile(gateway, workers),
        check=ResourceCheck(changes, link, fleet, gateway.plugins),
        in_force=InForce(link, changes, gateway.suspensions, None if workers is None else workers.in_force),
        workers=workers,
        upgrade=upgrader,
        step_up=lambda: plane.current().spec.identity.step_up,
        tokens=gateway.tokens,
        revocations=gateway.revoked,
        halts=gateway.halts,
        webhooks=gateway.webhooks,
        approvals=gateway.approvals,
        texts=gateway.texts,
        holds=gateway.holds,
        approvals_webhook=gateway.webhook.decide,
        batches=gateway.work.book,
        jobs=gateway.operator_jobs.book,
        client_files=gateway.work.file_book,
        limits=_limit_states(gateway, workers),
        log_levels=gateway.log_levels,
        caches=gateway.cache_book,
        rollouts=gateway.rollout_book,
        logins=lambda: logins(plane.current().spec),
        prices=lambda: {entry.name: entry.prices for entry in plane.current().models.values() if entry.prices is not None},
        note_login=link.note_login,
        scaling=gateway.scaling.view,
        machines=gateway.machines.view,
        joining=Door(gateway.machines, SystemClock()),
    )


def _reconcile(gateway: Gateway, workers: Workers | None) -> Callable[[], Awaitable[dict[str, Any]]]:
    """The usage and the budgets, against the audit log."""
    logs = local_sink(gateway.spec.audit, gateway.spec.state_dir, gateway.replica).directory
    spec, plane = gateway.spec, gateway.plane
    registry = gateway.builder.buckets if workers is None else workers.limits.registry
    gateway.limits.lost = lambda: any(isinstance(bucket, Account) and any(bucket.lost) for _, bucket in registry.all())
    store, members = gateway.store_link.store, gateway.replicas.members
    budgets = BudgetLedger(
        store,
        gateway.replica,
        lambda: members.live,
        logs,
        lambda: spec if plane.snapshot is None else plane.current().spec,
        lambda: registry,
        gateway.limit_times,
        None if spec.redis is None else BucketBook(spec.redis),
        gateway.opener,
    )

    gateway.budget_runs.in_redis = budgets.settle

    async def both() -> dict[str, Any]:
        return {**await gateway.usage.reconcile(), **await budgets.compare()}

    return both


def _limit_states(gateway: Gateway, workers: Workers | None) -> LimitControl:
    """Where the state of limits is: in Redis, or in this process and the store."""
    if gateway.spec.redis is not None:
        return SharedLimitStates(gateway.plane, gateway.spec.redis)
    return LimitStates(gateway.plane, gateway.builder.buckets if workers is None else workers.limits.registry, gateway.store_link.store)


def _warn_of_plain_http(listen: ListenSpec, data: socket.socket, admin: socket.socket) -> None:
    """Says which listeners take credentials without TLS from other machines, unless a proxy in front is known of."""
    proxied = bool(listen.trusted_peers)
    for name, sock, safe in (("tls", data, listen.tls is not None or proxied), ("admin_tls", admin, listen.admin_tls is not None)):
        if not safe and not ip_address(sock.getsockname()[0]).is_loopback:
            what = "data" if name == "tls" else "admin"
            log.warning("the %s listener %s takes credentials without TLS from other machines: set listen.%s", what, address_of(sock), name)


class Process:
    """One run of `serve`: binds, builds, serves, drains."""

    def __init__(
        self,
        loaded: Loaded,
        environ: dict[str, str],
        credentials: Credentials | None,
        plugins: Plugins = OURS,
        workers: int = 0,
        handed: HandOver | None = None,
    ) -> None:
        self.loaded, self.handed = loaded, handed
        self.spec: ConfigSpec = loaded.spec
        self.environ, self.credentials, self.plugins = environ, credentials, plugins
        self.count = workers
        self.workers: Workers | None = None
        """The processes that serve, if this one does not."""
        self.leaving = Leaving()
        self.manager = ServiceManager(environ)
        self.fatal: ConfigError | None = None
        self.gateway: Gateway | None = None
        """Set once the first configuration is in force."""
        self.upgrader: Upgrader | None = None
        self.successor: HandOver | None = None
        """What the program that takes this one's place is handed, once that has been decided."""
        self.lock: StateLock | None = None
        self.reload_asked = self.has_started = False
        self.grpc = self.spec.listen.grpc or ""
        """The address of the gRPC listener; "" without one."""

    async def run(self) -> int:
        """Returns the exit code. Raises ConfigError if the start fails. Leaves nothing running either way."""
        self._signals()
        watching = TaskOwner("watchdog")  # from the first step to the last: between two programs as well, and while a large store is loaded
        self.manager.watch(watching, self._alive)
        self.manager.feed()  # the program before this one has done so just before it ended
        try:
            if self.handed is not None:
                handled()
                reap_others(self.handed)
            self.lock = prepared(Path(self.spec.state_dir), -1 if self.handed is None else self.handed.lock)
            try:
                return await self._run()
            finally:
                self.lock.release()
        finally:
            await watching.aclose()
            if self.successor is not None:
                self.manager.feed()  # for the time until the next program can

    async def _run(self) -> int:
        before = self.handed
        if before is None:
            sockets = listening(self.spec.listen, given_sockets(self.environ))
        else:
            sockets = handed_sockets(self.spec.listen, before.data, before.admin)
        try:
            gateway = Gateway(self.loaded, self.environ, self.plugins, workers=bool(self.count))
        except ConfigError:
            sockets.close()
            raise
        try:
            if before is not None:
                gateway.adopt(before.engines, before.certificates)
            await gateway.start()
            self.gateway = gateway
            if self.reload_asked:
                self._reload()
            await self._serve(gateway, sockets)
        finally:
            sockets.close()
            await gateway.aclose(engines=self.successor is None)
        if self.fatal is not None:
            raise self.fatal
        return 0

    async def _serve(self, gateway: Gateway, sockets: Sockets) -> None:
        plane, listen, link = gateway.plane, self.spec.listen, gateway.store_link
        data, admin = sockets.data, sockets.admin
        workers = self.workers = self._make_workers(gateway, data)
        upgrader = self.upgrader = Upgrader(Path(self.loaded.file), self.environ, gateway, sockets, workers, self.leaving, self.handed)
        upgrader.lock = self.lock
        upgrader.on_stuck = lambda: self.manager.ready("the upgrade is not complete: `gatehouse upgrade` and the log say why")
        serving = None if workers is None else lambda: (workers.serving, self.count)
        known = (lambda: link.store.lost, gateway.changes.somebody_can_log_in, gateway.replica, serving)
        health = Health(plane, *known, lambda: gateway.fleet.registry.seen)
        tokens = TokenDesk(gateway.tokens.mint, gateway.token_keys)
        book, tls = gateway.tickets.book, gateway.certificates.contexts("tls")
        assert book is not None
        data_side = DataSide(plane, health, listen, self.leaving, tls, tokens, gateway.work.desk, (book, gateway.tickets))
        scheme = "http" if listen.tls is None else "https"
        ports = admin_ports(gateway, health, f"{scheme}://{address_of(data)}", workers, upgrader)
        scrape = partial(exposed_aside, gateway.metrics.registry) if workers is None else workers.exposed
        vitals = Vitals(gateway.metrics, None if workers is None else workers.figures)
        app = create_app(scrape, vitals.beside(health.ready), ports)
        admin_side = admin_server(app, plane, gateway.certificates.contexts("admin_tls"))
        _warn_of_plain_http(listen, data, admin)
        if workers is None:
            await data_side.start(data)
            self.grpc = data_side.grpc
        else:
            await upgrader.adopt()
            workers.start()
        running = plane.tasks.spawn(admin_side.serve(sockets=[admin]), name="admin listener")
        gateway.replicas.start(address_of(data), address_of(admin), self.count)
        started = plane.tasks.spawn(self._start_engines(gateway, data, admin), name="start")
        started.add_done_callback(lambda start: self._start_ended(start, gateway))
        assert isinstance(ports.audit_index, AuditIndex)
        plane.tasks.spawn(ports.audit_index.resume(), name="audit index")
        try:
            await self._until_the_end(upgrader)
            started.cancel()
            if self.leaving.asked.is_set():
                await self._leave(data, data_side, workers)
            gateway.feed.publish(STOPPING, {})  # ends streams of events, which would hold the admin listener
            admin_side.end()
            if not self.leaving.asked.is_set():
                self.manager.reloading()
                await asyncio.wait([running], timeout=5.0)
                await gateway.work.aclose()  # lines that run have an outcome before the workers are let go
                self.successor = await upgrader.hand_over()
                last_signals(self.leaving.ask)
        finally:
            await ports.audit_index.aclose()
            if workers is not None and self.successor is None:
                await workers.aclose()
        admin_side.force_exit = True
        await data_side.aclose()
        await asyncio.wait([running], timeout=5.0)

    async def _until_the_end(self, upgrader: Upgrader) -> None:
        """Returns when somebody has asked the gateway to leave, or when another program is to take its place."""
        owner = TaskOwner("process")
        waits = [owner.spawn(event.wait(), name="end") for event in (self.leaving.asked, upgrader.begun)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await owner.aclose()

    async def _leave(self, data: socket.socket, data_side: DataSide, workers: Workers | None) -> None:
        assert self.gateway is not None
        plane = self.gateway.plane
        listen = plane.current().spec.listen  # a reload may have changed it
        served = self.has_started or self.handed is not None
        delay = listen.drain_delay if served and self.fatal is None else 0.0
        if self.fatal is None:
            first = f"serves for {delay:g} s more, then " if delay else ""
            log.info("leaving: %srequests under way may finish within %g s; another signal ends them", first, listen.drain_timeout)
        self.manager.stopping(2 * listen.drain_timeout + delay + SPARE_SECONDS)
        if workers is None:
            await data_side.leave(delay)
        else:
            plane.draining = True
            data.close()  # the workers have it too; once they have closed it, new connections are refused and not left waiting
            await workers.leave(delay)

    def _make_workers(self, gateway: Gateway, data: socket.socket) -> Workers | None:
        if not self.count:
            return None
        shared_by_workers(self.spec.listen)
        return Workers(gateway, self.count, Path(self.loaded.file).resolve().parent, data, self.environ)

    def _signals(self) -> None:
        """Handles signals from the beginning; one that comes during the start counts as soon as the gateway has started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR2, self._upgrade)

    def _end(self) -> None:
        self.leaving.ask()
        if self.leaving.hurried:
            if (said := _AGAIN.get(self.leaving.asks)) is not None:
                log.info("%s", said)
            if self.workers is not None:
                self.workers.hurry()

    def _reload(self) -> None:
        if self.gateway is None:
            self.reload_asked = True
        elif not self.leaving.asked.is_set():
            self.manager.reloading()
            reloading = self.gateway.changes.reloader.request_reload()
            reloading.add_done_callback(lambda _: self.manager.reloaded(self._status()))

    def _upgrade(self) -> None:
        if self.gateway is None or self.upgrader is None:
            log.error("no upgrade: the gateway is still starting")
        else:
            self.gateway.plane.tasks.spawn(self.upgrader.on_signal(), name="upgrade")

    async def _start_engines(self, gateway: Gateway, data: socket.socket, admin: socket.socket) -> None:
        assert self.upgrader is not None
        try:
            await gateway.start_engines()
        except ConfigError as error:
            if self.handed is None:
                raise
            self.upgrader.incomplete(str(gateway.changes.place(error)))  # what runs must not end for that
        if self.workers is not None:
            await self.workers.ready()
        await self._first_look(gateway)
        self.has_started = True
        await self.upgrader.renew()
        first = await first_administrator.make_first_key(self.spec, gateway.store_link, gateway.events)
        if first is not None:
            print(first_administrator.shown(first, Path(self.spec.state_dir), sys.stdout), flush=True)
        print(greeting(address_of(data), address_of(admin), gateway.plane.current().spec, self.credentials, self.grpc), flush=True)
        self.manager.ready(self._status())

    async def _first_look(self, gateway: Gateway) -> None:
        """Returns once an engine has been seen to work, or none is assumed to any more, or after FIRST_LOOK_SECONDS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                while not gateway.fleet.registry.seen and any(m.route.ready for m in gateway.plane.current().models.values()):
                    await asyncio.sleep(0.01)

    async def _alive(self) -> bool:
        """Whether the watchdog may be fed. That this runs shows that the loop turns; with workers, one of them must answer too."""
        return self.workers is None or not self.has_started or self.leaving.asked.is_set() or self.workers.answering

    def _status(self) -> str:
        """One line for the service manager."""
        assert self.gateway is not None
        reloader = self.gateway.changes.reloader
        refused = reloader.status.error
        models = len(reloader.spec.models)
        serves = f"serves {models} model{'' if models == 1 else 's'}"
        return serves if refused is None else f"{serves}; the newest configuration was refused: {refused}"

    def _start_ended(self, start: asyncio.Task[None], gateway: Gateway) -> None:
        """A start that fails in whatever way ends the process: it would never become ready."""
        error = None if start.cancelled() else start.exception()
        if error is None:
            return
        self.fatal = gateway.changes.place(error) if isinstance(error, ConfigError) else ConfigError(f"the start failed: {error}")
        self.leaving.ask()
