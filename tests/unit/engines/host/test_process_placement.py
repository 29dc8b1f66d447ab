"""Placement before a sidecar starts: what it is told, what operators see, and what does not fit; over processes that play a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engines.host import process
from engines.host.devices import Binding
from engines.host.memory_ledger import MemoryLedger
from engines.host.placement import InvalidModel, Metadata
from engines.host.supervisor import Supervisor
from gateway.core.errors import ConfigError
from gateway.core.specs import EngineSpec, HealthSpec
from tests.unit.engines.host.test_supervisor import SCRIPTED
from tests.unit.engines.host.traffic import Traffic
from tests.waiting import reached

ROOT = Path(__file__).resolve().parents[4]
MIB = 1024 * 1024
MODEL = Metadata(
    architecture="llama", quantisation="Q8_0", parameters=10**9, layers=10, width=1024, context=4096, vocabulary=32000, has_template=True,
    weights=1200 * MIB, layer_sizes=(100 * MIB,) * 10, input_size=100 * MIB, output_size=100 * MIB, kv_per_token=(1024,) * 10,
)  # fmt: skip
KV = 512 * 2 * 1024 * 10


class Observer(Traffic):
    """What the routing would hear, in order, with the reasons."""

    def engine_starting(self, engine: str, *, awaited: bool = False) -> None:
        self.heard.append(("starting", engine))

    def engine_ready(self, engine: str, address: str, slots: int) -> None:
        self.heard.append(("ready", engine))

    def engine_down(self, engine: str, reason: str, code: str | None = None) -> None:
        self.heard.append(("down", engine, reason, code or ""))


class Machine:
    """The memory of a machine, and a supervisor on it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.observer = directory, Observer()
        self.gpus: list[int] | None = [10_000 * MIB]
        self.main: int | None = 10_000 * MIB
        self.pauses: list[int] = []
        self.supervisor = Supervisor(
            directory, self.observer, lambda *_: None, MemoryLedger(self.look, lambda _: self.gpus, lambda: self.main), runtimes=SCRIPTED
        )

    async def look(self, reader: str, path: str) -> Metadata:
        if path == "broken.gguf":
            raise InvalidModel("broken")
        return MODEL

    def backoff(self, failures: int) -> float:
        self.pauses.append(failures)
        return 0.0

    def spec(
        self, *lives: str, name: str = "e", device: str = "cuda:0", model: str = "m.gguf", slots: int = 2, **options: Any
    ) -> EngineSpec:
        return EngineSpec(
            name=name, runtime="llama.cpp", model=model, device=device, context=512, slots=slots, options={"lives": lives, **options},
            health=HealthSpec(interval=0.01, timeout=60.0, fall=2),
        )  # fmt: skip

    def told(self, name: str = "e") -> list[dict[str, Any]]:
        """The options of each start, without the script's own."""
        lines = (self.directory / f"{name}.starts").read_text().splitlines()
        return [{k: v for k, v in json.loads(line)["options"].items() if k not in ("lives", "sick")} for line in lines]

    def engine(self, name: str = "e") -> dict[str, Any]:
        return next(e for e in self.supervisor.engines() if e["name"] == name)


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    made = Machine(tmp_path)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(process, "backoff", made.backoff)
    monkeypatch.setattr(process, "bind", lambda device, fallback, name, variables: Binding(device, {}, fell_back=fallback is not None))
    yield made
    await made.supervisor.aclose(0.0)


async def test_the_sidecar_is_told_the_plan_and_operators_see_it(machine: Machine) -> None:
    machine.gpus = [800 * MIB]
    await machine.supervisor.apply((machine.spec("ready", allow_partial=True),), wait=True)
    plan = machine.engine()["plan"]
    assert machine.told() == [{"gpu_layers": plan["gpu_layers"], "allow_partial": True}]
    assert 0 < plan["gpu_layers"] < plan["layers"] == 11
    assert (plan["context"], plan["weights_bytes"], plan["kv_bytes"]) == (512, 1200 * MIB, KV)
    assert plan["device_bytes"] < 800 * MIB


async def test_the_engines_own_options_win(machine: Machine) -> None:
    machine.gpus = [0]  # the operator knows better than the estimate
    await machine.supervisor.apply((machine.spec("ready", gpu_layers=3),), wait=True)
    assert machine.told() == [{"gpu_layers": 3}]
    assert machine.engine()["plan"]["gpu_layers"] == 3


