"""Several processes write one audit log, and any of them is killed at any moment: no acknowledged record is lost, no chain fails, no
start fails, and writers that nobody has any more are recovered while the others write.

The processes run the build that these tests run on (tests/conftest.py)."""

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.audit.crypto import load_verifier
from gateway.audit.reader import LogReader
from gateway.audit.verify import verify_log
from tests.integration.audit_fleet import WORKERS, Fleet
from tests.waiting import until


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, request.param)
    yield fleet
    fleet.close()


@pytest.mark.alone
@pytest.mark.parametrize(("fleet", "kills"), [("journal", 30), ("fsync", 15), ("write", 15)], indirect=["fleet"])
def test_killed_writers_lose_nothing_while_the_others_write(fleet: Fleet, kills: int) -> None:
    chance = random.Random(20261123)
    places = range(WORKERS + 1)
    for place in places:  # on an empty state directory, all at once
        fleet.start(place)
    for _ in range(kills):
        place = chance.randrange(WORKERS + 1)
        wanted = chance.choice((0, 1, chance.randint(1, 300)))  # none: while it starts and repairs
        until(lambda: fleet.acknowledged(place) >= wanted, what=f"{wanted} acknowledgements")  # noqa: B023 - called at once
        fleet.end(place, signal.SIGKILL)
        fleet.start(place)
    assert fleet.kills == kills
    directory = fleet.state_dir / "audit"
    verifier = load_verifier(fleet.state_dir / "keys" / "audit-signing.pub.pem")
    until(lambda: fleet.acknowledged(WORKERS) > 0, what="something to recover")
    fleet.end(WORKERS, signal.SIGKILL)  # and is not replaced
    for place in places[:-1]:
        until(lambda: fleet.acknowledged(place) > 0, what="an acknowledgement")  # noqa: B023 - called at once
    until(lambda: all(writer.live or writer.unsigned == 1 for writer in verify_log(directory, verifier).writers), what="the recovery")
    for place in list(fleet.processes):
        fleet.end(place, signal.SIGTERM)
    report = verify_log(directory, verifier)
    assert report.ok, report.problems
    assert all(writer.unsigned == 1 and not writer.live for writer in report.writers)
    found = Counter(record["request_id"] for record in LogReader(directory, verifier).records(kind="intent"))
    assert set(fleet.all_acknowledged()) <= set(found) and max(found.values()) == 1
    assert len(report.writers) >= WORKERS + 1
    opened = [record["detail"] for record in LogReader(directory, verifier).records(event="audit.opened")]
    assert any("recovered_by" in detail for detail in opened)
    assert fleet.durability != "journal" or any("from_journal" in detail for detail in opened)
