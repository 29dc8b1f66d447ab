"""The supervisor over real processes that play a script: restarts, first loads, replacements, drains."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.host import process
from engines.host.catalogue.checksums import Checksums
from engines.host.catalogue.trust import Trust
from engines.host.ending import Kills
from engines.host.sockets import MAX_SOCKET_PATH, Sockets
from engines.host.supervisor import Supervisor
from engines.runtimes import RUNTIMES, RuntimeRow
from gateway.core.errors import ConfigError, GatehouseError
from gateway.core.plugins import Table
from gateway.core.specs import EngineSpec, HealthSpec, ModelSignaturesSpec, RolloutSpec
from tests.modelsigning import pem, sign
from tests.unit.engines.host.traffic import Traffic
from tests.waiting import reached

ROOT = Path(__file__).resolve().parents[4]


SCRIPTED = Table(RuntimeRow, (replace(RUNTIMES["llama.cpp"], module="tests.unit.engines.host.scripted_sidecar"),))


class House:
    """A supervisor with its observer and events."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.observer = Traffic()
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.supervisor = Supervisor(directory, self.observer, lambda *event: self.events.append(event), runtimes=SCRIPTED)

    def spec(self, *lives: str, name: str = "e", model: str = "m", interval: float = 3600.0, **options: Any) -> EngineSpec:
        """interval: between health checks once it is ready. A short one may find a killed process before its end is told."""
        return EngineSpec(
            name=name, runtime="llama.cpp", model=model, options={"lives": list(lives), **options},
            health=HealthSpec(interval=interval, timeout=60.0, fall=2), rollout=RolloutSpec(steps=(0.1, 0.5), step_seconds=0.0),
        )  # fmt: skip

    def starts(self, name: str = "e") -> list[dict[str, Any]]:
        file = self.directory / f"{name}.starts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def engine(self, name: str = "e") -> dict[str, Any]:
        return next(e for e in self.supervisor.engines() if e["name"] == name)

    def gate(self, name: str = "gate") -> Path:
        return self.directory / name


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(process, "backoff", lambda failures: 0.0)
    made = House(tmp_path)
    yield made
    await made.supervisor.aclose(0.0)
    for start in (s for file in tmp_path.glob("*.starts") for s in made.starts(file.stem)):
        assert gone(start["pid"]), "a sidecar outlives its supervisor"


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_sidecar_becomes_ready(house: House) -> None:
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    assert house.observer.heard == [("ready", "e")]
    assert house.observer.slots == [5]
    (start,) = house.starts()
    assert house.observer.addresses == [f"unix:{start['socket']}"]
    engine = house.engine()
    assert (engine["state"], engine["pid"], engine["restarts"], engine["reason"]) == ("ready", start["pid"], 0, None)
    assert engine["slots"] == 5
    assert [kind for kind, _, _ in house.events][-1] == "engine_ready"


async def test_the_state_directory_may_have_spaces_in_its_path(house: House) -> None:
    directory = house.directory / "My Projects" / "it's 100%"
    supervisor = Supervisor(directory, house.observer, lambda *event: None, runtimes=SCRIPTED)
    try:
        await supervisor.apply((house.spec("ready"),), wait=True)
        assert [engine["state"] for engine in supervisor.engines()] == ["ready"]
    finally:
        await supervisor.aclose(0.0)


async def test_external_engines_are_nobodys_children(house: House) -> None:
    await house.supervisor.apply((EngineSpec(name="x", runtime="external", url="http://127.0.0.1:1"),), wait=True)
    assert house.supervisor.engines() == []


@pytest.mark.parametrize(("life", "reason"), [("fail", "the file is no model"), ("exit", "the process ended with code 3")])
async def test_a_first_load_that_fails_says_why_and_is_not_tried_again(house: House, life: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        await house.supervisor.apply((house.spec(life),), wait=True)
    assert len(house.starts()) == 1
    assert ("ready", "e") not in house.observer.heard


async def test_where_nobody_could_ask_for_it_a_first_load_that_fails_is_tried_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "backoff", lambda failures: 0.0)
    await house.supervisor.apply((house.spec("fail", "exit", "ready"),), wait=False, again=True)
    await reached(lambda: house.engine()["state"] == "ready")
    assert len(house.starts()) == 3 and house.engine()["restarts"] == 2


