"""Values of one type to another, a piece at a time: the same rounding as llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engines.convert.folder import Refused
from engines.convert.safetensors import READ, Tensor

PIECE: Final = 4 * 1024 * 1024
"""Elements at a time."""


def blocks(tensor: Tensor, name: str, to: str, heads: int = 0, shift: bool = False) -> Iterator[npt.NDArray[Any]]:
    """The values of a tensor as a type of GGUF. heads: its rows are permuted, head by head. shift: 1 is added. Raises Refused for values
    that the type does not hold."""
    values = np.frombuffer(tensor.data, READ[tensor.dtype], tensor.elements, tensor.start).reshape(tensor.shape)  # BF16: its bits
    flat = (permuted(values, heads) if heads else values).reshape(-1)
    for start in range(0, flat.size, PIECE):
        yield _encoded(flat[start : start + PIECE], tensor.dtype, to, shift, name)


def permuted(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of a query's or key's projection as llama.cpp rotates them: pairs side by side, where Hugging Face has two halves."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _encoded(raw: npt.NDArray[Any], dtype: str, to: str, shift: bool, name: str) -> npt.NDArray[Any]:
    if dtype == to and not shift:
        return np.ascontiguousarray(raw)
    wide = (raw.astype("<u4") << np.uint32(16)).view("<f4") if dtype == "BF16" else raw
    if shift:
        wide = wide + wide.dtype.type(1)
    wide = wide.astype("<f4")
    if to == "F32":
        return wide
    if to == "BF16":
        bits = wide.view("<u4")
        quiet = np.where((bits & 0x7FFFFFFF) > 0x7F800000, (bits & np.uint32(0xFFFF0000)) | np.uint32(64 << 16), bits)
        rounded: npt.NDArray[Any] = ((quiet.astype("<u8") + 0x7FFF + ((quiet >> 16) & 1)) >> 16).astype("<u2")
        return rounded
    with np.errstate(over="ignore"):
        half = wide.astype("<f2")
    if (np.isinf(half) & ~np.isinf(wide)).any():
        raise Refused(f"{name} has values beyond {np.finfo('<f2').max:.0f}, which F16 does not hold: convert to BF16 or F32")
    return half
