"""Every background task has an owner: a TaskOwner starts it, reports its failure, and ends it at close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gateway.core.errors import GatehouseError

T = TypeVar("T")
log = logging.getLogger("gatehouse.tasks")


class TaskOwner:
    """Owns background tasks. `spawn` needs a running loop. `aclose` cancels those that are left and waits at most `timeout` seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Starts a task. A failure other than a GatehouseError is logged as a defect."""
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"{self.name} is closed")
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def wait(self, awaitable: Awaitable[T], *, name: str = "wait") -> asyncio.Task[T]:
        """Runs an awaitable in a task, so that code stepped by a Driver can await what needs a current task."""

        async def run() -> T:
            return await awaitable

        return self.spawn(run(), name=name)

    def every(self, seconds: float, action: Callable[[], Awaitable[None]], *, name: str) -> asyncio.Task[None]:
        """Runs `action` every `seconds` until closed. A failure is logged and does not stop the next round."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await action()
                except Exception:  # boundary: one failed round does not stop the next
                    log.exception("%s: %s failed", self.name, name)

        return self.spawn(loop(), name=name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, GatehouseError):  # the caller that awaits the task reports it
            log.debug("%s failed: %r", task.get_name(), error)
        else:
            log.error("%s failed: %r", task.get_name(), error, exc_info=error)

    async def finish(self, timeout: float) -> None:
        """Takes no new tasks and lets running ones finish for at most `timeout` seconds; then calls `aclose`."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout)
        await self.aclose()

    async def aclose(self, timeout: float = 5.0) -> None:
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                log.error("%s did not end within %.1f s", task.get_name(), timeout)
