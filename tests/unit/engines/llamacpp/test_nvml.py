"""GPU figures, from a scripted driver."""

import os
from types import SimpleNamespace
from typing import Any

from engines.llamacpp.nvml import GpuUse, meter


class Driver:
    class NVMLError(Exception):
        pass

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.in_use = 50

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> Any:
        return 7

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if handle == 9:
            raise self.NVMLError
        if handle == 5:  # seen from a container: numbers of processes outside of it
            return [SimpleNamespace(pid=1, usedGpuMemory=5)]
        mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=100 + handle)
        return [mine, SimpleNamespace(pid=1, usedGpuMemory=5), SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if handle == 9:
            raise self.NVMLError
        return SimpleNamespace(free=1000 * (handle + 1), used=self.in_use)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle in (4, 9):
            raise self.NVMLError  # a MIG instance; a device that is gone
        return SimpleNamespace(gpu=10 * handle)


def read(device: str, visible: str | None = None) -> GpuUse:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = meter(device, environment, Driver())
    assert found is not None
    return found.read()


def test_only_this_process_counts_on_the_devices_it_sees() -> None:
    assert read("cuda:0", "3") == GpuUse(103, 4000, 0.3)
    assert read("cuda:0,1", "1,3") == GpuUse(204, 6000, 0.3)
    assert read("cuda:0", "GPU-uuid") == GpuUse(107, 8000, 0.7)
    assert read("cuda:2") == GpuUse(102, 3000, 0.2)


def test_what_the_driver_does_not_tell_takes_nothing_from_the_rest() -> None:
    assert read("cuda:4") == GpuUse(104, 5000, 0.0)


def test_in_a_container_what_was_taken_since_the_start_counts() -> None:
    driver = Driver()
    found = meter("cuda:5", {}, driver)
    assert found is not None and found.read() == GpuUse(0, 6000, 0.5)
    driver.in_use += 700
    assert found.read() == GpuUse(700, 6000, 0.5)


def test_no_figures_without_a_driver_or_on_other_devices() -> None:
    assert read("cuda:9") == GpuUse()
    assert meter("cpu", {}, Driver()) is None and meter("cuda:0", {}, None) is None and meter("cuda:0", {}, Driver(broken=True)) is None
