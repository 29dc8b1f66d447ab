"""Windows of the calendar: the day, week or month that a moment is in, in a time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


@lru_cache(maxsize=64)
def zone(name: str) -> tzinfo:
    """A time zone of the IANA database. One that is missing here is taken as UTC: the configuration was checked where it was read."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def span(window: str, timezone: str, at: float) -> tuple[float, float]:
    """Begin and end, in seconds since the epoch, of the `day`, `week` (from Monday) or `month` that a moment is in: begin <= at < end.

    A window begins at the first moment of its first day by the clocks there, whether or not they are put forward or back then: so days
    have 23 to 25 hours, and windows neither overlap nor leave gaps.
    """
    place = zone(timezone)
    first = _first(window, datetime.fromtimestamp(at, place).date())
    begin, end = _moment(first, place), _moment(_next(window, first), place)
    while at >= end:  # clocks that go back over midnight show the day before once more
        first = _next(window, first)
        begin, end = end, _moment(_next(window, first), place)
    while at < begin:
        first = _first(window, first - timedelta(days=1))
        begin, end = _moment(first, place), begin
    return begin, end


def _first(window: str, day: date) -> date:
    if window == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if window == "month" else day


def _next(window: str, first: date) -> date:
    if window == "month":
        return (first.replace(day=28) + timedelta(days=7)).replace(day=1)
    return first + timedelta(days=7 if window == "week" else 1)


def _moment(day: date, place: tzinfo) -> float:
    """When a day begins. Where the clocks skip midnight, that is the moment at which they do."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=place)
    earlier, later = midnight.timestamp(), midnight.replace(fold=1).timestamp()
    if later < earlier:  # midnight does not exist: fold tells the two readings apart, and the clocks jump between them
        return _jump(later, earlier, place)
    return earlier


def _jump(low: float, high: float, place: tzinfo) -> float:
    """The first moment after `low` at which the clocks show another offset, to the second."""
    before = datetime.fromtimestamp(low, place).utcoffset()
    first, last = int(low), int(high)
    while last - first > 1:
        middle = (first + last) // 2
        if datetime.fromtimestamp(middle, place).utcoffset() == before:
            first = middle
        else:
            last = middle
    return float(last)
