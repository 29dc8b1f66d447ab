"""Windows of the calendar: without gaps or overlaps, whatever the clocks do."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.limits.windows import span

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Africa/Cairo",
]


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("window", "zone", "moment", "begin", "end"),
    [
        ("day", "UTC", "2026-03-05T12:00", "2026-03-05T00:00", "2026-03-06T00:00"),
        ("week", "UTC", "2026-03-05T12:00", "2026-03-02T00:00", "2026-03-09T00:00"),
        ("month", "UTC", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("month", "Europe/Berlin", "2026-03-31T23:59", "2026-03-01T00:00", "2026-04-01T00:00"),
        ("day", "Europe/Berlin", "2026-03-29T12:00", "2026-03-29T00:00", "2026-03-30T00:00"),
    ],
)
def test_windows(window: str, zone: str, moment: str, begin: str, end: str) -> None:
    assert span(window, zone, at(moment, zone)) == (at(begin, zone), at(end, zone))


def test_days_have_23_to_25_hours_where_the_clocks_change() -> None:
    lengths = []
    for day in ("2026-03-29", "2026-06-01", "2026-10-25"):
        begin, end = span("day", "Europe/Berlin", at(f"{day}T12:00", "Europe/Berlin"))
        lengths.append((end - begin) / 3600)
    assert lengths == [23, 24, 25]


def test_a_day_that_begins_at_one_begins_when_the_clocks_skip_midnight() -> None:
    """In Sao Paulo, 2018-11-04 began at 01:00, which is 03:00 UTC."""
    begin, end = span("day", "America/Sao_Paulo", datetime(2018, 11, 4, 12, tzinfo=UTC).timestamp())
    assert datetime.fromtimestamp(begin, UTC) == datetime(2018, 11, 4, 3, tzinfo=UTC)
    assert (end - begin) / 3600 == 23
    assert span("day", "America/Sao_Paulo", begin - 1)[1] == begin


def test_a_zone_that_is_missing_here_counts_as_utc() -> None:
    assert span("day", "Europe/Nowhere", at("2026-03-05T12:00")) == span("day", "UTC", at("2026-03-05T12:00"))


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(["day", "week", "month"]), st.sampled_from(ZONES), st.integers(0, 2**32))
@example("day", "America/St_Johns", int(datetime(2006, 10, 29, 2, 31, tzinfo=UTC).timestamp()))
@example("day", "Pacific/Apia", int(datetime(2011, 12, 30, 12, tzinfo=UTC).timestamp()))
def test_windows_neither_overlap_nor_leave_gaps(window: str, zone: str, moment: int) -> None:
    begin, end = span(window, zone, float(moment))
    assert begin <= moment < end
    assert span(window, zone, end)[0] == end
    assert span(window, zone, begin - 0.5)[1] == begin
    assert span(window, zone, begin) == span(window, zone, end - 0.5) == (begin, end)
