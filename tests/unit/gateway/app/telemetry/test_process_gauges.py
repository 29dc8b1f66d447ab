"""What a process says of itself."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.core import Metric

from gateway.app.telemetry.process_gauges import FILES_SECONDS, MachineGauges, ProcessGauges
from gateway.pipeline.plane import SWEEP_SECONDS, DataPlane
from gateway.telemetry.metrics import Metrics


def collected(gauges: ProcessGauges) -> dict[str, Metric]:
    return {metric.name: metric for metric in gauges.collect()}


def test_this_process_is_described() -> None:
    found = collected(ProcessGauges(DataPlane(Metrics()), "control"))
    assert found["gatehouse_resident_bytes"].samples[0].labels == {"process": "control"}
    assert found["gatehouse_resident_bytes"].samples[0].value > 1 << 20
    assert found["gatehouse_open_files"].samples[0].value >= 3
    assert found["gatehouse_cpu_seconds"].samples[0].value > 0


def test_a_sweep_that_comes_late_is_lag(tmp_path: Path) -> None:
    plane, now = DataPlane(Metrics()), [10.0]
    gauges = ProcessGauges(plane, "control", clock=lambda: now[0])
    for late in (0.0, 0.3):
        plane.sweep()
        now[0] += SWEEP_SECONDS + late
    plane.sweep()
    [lag] = [metric for name, metric in collected(gauges).items() if name == "gatehouse_loop_lag_seconds"]
    buckets = {sample.labels.get("le"): sample.value for sample in lag.samples if sample.name.endswith("_bucket")}
    assert (buckets["0.001"], buckets["0.25"], buckets["0.5"]) == (1.0, 1.0, 2.0)


def test_open_files_are_not_counted_at_every_scrape(tmp_path: Path) -> None:
    (tmp_path / "fd").mkdir()
    (tmp_path / "statm").write_text("100 7 1")
    now = [0.0]
    gauges = ProcessGauges(DataPlane(Metrics()), "w1", tmp_path, lambda: now[0])
    assert collected(gauges)["gatehouse_open_files"].samples[0].value == 0
    (tmp_path / "fd" / "3").touch()
    assert collected(gauges)["gatehouse_open_files"].samples[0].value == 0
    now[0] = FILES_SECONDS
    assert collected(gauges)["gatehouse_open_files"].samples[0].value == 1


def test_without_proc_there_is_the_lag_alone(tmp_path: Path) -> None:
    found = collected(ProcessGauges(DataPlane(Metrics()), "control", tmp_path / "none"))
    disk = {"gatehouse_disk_read_bytes", "gatehouse_disk_written_bytes"}
    assert set(found) == {"gatehouse_loop_lag_seconds", "gatehouse_cpu_seconds", *disk}


def test_the_disk_figures_need_no_file_of_a_hidden_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(ru_inblock=8, ru_oublock=16)
    monkeypatch.setattr("resource.getrusage", lambda _: usage)
    found = collected(ProcessGauges(DataPlane(Metrics()), "control", tmp_path))
    assert (found["gatehouse_disk_read_bytes"].samples[0].value, found["gatehouse_disk_written_bytes"].samples[0].value) == (4096, 8192)


def test_the_network_is_that_of_proc(tmp_path: Path) -> None:
    (tmp_path / "self/net").mkdir(parents=True)
    line = "  {}: {} 0 0 0 0 0 0 0 {} 0 0 0 0 0 0 0\n"
    (tmp_path / "self/net/dev").write_text("a\nb\n" + line.format("lo", 7, 7) + line.format("eth0", 100, 30) + line.format("eth1", 11, 3))
    machine = {metric.name: metric.samples[0].value for metric in MachineGauges(tmp_path, tmp_path, tmp_path).collect()}
    assert (machine["gatehouse_network_received_bytes"], machine["gatehouse_network_sent_bytes"]) == (111, 33)
    assert 0 < machine["gatehouse_disk_free_bytes"] <= machine["gatehouse_disk_size_bytes"]


def test_what_an_interface_carried_stays_counted_when_it_is_gone_or_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "self/net").mkdir(parents=True)
    gauges = MachineGauges(tmp_path, tmp_path, tmp_path)

    def carried(**interfaces: int) -> float:
        lines = [f"  {name}: {count} 0 0 0 0 0 0 0 {2 * count} 0 0 0 0 0 0 0\n" for name, count in interfaces.items()]
        (tmp_path / "self/net/dev").write_text("a\nb\n" + "".join(lines))
        found = {metric.name: metric.samples[0].value for metric in gauges.collect()}
        assert found["gatehouse_network_sent_bytes"] == 2 * found["gatehouse_network_received_bytes"]
        return found["gatehouse_network_received_bytes"]

    assert carried(eth0=100, veth1=50) == 150
    assert carried(eth0=110) == 160  # a container has ended
    assert carried(eth0=110, veth1=5) == 165
    assert carried(eth0=120, veth1=2) == 177
    assert carried() == 177


def test_a_state_directory_that_is_gone_does_not_end_a_scrape(tmp_path: Path) -> None:
    assert list(MachineGauges(tmp_path / "gone", tmp_path / "gone", tmp_path).collect()) == []


def test_an_audit_log_on_a_disk_of_its_own_is_watched_too(tmp_path: Path) -> None:
    def disks(audit: Path) -> dict[str, float]:
        found = {metric.name: metric for metric in MachineGauges(tmp_path, audit, tmp_path).collect()}["gatehouse_disk_size_bytes"]
        return {sample.labels["disk"]: sample.value for sample in found.samples}

    (tmp_path / "audit").mkdir()
    assert set(disks(tmp_path / "audit")) == set(disks(tmp_path / "gone")) == {"state"}
    proc = os.statvfs("/proc")
    assert disks(Path("/proc"))["audit"] == proc.f_blocks * proc.f_frsize
