"""One sidecar process: starts it, watches its health, restarts it after a growing pause, stops it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from engines.environment import inherited
from engines.host import priority
from engines.host.catalogue.checksums import Stopped
from engines.host.catalogue.trust import Seal, Trust, Untrusted
from engines.host.child import Child
from engines.host.devices import bind
from engines.host.ending import OUT_OF_MEMORY, Kills, ending
from engines.host.handover import HeldSidecar
from engines.host.lifecycle import STABLE_SECONDS, Event, State, backoff, next_state
from engines.host.logs import large, log_path, open_log, rotate
from engines.host.memory_ledger import MemoryLedger
from engines.host.placement import InsufficientMemory, Plan
from engines.runtimes import RuntimeRow
from gateway.core import deadlines
from gateway.core.errors import ConfigError, EngineChangeFailed, EngineError
from gateway.core.pauses import STALL, slept
from gateway.core.ports import EndpointObserver
from gateway.core.specs import EngineSpec, SidecarSpec
from gateway.telemetry.logging import TRACE
from gateway.transport.ask import ask
from gateway.transport.pool import EndpointClient

log = logging.getLogger("gatehouse.engines")
UNTRUSTED = "model_untrusted"
SILENCE_SECONDS = 300.0
"""Silence after which a process that starts or loads counts as hung. A load may take hours, but keeps answering health checks."""


class SidecarProcess:
    """Keeps one sidecar alive from `keep` until `stop`.

    observer: is told when the engine becomes usable and when it stops being so. on_event: (kind, engine, detail) for the audit log.
    ledger: reserves memory before each start and decides where the model's layers go. beside: the plan of the process to be replaced.
    silent: nobody is told about the process until `promote`, and it is not restarted if it ends before. proven: these settings have
    worked before, so a failed first load is tried again. gently: the first start runs at a low priority. held: the first life is that of a
    process which the program before this one has started. trust: decides before each start whether the model may be loaded.
    """

    def __init__(
        self,
        row: RuntimeRow,
        spec: EngineSpec,
        socket: Path,
        state_dir: Path,
        observer: EndpointObserver,
        on_event: Callable[[str, str, dict[str, Any]], None],
        ledger: MemoryLedger,
        *,
        silent: bool = False,
        beside: Plan | None = None,
        proven: bool = False,
        gently: bool = False,
        held: HeldSidecar | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.row, self.spec, self.socket, self._state_dir = row, spec, socket, state_dir
        self._observer, self._on_event, self._ledger = observer, on_event, ledger
        self.state: State = "stopped"
        self.wanted = True
        self.reason: str | None = None
        self.reason_code: str | None = None
        self.plan: Plan | None = None
        self.health: dict[str, Any] = {}
        self.restarts = 0
        self.silent = silent
        self.let_go = False
        """Another program takes it over: it is not ended with this one."""
        self.on_lost: Callable[[], None] | None = None
        """Called when it stops being ready."""
        self.gone = asyncio.Event()
        """Set when it has ended for good."""
        self._log = log_path(state_dir, spec.name)
        self._beside, self._proven, self._gently = beside, proven, gently
        self._held, self._trust = held, trust
        self._seal: Seal | None = None
        """What the model was when it was found to be signed, in this life; None: its signature was not asked for."""
        self._lowered = False
        self._failures = 0
        self._crashing = False
        """It was never ready, and last ended by a signal that nobody sent for want of memory."""
        self._ready_at = math.inf
        """When it became ready in this life; infinity if it has not."""
        self._moved = 0.0
        """When this life began, or when its end began."""
        self._fallback_reason: str | None = None
        self._process: Child | None = None
        self._kills: Kills | None = None
        self._log_from = 0
        """Bytes of the log when this life began."""
        self.out_of_memory = 0
        """How often it ended because memory ran out."""
        self.last_end: dict[str, Any] | None = None
        """When and why it last ended by itself; `at`: seconds since 1970."""
        self._stopping = asyncio.Event()
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client = EndpointClient(self.address, max_idle=1)

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    async def first_ready(self) -> None:
        """Waits until the sidecar is ready for the first time. Raises EngineChangeFailed with the reason if its first load fails."""
        await asyncio.shield(self._first)

    def promote(self) -> None:
        """Takes the place of the process that it replaces: its traffic and failures are the engine's from now on."""
        self.silent, self._beside = False, None
        self._announce()

    async def keep(self) -> None:
        """Starts, watches and restarts the process until `stop`."""
        try:
            while self.wanted:
                await self._one_life()
                if self._stopping.is_set():
                    break
                if self.silent or not (self._proven or self._first.done()):
                    self.wanted = False
                    self._failed(self.reason or "it ended")
                    break
                self._failures = 1 if time.monotonic() - self._ready_at > STABLE_SECONDS else self._failures + 1
                pause = backoff(self._failures, crashing=True) if self._crashing else backoff(self._failures)
                self.restarts += 1
                log.warning("engine %s ended (%s), starting again in %.1f s", self.spec.name, self.reason, pause)
                if not await within(self._stopping.wait(), pause):
                    self._observer.engine_starting(self.spec.name)
        finally:
            if not self.let_go:
                self._kill()
                await self._client.aclose()
                shutil.rmtree(self.socket.parent, ignore_errors=True)
                self._failed(self.reason or "stopped before it was ready")
                self.gone.set()

    def _failed(self, reason: str) -> None:
        """Tells whoever awaits `first_ready` why it will not come."""
        if not self._first.done():
            code = "insufficient_memory" if self.reason_code == "insufficient_memory" else "engine_failed"
            self._first.set_exception(EngineChangeFailed(f"engine {self.spec.name!r}: {reason}", code=code, engine=self.spec.name))
            self._first.exception()

    async def stop(self, timeout: float, *, silent: bool = False) -> None:
        """Drains within `timeout` seconds, then ends the process. silent: without a report, as another process has taken its place."""
        self.silent = silent
        self.wanted = False
        self._stopping.set()
        process = self._process
        if process is not None and process.returncode is None:
            self._move("drain")
            process.terminate()
            if not await patiently(process.wait(), timeout + 1.0):
                log.warning("engine %s did not drain within %.0f s, ending it", self.spec.name, timeout)
                self._kill()
        await patiently(self.gone.wait(), 5.0)

    def describe(self) -> dict[str, Any]:
        """The engine as operators see it."""
        known = {k: v for k, v in self.health.items() if k not in ("state", "name", "runtime", "wanted", "reason_code")}
        return {
            **known,
            "name": self.spec.name,
            "runtime": self.spec.runtime,
            "version": self.spec.version,
            "state": self.state,
            "reason": self.reason,
            "reason_code": self.reason_code,
            "plan": self.plan.report() if self.plan is not None else None,
            "wanted_device": self.spec.device,
            "fallback": self._fallback_reason is not None,
            "fallback_reason": self._fallback_reason,
            "restarts": self.restarts,
            "out_of_memory": self.out_of_memory,
            "last_end": self.last_end,
            "pid": self._process.pid if self._process is not None and self._process.returncode is None else None,
        }

    # --- one life of the process

    def hand_over(self) -> HeldSidecar | None:
        """What the program that replaces this one needs to adopt the process; None if none runs that can be adopted."""
        process = self._process
        if process is None or process.returncode is not None or self.state not in ("starting", "loading", "ready"):
            return None
        return HeldSidecar(
            spec=self.spec, pid=process.pid, lifeline=process.lifeline, socket=str(self.socket), state=self.state, restarts=self.restarts,
            ready_at=self._ready_at if self._ready_at < math.inf else None, lowered=self._lowered,
            fallback_reason=self._fallback_reason, plan=self.plan, health=self.health,
        )  # fmt: skip

    async def _one_life(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            return await self._adopt(held)
        self._move("start")
        self._ready_at, self.reason_code, self.plan, self._crashing = math.inf, None, None, False
        try:
            await self._verify()
            process = await self._spawn()
        except Untrusted as error:
            return self._not_started(str(error), UNTRUSTED)
        except Stopped:
            return self._not_started("stopped before its model was verified", None)
        except InsufficientMemory as error:
            return self._not_started(f"the model does not fit into memory: {error}", "insufficient_memory")
        except ConfigError as error:
            return self._not_started(error.message.removeprefix(f"engine {self.spec.name!r}: "), None)
        except OSError as error:
            return self._not_started(str(error), None)
        try:
            await self._live(process)
        finally:
            self._ledger.release(self.address)

    async def _verify(self) -> None:
        """Whether the model's signature lets it be loaded. Raises Untrusted, OSError, Stopped."""
        spec, trust = self.spec, self._trust
        self._seal = None
        if trust is not None:
            self._seal = await asyncio.to_thread(trust.loading, spec.model, spec.options, lambda: not self._stopping.is_set())

    async def _adopt(self, held: HeldSidecar) -> None:
        """The rest of a life that began under the program before this one."""
        self.plan, self.health, self.restarts = held.plan, held.health, held.restarts
        self._fallback_reason, self._lowered = held.fallback_reason, held.lowered
        try:
            process = self._process = Child.adopt(held.pid, held.lifeline, leads=self.row.leads)
        except OSError as error:
            return self._not_started(f"the process {held.pid} could not be adopted: {error.strerror}", None)
        if held.state == "ready":
            self.state = next_state(self.state, "adopt")
            self._ready_at = time.monotonic() if held.ready_at is None else held.ready_at
            self._announce()
            self._first.set_result(None)
        else:
            self._move("start")
        await self._live(process)

    def _not_started(self, reason: str, code: str | None) -> None:
        self._ledger.release(self.address)
        self.reason, self.reason_code = reason, code
        if code == UNTRUSTED:
            self._refused()
        if self.state == "stopped":
            self._move("start")
        self._move("failed")
        if not self.silent:
            self._observer.engine_down(self.spec.name, reason, code)

    def _refused(self) -> None:
        log.error("engine %s: %s", self.spec.name, self.reason)
        self._on_event("model_refused", self.spec.name, {"model": self.spec.model, "reason": self.reason})

    async def _live(self, process: Child) -> None:
        if self._stopping.is_set():  # `stop` came before there was a process to end
            process.kill()
        self._kills = await asyncio.to_thread(Kills, process.pid)
        exit_wait = asyncio.ensure_future(process.wait())
        try:
            await self._watch(exit_wait)
            await exit_wait
        finally:
            exit_wait.cancel()
        await self._note_exit(process)

    async def _note_exit(self, process: Child) -> None:
        if self.state not in ("failed", "draining"):
            found = await asyncio.to_thread(ending, process.returncode or 0, self._kills, self._log, self._log_from)
            self.reason, self.reason_code = found.reason, found.code
        code = process.returncode or 0
        self._crashing = code < 0 and self.state in ("starting", "loading") and self.reason_code is None and not self._first.done()
        if self.state != "failed":
            self._move("exited")
        if self.state == "failed":
            self.out_of_memory += self.reason_code == OUT_OF_MEMORY
            self.last_end = {"at": time.time(), "reason": self.reason, "reason_code": self.reason_code}
        if not self.silent:
            self._observer.engine_down(self.spec.name, self.reason or "stopped", self.reason_code)

    async def _spawn(self) -> Child:
        spec = self.spec
        self._fallback_reason = None
        binding = bind(spec.device, spec.fallback, spec.name, variables=self.row.devices)
        if binding.fell_back:
            self._fell_back(f"device {spec.device} is not on this machine")
        self.plan = await self._ledger.reserve(self.address, spec, "cpu" if binding.fell_back else spec.device, self._beside)
        if self.plan is not None and 0 < self.plan.gpu_layers < self.plan.layers:
            log.warning("engine %s: %d of %d layers run on %s", spec.name, self.plan.gpu_layers, self.plan.layers, spec.device)
        planned = self.plan.options() if self.plan is not None else {}
        settings = SidecarSpec(
            name=spec.name, runtime=spec.runtime, model=spec.model or "", socket=str(self.socket),
            state_dir=str(self._state_dir), device=binding.device, wanted=spec.device, fallback=spec.fallback, slots=spec.start_slots,
            context=spec.context, queue=spec.queue, threads=spec.threads, sha256=spec.sha256, batching=spec.batching,
            options={**planned, **spec.options}, key=spec.api_key.reveal() if spec.api_key is not None else None,
        )  # fmt: skip
        environment = {**inherited(os.environ), **binding.environment}
        with open_log(self._log) as log_file:
            self._log_from = os.fstat(log_file.fileno()).st_size
            command = (sys.executable, "-m", self.row.module)
            process = Child(
                command, line=msgspec.json.encode(settings) + b"\n", log=log_file, environment=environment, leads=self.row.leads
            )
        self._lowered = self._gently and priority.lower(process.pid)
        self._gently = False
        self._process = process
        return process

    def _fell_back(self, reason: str) -> None:
        self._fallback_reason = reason
        log.warning("engine %s: falling back to cpu: %s", self.spec.name, reason)
        self._on_event("engine_fallback", self.spec.name, {"wanted": self.spec.device, "device": "cpu", "reason": reason})

    async def _watch(self, exit_wait: asyncio.Future[int]) -> None:
        """Polls the health until the process ends; often while it loads."""
        misses, silent, now = 0, 0.0, time.monotonic()
        while not exit_wait.done():
            kills = self._kills.now() if self._kills is not None else 0
            asked, before = time.monotonic(), now
            report = await self._ask()
            now = time.monotonic()
            if report is None and slept(asked, self.spec.health.timeout, now):
                pass  # this process stood still, and so may have the sidecar: it is asked again
            elif report is None:
                misses += 1
                silent += min(now - before, self.spec.health.timeout + self.spec.health.interval + STALL)
                if self._hangs(misses, silent):
                    self.reason = f"no answer to {misses} health checks"
                    self._blame_memory()
                    self._move("failed")
                    self._kill()
                    return
            else:
                misses, silent = 0, 0.0
                if self._kills is not None and report.get("state") != "failed":
                    self._kills.seen(kills)
                if not await self._still_sealed(report):
                    return
                self._heard(report)
                log.log(TRACE, "engine %s: %s", self.spec.name, report)
                if large(self._log):
                    await asyncio.to_thread(rotate, self._log)
            await within(asyncio.shield(exit_wait), self.spec.health.interval if self.state == "ready" else 0.05)

    async def _still_sealed(self, report: dict[str, Any]) -> bool:
        """Whether what a sidecar has loaded when it says so is what was verified. If not, it is ended."""
        loaded = report.get("state") == "ready" and self.state in ("starting", "loading")
        if self._seal is None or not loaded or await asyncio.to_thread(self._seal.whole):
            return True
        self.reason, self.reason_code = f"the model {self.spec.model!r} changed between its verification and the end of its load", UNTRUSTED
        self._refused()
        self._move("failed")
        self._kill()
        return False

    def _hangs(self, misses: int, silent: float) -> bool:
        """Whether this many unanswered checks, over this many seconds, mean that the process must be ended."""
        if self.state == "ready":
            return misses >= self.spec.health.fall
        return self.state in ("starting", "loading") and silent >= SILENCE_SECONDS

    async def _ask(self) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(self.spec.health.timeout):
                answer = await ask(self._client, "GET", "/health", {})
            report = msgspec.json.decode(answer.body)
        except (EngineError, TimeoutError, ValueError, RecursionError):
            return None
        return report if isinstance(report, dict) else None

    def _heard(self, report: dict[str, Any]) -> None:
        self.health = report
        if self.row.leads and isinstance(held := report.get("memory_bytes"), int):
            self._ledger.seen(self.spec, held)
        state = report.get("state")
        if state in ("loading", "starting") and self.state in ("starting", "loading"):
            self._move("loading")
        elif state == "ready" and self.state in ("starting", "loading"):
            self.reason = None
            if self._lowered and self._process is not None:
                priority.restore(self._process.pid)
            self._move("ready")
            self._ready_at = time.monotonic()
            self._ledger.release(self.address)
            if isinstance(reason := report.get("fallback_reason"), str):
                self._fell_back(reason)
                self.plan = None  # it was made for the device; health reports what the sidecar did instead
            if not self.silent:
                self._announce()
            if not self._first.done():
                self._first.set_result(None)
        elif state == "failed" and self.state != "failed":
            self.reason = str(report.get("reason") or "failed without a reason")
            self.reason_code = str(report["reason_code"]) if report.get("reason_code") else None
            if self.row.leads:
                self._blame_memory()
            self._move("failed")
            self._kill()

    def _blame_memory(self) -> None:
        """The engine failed after the kernel had ended a process for want of memory: one of its own, or it starved with that one."""
        if self._kills is not None and self._kills.another():
            self.reason = f"{self.reason}; memory ran out: the kernel ended a process of {self._kills.where}"
            self.reason_code = OUT_OF_MEMORY

    @property
    def served_at(self) -> str:
        """Where requests go: to the sidecar, or to the server that it has started."""
        said = self.health.get("address") if self.row.leads else None
        return said if isinstance(said, str) else self.address

    @property
    def slots(self) -> int:
        """Requests that it runs at once, as reported by itself."""
        return int(self.health.get("slots") or self.spec.start_slots)

    def _announce(self) -> None:
        self._observer.engine_ready(self.spec.name, self.served_at, self.slots)

    def _move(self, event: Event) -> None:
        before, self.state = self.state, next_state(self.state, event)
        if self.state != before:
            took = time.monotonic() - self._moved
            if self.state in ("starting", "draining"):
                self._moved = time.monotonic()
            if before == "ready" and self.on_lost is not None:
                self.on_lost()
            log.info("engine %s: %s", self.spec.name, self.state)
            self._on_event(f"engine_{self.state}", self.spec.name, {"from": before, **self._detail(), **self._took(before, took)})

    def _detail(self) -> dict[str, Any]:
        """What the audit log notes with a new state: the version, the reason, and once loaded the file's checksum."""
        detail: dict[str, Any] = {"version": self.spec.version}
        if self.reason:
            detail["reason"] = self.reason
        if self.state == "failed" and self.reason_code:
            detail["reason_code"] = self.reason_code
        if self.state == "ready":
            detail["sha256"] = self.health.get("sha256")
        return detail

    def _took(self, before: State, seconds: float) -> dict[str, Any]:
        """How long loading or ending took, for the event that tells its end."""
        if self.state == "ready" and before in ("starting", "loading"):
            return {"load_seconds": round(seconds, 3)}
        return {"unload_seconds": round(seconds, 3)} if (before, self.state) == ("draining", "stopped") else {}

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


async def within(awaitable: Awaitable[Any], seconds: float) -> bool:
    """Waits at most this long; returns whether it completed."""
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except TimeoutError:
        return False
    return True


async def patiently(awaitable: Awaitable[Any], seconds: float) -> bool:
    """The same where another process has to do something: while the machine stood still, it had no time for it."""
    try:
        async with deadlines.within(seconds):
            await awaitable
    except TimeoutError:
        return False
    return True
