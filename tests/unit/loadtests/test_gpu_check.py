"""scripts/gpu-check: what it says without a GPU, what it tells of scripted ones, and its checks on the processor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.host import nvml
from loadtests.gpu import check
from tests.unit.engines.host.test_devices import Driver


class Machine(Driver):
    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "H100"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:
        class Memory:
            total, free, used = 80 << 30, 79 << 30, 1 << 30

        return Memory()


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "gpus", lambda: [])
    out = tmp_path / "found.json"
    assert check.main(["--out", str(out)]) == 2
    report = json.loads(out.read_text())
    assert report["gpu"] is None and report["reason"] and "checks" not in report
    assert "there is no GPU here: " in capsys.readouterr().out


def test_gpus_are_told_as_the_driver_knows_them() -> None:
    first, second = check.gpus(Machine(2))
    assert (first["number"], first["uuid"], first["name"], first["driver"], first["capability"]) == (
        0,
        Driver.uuids[0],
        "H100",
        "580.1",
        [9, 0],
    )
    assert second["memory"] == 80 << 30
    assert check.gpus(Machine(broken=True)) == check.gpus(None) == []


def test_the_checks_run_on_the_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them; a third fails and is an entry."""
    monkeypatch.setattr(check, "SMALL", check.Shape(layers=8, width=64))
    monkeypatch.setitem(check.CHECKS, "broken", lambda bench: {"ratio": 1 // 0})
    out = tmp_path / "found.json"
    assert check.main(["--device", "cpu", "--quick", "--out", str(out), "--only", "devices,load,broken"]) == 1
    found = json.loads(out.read_text())["checks"]
    assert found["devices"]["ok"] and found["devices"]["packages"]["onnxruntime"]
    assert found["load"]["ok"] and found["load"]["taken bytes"] > 0 and found["load"]["first token s"] > 0, found["load"]
    assert found["broken"] == {"ok": False, "error": found["broken"]["error"], "seconds": found["broken"]["seconds"]}
    assert found["broken"]["error"].startswith("ZeroDivisionError: ")
    printed = capsys.readouterr().out
    assert "ok     load" in printed and "FAILED broken" in printed


def test_a_library_that_crashes_is_a_failed_check() -> None:
    with pytest.raises(check.Failed, match="import os: ended with -11"):
        check.told("import os; os.kill(os.getpid(), 11)")


def test_the_library_of_the_driver_is_the_one_that_placement_asks() -> None:
    assert check.nvml is nvml
