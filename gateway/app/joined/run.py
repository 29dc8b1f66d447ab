"""`gatehouse engines run --join`: a supervisor with its sidecars that serves a gateway on another machine.

It starts the engines of a configuration file, joins, listens for gateways, and says how it is until a signal ends it. Then it says that it
leaves, so that no new requests come, lets those under way finish, and ends its sidecars.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from engines.host.catalogue.checksums import Checksums
from engines.host.catalogue.trust import Trust
from engines.host.sockets import Sockets
from engines.host.supervisor import Supervisor
from gateway.app.configuration.plugins import installed
from gateway.app.engines import model_files
from gateway.app.joined.caller import Caller, Refused, checked_url
from gateway.app.joined.identity import Identity
from gateway.app.joined.listener import Listener
from gateway.app.joined.machines import parse_address
from gateway.app.joined.order_side import OrderSide
from gateway.app.joined.report import Reporter
from gateway.app.joined.ticket_side import PortWanted, TicketSide
from gateway.app.replicas.replica import StateLock
from gateway.app.telemetry.observing import log_as_configured
from gateway.config.machine import AcceptsSpec, load_machine
from gateway.core.clock import SystemClock, SystemEntropy
from gateway.core.errors import ConfigError, GatehouseError, one_line
from gateway.core.host_port import HostPort
from gateway.core.joining import Heard, MachineName
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner
from gateway.routing.registry import EndpointRegistry
from gateway.transport.pool import EndpointClient

log = logging.getLogger("gatehouse.machine")
JOIN_PAUSE: Final = 1.0
DRAIN_SECONDS: Final = 30.0
QUIET_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Wanted:
    """What the command line says. ca: verifies the gateways' admin listeners; None: the system's authorities. tickets: where clients bring
    tickets; None: nowhere."""

    config: Path
    gateways: Sequence[str]
    name: str
    listen: str
    advertise: str | None = None
    token: str | None = None
    ca: Path | None = None
    tickets: str | None = None
    tickets_advertise: str | None = None


def run(wanted: Wanted) -> int:
    """Runs in the foreground until a signal ends it; the exit code."""
    try:
        code: int = uvloop.run(_Machine(wanted).run())
        return code
    except ConfigError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
    except (GatehouseError, Refused) as error:
        print(f"error: {one_line(getattr(error, 'message', str(error)))}", file=sys.stderr)
    except OSError as error:
        print(f"error: {one_line(f'{error.strerror or error}: {error.filename or wanted.listen}')}", file=sys.stderr)
    return 1


class _Machine:
    """Raises ConfigError for what cannot be used."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._gateways = [checked_url(url) for url in wanted.gateways]
        try:
            msgspec.convert(wanted.name, MachineName)
        except msgspec.ValidationError:
            raise ConfigError(f"--name {wanted.name!r}: a machine's name has 1 to 63 lower-case letters, digits and '-'") from None
        self._listen = parse_address(wanted.listen) or _any_port(wanted.listen)
        if self._listen is None:
            raise ConfigError(f"--listen {wanted.listen!r} is not ADDRESS:PORT, such as 10.0.0.5:8443")
        self._advertised = None if wanted.advertise is None else parse_address(wanted.advertise)
        if wanted.advertise is not None and self._advertised is None:
            raise ConfigError(f"--advertise {wanted.advertise!r} is not ADDRESS:PORT, such as 10.0.0.5:8443")
        if self._advertised is None and self._listen.host in ("0.0.0.0", "::"):
            raise ConfigError(f"--listen {wanted.listen} is all of this machine's addresses: say with --advertise where gateways reach it")
        self._tickets = None if wanted.tickets is None else PortWanted.of(wanted.tickets, wanted.tickets_advertise)
        self._runtimes = installed().runtimes
        self._spec, self._accepts = self._load()
        self._owner = TaskOwner("machine")
        self._refused: dict[str, str] = {}
        self._replicas = 0
        self._side: TicketSide | None = None
        self._orders: OrderSide | None = None

    def _load(self) -> tuple[ConfigSpec, AcceptsSpec | None]:
        found = load_machine(self._wanted.config, dict(os.environ), installed().schemas())
        loaded = found.loaded
        try:
            log_as_configured(loaded.spec.telemetry)
            return model_files.resolve(loaded.spec, self._wanted.config.resolve().parent), found.accepts
        except ConfigError as error:
            loaded.place(error)
            raise

    async def run(self) -> int:
        """Until a signal, or until no gateway will have it."""
        state_dir = Path(self._spec.state_dir).resolve()
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = StateLock(state_dir)
        stop = self._watch_signals()
        self._identity = Identity(state_dir / "machine")
        context = _verifying(self._wanted.ca)
        callers = [Caller(url, self._wanted.name, self._identity.key, context) for url in self._gateways]
        registry = EndpointRegistry(SystemClock(), SystemEntropy(), lambda engine, address: EndpointClient(address))
        signatures = model_files.signatures(self._spec, self._wanted.config.resolve().parent)
        trust = Trust(lambda: signatures, Checksums(state_dir / "model-checksums.json"))
        supervisor = Supervisor(state_dir, registry, _told, runtimes=self._runtimes, trust=trust)
        names = {engine.name for engine in self._spec.engines}
        ear = Sockets(state_dir).new("orders", 0) if self._accepts is not None else None
        listener = Listener(self._wanted.name, names, lambda engine: _place(registry, engine), ear)
        if self._tickets is not None:
            self._side = TicketSide(self._wanted.name, self._identity, names, callers, lambda engine: _place(registry, engine))
        reporter = Reporter(supervisor)
        if self._accepts is not None and ear is not None:

            def named(engine: str, there: bool) -> None:
                listener.name(engine, there)
                (names.add if there else names.discard)(engine)

            self._orders = OrderSide(self._accepts, tuple(names), supervisor, state_dir, ear, named)
            reporter.room = self._orders.room
        try:
            await supervisor.apply(self._spec.engines, wait=False, again=True)
            if self._orders is not None:
                await self._orders.start()
            if not await self._join(callers, stop):
                return 0
            await self._serve(listener, callers, reporter, stop)
        finally:
            await self._owner.aclose()
            for side in (self._side, self._orders):
                if side is not None:
                    await side.aclose()
            await supervisor.aclose(DRAIN_SECONDS)
            await listener.aclose()
            for caller in callers:
                await caller.aclose()
            await registry.aclose()
            lock.release()
        if len(self._refused) == len(callers):
            raise Refused(next(iter(self._refused.values())))
        return 0

    def _watch_signals(self) -> asyncio.Event:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return stop

    async def _join(self, callers: list[Caller], stop: asyncio.Event) -> bool:
        """Gets the machine's certificate, unless an earlier run has. False: it was told to end. Raises Refused."""
        if self._identity.complete or (self._wanted.token is None and self._identity.begun):
            return True
        if self._wanted.token is None:
            raise ConfigError("this machine has not joined yet: it needs a join token (--token-file; gatehouse join-tokens create)")
        while not stop.is_set():
            for caller in callers:
                try:
                    joined = await caller.join(self._wanted.token)
                    if joined is not None:
                        self._identity.keep(joined.certificate, joined.gateways)
                        print(f"joined: {caller.url} as {joined.name}", flush=True)
                        return True
                except Refused as error:
                    if not self._identity.begun:
                        raise
                    log.warning("gateway %s: %s It goes on as the machine that it was", caller.url, error)
                    return True
                except ValueError as error:
                    log.error("gateway %s: the certificate cannot be used: %s", caller.url, error)
            await _pause(stop, JOIN_PAUSE)
        return False

    async def _serve(self, listener: Listener, callers: list[Caller], reporter: Reporter, stop: asyncio.Event) -> None:
        identity, listen = self._identity, self._listen
        assert listen is not None
        listener.present(identity.certificate, identity.key_file, identity.gateways)
        port = await listener.start(listen.host, listen.port)
        reporter.address = (self._advertised or HostPort(listen.host, port)).text
        print(f"machine: {self._wanted.name} at {reporter.address}", flush=True)
        if self._side is not None and self._tickets is not None:
            reporter.tickets = self._side.start(self._tickets)
            print(f"tickets: {reporter.tickets.address}", flush=True)
        saying = [self._owner.spawn(self._say(caller, reporter, listener), name=caller.url) for caller in callers]
        ending = self._owner.spawn(stop.wait(), name="stop")
        everybody = self._owner.wait(asyncio.wait(saying), name="gateways")
        await asyncio.wait((ending, everybody), return_when=asyncio.FIRST_COMPLETED)
        for task in saying:
            task.cancel()
        reporter.leaving = True
        await asyncio.gather(*(self._leave(caller, reporter) for caller in callers if caller.url not in self._refused))
        if self._side is not None:
            await self._side.drain(DRAIN_SECONDS)
        await _idle(listener, DRAIN_SECONDS)

    async def _say(self, caller: Caller, reporter: Reporter, listener: Listener) -> None:
        """Sends beats until a gateway refuses this machine."""
        while True:
            reporter.renew = self._identity.due
            try:
                heard = await caller.beat(reporter.beat)
            except Refused as error:
                self._refused[caller.url] = str(error)
                log.error("gateway %s: %s", caller.url, error)
                return
            if heard is not None and heard.certificate:
                self._renewed(heard, listener)
            if self._orders is not None and heard is not None:
                self._orders.fenced(heard.fences)
            if self._side is not None:
                self._side.heard(caller, heard)
            if heard is not None:
                self._count(caller, heard.replicas)
            await asyncio.sleep(caller.every)

    def _count(self, caller: Caller, replicas: int) -> None:
        """Says so, once, where this machine does not join all replicas."""
        if replicas > max(self._replicas, len(self._gateways)):
            log.warning(
                "gateway %s is one of %d replicas, and this machine joins %d: the others send it nothing, and may start its engines once "
                "more elsewhere; give --join once for each replica",
                caller.url, replicas, len(self._gateways),
            )  # fmt: skip
        self._replicas = replicas or self._replicas

    def _renewed(self, heard: Heard, listener: Listener) -> None:
        try:
            self._identity.keep(heard.certificate, heard.gateways)
            listener.present(self._identity.certificate, self._identity.key_file, self._identity.gateways)
            if self._side is not None:
                self._side.present()
        except (OSError, ssl.SSLError, ValueError) as error:
            log.error("the new certificate cannot be used: %s", error)

    async def _leave(self, caller: Caller, reporter: Reporter) -> None:
        try:
            await caller.beat(reporter.beat)
        except Refused:
            pass  # it does not know this machine, so there is nothing to leave


def _told(event: str, engine: str, detail: dict[str, object]) -> None:
    log.debug("engine %s: %s", engine, event)


def _place(registry: EndpointRegistry, engine: str) -> str | None:
    report = registry.reports.get(engine)
    return report.address if report is not None and report.process == "ready" and report.address else None


def _any_port(text: str) -> HostPort | None:
    """ADDRESS:0."""
    found = parse_address(f"{text.removesuffix(':0')}:1") if text.endswith(":0") else None
    return None if found is None else HostPort(found.host, 0)


def _verifying(ca: Path | None) -> ssl.SSLContext:
    """Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca {ca}: the file cannot be used: {error}") from None


async def _idle(listener: Listener, seconds: float) -> None:
    """Waits until gateways have closed their connections: after a machine has left, they do so when the requests there have ended."""
    try:
        async with asyncio.timeout(seconds):
            while listener.connections:
                await asyncio.sleep(QUIET_SECONDS)
    except TimeoutError:
        log.warning("%d connections are still open: they are closed", listener.connections)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass


def default_name() -> str:
    """This machine's own name, as far as it can be one here."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname().partition(".")[0].lower()).strip("-")
    return plain[:63].strip("-") or "machine"
