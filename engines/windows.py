"""Sliding windows: which layers of a model look at the last tokens only, and how many cells their KV memory then needs.

The patterns are those that llama.cpp gives an architecture whose file has none (`load_swa_pattern`); an architecture that is not here is
planned as if all its layers looked at everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PERIODS: Final[dict[str, int]] = {"cohere2": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "olmo2": 4}
"""Architecture -> of so many layers in a row, all but the last have the window."""
DEFAULT_WINDOWS: Final[dict[str, int]] = {"gemma2": 4096}
_PADDED_TO: Final = 256


def windowed(architecture: str, layers: int, pattern: object) -> tuple[bool, ...]:
    """For each layer whether it has the window; none where nothing is known. pattern: the file's own, a period or one value a layer."""
    if isinstance(pattern, Sequence) and not isinstance(pattern, str):
        return tuple(bool(one) for one in pattern[:layers]) if len(pattern) >= layers else ()
    period = (pattern if isinstance(pattern, int) else 0) or PERIODS.get(architecture, 0)
    return tuple(layer % period < period - 1 for layer in range(layers)) if period > 1 else ()


def window_cells(cells: int, window: int, sequences: int, micro_batch: int, *, unified: bool) -> int:
    """Cells of the KV memory of a layer with a window of so many tokens, where `cells` are those of a layer without
    (llama.cpp's `llama_kv_cache_iswa`). unified: all sequences share the cells; else each has its share of them."""
    shares = 1 if unified else max(sequences, 1)
    each = min(cells // shares, window * (sequences if unified else 1) + micro_batch)
    return min(cells, shares * -(-each // _PADDED_TO) * _PADDED_TO)
