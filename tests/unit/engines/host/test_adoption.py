"""Sidecars that run on while the program of their supervisor replaces itself (exec in place): a real one, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.host.child import Child
from engines.host.handover import HeldEngines, HeldSidecar
from engines.host.placement import Plan
from engines.host.supervisor import Supervisor
from gateway.core.specs import EngineSpec
from tests.unit.engines.host.test_supervisor import ROOT, SCRIPTED, gone
from tests.unit.engines.host.traffic import Traffic
from tests.waiting import reached, until

SECONDS = 150.0


def spec(*lives: str, name: str = "e", model: str = "m", **options: Any) -> dict[str, Any]:
    return {
        "name": name, "runtime": "llama.cpp", "model": model, "options": {"lives": lives, **options},
        "health": {"interval": 3600.0, "timeout": 60.0, "fall": 2}, "rollout": {"steps": [0.5], "step_seconds": 0.0},
        "lifecycle": {"load": "eager"},
    }  # fmt: skip


class Program:
    """The program in its process; `exec` begins it anew in the same one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.engines.host.replaced_program", str(directory)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def tell(self, do: str, **parts: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **parts}) + "\n")
        self.process.stdin.flush()

    def do(self, do: str, **parts: Any) -> Any:
        assert self.process.stdout is not None
        self.tell(do, **parts)
        return json.loads(self.process.stdout.readline())

    def see(self, what: str) -> Any:
        return self.do("see")[what]

    def engine(self, name: str = "e") -> dict[str, Any]:
        return next(engine for engine in self.see("engines") if engine["name"] == name)

    def starts(self, name: str = "e") -> list[dict[str, Any]]:
        file = self.directory / f"{name}.starts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(SECONDS)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.close()
    pids = [json.loads(line)["pid"] for file in tmp_path.glob("*.starts") for line in file.read_text().splitlines()]
    until(lambda: all(gone(pid) for pid in pids), what="the end of the sidecars with their supervisor")


def test_sidecars_run_on_and_are_ended_by_the_new_program(program: Program) -> None:
    program.do("apply", engines=[spec("ready")])
    (start,) = program.starts()
    assert program.see("busy") is None
    program.tell("exec")
    until(lambda: program.see("heard") == [["ready", "e"]])
    assert program.see("addresses") == [f"unix:{start['socket']}"] and program.see("slots") == [5]
    program.do("apply", engines=[spec("ready")])
    assert len(program.starts()) == 1 and not gone(start["pid"])
    engine = program.engine()
    assert (engine["pid"], engine["state"], engine["slots"]) == (start["pid"], "ready", 5)
    program.do("close")
    assert gone(start["pid"])


def test_again_and_again(program: Program) -> None:
    program.do("apply", engines=[spec("ready")])
    for _ in range(3):
        program.tell("exec")
        assert program.engine()["state"] == "ready"
    assert len(program.starts()) == 1


def test_a_death_is_noticed_and_the_engine_started_again(program: Program) -> None:
    program.do("apply", engines=[spec("ready")])
    program.tell("exec")
    program.do("apply", engines=[spec("ready")])
    (start,) = program.starts()
    os.kill(start["pid"], signal.SIGKILL)
    until(lambda: len(program.starts()) == 2 and program.engine()["state"] == "ready")
    assert program.engine()["restarts"] == 1
    assert any(kind == "engine_failed" and "ended with code -9" in detail["reason"] for kind, _, detail in program.see("events"))


def test_one_that_dies_in_between_is_started_again(program: Program) -> None:
    program.do("apply", engines=[spec("ready")])
    (start,) = program.starts()
    os.kill(program.process.pid, signal.SIGSTOP)  # either program may see it first
    program.tell("exec")
    os.kill(start["pid"], signal.SIGKILL)
    os.kill(program.process.pid, signal.SIGCONT)
    program.do("apply", engines=[spec("ready")])
    until(lambda: len(program.starts()) == 2 and program.engine()["state"] == "ready")


def test_other_settings_replace_an_adopted_process(program: Program) -> None:
    program.do("apply", engines=[spec("ready")])
    program.tell("exec")
    program.do("apply", engines=[spec("ready", model="other")])
    first, second = program.starts()
    until(lambda: gone(first["pid"]))
    assert second["model"] == "other" and second["socket"] != first["socket"]
    assert program.see("addresses")[-1] == f"unix:{second['socket']}"


def test_an_engine_that_the_new_configuration_lacks_is_ended(program: Program) -> None:
    program.do("apply", engines=[spec("ready")])
    (start,) = program.starts()
    program.tell("exec")
    program.do("apply", engines=[])
    until(lambda: gone(start["pid"]))
    assert program.see("engines") == []


def test_one_that_the_store_drops_is_ended(program: Program) -> None:
    program.do("apply", engines=[spec("ready")])
    (start,) = program.starts()
    program.tell("exec")
    program.do("pursue_nothing")
    until(lambda: gone(start["pid"]))
    assert program.see("engines") == []


