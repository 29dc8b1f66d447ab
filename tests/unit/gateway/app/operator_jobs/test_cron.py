"""When schedules are due, around the changes of the clocks too."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gateway.app.operator_jobs.cron import LATER, checked, following
from gateway.core.errors import RequestError

ZURICH = "Europe/Zurich"


def local(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(ZURICH)).timestamp()


@pytest.mark.parametrize(
    ("cron", "now", "due"),
    [
        ("0 3 * * *", "2026-06-01T02:59", "2026-06-01T03:00"),
        ("0 3 * * *", "2026-06-01T03:00", "2026-06-02T03:00"),
        ("30 2 * * *", "2026-03-28T12:00", "2026-03-29T03:00"),  # half past two does not exist that day
        ("30 2 * * *", "2026-10-24T12:00", "2026-10-25T02:30"),  # and comes twice on this one
        ("0 3 * * sun", "2026-06-01T00:00", "2026-06-07T03:00"),
        ("*/15 * * * *", "2026-06-01T00:01", "2026-06-01T00:15"),
    ],
)
def test_the_next_time_in_a_time_zone(cron: str, now: str, due: str) -> None:
    assert following(cron, ZURICH, local(now)) == local(due)


def test_a_time_that_comes_twice_counts_once() -> None:
    first = following("30 2 * * *", ZURICH, local("2026-10-24T12:00"))
    assert following("30 2 * * *", ZURICH, first) == local("2026-10-26T02:30")


@pytest.mark.parametrize(
    ("cron", "zone", "hour", "due"),
    [
        ("30 2 * * *", ZURICH, "2026-10-25T02:10", "2026-10-26T02:30"),  # its half past two is over
        ("30 2,3 * * *", ZURICH, "2026-10-25T02:10", "2026-10-25T03:30"),
        ("59 1 * * *", "America/New_York", "2026-11-01T01:00", "2026-11-02T01:59"),
        ("59 1 * * *", "Australia/Lord_Howe", "2026-04-05T01:30", "2026-04-06T01:59"),  # half an hour comes twice
    ],
)
def test_in_the_hour_that_comes_again_nothing_is_due_in_the_past(cron: str, zone: str, hour: str, due: str) -> None:
    again = datetime.fromisoformat(hour).replace(tzinfo=ZoneInfo(zone), fold=1).timestamp()
    assert following(cron, zone, again) == datetime.fromisoformat(due).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("cron", "zone", "param"),
    [
        ("61 * * * *", "UTC", "cron"),
        ("* * * *", "UTC", "cron"),
        ("* * * * * *", "UTC", "cron"),
        ("0 0 31 2 *", "UTC", "cron"),
        ("x" * 128, "UTC", "cron"),
        ("0 0 * * *", "Mars/Olympus", "timezone"),
        ("0 0 * * *", "../../etc/passwd", "timezone"),
        ("0 0 * * *", "/etc/localtime", "timezone"),
    ],
)
def test_what_is_no_schedule_is_refused_by_its_field(cron: str, zone: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        checked(cron, zone)
    assert caught.value.param == param
    assert following("0 0 * * *", "Mars/Olympus", 5.0) == 5.0 + LATER  # the machine's time zones have changed since


def test_a_good_one_passes() -> None:
    checked("0 3 1 1 *", ZURICH)
