"""Temporary log levels, which override the configured ones."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from gateway.core.messages import Message

Level = Literal["trace", "debug", "info", "warning", "error"]
LONGEST: Final = 7 * 86400.0
"""Seconds after which the configured levels count again at the latest."""
MOST: Final = 32
"""Loggers with a level of their own."""
NAME: Final = re.compile(r"gatehouse\.[a-z_]{1,64}(\.[a-z_]{1,64}){0,3}")


class LogLevels(Message, frozen=True):
    """level: of all of ours, "" for the configured one. loggers: levels of their own, by name. until: seconds since the epoch. actor: who
    has said so. Over the feed: from now on in this worker; the control process says when it ends."""

    level: str = ""
    loggers: dict[str, str] = msgspec.field(default_factory=dict)
    until: float = 0.0
    actor: str = ""


AS_CONFIGURED: Final = LogLevels()