async def test_several_devices_share_by_their_free_memory(machine: Machine) -> None:
    machine.gpus = [1000 * MIB, 3000 * MIB]
    await machine.supervisor.apply((machine.spec("ready", device="cuda:0,1"),), wait=True)
    assert machine.told() == [{"gpu_layers": 11, "tensor_split": [1, 10]}]


async def test_a_device_whose_memory_nobody_knows_gets_everything(machine: Machine) -> None:
    machine.gpus = None
    await machine.supervisor.apply((machine.spec("ready", device="rocm:0"),), wait=True)
    assert machine.told() == [{"gpu_layers": 11}]


async def test_a_fallback_is_planned_for_the_cpu(machine: Machine) -> None:
    machine.gpus = [0]
    spec = machine.spec("ready")
    await machine.supervisor.apply((EngineSpec(**{f: getattr(spec, f) for f in spec.__struct_fields__} | {"fallback": "cpu"}),), wait=True)
    assert machine.told() == [{"gpu_layers": 0}]
    assert machine.engine()["plan"]["device"] == "cpu"


@pytest.mark.parametrize(("device", "free"), [("cpu", "main"), ("cuda:0", "gpus")])
async def test_a_first_load_that_does_not_fit_is_refused_with_both_figures(machine: Machine, device: str, free: str) -> None:
    setattr(machine, free, 100 * MIB if free == "main" else [100 * MIB])
    with pytest.raises(ConfigError, match=rf"engine 'e': .*{device}: \d+ MiB needed, 100 MiB free"):
        await machine.supervisor.apply((machine.spec("ready", device=device),), wait=True)
    assert not (machine.directory / "e.starts").exists()


async def test_a_restart_that_does_not_fit_fails_with_the_reason_and_waits_longer_each_time(machine: Machine) -> None:
    sick = machine.directory / "sick"
    await machine.supervisor.apply((machine.spec("sick", "ready", sick=str(sick)),), wait=True)
    machine.gpus = [100 * MIB]
    sick.touch()
    await reached(lambda: len(machine.pauses) >= 4)
    assert machine.pauses[:4] == [1, 2, 3, 4]
    assert len(machine.told()) == 1
    await reached(lambda: machine.engine()["state"] == "failed")
    engine = machine.engine()
    assert engine["reason_code"] == "insufficient_memory" and "100 MiB free" in engine["reason"] and engine["plan"] is None
    down = next(heard for heard in machine.observer.heard if heard[0] == "down" and "100 MiB free" in heard[2])
    assert down[3] == "insufficient_memory"
    machine.gpus = [10_000 * MIB]
    await reached(lambda: machine.engine()["state"] == "ready")
    assert machine.engine()["reason"] is machine.engine()["reason_code"] is None


async def test_an_engine_that_says_it_failed_after_it_was_ready_is_started_again(machine: Machine) -> None:
    sick = machine.directory / "sick"
    await machine.supervisor.apply((machine.spec("sick", "ready", sick=str(sick)),), wait=True)
    first = machine.engine()["pid"]
    sick.touch()
    await reached(lambda: machine.engine()["restarts"] == 1 and machine.engine()["state"] == "ready")
    assert machine.engine()["pid"] != first
    assert machine.observer.heard == [
        ("starting", "e"), ("ready", "e"), ("down", "e", "three steps in a row failed", "engine_failed"), ("starting", "e"), ("ready", "e"),
    ]  # fmt: skip


async def test_engines_that_start_together_do_not_count_the_same_memory_twice(machine: Machine) -> None:
    machine.gpus = [2100 * MIB]  # one whole model and a part of another
    specs = (machine.spec("ready", name=name, allow_partial=True) for name in "ab")
    await machine.supervisor.apply(tuple(specs), wait=True)
    assert sorted(machine.engine(name)["plan"]["gpu_layers"] for name in "ab")[1] == 11
    assert sum(machine.engine(name)["plan"]["device_bytes"] for name in "ab") <= 2100 * MIB


async def test_a_file_that_cannot_be_read_is_left_to_the_sidecar_to_refuse(machine: Machine) -> None:
    with pytest.raises(ConfigError, match="the file is no model"):
        await machine.supervisor.apply((machine.spec("fail", model="broken.gguf"),), wait=True)
    assert machine.told() == [{}]
