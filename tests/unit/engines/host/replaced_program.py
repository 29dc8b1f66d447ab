"""A program with a supervisor that replaces itself when told to, for test_adoption.py: one JSON line in, one JSON line out.

apply (engines), load, unload (engine), see, close: as the supervisor's. exec: hands the sidecars over to this program, begun anew.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from engines.host.handover import HeldEngines
from engines.host.reconciler import Reconciler, Target
from engines.host.supervisor import Supervisor
from gateway.core.errors import ConfigError
from gateway.core.specs import EngineSpec
from tests.unit.engines.host.test_supervisor import SCRIPTED
from tests.unit.engines.host.traffic import Traffic


def read_line() -> bytes:
    """Byte by byte: what is read ahead would be lost with an exec."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


class Program:
    def __init__(self, directory: Path, handed: int | None) -> None:
        self.directory, self.handed = directory, handed
        self.traffic = Traffic()
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.supervisor = Supervisor(directory, self.traffic, lambda *event: self.events.append(event), runtimes=SCRIPTED)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.held: HeldEngines | None = None

    async def run(self) -> None:
        if self.handed is not None:
            with os.fdopen(self.handed, "rb") as file:
                self.held = msgspec.msgpack.decode(file.read(), type=HeldEngines)
            self.supervisor.adopt(self.held)
        while line := await asyncio.to_thread(read_line):
            asked = msgspec.json.decode(line)
            try:
                answer = await getattr(self, asked.pop("do"))(**asked)
            except ConfigError as error:
                answer = {"error": str(error)}
            print(msgspec.json.encode(answer).decode(), flush=True)

    async def apply(self, engines: list[Any], wait: bool = True) -> Any:
        task = asyncio.ensure_future(self.supervisor.apply(tuple(msgspec.convert(engines, list[EngineSpec])), wait=True))
        self.tasks.add(task)
        if wait:
            await task
        return {}

    async def load(self, engine: str) -> Any:
        return await self.supervisor.load(engine)

    async def unload(self, engine: str) -> Any:
        return await self.supervisor.unload(engine)

    async def see(self, busy: list[int] | None = None) -> Any:
        if busy is not None:
            self.traffic.busy = {self.traffic.addresses[number] for number in busy}
        return {
            "engines": self.supervisor.engines(), "heard": self.traffic.heard, "addresses": self.traffic.addresses,
            "slots": self.traffic.slots, "busy": self.supervisor.busy(), "events": self.events,
        }  # fmt: skip

    async def pursue_nothing(self) -> Any:
        """The store has no engine any more."""

        def find(name: str) -> str:
            raise ConfigError("no")

        assert self.held is not None
        reconciler = Reconciler(self.supervisor, self.traffic, find, lambda: None, lambda *event: None)
        reconciler.adopt(one.spec.name for one in self.held.sidecars)
        reconciler.pursue(Target(), frozenset())
        await reconciler.settled()
        await reconciler.aclose()
        return {}

    async def close(self) -> Any:
        await self.supervisor.aclose(60.0)
        return {}

    async def exec(self) -> Any:
        held = self.supervisor.hand_over()
        memory = os.memfd_create("held", 0)
        os.write(memory, msgspec.msgpack.encode(held))
        os.lseek(memory, 0, os.SEEK_SET)
        for descriptor in held.descriptors():
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [sys.executable, "-m", "tests.unit.engines.host.replaced_program", str(self.directory), str(memory)])


if __name__ == "__main__":
    asyncio.run(Program(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None).run())
