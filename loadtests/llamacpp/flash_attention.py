"""Flash attention of one build of ggml's CPU library, called directly: the bits of its results over many shapes.

    python -m loadtests.llamacpp.flash_attention [--library DIRECTORY]

Prints a line of JSON: a SHA-256 over all results, and how many there were. Two builds with the same instruction sets that print the same
line compute the same to the last bit. `scripts/check-flash-attention` makes them: as llama.cpp's authors publish it, and with our change.
DIRECTORY holds `libggml-base.so` and `libggml-cpu.so`; by default, that of the installed llama-cpp-python.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray

F32, F16 = 0, 1
ARENA = 64 * 1024 * 1024
Floats = NDArray[numpy.float32]
Halves = NDArray[numpy.float16]


@dataclass(frozen=True)
class Case:
    """One call. mask: (tokens, cells), -inf where a token does not attend to a cell."""

    q: Floats
    """(heads, tokens, width)"""
    k: Halves
    """(kv heads, cells, width)"""
    v: Halves
    mask: Halves


class _Arena(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Kernel:
    """ggml's functions of one build. Several builds can be loaded at once."""

    def __init__(self, directory: Path | None = None) -> None:
        directory = directory or _installed()
        self._base = ctypes.CDLL(str(_library(directory, "libggml-base")), mode=ctypes.RTLD_GLOBAL if directory == _installed() else 0)
        self._cpu = ctypes.CDLL(str(_library(directory, "libggml-cpu")))
        base, cpu, pointer = self._base, self._cpu, ctypes.c_void_p
        base.ggml_init.argtypes, base.ggml_init.restype = [_Arena], pointer
        base.ggml_free.argtypes = [pointer]
        base.ggml_new_tensor_4d.argtypes, base.ggml_new_tensor_4d.restype = [pointer, ctypes.c_int, *[ctypes.c_int64] * 4], pointer
        base.ggml_get_data.argtypes, base.ggml_get_data.restype = [pointer], pointer
        base.ggml_new_graph.argtypes, base.ggml_new_graph.restype = [pointer], pointer
        base.ggml_build_forward_expand.argtypes = [pointer, pointer]
        attention = base.ggml_flash_attn_ext
        attention.argtypes, attention.restype = [*[pointer] * 5, *[ctypes.c_float] * 3], pointer
        cpu.ggml_graph_compute_with_ctx.argtypes, cpu.ggml_graph_compute_with_ctx.restype = [pointer, pointer, ctypes.c_int], ctypes.c_int

    def attend(self, case: Case, threads: int = 1) -> Floats:
        """(tokens, heads, width) of the result."""
        arena = self._base.ggml_init(_Arena(ARENA, None, False))
        try:
            q, k, v, mask = (self._tensor(arena, part) for part in (case.q, case.k, case.v, case.mask[None]))
            heads, tokens, width = case.q.shape
            result = self._base.ggml_flash_attn_ext(arena, q, k, v, mask, width**-0.5, 0.0, 0.0)
            graph = self._base.ggml_new_graph(arena)
            self._base.ggml_build_forward_expand(graph, result)
            if self._cpu.ggml_graph_compute_with_ctx(arena, graph, threads) != 0:
                raise RuntimeError("ggml could not compute the graph")
            data = ctypes.cast(self._base.ggml_get_data(result), ctypes.POINTER(ctypes.c_float))
            return numpy.ctypeslib.as_array(data, shape=(tokens, heads, width)).copy()
        finally:
            self._base.ggml_free(arena)

    def _tensor(self, arena: int, values: Floats | Halves) -> int:
        kind = F32 if values.dtype == numpy.float32 else F16
        tensor: int = self._base.ggml_new_tensor_4d(arena, kind, values.shape[2], values.shape[1], values.shape[0], 1)
        data = numpy.ascontiguousarray(values)
        ctypes.memmove(self._base.ggml_get_data(tensor), data.ctypes.data, data.nbytes)
        return tensor


def _installed() -> Path:
    found = importlib.util.find_spec("llama_cpp")
    if found is None or found.origin is None:
        raise RuntimeError("llama-cpp-python is not installed")
    return Path(found.origin).parent / "lib"


def _library(directory: Path, name: str) -> Path:
    return next(path for path in sorted(directory.glob(f"{name}.*")) if path.suffix in (".so", ".dylib"))


def case(seed: int, *, cells: int, tokens: int, heads: int = 4, kv_heads: int = 2, width: int = 64, share: float = 0.3) -> Case:
    """Random values; each token attends to a random `share` of the cells, to one at least, with a bias at some of them."""
    generator = numpy.random.default_rng(seed)
    q = generator.standard_normal((heads, tokens, width), numpy.float32)
    k, v = (generator.standard_normal((kv_heads, cells, width), numpy.float32).astype(numpy.float16) for _ in range(2))
    seen = generator.random((tokens, cells)) < share
    seen[numpy.arange(tokens), generator.integers(0, cells, tokens)] = True
    bias = numpy.where(generator.random((tokens, cells)) < 0.2, -1.5, 0.0)
    return Case(q, k, v, numpy.where(seen, bias, -numpy.inf).astype(numpy.float16))


def cases() -> Iterator[Case]:
    """Few and many tokens, memories shorter and longer than what is fetched ahead, narrow and wide heads, dense and sparse."""
    for seed, cells in enumerate((1, 2, 3, 5, 8, 31, 64, 257, 1024)):
        for tokens in (1, 2, 3, 7, 16):
            for width in (32, 64, 128):
                for share in (0.02, 0.3, 1.0):
                    yield case(seed, cells=cells, tokens=tokens, width=width, share=share)


def digest(kernel: Kernel) -> tuple[str, int]:
    """SHA-256 over the results of all cases, some of them with two threads as well; and how many."""
    whole, count = hashlib.sha256(), 0
    for each in cases():
        for threads in (1, 2) if each.q.shape[1] == 7 else (1,):
            whole.update(kernel.attend(each, threads).tobytes())
            count += 1
    return whole.hexdigest(), count


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="folder of libggml-base.so and libggml-cpu.so")
    found, count = digest(Kernel(parser.parse_args().library))
    print(json.dumps({"sha256": found, "results": count}))


if __name__ == "__main__":
    main()
