"""Where layers go, from a file's figures and free memory."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.host.placement import DEVICE_OVERHEAD, InsufficientMemory, InvalidModel, Metadata, inspect, need, plan
from loadtests.llamacpp.random_gguf import Shape, write

MIB = 1024 * 1024
MODEL = Metadata(
    architecture="llama", quantisation="Q8_0", parameters=10**9, layers=10, width=1024, context=4096, vocabulary=32000, has_template=True,
    weights=1200 * MIB, layer_sizes=(100 * MIB,) * 10, input_size=100 * MIB, output_size=100 * MIB, kv_per_token=(1024,) * 10,
)  # fmt: skip
KV_LAYER = 2048 * 8 * 1024


def test_a_model_that_fits_is_offloaded_whole() -> None:
    result = plan(MODEL, "cuda:0", 4000 * MIB, 2048, 8)
    assert result.gpu_layers == result.layers == 11 and result.options() == {"gpu_layers": 11}
    assert result.device_bytes >= 10 * (100 * MIB + KV_LAYER) + 100 * MIB + DEVICE_OVERHEAD
    assert result.report()["gpu_layers"] == 11


def test_as_many_layers_as_fit() -> None:
    result = plan(MODEL, "cuda:0", 900 * MIB, 2048, 8)
    assert 0 < result.gpu_layers < 10
    assert need(MODEL, result.gpu_layers, cells=16384, micro_batch=512, sequences=8).device <= 900 * MIB * 0.95
    assert need(MODEL, result.gpu_layers + 1, cells=16384, micro_batch=512, sequences=8).device > 900 * MIB * 0.95
    with pytest.raises(InsufficientMemory) as caught:
        plan(MODEL, "cuda:0", 900 * MIB, 2048, 8, partial=False)
    assert caught.value.needed > caught.value.free == 900 * MIB and "cuda:0" in str(caught.value)


def test_a_device_without_room_for_one_layer_is_refused() -> None:
    with pytest.raises(InsufficientMemory):
        plan(MODEL, "cuda:0", 100 * MIB, 2048, 8)


def test_main_memory_is_checked_too() -> None:
    assert plan(MODEL, "cpu", 2000 * MIB, 2048, 8).options() == {"gpu_layers": 0}
    with pytest.raises(InsufficientMemory, match="cpu"):
        plan(MODEL, "cpu", 1200 * MIB, 2048, 8)
    with pytest.raises(InsufficientMemory, match="main memory"):
        plan(MODEL, "cuda:0", 900 * MIB, 2048, 8, host_free=100 * MIB)


def test_several_devices_share_by_their_free_memory() -> None:
    result = plan(MODEL, "cuda:0,1", [1000 * MIB, 3000 * MIB], 2048, 8)
    assert result.gpu_layers == 11 and result.options()["tensor_split"] == [0.25, 0.75]


def test_the_context_is_never_longer_than_the_models() -> None:
    assert plan(MODEL, "cpu", 10**10, 10**6, 1).context == 4096


@given(st.integers(0, 3000), st.integers(64, 4096), st.integers(1, 16))
def test_more_memory_never_means_fewer_layers(free: int, context: int, slots: int) -> None:
    def layers(size: int) -> int:
        try:
            return plan(MODEL, "cuda:0", size * MIB, context, slots).gpu_layers
        except InsufficientMemory:
            return 0

    assert layers(free) <= layers(free + 50)


async def test_a_file_is_inspected_in_its_own_process(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", Shape())
    data = await inspect("engines.llamacpp.gguf", str(path))
    assert data.layers == 2 and plan(data, "cpu", 10**9, 512, 2).host_bytes > 0
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(InvalidModel, match="truncated"):
        await inspect("engines.llamacpp.gguf", str(path))
    with pytest.raises(InvalidModel, match="No such file"):
        await asyncio.wait_for(inspect("engines.llamacpp.gguf", str(tmp_path / "none")), 30)
