"""When the heap is trimmed; what that is worth is measured by loadtests/memory/held.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway.server.allocator import QUIET_SECONDS, QUIET_TRIM_AFTER, SHARE, TRIM_AFTER, Allocator, tuned
from gateway.server.protocol import ListenerState
from gateway.wire.table import is_inference
from tests.unit.gateway.pipeline.world import World
from tests.unit.gateway.server.wires import Application


class Trims:
    """Counts calls of malloc_trim."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, keep: int) -> int:
        self.calls.append(keep)
        return 1


@pytest.mark.parametrize(
    ("amount", "held", "trims"), [(TRIM_AFTER, 1, True), (TRIM_AFTER - 1, 1, False), (QUIET_TRIM_AFTER, 0, True), (1, 0, False)]
)
def test_a_trim_must_be_worth_it(amount: int, held: int, trims: bool) -> None:
    assert Allocator(Trims()).freed(amount, held, 1000.0) is trims


def test_trims_take_a_small_share_of_the_time() -> None:
    trims, took = Trims(), iter([0.0, 0.01, 0.0, 0.002, 0.0, 0.0])
    allocator = Allocator(trims, lambda: next(took))
    assert allocator.freed(TRIM_AFTER, 1, 1000.0)
    assert not allocator.freed(TRIM_AFTER, 1, 1000.0 + 0.9 * 0.01 / SHARE)
    assert allocator.freed(TRIM_AFTER, 1, 1000.0 + 1.1 * 0.01 / SHARE)
    assert allocator.freed(TRIM_AFTER, 1, 1000.0 + 1.1 * 0.01 / SHARE + 1.1 * 0.002 / SHARE)
    assert trims.calls == [0, 0, 0]


def test_what_bursts_leave_over_is_trimmed_once_a_second() -> None:
    trims = Trims()
    allocator = Allocator(trims, lambda: 0.0)
    assert allocator.freed(QUIET_TRIM_AFTER, 0, 1000.0)
    assert not allocator.freed(QUIET_TRIM_AFTER, 0, 1000.0 + QUIET_SECONDS / 2)
    assert not allocator.freed(QUIET_TRIM_AFTER, 1, 1000.0 + QUIET_SECONDS)
    assert allocator.freed(QUIET_TRIM_AFTER, 0, 1000.0 + QUIET_SECONDS)


@pytest.mark.parametrize(
    ("environ", "obeyed"),
    [
        ({"MALLOC_MMAP_THRESHOLD_": "1"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mmap_threshold=270336"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}, False),
    ],
)
def test_an_operator_who_tuned_the_allocator_is_obeyed(environ: dict[str, str], obeyed: bool) -> None:
    assert tuned(environ).freed(TRIM_AFTER, 0, 1000.0) is not obeyed


def test_threads_share_a_heap_unless_the_operator_says_otherwise() -> None:
    code = "import platform; from gateway.server.allocator import few_arenas; print(few_arenas(), platform.libc_ver()[0])"
    for environ, bounded in (
        ({}, "True"),
        ({"MALLOC_ARENA_MAX": "4"}, "False"),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=4"}, "False"),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}, "True"),
    ):
        said = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True, check=True)
        assert said.stdout.split() == [bounded, "glibc"]


def test_the_sweep_trims_after_memory_was_given_back() -> None:
    world = World()
    state = ListenerState(world.plane, Application(), is_inference)
    trims = Trims()
    state.allocator = Allocator(trims)
    limits = world.snapshot.spec.listen
    world.plane.memory.take("a", TRIM_AFTER, limits)
    state.sweep()
    world.plane.memory.give_back("a", TRIM_AFTER)
    state.sweep()
    assert trims.calls == [0] and world.plane.memory.freed == 0
