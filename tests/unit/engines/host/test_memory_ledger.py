"""What memory is promised to engines, and what is left for the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engines.host.memory_ledger import MemoryLedger
from engines.host.placement import InsufficientMemory, Kept, Metadata
from gateway.core.specs import EngineSpec
from tests.unit.engines.host.test_process_placement import MIB, MODEL


class TestPromises:
    """What is promised to an engine that loads is not free for the next."""

    @staticmethod
    def ledger(free: Callable[[str], list[int] | None], look: Callable[[str, str], Awaitable[Metadata]] | None = None) -> MemoryLedger:
        async def model(reader: str, path: str) -> Metadata:
            return MODEL

        return MemoryLedger(look or model, free, lambda: 10_000 * MIB)

    @staticmethod
    def spec(name: str = "e", **settings: Any) -> EngineSpec:
        options = {"allow_partial": True, **settings.pop("options", {})} if settings.get("runtime", "llama.cpp") == "llama.cpp" else {}
        return EngineSpec(
            **{"name": name, "runtime": "llama.cpp", "model": "m", "context": 512, "slots": 2, "options": options, **settings}
        )

    async def test_until_it_is_released(self) -> None:
        ledger = self.ledger(lambda device: [2100 * MIB])
        whole = await ledger.reserve("a", self.spec(), "cuda:0")
        part = await ledger.reserve("b", self.spec(), "cuda:0")
        other = await ledger.reserve("c", self.spec(), "cuda:1")
        ledger.release("a")
        ledger.release("b")
        again = await ledger.reserve("d", self.spec(), "cuda:0")
        layers = [made.gpu_layers if made else None for made in (whole, part, other, again)]
        assert layers[0] == layers[2] == layers[3] == 11 and layers[1] is not None and layers[1] < 11

    async def test_layers_stay_in_main_memory_only_where_the_engine_allows_it(self) -> None:
        ledger = self.ledger(lambda device: [800 * MIB])
        with pytest.raises(InsufficientMemory, match="allow_partial: true"):
            await ledger.reserve("a", self.spec(options={"allow_partial": False}), "cuda:0")
        made = await ledger.reserve("a", self.spec(), "cuda:0")
        assert made is not None and 0 < made.gpu_layers < 11

    async def test_each_device_is_promised_its_own_part(self) -> None:
        ledger = self.ledger(lambda device: [1000 * MIB, 3000 * MIB] if device == "cuda:0,1" else [2000 * MIB])
        both = await ledger.reserve("a", self.spec(), "cuda:0,1")
        assert both is not None and len(both.each) == 2
        with pytest.raises(InsufficientMemory) as caught:
            await ledger.reserve("b", self.spec(options={"allow_partial": False}), "cuda:1")
        assert caught.value.free == 2000 * MIB - both.each[1]

    async def test_the_logits_are_planned_as_the_sidecar_reserves_them(self) -> None:
        ledger = self.ledger(lambda device: None)
        small = await ledger.reserve("a", self.spec(), "cpu")
        more = await ledger.reserve("a", self.spec(options={"cached_lines": 62}), "cpu")
        assert small is not None and more is not None
        assert more.host_bytes - small.host_bytes == (64 - 34 + 64 - 4) * MODEL.vocabulary * 4, "rows of a step, and one for each line"
        guesses = await ledger.reserve("a", self.spec(options={"speculation": {"tokens": 64}}), "cpu")
        assert guesses is not None and guesses.host_bytes - small.host_bytes == (2 * 65 - 34) * MODEL.vocabulary * 4

    @pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:0,1"])
    async def test_a_draft_model_is_planned_beside_its_model_on_the_first_device(self, device: str) -> None:
        asked: list[str] = []

        async def look(reader: str, path: str) -> Metadata:
            asked.append(path)
            return MODEL

        free = [9000 * MIB] * (1 + device.count(","))
        ledger = self.ledger(lambda device: None if device == "cpu" else free, look)
        alone = await ledger.reserve("a", self.spec(model="/models/m.gguf"), device)
        options = {"speculation": {"draft": {"file": "d.gguf"}}}
        both = await ledger.reserve("a", self.spec(model="/models/m.gguf", options=options), device)
        assert alone is not None and both is not None and asked[1:] == ["/models/m.gguf", "/models/d.gguf"]
        assert both.weights_bytes == 2 * alone.weights_bytes and both.kv_bytes == 2 * alone.kv_bytes
        assert both.host_bytes > alone.host_bytes and sum(both.each) == (both.device_bytes if both.each else 0)
        if device == "cuda:0,1":
            assert both.split[0] < both.split[1] and both.each[0] <= 9000 * MIB

    async def test_a_model_that_fits_without_its_draft_model_alone_does_not_fit(self) -> None:
        ledger = self.ledger(lambda device: [2100 * MIB])
        spec = self.spec(options={"allow_partial": False})
        alone = await ledger.reserve("a", spec, "cuda:0")
        with pytest.raises(InsufficientMemory, match="MiB of it for the draft model") as caught:
            options = {"allow_partial": False, "speculation": {"draft": {"file": "d.gguf"}}}
            await ledger.reserve("a", self.spec(options=options), "cuda:0")
        assert alone is not None and caught.value.free == 2100 * MIB and caught.value.needed > alone.device_bytes

    async def test_each_line_is_planned_its_own_memory_where_they_share_none(self) -> None:
        ledger = self.ledger(lambda device: None)
        sizes = {}
        for device, options in (
            ("cpu", {}),
            ("cuda:0", {}),
            ("cuda:1", {"kv_unified": True}),
            ("cpu", {"kv_unified": False, "cached_lines": 3}),
        ):
            made = await ledger.reserve("a", self.spec(options=options), device)
            assert made is not None
            sizes[device, len(options)] = made.kv_bytes // (512 * 10 * 1024)
        assert sizes == {("cpu", 0): 2, ("cuda:0", 0): 2, ("cuda:1", 1): 2, ("cpu", 2): 5}, "in slots' worth"

    async def test_a_second_plan_of_the_same_engine_replaces_the_first(self) -> None:
        ledger = self.ledger(lambda device: [2100 * MIB])
        for _ in range(3):
            made = await ledger.reserve("a", self.spec(), "cuda:0")
            assert made is not None and made.gpu_layers == 11

    async def test_one_that_is_released_while_the_device_is_asked_counts_still(self) -> None:
        ledger = self.ledger(lambda device: (ledger.release("a"), [2100 * MIB])[1])
        await ledger.reserve("a", self.spec(), "cuda:0")
        made = await ledger.reserve("b", self.spec(), "cuda:0")
        assert made is not None and made.gpu_layers < 11

    async def test_an_embedding_model_needs_memory_for_one_micro_batch_only(self) -> None:
        ledger = self.ledger(lambda device: None)
        made = await ledger.reserve("a", self.spec(slots=64, options={"embeddings": True}), "cpu")
        assert made is not None and made.kv_bytes == 512 * 1024 * 10

    async def test_the_kv_memory_is_planned_by_its_types(self) -> None:
        ledger = self.ledger(lambda device: None)
        sizes = []
        for options in ({}, {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, {"cache_type_k": "q4_0", "cache_type_v": "q8_0"}):
            made = await ledger.reserve("a", self.spec(options=options), "cpu")
            assert made is not None
            sizes.append(made.kv_bytes)
        assert sizes[1] / sizes[0] == sizes[2] / sizes[0] == 34 / 64

    @pytest.mark.parametrize(("device", "slots", "cells"), [("cpu", 16, 16896), ("cuda:0", 16, 24576)])
    async def test_layers_that_keep_their_window_are_planned_so(self, device: str, slots: int, cells: int) -> None:
        """Half of the layers; 16 sequences of 4,096 tokens and windows of 1,024."""

        async def look(reader: str, path: str) -> Metadata:
            return structs.replace(MODEL, window=1024, windowed=(True, False) * 5)

        ledger = self.ledger(lambda device: None, look)
        sizes = []
        for options in ({"cached_lines": 0}, {"cached_lines": 0, "swa_full": False}):
            made = await ledger.reserve("a", self.spec(slots=slots, context=4096, options=options), device)
            assert made is not None
            sizes.append(made.kv_bytes)
        assert sizes[1] == sizes[0] // 2 + sizes[0] // 2 * cells // 65536

    async def test_an_onnx_model_is_only_measured(self) -> None:
        assert await self.ledger(lambda device: None).reserve("a", self.spec(runtime="onnx"), "cpu") is None

    @pytest.mark.parametrize(("device", "free"), [("cpu", None), ("cuda:0", [200 * MIB]), ("cuda:0,1", [100 * MIB, 100 * MIB])])
    async def test_an_onnx_model_takes_more_than_its_files(self, tmp_path: Path, device: str, free: list[int] | None) -> None:
        with (tmp_path / "model.onnx").open("wb") as file:
            file.truncate(80 * MIB)  # 80 x 1.5 + 64 = 184 MiB
        ledger = MemoryLedger(devices=lambda device: free, host=lambda: 200 * MIB)
        spec = self.spec(runtime="onnx", model=str(tmp_path))
        assert await ledger.reserve("a", spec, device) is None
        with pytest.raises(InsufficientMemory) as caught:
            await ledger.reserve("b", spec, device)
        assert caught.value.needed == 184 * MIB and caught.value.free in (16 * MIB, 200 * MIB - 184 * MIB)
        ledger.release("a")
        assert await ledger.reserve("b", spec, device) is None

    async def test_other_variants_in_an_onnx_models_folder_are_not_counted(self, tmp_path: Path) -> None:
        sizes = {"model.onnx": 8, "model.onnx_data": 32, "model_fp16.onnx": 400, "model_fp16.onnx_data": 800, "onnx/model_q4.onnx": 300}
        for name, size in sizes.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            with (tmp_path / name).open("wb") as file:
                file.truncate(size * MIB)
        ledger = MemoryLedger(host=lambda: 130 * MIB)
        with pytest.raises(InsufficientMemory) as caught:
            await ledger.reserve("a", self.spec(runtime="onnx", model=str(tmp_path)), "cpu")
        assert caught.value.needed == (8 + 32) * 3 // 2 * MIB + 64 * MIB

    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    async def test_a_genai_model_takes_the_keys_and_values_of_all_slots_beside_its_files(self, tmp_path: Path, device: str) -> None:
        (tmp_path / "genai_config.json").write_bytes(b"x" * 1024)
        asked: list[tuple[str, str]] = []

        async def kept(reader: str, path: str) -> Kept:
            asked.append((reader, path))
            return Kept(context=1000, kv_bytes=4096)

        files, held = 1536 + 128 * MIB, 4096 * 1000
        ledger = MemoryLedger(devices=lambda device: [140 * MIB], host=lambda: 140 * MIB, kept=kept)
        spec = self.spec(runtime="genai", model=str(tmp_path), context=4096, slots=1)
        assert await ledger.reserve("a", spec, device) is None
        needs = await ledger.needs(structs.replace(spec, slots=2, context=500), device)
        assert sum(needs) == files + held and needs[0] == (0 if device != "cpu" else files + held)
        ledger.release("a")
        with pytest.raises(InsufficientMemory) as caught:
            await ledger.reserve("a", structs.replace(spec, slots=3), device)
        assert caught.value.needed == files + 3 * held and asked == [("engines.genai.inspect", str(tmp_path))] * 3

    async def test_the_sidecar_says_what_is_wrong_with_a_genai_folder(self, tmp_path: Path) -> None:
        (tmp_path / "genai_config.json").write_text("{}")
        assert sum(await MemoryLedger(host=lambda: None).needs(self.spec(runtime="genai", model=str(tmp_path)), "cpu")) == 3 + 128 * MIB


class TestBeside:
    """A replacement must fit beside the process that runs, with as many layers as it would have alone."""

    async def test_it_is_not_squeezed_into_what_is_left(self) -> None:
        whole = await TestPromises.ledger(lambda device: [2100 * MIB]).reserve("old", TestPromises.spec(), "cuda:0")
        assert whole is not None and whole.gpu_layers == 11
        left = 2100 * MIB - whole.device_bytes
        ledger = TestPromises.ledger(lambda device: [left])
        with pytest.raises(InsufficientMemory) as caught:
            await ledger.reserve("new", TestPromises.spec(), "cuda:0", whole)
        assert (caught.value.needed, caught.value.free) == (whole.device_bytes, left)
        alone = await ledger.reserve("new", TestPromises.spec(), "cuda:0")
        assert alone is not None and 0 < alone.gpu_layers < 11, "where nothing is to be replaced, a part is better than nothing"

    async def test_it_may_be_where_there_is_room_for_both(self) -> None:
        ledger = TestPromises.ledger(lambda device: [5000 * MIB])
        old = await ledger.reserve("old", TestPromises.spec(), "cuda:0")
        ledger.release("old")
        new = await ledger.reserve("new", TestPromises.spec(), "cuda:0", old)
        assert new is not None and new.gpu_layers == 11

    async def test_another_device_is_another_matter(self) -> None:
        old = await TestPromises.ledger(lambda device: [2100 * MIB]).reserve("old", TestPromises.spec(), "cuda:0")
        new = await TestPromises.ledger(lambda device: [1000 * MIB]).reserve("new", TestPromises.spec(), "cuda:1", old)
        assert new is not None and 0 < new.gpu_layers < 11
