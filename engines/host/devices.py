"""Which device a sidecar gets: the process sees only its own, by the variable its runtime reads.

`cuda:N` means physical device N; the sidecar sees it as device 0. `cuda:0,1` gives it two.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from gateway.core.errors import ConfigError

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "vulkan": "GGML_VK_VISIBLE_DEVICES"}
ORDER = {"cuda": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}
"""Makes CUDA count as NVML does, which measured the memory; by itself it puts the fastest first."""


@dataclass(frozen=True)
class Binding:
    """device: as the sidecar names it. environment: what makes the others invisible. fell_back: the wanted device is not there."""

    device: str
    environment: dict[str, str]
    fell_back: bool = False


def bind(device: str, fallback: str | None, engine: str, root: Path = Path("/")) -> Binding:
    """The binding for a configured device. Raises ConfigError when the device is not there and no fallback is allowed."""
    if device == "cpu":
        return Binding("cpu", dict.fromkeys(VISIBLE.values(), ""))
    kind, _, numbers = device.partition(":")
    missing = _missing(kind, [int(n) for n in numbers.split(",")] if numbers else [], root)
    if not missing:
        if kind == "metal":
            return Binding("metal", {})
        count = len(numbers.split(","))
        return Binding(f"{kind}:" + ",".join(str(i) for i in range(count)), {VISIBLE[kind]: numbers, **ORDER.get(kind, {})})
    if fallback == "cpu":
        return Binding("cpu", dict.fromkeys(VISIBLE.values(), ""), fell_back=True)
    raise ConfigError(f"engine {engine!r}: {missing}; use a device of this machine, or 'fallback: cpu'")


def _missing(kind: str, numbers: list[int], root: Path) -> str:
    """What of a wanted device is not on this machine, as a sentence; empty when all is there."""
    if kind == "metal":
        return "" if sys.platform == "darwin" else "there is no Metal device on this machine"
    found = _present(kind, root)
    absent = [n for n in numbers if n not in found]
    if not absent:
        return ""
    have = ", ".join(f"{kind}:{n}" for n in sorted(found)) or "none"
    return f"there is no device {kind}:{absent[0]} on this machine (found: {have})"


def _present(kind: str, root: Path) -> set[int]:
    """Numbers of the devices of a kind, from the device files that their drivers make."""
    if kind == "cuda":
        return {int(p.name[6:]) for p in (root / "dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()}
    count = len(list((root / "dev" / "dri").glob("renderD*")))
    if kind == "rocm" and not (root / "dev" / "kfd").exists():
        return set()
    return set(range(count))
