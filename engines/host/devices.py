"""Which device a sidecar gets: an environment variable of its runtime hides all others from the process.

`cuda:N` means device N as the driver numbers it (`nvidia-smi -L`); the sidecar sees it as device 0. `cuda:0,1` gives it two. A GPU's UUID
stands for its number: `cuda:GPU-4f1c...`. Where the driver can be asked (extra `nvml`), it says which devices there are; otherwise their
files do, whose numbers differ in a container that sees some of a machine's GPUs. Vulkan also has devices without a file: Mesa's driver that
computes on the processor (lavapipe), whose number comes after those of GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.host import nvml
from engines.runtimes import DEVICE_VARIABLES
from gateway.core.errors import ConfigError

ORDER = {"cuda": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}
"""Makes CUDA number devices as NVML does, which measured their memory; by default CUDA puts the fastest first."""
_DRIVERS, _SOFTWARE = ("usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d", "etc/vulkan/icd.d"), "lvp_icd*.json"
"""Where Vulkan's loader finds drivers, and the description of the one for processors."""


@dataclass(frozen=True)
class Binding:
    """device: as the sidecar names it. environment: hides all other devices. fell_back: the wanted device does not exist here."""

    device: str
    environment: dict[str, str]
    fell_back: bool = False


def bind(
    device: str, fallback: str | None, engine: str, root: Path = Path("/"), variables: Mapping[str, str] = DEVICE_VARIABLES,
    library: Any = nvml.LIBRARY,
) -> Binding:  # fmt: skip
    """The binding for a configured device. variables: the runtime's, by kind of device. Raises ConfigError if the device does not exist
    and there is no fallback."""
    if device == "cpu":
        return Binding("cpu", dict.fromkeys(variables.values(), ""))
    kind, _, numbers = device.partition(":")
    missing = _missing(kind, numbers.split(",") if numbers else [], root, library)
    if not missing and kind != "metal" and kind not in variables:
        missing = f"its runtime cannot use {kind} devices"
    if not missing:
        if kind == "metal":
            return Binding("metal", {})
        count = len(numbers.split(","))
        return Binding(f"{kind}:" + ",".join(str(i) for i in range(count)), {variables[kind]: numbers, **ORDER.get(kind, {})})
    if fallback == "cpu":
        return Binding("cpu", dict.fromkeys(variables.values(), ""), fell_back=True)
    raise ConfigError(f"engine {engine!r}: {missing}; use a device of this machine, or 'fallback: cpu'")


def _missing(kind: str, names: list[str], root: Path, library: Any) -> str:
    """Which part of a wanted device this machine lacks, as a sentence; empty if nothing."""
    if kind == "metal":
        return "" if sys.platform == "darwin" else "there is no Metal device on this machine"
    if kind == "cuda":
        try:
            absent = nvml.absent(names, library)
            if not absent:
                return ""
            have = ", ".join(f"cuda:{n} is {uuid}" for n, uuid in enumerate(nvml.present(library))) or "none"
            return f"there is no device cuda:{absent[0]} on this machine (found: {have})"
        except nvml.Unknown:
            pass  # their files tell the numbers, but no UUIDs: CUDA itself refuses a wrong one
    found = _present(kind, root)
    absent = [name for name in names if (int(name) not in found if name.isdigit() else not found)]
    if not absent:
        return ""
    have = ", ".join(f"{kind}:{n}" for n in sorted(found)) or "none"
    return f"there is no device {kind}:{absent[0]} on this machine (found: {have})"


def _present(kind: str, root: Path) -> set[int]:
    """Numbers of the devices of a kind, from their drivers' device files."""
    if kind == "cuda":
        return {int(p.name[6:]) for p in (root / "dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()}
    count = len(list((root / "dev" / "dri").glob("renderD*")))
    if kind == "rocm" and not (root / "dev" / "kfd").exists():
        return set()
    if kind == "vulkan" and any(next((root / folder).glob(_SOFTWARE), None) for folder in _DRIVERS):
        count += 1
    return set(range(count))
