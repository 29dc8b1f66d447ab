"""Tensors of safetensors files, mapped, not read: the header is checked before anything is believed.
The format: https://github.com/huggingface/safetensors (8 bytes of length, a header of JSON, then the tensors without holes).
Without numpy: the catalogue's inspector reads it, too."""

from __future__ import annotations

import json
import math
import mmap
import os
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from engines.convert.folder import Folder, Refused, weight

MOST_HEADER: Final = 100_000_000
"""Bytes, as the format's own library has it."""
MOST_TENSORS: Final = 200_000
MOST_DIMENSIONS: Final = 8
WIDTHS: Final = MappingProxyType(
    {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
     "F8_E4M3": 1, "F8_E5M2": 1}
)  # fmt: skip
READ: Final = MappingProxyType({"F32": "<f4", "F16": "<f2", "BF16": "<u2"})
"""Types that are converted, and how numpy reads them."""
INDEX: Final = "model.safetensors.index.json"
WHOLE: Final = "model.safetensors"


class Tensor(NamedTuple):
    """data: the mapped file. start: where its bytes begin there."""

    dtype: str
    shape: tuple[int, ...]
    data: mmap.mmap
    start: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def tensors(folder: Folder) -> dict[str, Tensor]:
    """All tensors of a folder by name, of one file or of those that its index names. Raises Refused."""
    index = folder.json(INDEX)
    if index is None:
        found = _part(folder, WHOLE)
        if found is None:
            raise Refused(f"there is neither {WHOLE} nor {INDEX}; other files of weights (.bin, .pt) are never read")
        return found
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(place, str) and place.endswith(".safetensors") for place in places.values()):
        raise Refused(f"{INDEX} has no weight_map from names to .safetensors files")
    found = {}
    for name in sorted(set(places.values())):
        part = _part(folder, name)
        if part is None:
            raise Refused(f"{name}, which {INDEX} names, is missing")
        for tensor in part:
            if places.get(tensor) != name:
                raise Refused(f"{name} has the tensor {tensor[:100]!r}, which {INDEX} places elsewhere")
        found.update(part)
    if missing := sorted(set(places) - set(found)):
        raise Refused(f"{places[missing[0]]} lacks the tensor {missing[0][:100]!r}")
    return found


def _part(folder: Folder, name: str) -> dict[str, Tensor] | None:
    if (descriptor := folder.open(name)) is None:
        return None
    try:
        size = os.fstat(descriptor).st_size
        if size < 10:
            raise Refused(f"{name} is not a safetensors file: it has {size} bytes")
        data = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    length = int.from_bytes(data[:8], "little")
    if length > min(MOST_HEADER, size - 8):
        raise Refused(f"{name} claims a header of {length} bytes; {min(MOST_HEADER, size - 8)} are possible")
    header = data[8 : 8 + length]
    folder.fits(f"the header of {name}", weight(header))
    return _checked(name, _header(name, header), data, 8 + length)


def _header(name: str, data: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise Refused(f"the header of {name} names something twice")
        return made

    try:
        header = json.loads(data.decode(), object_pairs_hook=once)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise Refused(f"the header of {name} is not JSON") from None
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise Refused(f"the header of {name} is not an object of at most {MOST_TENSORS} tensors")
    header.pop("__metadata__", None)
    return header


def _checked(name: str, header: dict[str, Any], data: mmap.mmap, base: int) -> dict[str, Tensor]:
    """Each tensor's bytes follow on those of the one before, from the header to the end of the file."""
    placed = []
    for tensor, entry in header.items():
        where = f"the tensor {tensor[:100]!r} of {name}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise Refused(f"{where} is not described by dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], _naturals(entry["shape"]), _naturals(entry["data_offsets"])
        if not isinstance(dtype, str) or dtype not in WIDTHS:
            raise Refused(f"{where} has the type {str(dtype)[:32]!r}; F32, F16 and BF16 are converted")
        if shape is None or len(shape) > MOST_DIMENSIONS or offsets is None or len(offsets) != 2:
            raise Refused(f"{where} has a shape or offsets that are not natural numbers")
        if offsets[1] - offsets[0] != math.prod(shape) * WIDTHS[dtype]:
            raise Refused(f"{where} has {offsets[1] - offsets[0]} bytes, which is not its shape")
        placed.append((offsets, tensor, Tensor(dtype, tuple(shape), data, base + offsets[0])))
    end = 0
    for (begin, stop), tensor, _ in sorted(placed, key=lambda one: one[0]):
        if begin != end:
            raise Refused(f"the tensor {tensor[:100]!r} of {name} begins at byte {begin} of the tensors; {end} was expected")
        end = stop
    if base + end != len(data):
        raise Refused(
            f"the tensors of {name} end {abs(len(data) - base - end)} bytes {'before' if base + end < len(data) else 'after'} its end"
        )
    return {tensor: made for _, tensor, made in placed}


def _naturals(value: Any) -> list[int] | None:
    fine = isinstance(value, list) and all(type(one) is int and 0 <= one < 1 << 62 for one in value)
    return value if fine else None