async def test_one_that_only_crashes_is_tried_less_and_less_often(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says why it failed, or that was ready once, is not such a one."""
    asked: list[bool] = []
    monkeypatch.setattr(process, "backoff", lambda failures, crashing=False: asked.append(crashing) or 0.0)
    await house.supervisor.apply((house.spec("crash", "crash", "fail", "crash", "exit", "ready"),), wait=False, again=True)
    await reached(lambda: house.engine()["state"] == "ready")
    os.kill(house.engine()["pid"], signal.SIGKILL)
    await reached(lambda: len(asked) == 6)
    assert asked == [True, True, False, True, False, False]


async def test_an_engine_whose_load_failed_is_tried_again_by_the_next_apply(house: House) -> None:
    spec = house.spec("fail", "ready")
    with pytest.raises(ConfigError):
        await house.supervisor.apply((spec,), wait=True)
    await house.supervisor.apply((spec,), wait=True)
    assert house.engine()["state"] == "ready"
    assert len(house.starts()) == 2


async def test_a_refused_change_leaves_nothing_of_it_running(house: House) -> None:
    old = house.spec("ready", name="old")
    await house.supervisor.apply((old,), wait=True)
    with pytest.raises(ConfigError):
        await house.supervisor.apply((old, house.spec("ready", name="good"), house.spec("fail", name="bad")), wait=True)
    assert {e["name"] for e in house.supervisor.engines()} == {"old"}
    for start in house.starts("good") + house.starts("bad"):
        await reached(lambda start=start: gone(start["pid"]))
    assert house.engine("old")["state"] == "ready"


async def test_a_sidecar_that_dies_is_started_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[int] = []

    def backoff(count: int) -> float:
        failures.append(count)
        return 0.0

    monkeypatch.setattr(process, "backoff", backoff)
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    for round in (1, 2):
        os.kill(house.engine()["pid"], signal.SIGKILL)
        await reached(lambda round=round: len(house.observer.addresses) == round + 1)
    assert house.observer.heard == [("ready", "e"), ("down", "e"), ("ready", "e"), ("down", "e"), ("ready", "e")]
    assert failures == [1, 2], "the pause grows while the engine is not stable"
    assert house.engine()["restarts"] == 2
    assert len({start["pid"] for start in house.starts()}) == 3
    assert house.engine()["last_end"]["reason"].startswith("the process ended with code -9 (SIGKILL), see ")
    assert house.engine()["reason"] is None


async def test_a_kill_that_the_kernel_counts_is_told_apart_and_stays_known(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = house.directory / "proc" / "vmstat"
    counter.parent.mkdir()
    counter.write_text("oom_kill 4\n")
    monkeypatch.setattr(process, "Kills", partial(Kills, root=house.directory))
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    pid = house.engine()["pid"]
    os.kill(pid, signal.SIGSTOP)  # no health check says from now on that it was alive
    counter.write_text("oom_kill 5\n")
    os.kill(pid, signal.SIGKILL)
    await reached(lambda: len(house.observer.addresses) == 2)
    engine = house.engine()
    assert (engine["state"], engine["restarts"], engine["out_of_memory"], engine["reason_code"]) == ("ready", 1, 1, None)
    assert engine["last_end"]["reason_code"] == "out_of_memory"
    assert engine["last_end"]["reason"].startswith("memory ran out: the kernel ended the process (SIGKILL, counted by this machine)")
    told = next(detail for kind, _, detail in house.events if kind == "engine_failed")
    assert told["reason_code"] == "out_of_memory"


async def test_an_engine_that_was_stable_starts_anew_with_the_shortest_pause(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[int] = []
    monkeypatch.setattr(process, "backoff", lambda count: failures.append(count) or 0.0)
    monkeypatch.setattr(process, "STABLE_SECONDS", -1.0)
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    for round in (1, 2):
        os.kill(house.engine()["pid"], signal.SIGKILL)
        await reached(lambda round=round: len(house.observer.addresses) == round + 1)
    assert failures == [1, 1]


async def test_a_later_load_that_fails_is_tried_again(house: House) -> None:
    await house.supervisor.apply((house.spec("ready", "fail", "exit", "ready"),), wait=True)
    os.kill(house.engine()["pid"], signal.SIGKILL)
    await reached(lambda: len(house.observer.addresses) == 2)
    assert len(house.starts()) == 4
    assert house.engine()["restarts"] == 3


@pytest.mark.parametrize(("counted", "code", "ends"), [(4, None, 0), (5, "out_of_memory", 1)])
async def test_a_sidecar_that_stops_answering_is_ended(
    house: House, monkeypatch: pytest.MonkeyPatch, counted: int, code: str | None, ends: int
) -> None:
    counter = house.directory / "proc" / "vmstat"
    counter.parent.mkdir()
    counter.write_text("oom_kill 4\n")
    monkeypatch.setattr(process, "Kills", partial(Kills, root=house.directory))
    deaf = house.gate("deaf")
    await house.supervisor.apply((house.spec("deaf", "ready", deaf=str(deaf), interval=0.01),), wait=True)
    first = house.engine()["pid"]
    process_of = house.supervisor._processes["e"]
    process_of.spec = msgspec.structs.replace(process_of.spec, health=msgspec.structs.replace(process_of.spec.health, timeout=0.05))
    deaf.touch()
    counter.write_text(f"oom_kill {counted}\n")  # after the last check that is answered: each reads the count before it asks
    await reached(lambda: len(house.observer.addresses) == 2)
    assert gone(first)
    assert (house.engine()["last_end"]["reason_code"], house.engine()["out_of_memory"]) == (code, ends)
    assert any(kind == "engine_failed" and "no answer" in detail["reason"] for kind, _, detail in house.events)


async def test_a_sidecar_that_hangs_while_it_starts_is_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    applied = asyncio.create_task(house.supervisor.apply((house.spec("silent"),), wait=True))
    await reached(house.starts)
    (start,) = house.starts()
    assert not applied.done()
    monkeypatch.setattr(process, "SILENCE_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"no answer to [0-9]+ health checks"):
        await applied
    await reached(lambda: gone(start["pid"]))


async def test_a_change_replaces_the_process_without_a_gap(house: House) -> None:
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    old = house.engine()["pid"]
    changed = house.spec("ready", model="other")
    await house.supervisor.apply((changed,), wait=True)
    assert house.observer.heard == [("ready", "e"), ("ready", "e")], "never down, never draining"
    assert len(set(house.observer.addresses)) == 2
    assert house.starts()[-1]["model"] == "other"
    assert house.supervisor.specs() == {"e": changed}
    await reached(lambda: gone(old))
    assert house.observer.heard == [("ready", "e"), ("ready", "e")]
    assert house.engine()["state"] == "ready"


async def test_a_replacement_starts_gently_and_has_its_priority_back_when_ready(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(process.priority, "lower", lambda pid: done.append(("lower", pid)) or True)
    monkeypatch.setattr(process.priority, "restore", lambda pid: done.append(("restore", pid)))
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    assert done == [], "the first of all starts as fast as it can"
    await house.supervisor.apply((house.spec("ready", model="other"),), wait=True)
    new = house.engine()["pid"]
    assert done == [("lower", new), ("restore", new)]


async def test_a_replacement_that_fails_leaves_the_old_one(house: House) -> None:
    good = house.spec("ready")
    await house.supervisor.apply((good,), wait=True)
    pid = house.engine()["pid"]
    with pytest.raises(ConfigError, match="no model"):
        await house.supervisor.apply((house.spec("ready", "fail", model="bad"),), wait=True)
    assert house.observer.heard == [("ready", "e")], "the traffic must not be told that the engine is down"
    assert (house.engine()["state"], house.engine()["pid"]) == ("ready", pid)
    assert house.supervisor.specs() == {"e": good}


async def test_the_same_configuration_changes_nothing(house: House) -> None:
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    assert len(house.starts()) == 1


async def test_a_removed_engine_is_drained(house: House) -> None:
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    pid = house.engine()["pid"]
    await house.supervisor.apply((), wait=True)
    assert house.observer.heard == [("ready", "e"), ("draining", "e"), ("down", "e")]
    assert gone(pid)
    assert house.supervisor.engines() == [] and house.supervisor.specs() == {}


async def test_unload_load_reload(house: House) -> None:
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    await house.supervisor.unload("e")
    assert (house.engine()["state"], house.engine()["pid"]) == ("stopped", None)
    assert house.observer.heard[1:] == [("draining", "e"), ("down", "e")]
    await house.supervisor.load("e")
    assert house.engine()["state"] == "ready"
    await house.supervisor.load("e")
    assert len(house.starts()) == 2, "what runs is not loaded again"
    await house.supervisor.reload(["e"])
    assert len(house.starts()) == 3
    assert house.observer.heard[-1] == ("ready", "e")


@pytest.mark.parametrize("action", ["load", "unload", "reload"])
async def test_an_unknown_engine(house: House, action: str) -> None:
    with pytest.raises(GatehouseError) as caught:
        await getattr(house.supervisor, action)(["nobody"] if action == "reload" else "nobody")
    assert caught.value.status == 404


async def test_drain_and_resume_of_an_endpoint(house: House) -> None:
    await house.supervisor.apply((house.spec("ready"),), wait=True)
    await house.supervisor.drain("e")
    await house.supervisor.resume("e")
    await house.supervisor.resume("nobody")
    assert house.observer.heard == [("ready", "e"), ("draining", "e"), ("ready", "e")]
    assert len(set(house.observer.addresses)) == 1


async def test_waiting_for_an_engine_that_loads(house: House) -> None:
    gate = house.gate()
    task = asyncio.ensure_future(house.supervisor.apply((house.spec("load", gate=str(gate)),), wait=True))
    await reached(lambda: house.supervisor.engines() and house.engine()["state"] == "loading")
    assert not task.done()
    gate.touch()
    await task
    assert house.engine()["state"] == "ready"


async def test_an_engine_that_was_not_waited_for_becomes_ready(house: House) -> None:
    await house.supervisor.apply((house.spec("ready"),), wait=False)
    assert house.observer.starting == ["e"]
    assert house.observer.heard == []
    await reached(lambda: house.observer.heard == [("ready", "e")])


async def test_close_ends_all_even_the_stubborn(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.supervisor.apply((house.spec("ready", name="a"), house.spec("stubborn", name="b")), wait=True)
    pids = [house.engine(name)["pid"] for name in "ab"]
    await house.supervisor.aclose(-0.9)  # a tenth of a second of grace
    assert house.observer.heard[2:4] == [("draining", "a"), ("draining", "b")], "told before a probe finds that it accepts nothing"
    assert all(gone(pid) for pid in pids)
    assert not list((house.directory / "run").iterdir()), "no socket is left"


async def test_close_while_an_engine_loads(house: House) -> None:
    task = asyncio.ensure_future(house.supervisor.apply((house.spec("load", gate=str(house.gate())),), wait=True))
    await reached(lambda: house.supervisor.engines() and house.engine()["state"] == "loading")
    await house.supervisor.aclose(0.0)
    with pytest.raises(ConfigError, match="stopped before it was ready"):
        await task


async def test_close_while_a_process_is_being_started(house: House) -> None:
    await house.supervisor.apply((house.spec("ready"),), wait=False)
    async with asyncio.timeout(60):
        await house.supervisor.aclose(0.0)
    assert house.observer.heard in ([], [("down", "e")])


async def test_a_device_that_is_not_there(house: House) -> None:
    spec = EngineSpec(name="e", runtime="llama.cpp", model="m", device="cuda:97")
    with pytest.raises(ConfigError, match="no device cuda:97"):
        await house.supervisor.apply((spec,), wait=True)


@pytest.mark.parametrize("how", ["a link", "another owner"])
async def test_a_socket_folder_of_somebody_else_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch, how: str, request: pytest.FixtureRequest
) -> None:  # fmt: skip
    temporary = Path(tempfile.mkdtemp(prefix="gh"))
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    supervisor = Supervisor(house.directory / ("d" * 80) / ("d" * 80), house.observer, lambda *event: None, runtimes=SCRIPTED)
    folder = supervisor._sockets.new("e", 0).parent.parent
    assert folder.parent == temporary and not folder.is_symlink()
    if how == "a link":
        theirs = temporary / "theirs"
        folder.rename(theirs)
        folder.symlink_to(theirs)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to somebody else"):
        await supervisor.apply((house.spec("ready"),), wait=True)
    assert house.starts() == [] and supervisor.specs() == {}
    await supervisor.aclose(0.0)


async def test_a_socket_folder_elsewhere_goes_with_its_supervisor(house: House) -> None:
    supervisor = Supervisor(house.directory / ("d" * 80) / ("d" * 80), house.observer, lambda *event: None, runtimes=SCRIPTED)
    folder = supervisor._sockets.new("e", 0).parent.parent
    assert folder.is_dir() and not folder.is_relative_to(house.directory)
    await supervisor.aclose(0.0)
    assert not folder.exists()


def test_socket_paths_are_new_short_and_private(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / ("d" * 80) / ("d" * 80)):
        sockets = Sockets(directory)
        one, two = (sockets.new("an engine / with: signs" * 3, generation) for generation in (0, 1))
        assert one != two
        for path in (one, two):
            assert len(str(path).encode()) <= MAX_SOCKET_PATH
            assert path.parent.stat().st_mode & 0o777 == 0o700
        if directory != tmp_path:
            one.parent.rmdir()


async def test_a_model_is_verified_before_each_of_its_loads(house: House, tmp_path: Path) -> None:
    model, key = tmp_path / "m.gguf", tmp_path / "vendor.pem"
    model.write_bytes(b"GGUF")
    key.write_bytes(pem())
    trust = Trust(lambda: ModelSignaturesSpec(keys=(str(key),), required=True), Checksums(tmp_path / "sums.json"))
    told: list[tuple[str, str, dict[str, Any]]] = []
    supervisor = Supervisor(house.directory, house.observer, lambda *event: told.append(event), runtimes=SCRIPTED, trust=trust)
    try:
        with pytest.raises(ConfigError, match=r"'m.gguf' is not signed .* vendor.pem.*no signature"):
            await supervisor.apply((house.spec("ready", model=str(model)),), wait=True)
        assert house.starts() == [] and [kind for kind, _, _ in told if kind == "model_refused"] == ["model_refused"]
        sign(model)
        await supervisor.apply((house.spec("ready", model=str(model)),), wait=True)
        model.write_bytes(b"EVIL")
        os.kill(house.starts()[-1]["pid"], signal.SIGKILL)
        await reached(lambda: any("m.gguf is not what was signed" in event[2].get("reason", "") for event in told))
        await reached(lambda: supervisor.engines()[0]["reason_code"] == "model_untrusted")  # a next try has none yet
        assert len(house.starts()) == 1
        model.write_bytes(b"GGUF")
        await reached(lambda: supervisor.engines()[0]["state"] == "ready")
    finally:
        await supervisor.aclose(0.0)


async def test_a_model_that_is_exchanged_while_it_is_loaded_is_not_used(house: House, tmp_path: Path) -> None:
    model, gate = tmp_path / "m.gguf", house.gate()
    model.write_bytes(b"GGUF")
    sign(model)
    (tmp_path / "vendor.pem").write_bytes(pem())
    trust = Trust(lambda: ModelSignaturesSpec(keys=(str(tmp_path / "vendor.pem"),)), Checksums(tmp_path / "sums.json"))
    supervisor = Supervisor(house.directory, house.observer, lambda *event: None, runtimes=SCRIPTED, trust=trust)
    try:
        loading = asyncio.ensure_future(supervisor.apply((house.spec("load", model=str(model), gate=str(gate)),), wait=True))
        await reached(lambda: len(house.starts()) == 1)
        model.with_name("evil.gguf").write_bytes(b"EVIL")
        model.with_name("evil.gguf").replace(model)
        gate.touch()
        with pytest.raises(ConfigError, match="changed between its verification and the end of its load"):
            await loading
        assert ("ready", "e") not in house.observer.heard
    finally:
        await supervisor.aclose(0.0)
