"""Replaces the running program by the one that is installed now, with the settings of the configuration file as it is now.

    idle ──begin──▶ checking ──▶ handing over ──exec──▶ renewing ──▶ idle
                       └──refused──▶ idle                  └──a worker does not start: begin──▶ checking

`checking` changes nothing: whatever is wrong is found out there and answered. After the exec the new program goes on (`Upgrader` with
what it was handed): it adopts sidecars and workers and replaces the workers one by one. One upgrade at a time; none while engines, workers
or the configuration are being changed, and none once the gateway leaves. One whose new workers do not start gives way to the next, which
may be back to the program before it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from gateway.app.gateway import Gateway
from gateway.app.release import release
from gateway.app.replicas.replica import LOCK, StateLock
from gateway.app.sockets import Sockets, listens_on
from gateway.app.systemd import VARIABLES
from gateway.app.upgrade import preflight
from gateway.app.upgrade.handover import VARIABLE, HandOver, Mark
from gateway.app.upgrade.preflight import Checked, UpgradeRefused
from gateway.app.workers.control import Workers
from gateway.core.errors import ConfigError, GatehouseError
from gateway.core.tasks import TaskOwner
from gateway.server.leaving import Leaving
from gateway.server.listener import bind

log = logging.getLogger("gatehouse.upgrade")
State = Literal["idle", "checking", "handing over", "renewing"]
RENEW_SECONDS: Final = 10.0
"""Between two tries to start a worker's successor."""
ENDING: Final = "The gateway is ending."
KEPT: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables of the service manager that the next program needs too; its sockets are handed over."""


def program() -> list[str]:
    """How this program was started, without its arguments: the console script by its path, so that a link to another version counts."""
    script = Path(sys.argv[0])
    if script.suffix != ".py" and script.is_file() and os.access(script, os.X_OK):
        return [str(script.absolute())]
    return [sys.executable, "-m", "gateway"]


class Upgrader:
    """config: the file. environ: what the process was started with. sockets: those that listen. workers: None if this process serves.
    handed: what the program before this one has handed over, if it has."""

    def __init__(
        self,
        config: Path,
        environ: Mapping[str, str],
        gateway: Gateway,
        sockets: Sockets,
        workers: Workers | None,
        leaving: Leaving,
        handed: HandOver | None,
    ) -> None:
        self._config, self._environ = config, environ
        self._gateway, self._sockets, self._workers, self._leaving, self._handed = gateway, sockets, workers, leaving, handed
        self.state: State = "idle"
        self.begun: asyncio.Event = asyncio.Event()
        """Set once the check has passed: the process is to hand over now."""
        self._count = 0 if handed is None else handed.upgrades
        self.on_stuck: Callable[[], None] = lambda: None
        """Called when the new program's workers do not start, so that the renewal may never end."""
        self._stuck = ""
        self._checked = asyncio.Event()
        self._checked.set()
        self._last: dict[str, Any] | None = None
        self._actor = ""
        self._passed: tuple[int, int] = (-1, -1)
        self._keeps_lock = False
        self.lock: StateLock | None = None
        """Of the state directory."""

    # --- the admin API's port

    def view(self) -> dict[str, Any]:
        """How it stands: state, number of upgrades since the process was started, the last one, and why a renewal does not get on."""
        stands = {"state": self.state, "version": release(), "upgrades": self._count, "last": self._last}
        return {**stands, "stuck": self._stuck} if self._stuck else stands

    async def begin(self, actor: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Checks the new program and, unless this is a dry run, begins to hand over. Raises UpgradeRefused; nothing has changed then."""
        try:
            self._refuse_unless_quiet()
            before, self.state = self.state, "checking"
            self._checked.clear()
            try:
                checked = await self._check()
                self._refuse_if_busy()
                bound = self._bind(checked)
            except BaseException:
                self._go_on(before)
                raise
        except UpgradeRefused as error:
            log.error("no upgrade: %s", error.message)
            self._gateway.events.record("upgrade_refused", "gatehouse", {"reason": error.message}, actor=actor, outcome="refused")
            self._last = {"outcome": "refused", "reason": error.message, "at": time.time()}
            raise
        if dry_run:
            self._go_on(before)
        else:
            self.state, self._actor, self._keeps_lock = "handing over", actor, checked.keeps_lock
            data, admin = (bound.get(name, sock).fileno() for name, sock in (("data", self._sockets.data), ("admin", self._sockets.admin)))
            self._passed = (os.dup(data), os.dup(admin))
            detail = {"from": release(), "to": checked.version}
            self._gateway.events.record("upgrade_begun", "gatehouse", detail, actor=actor)
            log.info("the program hands over to version %s", checked.version)
            self.begun.set()
        for sock in bound.values():
            sock.close()  # the next program has a descriptor of its own
        return {**self.view(), "to": checked.version}

    async def _check(self) -> Checked:
        """The check's answer. Raises UpgradeRefused, also as soon as the gateway is asked to end: the check is ended then, and
        whoever asked for it hears why while there still is a listener."""
        owner = TaskOwner("upgrade")
        try:
            asked = owner.spawn(preflight.ask(program(), self._config, self._bare(), self._message()), name="check")
            leaving = owner.spawn(self._leaving.asked.wait(), name="end")
            await asyncio.wait((asked, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise UpgradeRefused(ENDING)
            return asked.result()
        finally:
            await owner.aclose()

    def _go_on(self, state: State) -> None:
        self.state = state
        self._checked.set()

    async def on_signal(self) -> None:
        """For SIGUSR2: only the logs say why one is refused."""
        with suppress(UpgradeRefused):
            await self.begin("signal")

    # --- refusing

    def _refuse_unless_quiet(self) -> None:
        if self._workers is None:
            raise UpgradeRefused("This gateway serves requests in its only process: start it with --workers, or restart it.")
        if self.state != "idle" and not (self.state == "renewing" and self._stuck):
            raise UpgradeRefused("An upgrade is under way. Try again when it is complete.", code="upgrade_running")
        self._refuse_if_busy()

    def _refuse_if_busy(self) -> None:
        assert self._workers is not None
        if self._leaving.asked.is_set():
            raise UpgradeRefused(ENDING)
        reason = self._gateway.fleet.supervisor.busy() or self._workers.pool.busy()
        if reason is None and self._gateway.changes.reloader.status.state != "idle":
            reason = "the configuration is being changed"
        if reason is not None:
            raise UpgradeRefused(f"Not now: {reason}. Try again when that is over.", code="upgrade_busy")

    def _bind(self, checked: Checked) -> dict[str, socket.socket]:
        """New sockets for addresses that the configuration has changed."""
        bound: dict[str, socket.socket] = {}
        try:
            for name, sock, address in (
                ("data", self._sockets.data, checked.listen.data),
                ("admin", self._sockets.admin, checked.listen.admin),
            ):
                if not listens_on(sock, address):
                    bound[name] = bind(address, f"listen.{name}")
            self._try_others(checked)
        except ConfigError as error:
            for sock in bound.values():
                sock.close()
            raise UpgradeRefused(f"The new program would not start: {error}", code="upgrade_check_failed") from None
        return bound

    def _try_others(self, checked: Checked) -> None:
        """What only the next program binds and locks, where it is not what this one has. Raises ConfigError if somebody else has it."""
        spec = self._gateway.spec
        if checked.listen.grpc and checked.listen.grpc != spec.listen.grpc:
            bind(checked.listen.grpc, "listen.grpc", shared=True).close()
        ours = (spec.model_sharing.listen or "").rpartition(":")
        if checked.sharing and checked.sharing.rpartition(":")[2] != ours[2]:  # ours is closed by then
            bind(checked.sharing, "model_sharing.listen").close()
        directory = Path(checked.state_dir)
        if (directory / LOCK).exists() and not directory.samefile(spec.state_dir):
            StateLock(directory).release()

    # --- handing over

    async def hand_over(self) -> HandOver:
        """Takes everything away from this program that the next one goes on with."""
        assert self._workers is not None
        workers, limits = await self._workers.hand_over()
        figures = self._workers.figures.hand_over()
        engines = self._gateway.fleet.supervisor.let_go()
        message = self._message()
        mirror = self._gateway.fleet.mirror
        slots = [] if mirror is None else mirror.hand_over()
        number = self._workers.hub.number
        lock = self.lock.kept() if self._keeps_lock and self.lock is not None else -1
        kept = {"workers": workers, "limits": limits, "slots": slots, "engines": engines, "figures": figures}
        return msgspec.structs.replace(message, lock=lock, change=number, **kept)

    def _message(self) -> HandOver:
        """The part of the hand-over that can be read without stopping anything."""
        marks = [
            Mark(view["name"], view["drained"], view["breaker"]["forced"])
            for view in self._gateway.fleet.traffic.endpoints()
            if view["drained"] or view["breaker"]["forced"] is not None
        ]
        return HandOver(
            version=release(),
            data=self._passed[0],
            admin=self._passed[1],
            engines=self._gateway.fleet.supervisor.hand_over(),
            certificates=self._gateway.certificates.all(),
            marks=marks,
            upgrades=self._count + 1,
            began=time.time(),
            actor=self._actor,
        )

    def command(self) -> list[str]:
        return [*program(), *sys.argv[1:]]

    def environment(self) -> dict[str, str]:
        """The environment of the next program."""
        return {**self._bare(), **{name: self._environ[name] for name in KEPT if name in self._environ}}

    def _bare(self) -> dict[str, str]:
        return {name: value for name, value in self._environ.items() if name not in (*VARIABLES, VARIABLE)}

    # --- taking over

    async def adopt(self) -> None:
        """Called in the new program, once its configuration is in force and before its workers start."""
        if self._handed is None or self._workers is None:
            return
        self.state = "renewing"
        traffic = self._gateway.fleet.traffic
        for mark in self._handed.marks:
            _marked(traffic, mark)
        await self._workers.adopt(self._handed)

    def incomplete(self, reason: str) -> None:
        """Called in the new program if an engine of its configuration does not start. What runs goes on."""
        log.error("the upgrade is not complete, the running processes continue: %s", reason)
        self._gateway.events.record("upgrade_incomplete", "gatehouse", {"reason": reason}, outcome="failed")

    async def _retry_later(self, reason: str) -> None:
        """Returns when the worker that did not start may be tried again. Meanwhile another upgrade may begin."""
        self._stuck = reason
        self.on_stuck()
        await asyncio.sleep(RENEW_SECONDS)
        await self._checked.wait()

    async def renew(self) -> None:
        """Replaces the adopted workers; returns when that is over."""
        handed = self._handed
        if handed is None or self._workers is None:
            return
        await self._workers.renew(self._retry_later)
        self._stuck = ""
        seconds = round(time.time() - handed.began, 3)
        self._last = {"outcome": "done", "before": handed.version, "actor": handed.actor, "at": time.time(), "seconds": seconds}
        running = {one["name"]: one.get("pid") for one in self._gateway.fleet.supervisor.engines()}
        adopted = [one.spec.name for one in handed.engines.sidecars if running.get(one.spec.name) == one.pid]
        detail = {"from": handed.version, "to": release(), "seconds": seconds, "adopted_engines": adopted}
        if others := [one.spec.name for one in handed.engines.sidecars if one.spec.name not in adopted]:
            detail["replaced_engines"] = others  # whose settings are others now, or whose process has ended
        self._gateway.events.record("upgraded", "gatehouse", detail, actor=handed.actor or "gatehouse")
        log.info("the upgrade from version %s to %s is complete, after %.1f s", handed.version, release(), seconds)
        self.state = "idle"


def _marked(traffic: Any, mark: Mark) -> None:
    actions: list[Callable[[], None]] = []
    if mark.drained:
        actions.append(lambda: traffic.drain(mark.endpoint))
    if mark.forced is not None:
        actions.append(lambda: traffic.force(mark.endpoint, mark.forced))
    for action in actions:
        try:
            action()
        except GatehouseError as error:  # the configuration has it no more
            log.warning("%s", error.message)
