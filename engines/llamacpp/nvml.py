"""This process's use of its GPUs, from NVIDIA's management library (package nvidia-ml-py, extra `nvml`); nothing on other devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

try:
    import pynvml
except ImportError:  # the extra is not installed
    pynvml = None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Bytes this process holds on its devices, bytes free there, and the busiest device's utilisation (0 to 1). What a driver does not tell
    is 0, and the others count."""

    used: int = 0
    free: int = 0
    busy: float = 0.0


class GpuMeter:
    """Reads the figures of the devices that this process sees (`CUDA_VISIBLE_DEVICES`: numbers or UUIDs).

    The driver lists processes by their numbers outside of containers. Where none of them is this process, what it holds is how much more of
    the device is in use than when the meter was made, before the model was loaded: with other processes on the device an estimate.
    """

    def __init__(self, library: Any, handles: list[Any]) -> None:
        self._library = library
        self._handles = handles
        self._before = [self._in_use(handle)[0] for handle in handles]

    def read(self) -> GpuUse:
        """The present figures."""
        used = free = 0
        busy = 0.0
        for handle, before in zip(self._handles, self._before, strict=True):
            taken, left = self._in_use(handle)
            mine = self._mine(handle)
            used += max(0, taken - before) if mine is None else mine
            free += left
            busy = max(busy, self._busy(handle))
        return GpuUse(used, free, busy)

    def _in_use(self, handle: Any) -> tuple[int, int]:
        try:
            memory = self._library.nvmlDeviceGetMemoryInfo(handle)
        except self._library.NVMLError:
            return 0, 0
        return int(memory.used), int(memory.free)

    def _mine(self, handle: Any) -> int | None:
        """Bytes by the driver's list of processes; None where this one is not on it, or no figure is beside it."""
        try:
            processes = self._library.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._library.NVMLError:
            return None
        found = [process.usedGpuMemory for process in processes if process.pid == os.getpid() and process.usedGpuMemory is not None]
        return sum(found) if found else None

    def _busy(self, handle: Any) -> float:
        try:
            return float(self._library.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except self._library.NVMLError:  # not supported by MIG instances and some virtual GPUs
            return 0.0


def meter(device: str, environment: Mapping[str, str] | None = None, library: Any = pynvml) -> GpuMeter | None:
    """A meter for a `cuda:...` device, if library and driver are present."""
    if not device.startswith("cuda:") or library is None:
        return None
    visible = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",") if name.strip()] or device.removeprefix("cuda:").split(",")
    try:
        library.nvmlInit()
        handles = [
            library.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else library.nvmlDeviceGetHandleByUUID(name) for name in names
        ]
    except library.NVMLError:
        return None
    return GpuMeter(library, handles)
