"""Which layers have a sliding window, and the cells that they then take."""

from __future__ import annotations

import pytest

from engines.windows import window_cells, windowed


@pytest.mark.parametrize(
    ("architecture", "pattern", "expected"),
    [
        ("gemma2", None, (True, False, True, False)), ("gemma3", None, (True, True, True, True)), ("llama", None, ()),
        ("llama", 2, (True, False, True, False)), ("anything", [True, False, 1, 0, True], (True, False, True, False)),
        ("gemma2", [True], ()), ("gemma2", 1, ()),
    ],
)  # fmt: skip
def test_layers_with_a_window(architecture: str, pattern: int | list[object] | None, expected: tuple[bool, ...]) -> None:
    assert windowed(architecture, 4, pattern) == expected


@pytest.mark.parametrize(
    ("cells", "sequences", "micro_batch", "unified", "expected"),
    [(65536, 16, 512, True, 16896), (65536, 16, 512, False, 24576), (4096, 6, 64, True, 4096), (8192, 2, 128, False, 2560)],
)
def test_the_cells_are_those_that_llama_cpp_takes(cells: int, sequences: int, micro_batch: int, unified: bool, expected: int) -> None:
    """Read from its log with a window of 1,024 tokens."""
    assert window_cells(cells, 1024, sequences, micro_batch, unified=unified) == expected
