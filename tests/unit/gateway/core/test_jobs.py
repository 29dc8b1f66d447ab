"""What becomes of a job, and when."""

from __future__ import annotations

import pytest

from gateway.core.jobs import awaited, failed, pause


def test_pauses_double_up_to_a_bound() -> None:
    assert [pause(attempt, 30.0, 200.0) for attempt in range(1, 6)] == [30.0, 60.0, 120.0, 200.0, 200.0]
    assert pause(100_000, 1.0, 3600.0) == 3600.0


@pytest.mark.parametrize(
    ("attempts", "lasting", "state"), [(1, False, "failed"), (2, False, "failed"), (3, False, "dead"), (1, True, "dead")]
)
def test_the_last_failure_is_the_end(attempts: int, lasting: bool, state: str) -> None:
    assert failed(attempts, 3, lasting=lasting) == state


def test_a_job_waits_until_all_are_done_and_no_longer_than_that_is_possible() -> None:
    assert awaited(["done", "done"]) == "queued"
    for state in ("waiting", "queued", "running", "failed"):
        assert awaited(["done", state]) == "waiting"  # type: ignore[list-item]
    for end in ("dead", "cancelled", None):
        assert awaited(["done", "running", end]) == "cancelled"  # type: ignore[list-item]
