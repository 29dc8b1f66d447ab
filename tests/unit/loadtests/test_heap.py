"""loadtests.memory.heap: another process's blocks, by what they are."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadtests.memory.heap import walk

PROGRAM = """
import ctypes, sys
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [c.malloc(1000) for _ in range(600)]
for block in blocks[:100:2]:
    c.free(block)
print("ready", flush=True)
sys.stdin.read()
"""
BLOCK = 1008
"""1,000 bytes with their header."""


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.stdin.close()


def test_blocks_in_use_are_apart_from_those_that_a_thread_keeps(process: int) -> None:
    heap = walk(process)
    assert 550 <= heap.used[BLOCK] // BLOCK < 600
    assert heap.cached[BLOCK] // BLOCK == 7
    assert heap.free[BLOCK] // BLOCK >= 40


def test_a_process_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(OSError):
        walk(2**22 + 1)
