"""Free memory, from the files of a made-up machine and a driver that plays a script."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.host import memory
from engines.host.memory import HOPPER_OVERHEAD, device_free, device_overhead, host_free
from engines.host.placement import DEVICE_OVERHEAD

GIB = 1024**3


def machine(root: Path, **files: str) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable:    8388608 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group(directory: str, limit: str, usage: int, active: int = 0, inactive: int = 0) -> dict[str, str]:
    return {
        f"{directory}/memory.max": f"{limit}\n",
        f"{directory}/memory.current": f"{usage}\n",
        f"{directory}/memory.stat": f"anon 1\nactive_file {active}\ninactive_file {inactive}\n",
    }


def test_what_the_kernel_says_is_available(tmp_path: Path) -> None:
    assert host_free(machine(tmp_path)) == 8 * GIB


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert host_free(tmp_path) is None


def test_the_limit_of_a_container_less_what_it_cannot_give_back(tmp_path: Path) -> None:
    files = group("sys/fs/cgroup", str(4 * GIB), 3 * GIB, active=GIB // 2, inactive=GIB // 2)
    assert host_free(machine(tmp_path, **files, **{"proc/self/cgroup": "0::/\n"})) == 2 * GIB


def test_the_narrowest_group_above_the_process_counts(tmp_path: Path) -> None:
    files = (
        group("sys/fs/cgroup/system.slice", str(6 * GIB), 5 * GIB)
        | group("sys/fs/cgroup/system.slice/gatehouse.service", "max", GIB)
        | group("sys/fs/cgroup/system.slice/other.service", "1", 1)
    )
    assert host_free(machine(tmp_path, **files, **{"proc/self/cgroup": "0::/system.slice/gatehouse.service\n"})) == GIB


def test_a_group_beyond_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = group("sys/fs/cgroup", str(GIB), 2 * GIB)
    assert host_free(machine(tmp_path, **files, **{"proc/self/cgroup": "0::/\n"})) == 0


@pytest.mark.parametrize(("limit", "free"), [(3 * GIB, 2 * GIB), (9223372036854771712, 8 * GIB)])
def test_version_1_of_control_groups(tmp_path: Path, limit: int, free: int) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/ab\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(limit),  # a container sees its own group as the root
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/memory.stat": f"active_file 7\ntotal_active_file {GIB // 2}\ntotal_inactive_file {GIB // 2}\n",
    }
    assert host_free(machine(tmp_path, **files)) == free


class Driver:
    """The functions of pynvml that are used."""

    class NVMLError(Exception):
        pass

    def __init__(self, *free: int) -> None:
        self.free = free
        self.opened = 0

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.free):
            raise self.NVMLError("not found")
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(free=self.free[handle])

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return ((8, 9), (9, 0), (10, 3))[handle]


def test_what_a_process_takes_of_a_gpu_beside_its_model() -> None:
    driver = Driver(10, 20, 30)
    found = [device_overhead(device, driver) for device in ("cuda:0", "cuda:1", "cuda:0,2", "cuda:7", "cpu", "rocm:0")]
    assert found == [DEVICE_OVERHEAD, HOPPER_OVERHEAD, HOPPER_OVERHEAD, DEVICE_OVERHEAD, DEVICE_OVERHEAD, DEVICE_OVERHEAD]
    assert device_overhead("cuda:1", None) == DEVICE_OVERHEAD and driver.opened == 0


def test_each_gpu_that_is_named() -> None:
    driver = Driver(10, 20, 30)
    assert device_free("cuda:0", driver) == [10]
    assert device_free("cuda:2,0", driver) == [30, 10]
    assert driver.opened == 0


def test_nobody_can_say() -> None:
    driver = Driver(10)
    assert device_free("cuda:0", None) is None
    assert device_free("cuda:4", driver) is None
    assert device_free("rocm:0", driver) is device_free("metal", driver) is None
    assert driver.opened == 0


def test_what_vulkan_and_rocm_devices_have_free_is_asked_of_a_process_that_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "playing.py").write_text(
        "import json, os\nnames = os.environ['GGML_VK_VISIBLE_DEVICES']\nassert 'SECRET' not in os.environ\n"
        "print(json.dumps([[f'Vulkan{n}', 5 * int(n), 90] for n in names.split(',') if n != '7']))"
    )
    monkeypatch.setattr(memory, "DEVICE_READER", "playing")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SECRET", "x")
    assert device_free("vulkan:2,1") == [10, 5]
    assert device_free("vulkan:7") is None
    assert device_free("rocm:0") is None, "the process ended with an error"
