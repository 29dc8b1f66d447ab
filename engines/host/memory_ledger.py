"""What memory engines have been promised: reads a model's metadata, asks how much is free, plans the placement, and notes the promise.

Engines start side by side, and one that is loading has not taken its memory yet. What it was promised is not free for the next one until
`release` says that it is ready (the device then reports the memory itself) or gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from engines.host.catalogue.scan import whole_folder
from engines.host.memory import device_free, device_overhead, host_free
from engines.host.placement import (
    DEVICE_OVERHEAD,
    MARGIN,
    InsufficientMemory,
    InvalidModel,
    Kept,
    Metadata,
    Plan,
    inspect,
    inspect_kept,
    mebibytes,
    plan,
    with_cache,
    with_window,
)
from engines.runtimes import RUNTIMES, Declared, FileSizes, Layers, RuntimeRow
from gateway.core.plugins import Table
from gateway.core.specs import EngineSpec

HOST = "host"
SMALLEST_EMBEDDING_BATCH = 512


class MemoryLedger:
    """Plans for all engines of a supervisor. look: (reader, path) -> metadata. devices, host: free bytes (`memory.py`); may block."""

    def __init__(
        self,
        look: Callable[[str, str], Awaitable[Metadata]] = inspect,
        devices: Callable[[str], list[int] | None] = device_free,
        host: Callable[[], int | None] = host_free,
        runtimes: Table[RuntimeRow] = RUNTIMES,
        overhead: Callable[[str], int] = device_overhead,
        kept: Callable[[str, str], Awaitable[Kept]] = inspect_kept,
    ) -> None:
        """overhead: bytes of each GPU that a process takes beside its model; may block. kept: (reader, path) -> what its slots keep."""
        self._kept = kept
        self._runtimes, self._overhead = runtimes, overhead
        self._look, self._devices, self._host = look, devices, host
        self._promised: dict[str, dict[str, int]] = {}
        self._seen: dict[str, tuple[tuple[Any, ...], int]] = {}
        """Settings of an engine's process, and the most main memory that it was seen to hold with them."""

    async def reserve(self, key: str, spec: EngineSpec, device: str, beside: Plan | None = None) -> Plan | None:
        """Plans an engine on a device of this machine (`cpu`, `cuda:0,1`) and promises the memory to `key` until it is released.

        beside: the plan of the running process to be replaced. The new one must fit beside it with as many layers on the device as it
        would get alone: squeezed into what is left, it would be slow for good.
        Returns None for models without layers to place (ONNX: it fits or not) and for files that the sidecar will refuse with a reason.
        Raises placement.InsufficientMemory, or OSError if no process can be started.
        """
        row = self._runtimes[spec.runtime]
        memory = row.memory
        if isinstance(memory, Declared):
            await self._fits(key, spec.options.get(memory.option) or self._was(spec, device), device, each=True)
            return None
        if spec.model is None:
            return None
        if isinstance(memory, FileSizes):
            await self._fits(key, await self._whole(memory, spec, row), device)
            return None
        try:
            metadata = await self._look(memory.reader, spec.model)
            name = memory.draft(spec.options)
            draft = await self._look(memory.reader, str(Path(spec.model).with_name(name))) if name is not None else None
        except InvalidModel:
            return None
        before = dict(self._promised)  # an engine that becomes ready while the devices are asked would otherwise be counted nowhere
        free, main = await asyncio.to_thread(self._measure, device)
        overhead = await asyncio.to_thread(self._overhead, device)
        promised = [held for name, held in {**before, **self._promised}.items() if name != key]
        models = (metadata, draft)
        made = _both(memory, models, spec, device, _left(free, _units(device), promised), _less(main, HOST, promised), overhead)
        if beside is not None and beside.device == device and free is not None:
            room = _left(_plus(free, beside), _units(device), promised)
            alone = _both(memory, models, spec, device, room, _less(main, HOST, promised), overhead)
            if made.gpu_layers < alone.gpu_layers:
                raise InsufficientMemory(device, alone.device_bytes, sum(_left(free, _units(device), promised) or ()))
        self._promised[key] = _promise(made)
        return made

    async def needs(self, spec: EngineSpec, device: str) -> tuple[int, int]:
        """Bytes of (main memory, the device) that an engine takes, whatever is free here; (0, 0) for a file that cannot be read. On the CPU
        the first holds the weights, too. Raises OSError."""
        row = self._runtimes[spec.runtime]
        memory = row.memory
        if isinstance(memory, Layers):
            try:
                metadata = await self._look(memory.reader, spec.model or "")
            except InvalidModel:
                return 0, 0
            made = _plan(memory, metadata, spec, device, None, None, DEVICE_OVERHEAD)
            return made.host_bytes, made.device_bytes
        found = await self._whole(memory, spec, row) if isinstance(memory, FileSizes) else 0
        return (found, 0) if device == "cpu" else (0, found)

    async def _whole(self, memory: FileSizes, spec: EngineSpec, row: RuntimeRow) -> int:
        """Bytes of an engine whose model is not divided. Raises OSError if no process can be started."""
        path = Path(spec.model or "")
        found = int(await asyncio.to_thread(_size, path, row) * memory.factor) + memory.overhead
        if memory.reader:
            try:
                kept = await self._kept(memory.reader, str(path))
            except InvalidModel:
                return found  # the sidecar says what is wrong with it
            found += kept.kv_bytes * min(spec.context, kept.context) * spec.start_slots
        return found

    async def _fits(self, key: str, needed: int, device: str, *, each: bool = False) -> None:
        """Reserves so many bytes, of all devices together or of each. Raises InsufficientMemory."""
        before = dict(self._promised)
        free, main = await asyncio.to_thread(self._measure, device)
        promised = [held for name, held in {**before, **self._promised}.items() if name != key]
        left, units = _left(free, _units(device), promised), _units(device)
        if device == "cpu":
            main = _less(main, HOST, promised)
            left, units = None if main is None else [main], [HOST]
        free_now = None if left is None else min(left) if each else sum(left)
        if needed and free_now is not None and needed > free_now * (1 - MARGIN):
            raise InsufficientMemory(device, needed, free_now)
        self._promised[key] = {unit: needed if each else needed // len(units) for unit in units}

    def seen(self, spec: EngineSpec, held: int) -> None:
        """Notes what main memory an engine's process holds, for its next start where nothing is declared."""
        settings, most = self._seen.get(spec.name, ((), 0))
        self._seen[spec.name] = (spec.process_settings, max(most, held) if settings == spec.process_settings else held)

    def _was(self, spec: EngineSpec, device: str) -> int:
        """Bytes that it took before, with the same settings; 0 if that is not known."""
        settings, most = self._seen.get(spec.name, ((), 0))
        return most if device == "cpu" and settings == spec.process_settings else 0

    def release(self, key: str) -> None:
        """Forgets a promise: the memory has been taken, or will not be."""
        self._promised.pop(key, None)

    def _measure(self, device: str) -> tuple[list[int] | None, int | None]:
        return (None if device == "cpu" else self._devices(device)), self._host()


def _size(model: Path, row: RuntimeRow) -> int:
    """Bytes of a model's file, or of its folder without other variants of the model (other precisions); 0 if it does not exist."""
    if not model.is_dir():
        return model.stat().st_size if model.is_file() else 0
    files = [file for file in model.rglob("*") if file.is_file()]
    whole = whole_folder(model, (file.name for file in files if file.parent == model), Table(RuntimeRow, (row,)))
    others = [str(file) for file in files if file.name.endswith(row.suffixes) and whole is not None and file != whole[1]]
    return sum(file.stat().st_size for file in files if not str(file).startswith(tuple(others)))


def _both(
    memory: Layers, models: tuple[Metadata, Metadata | None], spec: EngineSpec, device: str, free: list[int] | None, main: int | None,
    overhead: int,
) -> Plan:  # fmt: skip
    """The plan of a model, and of the draft model beside it, which takes its memory first: without it on the device there is no gain."""
    metadata, draft = models
    if draft is None:
        return _plan(memory, metadata, spec, device, free, main, overhead)
    micro_batch, _outputs, lines, _partial, unified = memory.step(spec.options, spec.start_slots, draft.architecture, device)
    small = plan(
        draft, device, None, spec.context, spec.start_slots, micro_batch=micro_batch, outputs=lines, lines=lines,
        flash=spec.options.get("flash_attention") != "off", unified=unified, overhead=0,
    )  # fmt: skip
    if free:
        free = [max(0, free[0] - small.device_bytes), *free[1:]]
    main = None if main is None else max(0, main - small.host_bytes)
    try:
        return _plan(memory, metadata, spec, device, free, main, overhead).beside(small)
    except InsufficientMemory as error:
        taken = small.host_bytes if error.device in ("cpu", "main memory") else small.device_bytes
        hint = f"{mebibytes(taken)} MiB of it for the draft model"
        raise InsufficientMemory(
            error.device, error.needed + taken, error.free + taken, f"{hint}; {error.hint}" if error.hint else hint
        ) from None


def _plan(
    memory: Layers, metadata: Metadata, spec: EngineSpec, device: str, free: list[int] | None, main: int | None, overhead: int
) -> Plan:  # fmt: skip
    options, context, slots = spec.options, spec.context, spec.start_slots
    micro_batch, outputs, lines, may_split, unified = memory.step(options, slots, metadata.architecture, device)
    metadata = with_cache(metadata, options.get("cache_type_k"), options.get("cache_type_v"))
    embeds = options.get("embeddings")
    if metadata.pooling > 0 if embeds is None else embeds:  # its memory holds one micro-batch, whatever the slots (llamacpp.app)
        context = micro_batch = outputs = max(min(context, metadata.context), SMALLEST_EMBEDDING_BATCH)
        slots, lines, unified = 1, 1, True
    elif options.get("swa_full") is False:
        metadata = with_window(metadata, context, slots, lines, micro_batch, unified=unified)
    flash = options.get("flash_attention") != "off"
    layers, partial = None, False
    if device == "cpu":
        free, main = (None if main is None else [main]), None
    else:
        layers, partial = _chosen(options, metadata), may_split
    return plan(
        metadata, device, free, context, slots, host_free=main, micro_batch=micro_batch, outputs=outputs, lines=lines, flash=flash,
        unified=unified, partial=partial, layers=layers, overhead=overhead,
    )  # fmt: skip


def _chosen(options: dict[str, Any], metadata: Metadata) -> int | None:
    """The number of layers that the operator wants on the device; -1 means all, as in llama.cpp."""
    layers = options.get("gpu_layers")
    if not isinstance(layers, int):
        return None
    return layers if layers >= 0 else metadata.layers + 1


def _units(device: str) -> list[str]:
    kind, _, numbers = device.partition(":")
    return [f"{kind}:{number}" for number in numbers.split(",")]


def _promise(made: Plan) -> dict[str, int]:
    """What the plan takes of each device. Weights in main memory are a mapped file, shared by engines and reclaimable: not counted."""
    if made.device == "cpu":
        return {HOST: max(0, made.host_bytes - made.weights_bytes)}
    units = _units(made.device)
    return dict(zip(units, made.on_each(len(units)), strict=True))


def _plus(free: list[int], beside: Plan) -> list[int]:
    """The free memory of each device without the process of this plan."""
    return [amount + held for amount, held in zip(free, beside.on_each(len(free)), strict=True)]


def _left(free: list[int] | None, units: list[str], promised: list[dict[str, int]]) -> list[int] | None:
    if free is None:
        return None
    return [max(0, amount - _held(unit, promised)) for amount, unit in zip(free, units, strict=True)]


def _less(free: int | None, unit: str, promised: list[dict[str, int]]) -> int | None:
    return None if free is None else max(0, free - _held(unit, promised))


def _held(unit: str, promised: list[dict[str, int]]) -> int:
    return sum(held.get(unit, 0) for held in promised)
