"""The journal: what is in it survives the end of its process at any byte, and nothing else is found there."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.journal import CAPACITY, Journal, journal_name, left_over

SMALL = 1024
HEAD = 16
ENTRIES = st.lists(st.binary(min_size=1, max_size=200), max_size=40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / journal_name("0")


def test_entries_are_there_while_the_journal_is_open(path: Path) -> None:
    journal = Journal(path)
    assert journal.append(b"one") and journal.append(b"two")
    assert left_over(path) == [b"one", b"two"]
    journal.close()
    assert left_over(path) == [b"one", b"two"]


def test_what_is_settled_is_not_left_over(path: Path) -> None:
    journal = Journal(path)
    journal.append(b"one")
    mark = journal.position
    journal.append(b"two")
    journal.settle(mark)
    assert left_over(path) == [b"two"]


def test_a_settled_journal_is_removed_when_it_is_closed_and_takes_nothing_more(path: Path) -> None:
    journal = Journal(path)
    journal.append(b"one")
    journal.settle(journal.position)
    journal.close()
    journal.close()
    assert not path.exists() and not journal.append(b"two")


def test_only_its_owner_may_read_it_and_its_blocks_are_reserved(path: Path) -> None:
    journal = Journal(path)
    found = path.stat()
    assert found.st_mode & 0o777 == 0o600 and found.st_blocks * 512 >= CAPACITY
    journal.close()


def test_an_existing_file_is_never_taken_over(path: Path) -> None:
    path.write_bytes(b"somebody's")
    with pytest.raises(FileExistsError):
        Journal(path)
    assert path.read_bytes() == b"somebody's"


def test_a_journal_whose_blocks_cannot_be_reserved_leaves_no_file(path: Path) -> None:
    with pytest.raises(OSError):
        Journal(path, capacity=1 << 60)
    assert not path.exists()


@given(steps=st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.booleans()), max_size=60))
def test_it_takes_what_has_room_and_gives_back_what_was_not_settled(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bytes, bool]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    journal = Journal(path, SMALL)
    waiting: list[bytes] = []
    for payload, settle in steps:
        taken = journal.append(payload)
        if taken:
            waiting.append(payload)
        else:  # never for want of trying: with the entry's skip to the ring's beginning it would not have fitted
            assert sum(HEAD + len(entry) for entry in waiting) + 2 * (HEAD + len(payload)) > SMALL - HEAD
        if settle:
            journal.settle(journal.position)
            waiting.clear()
        assert left_over(path) == waiting
    journal.close()


@given(entries=ENTRIES, laps=st.integers(0, 30), cut=st.integers(0, SMALL))
def test_an_entry_that_was_cut_short_ends_what_is_found(
    tmp_path_factory: pytest.TempPathFactory, entries: list[bytes], laps: int, cut: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    journal = Journal(path, SMALL)
    for _ in range(laps):  # what an earlier lap left is no entry
        journal.append(b"an earlier lap" * 3)
        journal.settle(journal.position)
    taken = [entry for entry in entries if journal.append(entry)]
    journal.close()
    if not path.exists():
        assert not taken
        return
    data = bytearray(path.read_bytes())
    before = left_over(path)
    assert before == taken
    place = 16 + cut % SMALL
    data[place] ^= 0xFF
    path.write_bytes(data)
    found = left_over(path)
    assert found == taken[: len(found)]


@pytest.mark.parametrize("data", [b"", b"GHAJRNL1", b"GHAJRNL1" + bytes(8), b"\0" * 4096, b"x" * 4096, b"GHAJRNL1" + b"\xff" * 4096])
def test_a_file_that_is_no_journal_holds_nothing(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert left_over(path) == []


def test_without_a_file_nothing_is_left_over(path: Path) -> None:
    assert left_over(path) == []
