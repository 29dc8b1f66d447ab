"""What a GGUF file says of its model and llama.cpp does not check but ends the process for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

LEAST_CONTEXT: Final = 8
"""Tokens. Fewer than the first step has end llama.cpp."""
MOST_LAYERS: Final = 512
"""As llama.cpp has it (LLAMA_MAX_LAYERS)."""
_NO_VOCABULARY: Final = frozenset({"none", "no_vocab"})

_FLOATS: Final = frozenset({0, 1, 30})
"""F32, F16, BF16."""
_INNER: Final = frozenset({9, 15})
"""Q8_1, Q8_K: what a computation makes of numbers on its way. No file has them."""
_UNCOUNTED: Final = frozenset({24, 25, 26, 27, 28})
"""I8, I16, I32, I64, F64: llama.cpp multiplies none of them."""
_MULTIPLIED: Final = re.compile(
    r"(token_embd|output|blk\.\d+\.(attn_(q|k|v|qkv|gate|output)|ffn_(up|down|gate)|ssm_(in|out|x|dt|alpha|beta|ba)"
    r"|(time|channel)_mix_(key|value|receptance|gate|output)))\.weight"
)
_PLAIN: Final = re.compile(r"blk\.\d+\.(time|channel)_mix_lerp_[a-z]+\.weight")

_WHOLLY: Final = frozenset({"chameleon", "granite", "paddleocr", "pockettts", "qwen2", "qwen3moe", "starcoder2"})
"""Architectures whose heads are rotated as a whole."""
_SCALINGS: Final = ("none", "linear", "yarn", "longrope")


def check(pairs: Mapping[str, Any], architecture: str, layers: int, number: Callable[..., int]) -> str | None:
    """What is wrong, naming the key. number: a checked whole number of the architecture. Raises what it raises."""
    for key, value in pairs.items():
        if key.endswith("_epsilon") and isinstance(value, float) and not 0 <= value < math.inf:
            return f"{key} is {value}, not a number from 0 up"
    experts, used = number("expert_count", 0, 65_536, 0), number("expert_used_count", 0, 65_536, 0)
    if used > experts or (experts and not used):
        return f"{architecture}.expert_used_count is {used}, of {experts} experts"
    if wrong := _groups(architecture, experts, number):
        return wrong
    if wrong := _rotated(pairs, architecture, number):
        return wrong
    if (scaling := pairs.get(f"{architecture}.rope.scaling.type", "none")) not in _SCALINGS:
        return f"{architecture}.rope.scaling.type is {str(scaling)[:64]!r}, not one of {', '.join(_SCALINGS)}"
    guessing = number("nextn_predict_layers", 0, 1 << 32, 0)
    if guessing >= layers:
        return f"{architecture}.nextn_predict_layers is {guessing}, and {architecture}.block_count {layers}"
    if (kind := pairs.get("tokenizer.ggml.model")) in _NO_VOCABULARY:
        return f"tokenizer.ggml.model is {kind!r}: the model cannot read texts"
    return None


def _groups(architecture: str, experts: int, number: Callable[..., int]) -> str | None:
    groups, used = number("expert_group_count", 0, 1 << 32, 0), number("expert_group_used_count", 0, 1 << 32, 0)
    if not experts and groups:
        return f"{architecture}.expert_group_count is {groups}, of no experts"
    if experts and (groups >= experts or (groups > 1 and experts % groups)):
        return f"{architecture}.expert_group_count is {groups}, of {experts} experts"
    if groups > 1 and not 0 < used < groups:
        return f"{architecture}.expert_group_used_count is {used}, of {groups} groups"
    return None


def _rotated(pairs: Mapping[str, Any], architecture: str, number: Callable[..., int]) -> str | None:
    """Heads of no whole size, or more of a head is rotated than it has, where the file says how large its heads are."""
    heads, width = pairs.get(f"{architecture}.attention.head_count"), number("embedding_length", 1, 1 << 20)
    count = heads if isinstance(heads, int) and heads > 0 else 0
    if count and width % count and f"{architecture}.attention.key_length" not in pairs:
        return f"{architecture}.attention.head_count is {count}, and does not divide {architecture}.embedding_length, {width}"
    size = width // count if count else 0
    for end in ("", "_swa"):  # layers with a window may have heads of another size
        size = number(f"attention.key_length{end}", 0, 65_536, size)
        rotated = number(f"rope.dimension_count{end}", 0, 1 << 32, size)
        if size and (rotated > size or (rotated < size and architecture in _WHOLLY)):
            return f"{architecture}.rope.dimension_count{end} is {rotated}, and a head has {size} values"
    return None


def check_types(tensors: Iterable[tuple[str, int, int]]) -> str | None:
    """What is wrong with a tensor's type, naming the tensor. tensors: name, how many dimensions, type."""
    for name, dims, kind in tensors:
        if kind in _INNER or (kind in _UNCOUNTED and _MULTIPLIED.fullmatch(name)):
            return f"tensor {name!r} has a type that llama.cpp cannot compute with ({kind})"
        if kind not in _FLOATS and ((dims == 1 and name.endswith(("norm.weight", "norm.bias"))) or _PLAIN.fullmatch(name)):
            return f"tensor {name!r} is no row of plain numbers: its type is {kind}"
    return None
