"""Engines that a gateway has this machine start. What may be started is this machine's own file's to say (`accepts`): no commands, no files
but those that were sent and verified, no option that names a path or loosens a sidecar's confinement, and no more memory, disk and
engines than it grants. A gateway that somebody has taken over gets a model's process here, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from engines.host.catalogue.inspection import Inspection
from engines.host.catalogue.scan import whole_folder
from engines.host.memory import device_free, host_free
from engines.host.supervisor import Supervisor
from engines.runtimes import RUNTIMES
from gateway.app.joined.received import ReceivedFiles
from gateway.config.machine import AcceptsSpec
from gateway.core.errors import GatehouseError
from gateway.core.joining import DeviceRoom, PlacedEngine, Room
from gateway.core.placing import OPTIONS, Order
from gateway.core.specs import EngineSpec
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.machine")
MAX_TEXT: Final = 256
MAX_FENCES: Final = 1024
ALTERED: Final = ("engine_failed", "model_invalid")
"""Failures after which the files are read again: one that was altered here since it came is sent anew with the next order."""
Needed = Callable[[EngineSpec], Awaitable[int]]
"""Bytes of main memory that an engine takes."""


@dataclass(eq=False)
class _Taken:
    """An order, and what became of it. memory: bytes of main memory that it takes; 0 until that is known. failed: the revision that came to
    nothing, for this reason."""

    order: Order
    memory: int = 0
    failed: str = ""
    reason: str = ""
    code: str = ""


class PlacedEngines:
    """own: engines of the machine's file, whose names are not to be had. named: told of each engine that comes or goes. Life: `aclose`."""

    def __init__(
        self,
        accepts: AcceptsSpec,
        own: Iterable[str],
        supervisor: Supervisor,
        files: ReceivedFiles,
        needed: Needed,
        named: Callable[[str, bool], None],
    ) -> None:
        self._accepts, self._own = accepts, frozenset(own)
        self._supervisor, self._files, self._needed, self._named = supervisor, files, needed, named
        self._taken: dict[str, _Taken] = {}
        self._fences: dict[str, int] = {}
        self._owner = TaskOwner("placed engines")
        self._ending: list[_Taken] = []
        self._counting = asyncio.Lock()
        """Held from looking how much memory is left until what an engine takes of it is noted."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._looked: tuple[int, int | None, tuple[DeviceRoom, ...]] = (0, 0, ())

    async def aclose(self) -> None:
        await self._owner.aclose()

    def checksums(self) -> set[str]:
        """The checksums of the files that engines use."""
        return {file.sha256 for taken in self._taken.values() for file in taken.order.files}

    # --- orders

    def put(self, engine: str, order: Order) -> None:
        """Takes an order; what becomes of it is told in beats. Raises GatehouseError: 403 `not_accepted`, 409 `stale_order`,
        `missing_files`."""
        self._current(engine, order.fence)
        now = self._taken.get(engine)
        if now is not None and now.order.revision == order.revision and now.failed != order.revision:
            return
        self._permitted(engine, order, fresh=now is None)
        if missing := self._files.missing(order.files):
            raise GatehouseError(f"{len(missing)} files of the model are not here: {missing[0]}", code="missing_files", status=409)
        taken = self._taken[engine] = _Taken(order)
        log.info("engine %s: a gateway has it start here, %s on %s", engine, order.model, order.device)
        self._owner.spawn(self._start(engine, taken, now), name=engine)

    def remove(self, engine: str, fence: int) -> None:
        """Raises GatehouseError: 409 `stale_order`."""
        self._current(engine, fence)
        if (taken := self._taken.get(engine)) is not None and taken not in self._ending:
            self._ending.append(taken)
            log.info("engine %s: a gateway has it end here", engine)
            self._owner.spawn(self._end(engine, taken), name=engine)

    def _current(self, engine: str, fence: int) -> None:
        """Refuses a gateway that was paused while another took the engine over."""
        if fence < self._fences.get(engine, 0):
            raise GatehouseError("Another gateway places this engine now.", code="stale_order", status=409)
        self.fenced({engine: fence})

    def fenced(self, fences: Mapping[str, int]) -> None:
        """Takes note of who places engines now, whether or not that gateway has anything to order here."""
        for engine, fence in fences.items():
            if fence > self._fences.get(engine, -1) and (engine in self._fences or len(self._fences) < MAX_FENCES):
                self._fences[engine] = fence

    def _permitted(self, engine: str, order: Order, *, fresh: bool) -> None:
        accepts = self._accepts
        why = ""
        if engine in self._own:
            why = f"{engine!r} is an engine of the machine's own file"
        elif fresh and len(self._taken) >= accepts.engines:
            why = f"the machine accepts {accepts.engines} engines (accepts.engines)"
        elif order.runtime not in accepts.runtimes:
            why = f"the machine accepts no engines of the runtime {order.runtime!r} (accepts.runtimes)"
        elif wrong := sorted(set(order.options) - OPTIONS[order.runtime]):
            why = f"the option {wrong[0]!r} is not for engines that a gateway places"
        elif any(device not in accepts.devices for device in _devices(order.device)):
            why = f"the machine accepts no engines on {order.device} (accepts.devices)"
        elif order.files[0].path != order.model and not order.files[0].path.startswith(f"{order.model}/"):
            why = "the model is not among the order's files"
        elif len({file.path for file in order.files}) != len(order.files):
            why = "two of the order's files have one path"
        if not why:
            try:
                msgspec.convert(order.options, RUNTIMES[order.runtime].settings)
            except msgspec.ValidationError as error:
                why = f"options: {error}"
        if why:
            raise GatehouseError(f"The machine does not accept this: {why}.", code="not_accepted", status=403)

    # --- what becomes of them

    async def _start(self, engine: str, taken: _Taken, before: _Taken | None) -> None:
        """before: what the engine is until then, and stays where this comes to nothing."""
        async with self._locks.setdefault(engine, asyncio.Lock()):
            if self._taken.get(engine) is not taken or taken in self._ending:
                return
            try:
                spec = await self._prepared(engine, taken, before)
                self._named(engine, True)
                await self._supervisor.put(spec)
            except GatehouseError as error:
                await self._failed(engine, taken, before, error.message, error.code)
            except OSError as error:
                await self._failed(engine, taken, before, f"the disk refused: {error.strerror}", "storage_failed")
            else:
                if before is not None and before.order.revision != taken.order.revision:
                    await self._files.taken_down(before.order.revision)

    async def _failed(self, engine: str, taken: _Taken, before: _Taken | None, reason: str, code: str) -> None:
        log.error("engine %s: the order failed: %s", engine, reason)
        revision = taken.order.revision
        if before is not None and before.failed != before.order.revision and self._taken.get(engine) is taken:
            self._taken[engine] = taken = before
            await self._files.taken_down(revision)
        elif code in ALTERED and await self._files.recheck(taken.order.files):
            await self._files.taken_down(revision)
        taken.failed, taken.reason, taken.code = revision, reason, code

    async def _prepared(self, engine: str, taken: _Taken, before: _Taken | None) -> EngineSpec:
        """The engine's settings once its model is in its place, can be read, and fits. Raises GatehouseError, OSError."""
        order = taken.order
        path = await self._files.laid_out(order)
        problem = await asyncio.to_thread(_problem, path, order.runtime)
        if problem:
            raise GatehouseError(f"the model cannot be used: {problem}", code="model_invalid", status=422)
        spec = EngineSpec(
            name=engine, runtime=order.runtime, version=order.revision[:12], model=str(path), device=order.device, slots=order.slots,
            context=order.context, queue=order.queue, threads=order.threads, options=order.options,
            sha256=order.files[0].sha256 if len(order.files) == 1 and order.runtime == "llama.cpp" else None,
        )  # fmt: skip
        memory = await self._needed(spec)
        async with self._counting:
            others = sum(one.memory for one in self._taken.values() if one is not taken)
            left = max(0, self._accepts.memory_bytes - others - (0 if before is None else before.memory))
            if memory > left:
                raise GatehouseError(
                    f"the model does not fit: {memory >> 20} MiB needed, {left >> 20} MiB of accepts.memory_bytes left",
                    code="insufficient_memory",
                    status=507,
                )
            taken.memory = memory
        return spec

    async def _end(self, engine: str, taken: _Taken) -> None:
        """A newer order for the engine goes before."""
        async with self._locks.setdefault(engine, asyncio.Lock()):
            self._ending.remove(taken)
            if self._taken.get(engine) is not taken:
                return
            await self._supervisor.remove(engine)
            self._named(engine, False)
            del self._taken[engine]
            await self._files.taken_down(taken.order.revision)

    # --- what is told

    async def look(self) -> None:
        """Asks the system what is free; `room` tells it. To be called about once a second."""
        devices = [name for name in self._accepts.devices if name != "cpu"]
        used = self._files.needed()
        self._looked = await asyncio.to_thread(lambda: (self._files.free(used), host_free(), tuple(map(_device, devices))))

    def room(self) -> Room:
        accepts = self._accepts
        disk, free, devices = self._looked
        left = accepts.memory_bytes - sum(one.memory for one in self._taken.values())
        placed = (
            PlacedEngine(name=name, revision=one.order.revision, failed=one.failed, reason=one.reason[:MAX_TEXT], code=one.code[:MAX_TEXT])
            for name, one in self._taken.items()
        )
        return Room(
            engines=max(0, accepts.engines - len(self._taken)),
            memory=max(0, left if free is None else min(left, free)),
            disk=disk,
            cpu="cpu" in accepts.devices,
            devices=devices,
            runtimes=accepts.runtimes,
            placed=tuple(placed),
        )


def _device(name: str) -> DeviceRoom:
    free = device_free(name)
    return DeviceRoom(device=name, free=None if free is None else free[0])


def _devices(text: str) -> list[str]:
    """`cuda:0,1` is cuda:0 and cuda:1."""
    kind, _, numbers = text.partition(":")
    return [f"{kind}:{number}" for number in numbers.split(",")] if numbers else [kind]


def _problem(path: Path, runtime: str) -> str | None:
    """Why a model cannot be used, as a process without rights finds that reads it. Blocks. Raises OSError."""
    row = RUNTIMES[runtime]
    if path.is_dir() and whole_folder(path, (file.name for file in path.iterdir()), RUNTIMES) is None:
        return "the folder holds no model"
    with Inspection(lambda: True, [path]) as inspection:
        return inspection.look(path, row).problem
