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
    """Bytes this process holds on its devices, bytes free there, and the busiest device's utilisation (0 to 1)."""

    used: int = 0
    free: int = 0
    busy: float = 0.0


class GpuMeter:
    """Reads the figures of the devices that this process sees (`CUDA_VISIBLE_DEVICES`: numbers or UUIDs)."""

    def __init__(self, library: Any, handles: list[Any]) -> None:
        self._library = library
        self._handles = handles

    def read(self) -> GpuUse:
        """The present figures; zeros if the driver does not answer."""
        used = free = 0
        busy = 0.0
        try:
            for handle in self._handles:
                for process in self._library.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.pid == os.getpid():
                        used += process.usedGpuMemory or 0
                free += self._library.nvmlDeviceGetMemoryInfo(handle).free
                busy = max(busy, self._library.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        except self._library.NVMLError:
            return GpuUse()
        return GpuUse(used, free, busy)


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