def test_one_that_still_loads_is_waited_for(program: Program) -> None:
    gate = program.directory / "gate"
    wanted = spec("load", gate=str(gate))
    program.do("apply", engines=[wanted], wait=False)
    until(lambda: program.see("engines") and program.engine()["state"] == "loading")
    program.tell("exec")
    until(lambda: program.engine()["state"] == "loading")
    program.do("apply", engines=[wanted], wait=False)
    assert program.see("heard") == []
    gate.touch()
    until(lambda: program.see("heard") == [["ready", "e"]])
    assert len(program.starts()) == 1


def test_what_an_operator_has_unloaded_stays_unloaded(program: Program) -> None:
    program.do("apply", engines=[spec("ready")])
    program.do("unload", engine="e")
    program.tell("exec")
    program.do("apply", engines=[spec("ready")])
    assert len(program.starts()) == 1 and program.see("heard") == [["down", "e"]]
    program.do("load", engine="e")
    assert len(program.starts()) == 2 and program.see("heard")[-1] == ["ready", "e"]


def test_an_engine_on_demand_is_loaded_by_the_next_request(program: Program) -> None:
    lazy = {**spec("ready"), "lifecycle": {"load": "lazy"}}
    program.do("apply", engines=[lazy])
    program.tell("exec")
    program.do("apply", engines=[lazy])
    assert program.see("heard")[-1][0] == "unloaded" and program.starts() == []
    program.do("load", engine="e")
    assert program.see("heard")[-1] == ["ready", "e"]


def test_nothing_can_be_handed_over_during_a_change(program: Program) -> None:
    gate = program.directory / "gate"
    program.do("apply", engines=[spec("load", gate=str(gate))], wait=False)
    until(lambda: program.see("engines"))
    assert "engine 'e' is being changed" in program.see("busy")
    gate.touch()
    until(lambda: program.see("busy") is None)
    program.do("see", busy=[0])
    program.do("apply", engines=[spec("ready", model="other")])
    assert "its old process finishes requests" in program.see("busy")
    program.do("see", busy=[])
    until(lambda: program.see("busy") is None)
    program.do("close")
    assert program.see("busy") == "the engines are being stopped"


def test_new_sockets_do_not_take_the_places_of_adopted_ones(program: Program) -> None:
    program.do("apply", engines=[spec("ready", name="a"), spec("ready", name="b")])
    program.tell("exec")
    program.do("apply", engines=[spec("ready", name=name) for name in "abc"])
    sockets = [start["socket"] for name in "abc" for start in program.starts(name)]
    assert len({Path(each).parent.name.rsplit("-", 1)[1] for each in sockets}) == 3


# --- children


@pytest.mark.parametrize(("end", "code"), [("terminate", -15), ("kill", -9)])
async def test_an_adopted_child_ends_as_a_started_one(end: str, code: int) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
    child = Child.adopt(pid, write)
    assert child.lifeline == write and not os.get_inheritable(write)
    assert child.returncode is None
    getattr(child, end)()
    async with asyncio.timeout(SECONDS):
        assert await child.wait() == code
    child.terminate()  # of one that has ended: nothing
    child.kill()
    with pytest.raises(OSError):
        os.fstat(write)  # its lifeline is closed
    os.close(read)


async def test_the_exit_code_of_one_that_ended_before_it_was_adopted() -> None:
    read, write = os.pipe()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(3)"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    child = Child.adopt(pid, write)
    async with asyncio.timeout(SECONDS):
        assert await child.wait() == 3
    os.close(read)


async def test_who_is_not_our_child_cannot_be_adopted() -> None:
    read, write = os.pipe()
    with pytest.raises(OSError):
        Child.adopt(os.getppid(), write)
    os.close(read)
    os.close(write)


async def test_an_engine_whose_process_cannot_be_adopted_is_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    read, write = os.pipe()
    place = tmp_path / "run" / "e" / "s.sock"
    place.parent.mkdir(parents=True)
    wanted = msgspec.convert(spec("ready"), EngineSpec)
    held = HeldSidecar(spec=wanted, pid=os.getppid(), lifeline=write, socket=str(place), state="ready")
    supervisor = Supervisor(tmp_path, Traffic(), lambda *event: None, runtimes=SCRIPTED)
    supervisor.adopt(HeldEngines(sidecars=[held], generation=1))
    await supervisor.apply((wanted,), wait=True)
    await reached(lambda: supervisor.engines()[0]["state"] == "ready")
    await supervisor.aclose(SECONDS)
    os.close(read)
    os.close(write)


def test_what_is_handed_over_survives_its_encoding() -> None:
    wanted = EngineSpec(name="e", runtime="llama.cpp", model="m", options={"a": [1, {"b": 2.5}]}, headers={"x": "y"})
    plan = Plan("cuda:0", 3, 4, 2048, 2, 10, 20, 30, 40, (0.5, 0.5))
    one = HeldSidecar(spec=wanted, pid=1, lifeline=5, socket="/s", state="ready", ready_at=1.5, plan=plan, health={"slots": 3})
    held = HeldEngines(generation=3, sidecars=[one], unloaded=[wanted])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(held), type=HeldEngines) == held
    assert held.descriptors() == [5]
