"""Models with layers that keep a state (Mamba, gated delta nets, RWKV): what their files must have lest llama.cpp ends the process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

_BY_HEADS: Final = frozenset({"granitehybrid", "jamba", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "plamo2"})
"""A layer keeps a state if it has no key-value heads."""
_BY_INTERVAL: Final = frozenset({"qwen35", "qwen35moe", "qwen3next"})
"""Every `full_attention_interval`th layer attends, the others keep a state."""
_INTERVAL: Final = 4
_CONVOLVED: Final = frozenset({"falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"})
"""llama.cpp adds the convolution's bias whether the file has one or not."""
_SHIFTS: Final = {"rwkv6": 2, "rwkv7": 2, "rwkv6qwen2": 1, "arwkv7": 1}
"""How many earlier tokens' values a layer keeps."""


def check(pairs: Mapping[str, Any], architecture: str, layers: int, number: Callable[..., int], names: Collection[str]) -> str | None:
    """What is wrong, naming the key or the tensor. names: of the tensors. Raises what number raises."""
    if wrong := _mixed(pairs, architecture, layers, number):
        return wrong
    if wrong := _sizes(pairs, architecture, number):
        return wrong
    if (shifts := _SHIFTS.get(architecture)) and (found := number("token_shift_count", 0, 1 << 32, 2)) != shifts:
        return f"{architecture}.token_shift_count is {found}, not {shifts}"
    return _tensors(architecture, layers, names)


def _mixed(pairs: Mapping[str, Any], architecture: str, layers: int, number: Callable[..., int]) -> str | None:
    """Layers of both kinds are needed: llama.cpp fills the memory of each kind with every step, and ends if no layer has it."""
    if architecture in _BY_INTERVAL:
        last = layers - number("nextn_predict_layers", 0, 1 << 32, 0)
        key = f"{architecture}.attention.recurrent_layers"
        if key in pairs:
            mixed = len({bool(one) for one in _each(pairs, key, layers, 0)[:last]}) == 2
            return None if mixed else f"{key}: expected an array with layers of both kinds"
        interval = number("full_attention_interval", 0, 1 << 32, _INTERVAL)
        return None if 2 <= interval <= last else f"{architecture}.full_attention_interval is {interval}, not 2 to {last}, the layers"
    if architecture not in _BY_HEADS:
        return None
    heads = _each(pairs, f"{architecture}.attention.head_count_kv", layers, 1)
    wide = _each(pairs, f"{architecture}.feed_forward_length", layers, 0) if architecture.startswith("nemotron_h") else [0] * layers
    kinds = {bool(count) for count, width in zip(heads, wide, strict=False) if not width}  # the others are feed-forward layers alone
    if len(kinds) == 2:
        return None
    missing = "attends" if kinds == {False} else "keeps a state" if kinds == {True} else "attends or keeps a state"
    return f"{architecture}.attention.head_count_kv: no layer {missing}; expected an array with 0 for some layers and more for others"


def _each(pairs: Mapping[str, Any], key: str, layers: int, default: int) -> list[int]:
    """A number of each layer, whether the file has one for all or an array."""
    found = pairs.get(key, default)
    values: Iterable[Any] | None = getattr(found, "values", None)
    return [found] * layers if isinstance(found, int) else [one if isinstance(one, int) else 0 for one in values or ()][:layers]


def _sizes(pairs: Mapping[str, Any], architecture: str, number: Callable[..., int]) -> str | None:
    """What does not fit together, of the keys that there are: llama.cpp itself refuses a file that lacks one."""
    inner, state, rank = (
        number(key, 0, 1 << 32, 0) if f"{architecture}.{key}" in pairs else None
        for key in ("ssm.inner_size", "ssm.state_size", "ssm.time_step_rank")
    )
    if architecture == "jamba" and inner is not None and inner != 2 * (width := number("embedding_length", 1, 1 << 20)):
        return f"jamba.ssm.inner_size is {inner}, not twice jamba.embedding_length, {width}"
    if architecture == "plamo2" and (groups := number("ssm.group_count", 0, 1 << 32, 0)):
        return f"plamo2.ssm.group_count is {groups}, not 0"
    if architecture in _BY_INTERVAL and inner is not None and state is not None and rank is not None and inner != state * rank:
        return f"{architecture}.ssm.inner_size is {inner}, not ssm.state_size times ssm.time_step_rank, {state} times {rank}"
    return None


def _tensors(architecture: str, layers: int, names: Collection[str]) -> str | None:
    """Tensors that llama.cpp takes for optional and computes with all the same."""
    for layer in range(layers):
        if f"blk.{layer}.ssm_conv1d.weight" in names:
            if architecture in _CONVOLVED and f"blk.{layer}.ssm_conv1d.bias" not in names:
                return f"tensor 'blk.{layer}.ssm_conv1d.bias' is missing"
            old = architecture == "qwen3next" and f"blk.{layer}.attn_qkv.weight" not in names
            for name in ("ssm_in",) if old else ("attn_qkv", "attn_gate"):
                if architecture in _BY_INTERVAL and f"blk.{layer}.{name}.weight" not in names:
                    return f"tensor 'blk.{layer}.{name}.weight' is missing"
        if architecture == "rwkv6" and f"blk.{layer}.time_mix_lerp_fused.weight" not in names:
            for part in "wkvrg":
                if f"blk.{layer}.time_mix_lerp_{part}.weight" not in names:
                    return f"tensor 'blk.{layer}.time_mix_lerp_{part}.weight' is missing"
    return None
