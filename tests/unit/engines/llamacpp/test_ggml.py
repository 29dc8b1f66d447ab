"""Devices as ggml tells them: its library, and one that plays a machine with a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engines.llamacpp import ggml
from engines.llamacpp.nvml import GpuUse


def test_the_library_tells_no_gpu_where_it_was_built_without() -> None:
    assert list(ggml.devices()) == []
    assert ggml.DeviceMeter().read() == GpuUse(0, 0, 0.0)


def test_gpus_and_what_a_process_holds_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [700, 500, 90]

    def memory(device: Any, left: Any, total: Any) -> None:
        left._obj.value, total._obj.value = free[(device.value or 0) - 1], 1000

    registry = SimpleNamespace(ggml_backend_dev_count=lambda: 3, ggml_backend_dev_get=lambda number: number.value + 1)
    base = SimpleNamespace(
        ggml_backend_dev_type=lambda device: {1: 1, 2: 2, 3: 0}[device.value],
        ggml_backend_dev_name=lambda device: f"Vulkan{device.value - 1}".encode(),
        ggml_backend_dev_memory=memory,
    )
    monkeypatch.setattr(ggml, "_libraries", lambda: (registry, base))
    assert list(ggml.devices()) == [("Vulkan0", 700, 1000), ("Vulkan1", 500, 1000)]
    meter = ggml.DeviceMeter()
    free[:] = 600, 550, 0
    assert meter.read() == GpuUse(50, 1150)
