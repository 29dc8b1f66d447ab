"""The routing's side of a supervisor, in a test's hands: what it hears, and what it answers."""

from __future__ import annotations

import asyncio

from gateway.core.waiting import Signal


class ScriptedShift:
    """A shift whose requests the test makes up."""

    def __init__(self, address: str, max_failures: int) -> None:
        self.address, self.max_failures = address, max_failures
        self.requests = self.failures = 0
        self.over: Signal[None] = Signal()
        self.shares: list[float] = []
        self.ended = False

    def move(self, share: float) -> None:
        self.shares.append(share)

    def end(self) -> None:
        self.ended = True

    def fail(self, count: int) -> None:
        self.requests += count
        self.failures += count
        if self.failures > self.max_failures:
            self.over.set(None)


class Traffic:
    """Implements gateway.core.ports.EngineTraffic. heard: what was reported, in order. busy: addresses with requests under way."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []
        self.addresses: list[str] = []
        self.slots: list[int] = []
        self.starting: list[str] = []
        self.awaited: list[str] = []
        self.pauses: list[float] = []
        self.shifts: list[ScriptedShift] = []
        self.busy: set[str] = set()
        self.idle: dict[str, float] = {}

    def engine_starting(self, engine: str, *, awaited: bool = False) -> None:
        (self.awaited if awaited else self.starting).append(engine)

    def engine_ready(self, engine: str, address: str, slots: int) -> None:
        self.heard.append(("ready", engine))
        self.addresses.append(address)
        self.slots.append(slots)

    def engine_down(self, engine: str, reason: str, code: str | None = None) -> None:
        self.heard.append(("down", engine))

    def engine_draining(self, engine: str) -> None:
        self.heard.append(("draining", engine))

    def engine_unloading(self, engine: str) -> None:
        self.heard.append(("unloading", engine))

    def engine_unloaded(self, engine: str, reason: str, code: str | None = None, retry_after: float = 0.0) -> None:
        self.heard.append(("unloaded", engine, code or ""))
        self.pauses.append(retry_after)

    def shift(self, engine: str, address: str, slots: int, max_failures: int) -> ScriptedShift:
        self.shifts.append(ScriptedShift(address, max_failures))
        return self.shifts[-1]

    async def drained(self, engine: str, address: str) -> None:
        while address in self.busy:
            await asyncio.sleep(0.002)

    def idle_seconds(self, engine: str) -> float | None:
        return self.idle.get(engine)
