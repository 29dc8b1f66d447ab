"""Files of models with a state that llama.cpp would end the process for are refused by the key or the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.llamacpp import recurrent
from engines.llamacpp.gguf import Array

LAYERS = 4
QWEN = {"ssm.inner_size": 64, "ssm.state_size": 16, "ssm.time_step_rank": 4}
BIASES = tuple(f"blk.{layer}.ssm_conv1d.{end}" for layer in (0, 2) for end in ("weight", "bias"))
LERPS = tuple(f"blk.{layer}.time_mix_lerp_{part}.weight" for layer in range(LAYERS) for part in "wkvrg")


def checked(architecture: str, keys: dict[str, Any], names: tuple[str, ...] = ()) -> str | None:
    pairs = {f"{architecture}.{key}": Array(5, len(value), value) if isinstance(value, tuple) else value for key, value in keys.items()}

    def number(key: str, low: int, high: int, default: int | None = None) -> int:
        value = pairs.get(f"{architecture}.{key}", default)
        assert isinstance(value, int) and low <= value <= high
        return value

    asked: Callable[..., int] = number
    pairs[f"{architecture}.embedding_length"] = 64
    return recurrent.check(pairs, architecture, LAYERS, asked, frozenset(names))


@pytest.mark.parametrize("architecture", ["granitehybrid", "jamba", "lfm2", "lfm2moe", "plamo2"])
def test_a_hybrid_needs_layers_of_both_kinds(architecture: str) -> None:
    key = "attention.head_count_kv"
    assert checked(architecture, {key: (0, 1, 0, 1)}) is None
    for heads in (2, (1, 1, 1, 1)):
        assert f"{architecture}.{key}: no layer keeps a state" in (checked(architecture, {key: heads}) or "")
    assert "no layer keeps a state" in (checked(architecture, {}) or "")  # as many as there are heads
    for heads in (0, (0, 0, 0, 0)):
        assert f"{architecture}.{key}: no layer attends" in (checked(architecture, {key: heads}) or "")


def test_layers_that_only_feed_forward_are_of_neither_kind() -> None:
    key = "attention.head_count_kv"
    assert checked("nemotron_h", {key: (0, 1, 0, 0), "feed_forward_length": (0, 0, 64, 64)}) is None
    assert "no layer keeps a state" in (checked("nemotron_h", {key: (0, 1, 0, 0), "feed_forward_length": (64, 0, 64, 64)}) or "")
    assert "no layer attends" in (checked("nemotron_h", {key: (0, 1, 0, 0), "feed_forward_length": (0, 64, 0, 64)}) or "")
    assert "no layer attends or keeps" in (checked("nemotron_h", {key: (0, 1, 0, 0), "feed_forward_length": 64}) or "")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ""),
        ({"full_attention_interval": 2}, ""),
        ({"full_attention_interval": 0}, "full_attention_interval is 0, not 2 to 4, the layers"),
        ({"full_attention_interval": 1}, "full_attention_interval is 1, not 2 to 4"),
        ({"full_attention_interval": 5}, "full_attention_interval is 5, not 2 to 4"),
        ({"nextn_predict_layers": 1}, "full_attention_interval is 4, not 2 to 3"),
        ({"attention.recurrent_layers": (1, 0, 1, 0)}, ""),
        ({"attention.recurrent_layers": (1, 1, 1, 1)}, "attention.recurrent_layers: expected an array with layers of both kinds"),
        ({"attention.recurrent_layers": (1, 1, 1, 0), "nextn_predict_layers": 1}, "attention.recurrent_layers: expected"),
        ({"ssm.inner_size": 65}, "ssm.inner_size is 65, not ssm.state_size times ssm.time_step_rank, 16 times 4"),
    ],
)
@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe", "qwen3next"])
def test_layers_that_attend_come_at_an_interval(architecture: str, keys: dict[str, Any], words: str) -> None:
    found = checked(architecture, QWEN | keys)
    assert (found or "").startswith(f"{architecture}.{words}" if words else "") and bool(found) == bool(words)


@pytest.mark.parametrize(
    ("architecture", "keys", "words"),
    [
        ("jamba", {"attention.head_count_kv": (0, 1, 0, 1), "ssm.inner_size": 100}, "jamba.ssm.inner_size is 100, not twice"),
        ("plamo2", {"attention.head_count_kv": (0, 1, 0, 1), "ssm.group_count": 1}, "plamo2.ssm.group_count is 1, not 0"),
        ("rwkv7", {"token_shift_count": 1}, "rwkv7.token_shift_count is 1, not 2"),
        ("arwkv7", {}, "arwkv7.token_shift_count is 2, not 1"),
        ("rwkv6qwen2", {"token_shift_count": 3}, "rwkv6qwen2.token_shift_count is 3, not 1"),
        ("arwkv7", {"token_shift_count": 1}, ""),
        ("llama", {"attention.head_count_kv": 2}, ""),
    ],
)
def test_sizes_that_do_not_fit(architecture: str, keys: dict[str, Any], words: str) -> None:
    found = checked(architecture, keys)
    assert words in (found or "") and bool(found) == bool(words)


@pytest.mark.parametrize(
    ("architecture", "keys", "names", "missing"),
    [
        ("falcon-h1", {}, BIASES, ""),
        ("falcon-h1", {}, BIASES[:-1], "blk.2.ssm_conv1d.bias"),
        ("granitehybrid", {"attention.head_count_kv": (0, 1, 0, 1)}, BIASES[:1], "blk.0.ssm_conv1d.bias"),
        ("qwen35", QWEN, BIASES[:1], "blk.0.attn_qkv.weight"),
        ("qwen35", QWEN, (BIASES[0], "blk.0.attn_qkv.weight"), "blk.0.attn_gate.weight"),
        ("qwen3next", QWEN, (BIASES[0], "blk.0.attn_qkv.weight"), "blk.0.attn_gate.weight"),
        ("qwen3next", QWEN, BIASES[:1], "blk.0.ssm_in.weight"),
        ("qwen3next", QWEN, (BIASES[0], "blk.0.ssm_in.weight"), ""),
        ("rwkv6", {}, LERPS, ""),
        ("rwkv6", {}, LERPS[:-1], "blk.3.time_mix_lerp_g.weight"),
        ("rwkv6", {}, (*LERPS[5:], "blk.0.time_mix_lerp_fused.weight"), ""),
    ],
)
def test_tensors_that_llama_cpp_takes_for_optional(architecture: str, keys: dict[str, Any], names: tuple[str, ...], missing: str) -> None:
    assert checked(architecture, keys, names) == (f"tensor '{missing}' is missing" if missing else None)
