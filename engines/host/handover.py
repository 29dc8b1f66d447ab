"""What a supervisor hands over when the program replaces itself (exec in place): its sidecars run on as children of the same process.

Only what cannot be learned again is handed over; health, slots and the device come with the next health check. The sidecar's standard input
is its lifeline, so its descriptor must survive the exec.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from engines.host.placement import Plan
from gateway.core.specs import EngineSpec


class HeldSidecar(msgspec.Struct, frozen=True, kw_only=True):
    """One running sidecar. spec: the settings in force. pid, lifeline: its process and its standard input. socket: the path.
    state: `starting`, `loading` or `ready`. ready_at: monotonic seconds; None if it has not been ready. lowered: it runs at a low priority
    until it is ready. fallback_reason: why it runs on another device than the settings say."""

    spec: EngineSpec
    pid: int
    lifeline: int
    socket: str
    state: str
    restarts: int = 0
    ready_at: float | None = None
    lowered: bool = False
    fallback_reason: str | None = None
    plan: Plan | None = None
    health: dict[str, Any] = {}


class HeldEngines(msgspec.Struct, frozen=True, kw_only=True):
    """All sidecars of a supervisor. generation: how many processes it has started, which the names of their sockets end with. unloaded:
    settings of engines that an operator has unloaded and that no request loads."""

    sidecars: list[HeldSidecar] = []
    unloaded: list[EngineSpec] = []
    generation: int = 0

    def descriptors(self) -> list[int]:
        """Those that must survive the exec."""
        return [one.lifeline for one in self.sidecars]

    def kept(self) -> HeldEngines:
        """The same with descriptors of their own, which stay open when the supervisor's objects are gone."""
        kept = [msgspec.structs.replace(one, lifeline=os.dup(one.lifeline)) for one in self.sidecars]
        return msgspec.structs.replace(self, sidecars=kept)
