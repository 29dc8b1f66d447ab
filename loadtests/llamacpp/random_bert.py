"""Writes a small BERT cross-encoder with random weights as GGUF: pooling `rank`, one score for a pair of texts.

Its scores mean nothing; tokens, separator, pooling and head are those of a real reranker (bge-reranker and its kin).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.llamacpp.random_gguf import CONTROL, F32, NORMAL, write

WORDS = ("the", "fox", "jumps", "over", "dog", "red", "blue", "sky", "is", "what", "colour", "of", "sea", "bread", "oven", "bake")


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    feed_forward: int = 128
    context: int = 256


def vocabulary() -> list[str]:
    """Special tokens, words as they start (llama.cpp marks that by an underline), letters as they start and as they go on."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"▁{word}" for word in WORDS), *(f"▁{one}" for one in letters), *letters]


def metadata(shape: Shape) -> dict[str, Any]:
    """Key-values of the file."""
    tokens = vocabulary()
    return {
        "general.architecture": "bert", "general.name": "random reranker", "bert.block_count": shape.layers,
        "bert.context_length": shape.context, "bert.embedding_length": shape.width, "bert.feed_forward_length": shape.feed_forward,
        "bert.attention.head_count": shape.heads, "bert.attention.layer_norm_epsilon": 1e-12, "bert.attention.causal": False,
        "bert.pooling_type": 4, "tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "jina-v1-en", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token.startswith("[") else NORMAL for token in tokens],
        "tokenizer.ggml.token_type_count": 2, "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.seperator_token_id": 3, "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.mask_token_id": 4,
    }  # fmt: skip


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and numpy shapes (rows, columns) of the tensors."""
    width = shape.width
    yield "token_embd.weight", (len(vocabulary()), width)
    yield "position_embd.weight", (shape.context, width)
    yield "token_types.weight", (2, width)
    yield "token_embd_norm.weight", (width,)
    yield "token_embd_norm.bias", (width,)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{block}{name}.weight", (width, width)
            yield f"{block}{name}.bias", (width,)
        yield block + "ffn_up.weight", (shape.feed_forward, width)
        yield block + "ffn_up.bias", (shape.feed_forward,)
        yield block + "ffn_down.weight", (width, shape.feed_forward)
        yield block + "ffn_down.bias", (width,)
        for name in ("attn_output_norm", "layer_output_norm"):
            yield f"{block}{name}.weight", (width,)
            yield f"{block}{name}.bias", (width,)
    yield "cls.weight", (width, width)
    yield "cls.bias", (width,)
    yield "cls.output.weight", (1, width)
    yield "cls.output.bias", (1,)


def write_reranker(path: Path, shape: Shape | None = None, *, seed: int = 1) -> Path:
    """Write the model file."""
    shape = shape or Shape()
    return write(path, shape, values=metadata(shape), entries=list(tensors(shape)), kind=F32, seed=seed)  # type: ignore[arg-type]
