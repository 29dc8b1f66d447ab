"""Engines that gateways place on a machine: the files that they send, the orders, the engines, and what a machine tells of its room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from engines.host.memory_ledger import MemoryLedger
from engines.host.supervisor import Supervisor
from gateway.app.joined.orders import Orders
from gateway.app.joined.placed import PlacedEngines
from gateway.app.joined.received import ReceivedFiles
from gateway.config.machine import AcceptsSpec
from gateway.core.joining import Room
from gateway.core.specs import EngineSpec
from gateway.core.tasks import TaskOwner

LOOK_SECONDS: Final = 1.0
FOLDER: Final = "received"


class OrderSide:
    """own: names of the engines of the machine's file. socket: where orders come in. Life: `start`, `aclose`."""

    def __init__(
        self,
        accepts: AcceptsSpec,
        own: Iterable[str],
        supervisor: Supervisor,
        state_dir: Path,
        socket: Path,
        named: Callable[[str, bool], None],
    ) -> None:
        self._ledger = MemoryLedger()
        self._owner = TaskOwner("orders")
        self._files = ReceivedFiles(state_dir / FOLDER, accepts.disk_bytes, lambda: self._engines.checksums())
        self._engines = PlacedEngines(accepts, own, supervisor, self._files, self._needed, named)
        self._orders = Orders(socket, self._files, self._engines)

    async def _needed(self, spec: EngineSpec) -> int:
        return (await self._ledger.needs(spec, spec.device))[0]

    async def start(self) -> None:
        """Raises OSError."""
        await self._files.start()
        await self._engines.look()
        self._owner.every(LOOK_SECONDS, self._engines.look, name="room")
        self._orders.start()

    def fenced(self, fences: Mapping[str, int]) -> None:
        """What a gateway says of the engines that it places."""
        self._engines.fenced(fences)

    def room(self) -> Room:
        return self._engines.room()

    async def aclose(self) -> None:
        await self._orders.aclose()
        await self._owner.aclose()
        await self._engines.aclose()
        await self._files.aclose()
