"""How much memory is free: on GPUs, through NVIDIA's management library (package nvidia-ml-py, extra `nvml`) or, where they are not
NVIDIA's, as llama.cpp's library sees them; and on this machine.

Sources: NVML's nvmlDeviceGetMemoryInfo; Linux's proc_meminfo(5) and Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.environment import inherited
from engines.host import nvml
from engines.host.placement import DEVICE_OVERHEAD, INSPECT_SECONDS
from engines.runtimes import DEVICE_READER, DEVICE_VARIABLES

HOPPER, HOPPER_OVERHEAD = 9, 608 * 1024 * 1024
"""Compute capability from which on, and bytes: an H100 takes 600 MiB for each process with a model, by scripts/gpu-check (driver 580, CUDA
13.0). Its context grows with the number of multiprocessors."""
_UNLIMITED = 1 << 60
"""Version 1 expresses "no limit" as a number near 2**63."""


def device_free(device: str, library: Any = nvml.LIBRARY) -> list[int] | None:
    """Free bytes of each GPU in a device name (`cuda:0,1`: two numbers; UUIDs as well); None if unknown. May block."""
    kind, _, names = device.partition(":")
    if kind in ("vulkan", "rocm"):
        return _as_seen(DEVICE_VARIABLES[kind], names)
    if kind != "cuda":
        return None
    try:
        with nvml.opened(library):
            return [int(library.nvmlDeviceGetMemoryInfo(nvml.handle(library, name)).free) for name in names.split(",")]
    except nvml.Unknown:
        return None


def _as_seen(variable: str, names: str) -> list[int] | None:
    """Free bytes of devices as a process sees them to which they alone are shown: one of its own, because drivers keep what they open."""
    command = (sys.executable, "-m", DEVICE_READER)
    environment = {**inherited(os.environ), variable: names}
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSPECT_SECONDS, check=True)
        found = [int(free) for _name, free, _total in json.loads(done.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None
    return found if len(found) == len(names.split(",")) else None


def device_overhead(device: str, library: Any = nvml.LIBRARY) -> int:
    """Bytes that a process takes of each of its GPUs beside what it keeps there. May block."""
    kind, _, names = device.partition(":")
    if kind != "cuda":
        return DEVICE_OVERHEAD
    try:
        with nvml.opened(library):
            majors = [library.nvmlDeviceGetCudaComputeCapability(nvml.handle(library, name))[0] for name in names.split(",")]
    except nvml.Unknown:
        return DEVICE_OVERHEAD
    return HOPPER_OVERHEAD if max(majors) >= HOPPER else DEVICE_OVERHEAD


def host_free(root: Path = Path("/")) -> int | None:
    """Bytes of main memory available without swapping, within the limits of this process's control groups; None if the system does not
    tell."""
    free = _meminfo(root / "proc" / "meminfo")
    if free is None:
        return None
    return min([free, *_group_room(root)])


def _meminfo(path: Path) -> int | None:
    return _field(path, "MemAvailable:", 1024)


def _group_room(root: Path) -> Iterator[int]:
    """The room in this process's control group and each one above it: the limit less what it holds and cannot give back."""
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        path = mount / group.strip("/")
        for directory in (path, *path.parents):
            if (room := _room(directory, *names)) is not None:
                yield room
            if directory == mount:
                break


def _room(directory: Path, limit_file: str, usage_file: str, prefix: str) -> int | None:
    limit, usage = _text(directory / limit_file).strip(), _text(directory / usage_file).strip()
    if not (limit.isdigit() and usage.isdigit()) or int(limit) >= _UNLIMITED:
        return None
    cached = sum(_field(directory / "memory.stat", f"{prefix}{kind}_file", 1) or 0 for kind in ("active", "inactive"))
    return max(0, int(limit) - max(0, int(usage) - cached))


def _field(path: Path, name: str, unit: int) -> int | None:
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1]) * unit
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
