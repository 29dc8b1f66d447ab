"""Who closes a Snapshot's plug-ins, and when: the Snapshot owns them, and they are released when nothing refers to it any more.

A request pins a Snapshot by holding it, so the hot path counts nothing. When the last request of a replaced Snapshot ends, the interpreter
frees the Snapshot and the `Owned` that only the Snapshot refers to; that releases the hold. A plug-in that the next Snapshot holds too,
because its settings are the same, stays open (gateway.core.plugins.Lives).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from typing import Final

from gateway.core.plugins import Hold, Lives
from gateway.core.tasks import TaskOwner

CLOSE_SECONDS: Final = 15.0
"""How long the end of the process waits for plug-ins to close. Each has a shorter deadline of its own (gateway.core.plugins)."""


class Owned:
    """What one Snapshot owns. It is released exactly once: by `release`, or when this object is freed."""

    def __init__(self, owner: PluginOwner, hold: Hold) -> None:
        self._end = weakref.finalize(self, owner.let_go, hold)
        self._end.atexit = False

    def release(self) -> None:
        self._end()


class PluginOwner:
    """Starts plug-ins for Snapshots and closes each after the last Snapshot that uses it. Life: `aclose`."""

    def __init__(self) -> None:
        self._lives = Lives()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = TaskOwner("plug-ins")
        self._holds: set[Hold] = set()

    def __len__(self) -> int:
        """Plug-ins that are open."""
        return len(self._lives)

    async def own(self, plugins: Iterable[tuple[str, object]]) -> Owned:
        """(path of the setting, plug-in), in the order in which to start them. Raises ConfigError when one does not start; those that this
        call started are then closed again."""
        self._loop = asyncio.get_running_loop()
        hold = await self._lives.hold(plugins)
        self._holds.add(hold)
        return Owned(self, hold)

    def let_go(self, hold: Hold) -> None:
        """Releases a hold on the loop, whichever thread dropped the last reference."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._release, hold)

    def _release(self, hold: Hold) -> None:
        if hold in self._holds:
            self._holds.discard(hold)
            self._tasks.spawn(hold.release(), name="close plug-ins")

    async def aclose(self) -> None:
        """Closes every plug-in, also those that something still refers to."""
        for hold in list(self._holds):
            self._release(hold)
        await self._tasks.finish(CLOSE_SECONDS)
