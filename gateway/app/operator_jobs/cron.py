"""When a schedule's next job is due: cron expressions of five fields in a time zone, as Debian's cron reads them, by cronsim.

A time that the clocks leave out in spring runs right after it; one that comes twice in autumn runs once.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from gateway.core.errors import RequestError

FIELDS: Final = 5
LATER: Final = 86400.0


def checked(cron: str, timezone: str) -> None:
    """Raises RequestError."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RequestError(f"There is no time zone {timezone[:64]!r}; one is Europe/Zurich.", param="timezone") from None
    if len(cron.split()) != FIELDS:
        raise RequestError("cron has five fields: minute, hour, day of the month, month, day of the week.", param="cron")
    try:
        next(CronSim(cron, datetime.now(zone)))
    except (CronSimError, StopIteration) as error:
        raise RequestError(f"cron cannot be used: {str(error) or 'it never comes'}.", param="cron") from None


def following(cron: str, timezone: str, now: float) -> float:
    """The next moment after `now`, both in seconds since the epoch. A time zone that is gone from this machine: a day later.

    CronSim reads a clock without its time zone. In the hour that comes twice in autumn it names the first occurrence, also when `now` is in
    the second: a time that is over, as a schedule that is due at once, again and again."""
    try:
        times = CronSim(cron, datetime.fromtimestamp(now, ZoneInfo(timezone)))
        return next(moment for time in times if (moment := time.timestamp()) > now)
    except (CronSimError, StopIteration, ZoneInfoNotFoundError, ValueError, OSError):
        return now + LATER
