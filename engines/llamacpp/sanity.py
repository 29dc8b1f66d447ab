"""What a GGUF file says of its model and llama.cpp does not check but ends the process for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

LEAST_CONTEXT: Final = 8
"""Tokens. Fewer than the first step has end llama.cpp."""
_NO_VOCABULARY: Final = frozenset({"none", "no_vocab"})

_SCALINGS: Final = ("none", "linear", "yarn", "longrope")


def check(pairs: Mapping[str, Any], architecture: str, layers: int, number: Callable[..., int]) -> str | None:
    """What is wrong, naming the key. number: a checked whole number of the architecture. Raises what it raises."""
    for key, value in pairs.items():
        if key.endswith("_epsilon") and isinstance(value, float) and not 0 <= value < math.inf:
            return f"{key} is {value}, not a number from 0 up"
    experts, used = number("expert_count", 0, 65_536, 0), number("expert_used_count", 0, 65_536, 0)
    if used > experts or (experts and not used):
        return f"{architecture}.expert_used_count is {used}, of {experts} experts"
    if not experts and (groups := number("expert_group_count", 0, 65_536, 0)):
        return f"{architecture}.expert_group_count is {groups}, of no experts"
    if (scaling := pairs.get(f"{architecture}.rope.scaling.type", "none")) not in _SCALINGS:
        return f"{architecture}.rope.scaling.type is {str(scaling)[:64]!r}, not one of {', '.join(_SCALINGS)}"
    guessing = number("nextn_predict_layers", 0, 1 << 32, 0)
    if guessing >= layers:
        return f"{architecture}.nextn_predict_layers is {guessing}, and {architecture}.block_count {layers}"
    if (kind := pairs.get("tokenizer.ggml.model")) in _NO_VOCABULARY:
        return f"tokenizer.ggml.model is {kind!r}: the model cannot read texts"
    return None
