"""What the rounds of an operation say about its growth, and what a process says about itself."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from loadtests.memory import inside
from loadtests.memory.growth import State, figures
from loadtests.memory.operations import OPERATIONS, Operation, silent

STILL = State(memory=1000, blocks=50, malloc=10, free=0, sqlite=0, files=9, threads=3, tasks=4)


def grown(**more: int) -> State:
    return State(**{name: getattr(STILL, name) + more.get(name, 0) for name in STILL.__slots__})


def test_the_warm_up_and_what_only_the_first_half_takes_are_no_growth() -> None:
    states = [STILL, grown(memory=500), grown(memory=900), grown(memory=900), grown(memory=900)]
    found = figures(Operation("x", 10, silent), 10, states, Counter())
    assert (found["count"], found["kib_first"], found["kib_second"]) == (40, 40_000, 0)


def test_what_goes_on_growing_is_told_for_a_thousand_operations() -> None:
    states = [STILL, *(grown(memory=round_, blocks=3 * round_, files=round_ // 4) for round_ in range(1, 9))]
    found = figures(Operation("x", 500, silent), 500, states, Counter({"a.B": 2, "c.D": -1}))
    assert (found["kib_first"], found["kib_second"], found["blocks_second"]) == (2, 2, 6)
    assert found["files"] == 2 and found["types"] == {"a.B": 2}


def test_every_operation_has_a_name_of_its_own() -> None:
    assert len({each.name for each in OPERATIONS}) == len(OPERATIONS)


def test_a_process_tells_what_it_is_made_of(short_path: Path) -> None:
    program = "class Odd: pass\nkept = [Odd() for _ in range(77)]\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=inside.prepare(short_path / "in"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        told = inside.ask(short_path / "in", child.pid)
        child.stdin.write(b"\n")
    assert told["types"]["__main__.Odd"] == 77 and told["tasks"] == 0 and told["blocks"] > 77
