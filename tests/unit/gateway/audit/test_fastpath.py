"""What the fast path keeps of the journal and of the lines that it linked ahead."""

from pathlib import Path
from typing import Any

import pytest

from gateway.audit.chain import Chain, payload
from gateway.audit.fastpath import AHEAD, FastPath
from gateway.audit.journal import Journal, left_over


@pytest.fixture
def path(tmp_path: Path) -> FastPath:
    path = FastPath()
    path.attach(Journal(tmp_path / "journal", capacity=4096))
    return path


def test_without_a_journal_nothing_is_taken(make: Any) -> None:
    path = FastPath()
    path.attach(None)
    assert not path.usable and path.take(make.intent()) is None and path.hand_over() is None


def test_a_record_is_in_the_journal_until_its_batch_is_written(path: FastPath, tmp_path: Path, make: Any) -> None:
    entry = path.take(make.intent("a"))
    assert entry == payload(make.intent("a")) and left_over(tmp_path / "journal") == [entry]
    path.hand_over()
    later = path.take(make.intent("b"))
    path.settle()
    assert left_over(tmp_path / "journal") == [later]


def test_a_batch_that_leaves_records_behind_settles_nothing(path: FastPath, tmp_path: Path, make: Any) -> None:
    entry = path.take(make.intent("a"))
    path.hand_over()
    path.keep()
    path.settle()
    assert left_over(tmp_path / "journal") == [entry]


def test_what_finds_no_room_is_not_taken(path: FastPath, make: Any) -> None:
    taken = [path.take(make.intent(f"r{number}", "t" * 500)) for number in range(10)]
    assert taken[0] is not None and taken[-1] is None


def test_linking_ahead_stops_at_a_record_that_is_not_in_the_journal(path: FastPath, make: Any) -> None:
    chain, payloads = Chain(), [payload(make.intent(f"r{number}")) for number in range(AHEAD + 4)]
    path.link_ahead([*payloads[:2], make.outcome(), payloads[2]], chain)
    assert path.draft is not None and path.draft.count == 2
    path.shut()
    path.link_ahead(list(payloads), chain)
    path.link_ahead(list(payloads), chain)
    draft = path.hand_over()
    assert draft is not None and draft.count == len(payloads) and path.draft is None
    assert draft.data == Chain().seal(payloads)
