"""What the soak counts as memory."""

import mmap
import os
import tempfile

from loadtests.soak import anonymous

SIZE = 32 * 2**20


def test_what_a_process_has_written_counts_and_pages_of_files_do_not() -> None:
    before = anonymous(os.getpid())
    assert before > 0
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * SIZE)
        file.flush()
        with mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ) as pages:
            assert sum(pages[at] for at in range(0, SIZE, mmap.PAGESIZE)) == ord("x") * SIZE // mmap.PAGESIZE
            assert anonymous(os.getpid()) - before < SIZE // 2
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE) as written:  # a heap may have had so much to spare before
        written.write(b"x" * SIZE)
        assert anonymous(os.getpid()) - before > SIZE // 2


def test_a_process_that_has_ended_has_none() -> None:
    assert anonymous(2**22 + 1) == 0
