"""The sidecar of an engine with `runtime: command`: it starts the server, says when it is ready, watches it, and ends it.

Requests do not pass through this process: health names the server's `address`, and the gateway asks it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from engines.command.program import Program, wait_until_ready
from engines.sidecar.http import Handler
from gateway.core.specs import SidecarSpec
from gateway.core.tasks import TaskOwner


class CommandRuntime:
    """Implements engines.sidecar.shell.Runtime."""

    def __init__(self, spec: SidecarSpec, program: Program) -> None:
        self._spec, self._program = spec, program
        self._owner = TaskOwner("command")
        self._failed: str | None = None
        self._memory = 0

    def load(self) -> None:
        """Start the server and wait until it is ready."""
        self._program.begin()
        wait_until_ready(self._program)

    async def start(self) -> None:
        """Begin to watch."""
        self._owner.spawn(self._watch(), name="watch")

    async def _watch(self) -> None:
        misses, options = 0, self._program.options
        while self._failed is None:
            for _ in range(max(1, round(options.health_interval / 0.2))):
                await asyncio.sleep(min(0.2, options.health_interval))
                if (code := self._program.ended) is not None:
                    self._failed = f"the command ended with code {code}; its log says why"
                    return
            answer = await asyncio.to_thread(self._program.asked, options.health_timeout)
            misses = 0 if answer is None else misses + 1
            if misses >= options.health_fall:
                self._failed = f"{answer} ({misses} times in a row)"
            self._memory = await asyncio.to_thread(self._program.memory)

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """None: the server is asked directly."""
        return {}

    def health(self) -> dict[str, Any]:
        """Where the server is and how it is."""
        failed = {} if self._failed is None else {"state": "failed", "reason": self._failed, "reason_code": "engine_failed"}
        program = self._program
        return {"address": program.address, "server_pid": program.pid, "memory_bytes": self._memory, "slots": self._spec.slots, **failed}

    def metrics(self) -> str:
        """What the processes hold."""
        return f"# TYPE gatehouse_command_memory_bytes gauge\ngatehouse_command_memory_bytes {self._memory}\n"

    async def aclose(self) -> None:
        """End the server."""
        await self._owner.aclose()
        await asyncio.to_thread(self._program.end)
