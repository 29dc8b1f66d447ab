"""Our change of llama.cpp's flash attention lists the cells that a token attends to and fetches ahead: it must not change a bit.

llama.cpp's own kernel passes over cells that are masked and takes the others in order. So a result with masked cells between must be, to
the last bit, that of the attended cells alone; and what masked cells hold must not matter. That no bit differs from an unchanged build is
shown by `scripts/check-flash-attention`, which makes both.
"""

from __future__ import annotations

import numpy
import pytest

from loadtests.llamacpp.flash_attention import Case, Kernel, case

KERNEL = Kernel()


def compact(whole: Case, token: int) -> Case:
    """One token of a case, with the cells that it attends to and no others."""
    seen = numpy.isfinite(whole.mask[token])
    return Case(whole.q[:, token : token + 1], whole.k[:, seen], whole.v[:, seen], whole.mask[token : token + 1, seen])


@pytest.mark.parametrize("cells", [1, 2, 4, 5, 6, 13, 64, 500])
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_masked_cells_change_no_bit(cells: int, width: int, share: float) -> None:
    whole = case(cells, cells=cells, tokens=3, width=width, share=share)
    result = KERNEL.attend(whole)
    for token in range(3):
        assert KERNEL.attend(compact(whole, token))[0].tobytes() == result[token].tobytes()


def test_what_masked_cells_hold_is_not_read() -> None:
    whole = case(7, cells=300, tokens=1, share=0.3)
    hidden = ~numpy.isfinite(whole.mask[0])
    k, v = whole.k.copy(), whole.v.copy()
    k[:, hidden] = v[:, hidden] = numpy.nan
    assert KERNEL.attend(Case(whole.q, k, v, whole.mask)).tobytes() == KERNEL.attend(whole).tobytes()


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_the_result_is_attention(tokens: int) -> None:
    """Against numpy in double precision, as near as half-precision keys and values allow."""
    each = case(11, cells=200, tokens=tokens, share=0.4)
    result = KERNEL.attend(each, threads=2)
    heads = each.q.shape[0]
    for head in range(heads):
        k, v = (part[head * part.shape[0] // heads].astype(numpy.float64) for part in (each.k, each.v))
        scores = each.q[head].astype(numpy.float64) @ k.T / 8 + each.mask.astype(numpy.float64)
        weights = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        wanted = weights @ v / weights.sum(axis=1, keepdims=True)
        assert numpy.abs(result[:, head] - wanted).max() < 5e-3
