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
        mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=100 + handle)
        return [mine, SimpleNamespace(pid=1, usedGpuMemory=5), SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(free=1000 * (handle + 1))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
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


def test_no_figures_without_a_driver_or_on_other_devices() -> None:
    assert read("cuda:9") == GpuUse()
    assert meter("cpu", {}, Driver()) is None and meter("cuda:0", {}, None) is None and meter("cuda:0", {}, Driver(broken=True)) is None
