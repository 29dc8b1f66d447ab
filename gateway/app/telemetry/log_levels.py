"""Levels of the log while the gateway runs: an operator's word counts instead of the configuration until its time is over, it is taken
back, or the process ends. It counts in this gateway with all its workers, not on other replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.core.clock import Clock, SystemClock
from gateway.core.log_levels import AS_CONFIGURED, LONGEST, LogLevels
from gateway.core.tasks import TaskOwner

LOOK_SECONDS = 1.0
"""Between two looks whether the time is over."""
Record = Callable[..., None]


class LogLevelBook:
    """Log levels, in the process with the admin listener. configured: the level of the configuration in force. put: has levels count in
    this process. changed: called with each change, for the workers. Life: `start`; the owner ends it."""

    def __init__(
        self,
        configured: Callable[[], str],
        put: Callable[[LogLevels], None],
        record: Record,
        owner: TaskOwner,
        clock: Clock | None = None,
    ) -> None:
        self._configured, self._put, self._record, self._owner = configured, put, record, owner
        self._clock: Clock = clock or SystemClock()
        self.levels = AS_CONFIGURED
        self.changed: list[Callable[[LogLevels], None]] = []

    def start(self) -> None:
        self._owner.every(LOOK_SECONDS, self.look, name="log levels")

    def configured(self) -> str:
        return self._configured()

    def change(self, level: str, loggers: dict[str, str], seconds: float, actor: str, *, dry_run: bool = False) -> LogLevels:
        """From now on, for so many seconds. level: "" for the configured one."""
        wanted = LogLevels(level, loggers, self._clock.wall() + min(seconds, LONGEST), actor)
        if not dry_run:
            self._tell(wanted)
        return wanted

    def restore(self) -> None:
        """The configured levels count again."""
        self._tell(AS_CONFIGURED)

    async def look(self) -> None:
        """Ends what is over."""
        if self.levels is not AS_CONFIGURED and self._clock.wall() >= self.levels.until:
            detail: dict[str, Any] = {"level": self.levels.level or self._configured(), "loggers": self.levels.loggers}
            self.restore()
            self._record("log_levels_restored", "gatehouse", {"before": detail, "level": self._configured()})

    def _tell(self, wanted: LogLevels) -> None:
        self.levels = wanted
        self._put(wanted)
        for tell in self.changed:
            tell(wanted)
