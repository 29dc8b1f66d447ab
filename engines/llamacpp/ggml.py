"""The devices that llama.cpp's library, ggml, was built for and finds; their memory, whoever made them.

`python -m engines.llamacpp.ggml` prints the GPUs as one JSON line: `[[name, free bytes, all bytes], ...]`, in the order in which they are
shown to the process. Source: ggml-backend.h.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import llama_cpp
import msgspec

from engines.llamacpp.nvml import GpuUse

_GPU: Final = (1, 2)
"""GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU."""


class Device(NamedTuple):
    """A GPU; sizes in bytes. free: all of it where the driver does not tell."""

    name: str
    free: int
    total: int


def devices() -> Iterator[Device]:
    """The GPUs that this process sees; a driver's library is loaded for it."""
    llama_cpp.llama_backend_init()
    registry, base = _libraries()
    for number in range(registry.ggml_backend_dev_count()):
        device = ctypes.c_void_p(registry.ggml_backend_dev_get(ctypes.c_size_t(number)))
        if base.ggml_backend_dev_type(device) in _GPU:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            yield Device(base.ggml_backend_dev_name(device).decode("utf-8", "replace"), free.value, total.value)


@cache
def _libraries() -> tuple[Any, Any]:
    """ggml's libraries, which llama_cpp has loaded."""
    folder, suffix = Path(llama_cpp.__file__).parent / "lib", "dylib" if sys.platform == "darwin" else "so"
    registry, base = (ctypes.CDLL(str(folder / f"lib{name}.{suffix}")) for name in ("ggml", "ggml-base"))
    registry.ggml_backend_dev_count.restype = ctypes.c_size_t
    registry.ggml_backend_dev_get.restype = ctypes.c_void_p
    base.ggml_backend_dev_name.restype = ctypes.c_char_p
    return registry, base


class DeviceMeter:
    """What a process holds on its GPUs, by how much less is free than when this was made, before its model was loaded: an estimate where
    others use them too, and 0 where the driver does not tell what is free."""

    def __init__(self) -> None:
        self._before = self._free()

    def read(self) -> GpuUse:
        """The present figures."""
        free = self._free()
        return GpuUse(max(0, self._before - free), free)

    def _free(self) -> int:
        return sum(device.free for device in devices())


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(list(devices())).decode() + "\n")
