"""What the soak counts as memory."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadtests.soak import anonymous

SIZE = 32 * 2**20
# A process of its own: this one has the threads and the garbage of other tests.
PROGRAM = f"""
import mmap, tempfile
print("begun", flush=True)
input()
with tempfile.TemporaryFile() as file:
    file.truncate({SIZE})
    with mmap.mmap(file.fileno(), {SIZE}, access=mmap.ACCESS_READ) as pages:
        for at in range(0, {SIZE}, mmap.PAGESIZE):
            pages[at]
        print("read", flush=True)
        input()
with mmap.mmap(-1, {SIZE}, flags=mmap.MAP_PRIVATE) as pages:
    for at in range(0, {SIZE}, mmap.PAGESIZE):
        pages[at] = 1
    print("written", flush=True)
    input()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def test_what_a_process_has_written_counts_and_pages_of_files_do_not(process: subprocess.Popen[str]) -> None:
    sizes = {}
    assert process.stdin is not None and process.stdout is not None
    for step in ("begun", "read", "written"):
        assert process.stdout.readline().strip() == step
        sizes[step] = anonymous(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
    assert sizes["begun"] > 0
    assert sizes["read"] - sizes["begun"] < SIZE // 2 < sizes["written"] - sizes["begun"]


def test_a_process_that_has_ended_has_none() -> None:
    assert anonymous(2**22 + 1) == 0
