"""Folders of each family become GGUF: every tensor exactly, the keys that llama.cpp reads, and what is refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.convert.folder import Refused
from engines.convert.model import convert, size_label, title
from tests.unit.engines.convert import folders
from tests.unit.engines.convert.folders import SMALL, Array, Gguf

MOST = 1 << 30
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def converted(path: Path, type: Any = "auto", most: int = MOST) -> tuple[Gguf, dict[str, Any]]:
    figures = convert(path, path.parent / f"{path.name}.{type}.gguf", type, most, lambda share: None)
    return Gguf(path.parent / f"{path.name}.{type}.gguf"), figures


def refused(path: Path, type: Any = "auto", most: int = MOST) -> str:
    with pytest.raises(Refused) as caught:
        convert(path, path.parent / "o.gguf", type, most, lambda share: None)
    assert str(path) not in str(caught.value)
    return str(caught.value)


def wide(value: Array) -> Array:
    return (value.astype("<u4") << 16).view("<f4") if value.dtype == np.dtype("<u2") else value.astype("<f4")


@pytest.mark.parametrize(
    ("architecture", "name", "dtype", "biases", "head_norms", "turned"),
    [
        ("LlamaForCausalLM", "llama", "<u2", (), False, True),
        ("MistralForCausalLM", "llama", "<f2", (), False, True),
        ("Qwen2ForCausalLM", "qwen2", "<u2", QKV, False, False),
        ("Qwen3ForCausalLM", "qwen3", "<f4", (), True, False),
    ],
)
def test_every_tensor_is_there_exactly(
    tmp_path: Path, architecture: str, name: str, dtype: str, biases: tuple[str, ...], head_norms: bool, turned: bool
) -> None:
    config = {**SMALL, "architectures": [architecture], "head_dim": 4}
    tensors = folders.weights(config, dtype, biases, head_norms)
    path = folders.folder(tmp_path / "m-1b", config, tensors)
    found, figures = converted(path)
    kept = {"<u2": "BF16", "<f2": "F16", "<f4": "F16"}[dtype]
    assert figures["type"] == kept and figures["architecture"] == architecture and found.values["general.architecture"] == name.encode()
    assert len(found.tensors) == len(tensors) and figures["parameters"] == sum(value.size for value in tensors.values())
    for given, value in tensors.items():
        made = named(given)
        heads = {"q_proj": 4, "k_proj": 2}.get(given.split(".")[-2], 0) if turned else 0
        type, raw = found.tensors[made]
        raw = folders.halved(raw, heads) if heads else raw
        assert type == ("F32" if value.ndim == 1 else kept), made
        expected = wide(value) if value.ndim == 1 else value if dtype != "<f4" else value.astype("<f2")
        np.testing.assert_array_equal(raw, expected, made)
    everything, _ = converted(path, "F32")
    np.testing.assert_array_equal(everything.tensors["blk.1.ffn_down.weight"][1], wide(tensors["model.layers.1.mlp.down_proj.weight"]))
    values = found.values
    assert values["general.name"] == b"M 1b" and values[f"{name}.attention.head_count_kv"] == 2 and values[f"{name}.block_count"] == 2
    assert values["tokenizer.ggml.pre"] == b"qwen2" and values["tokenizer.ggml.merges"] == [b"a b", b"ab c"]
    assert values["tokenizer.ggml.tokens"][10:] == [b"[PAD10]", b"[PAD11]"]
    assert values["tokenizer.ggml.token_type"] == [3] + [1] * 9 + [5] * 2


def named(name: str) -> str:
    for before, after in (
        ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output"), ("model.layers", "blk"),
        ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"), ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ):  # fmt: skip
        name = name.replace(before, after)
    return name


@pytest.mark.parametrize(("architecture", "head_norms", "every"), [("Gemma2ForCausalLM", False, 2), ("Gemma3ForCausalLM", True, 6)])
def test_gemmas_norms_are_distances_from_one(tmp_path: Path, architecture: str, head_norms: bool, every: int) -> None:
    config = {
        **SMALL, "architectures": [architecture], "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 64, "head_dim": 4,
        "tie_word_embeddings": True, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 50.0 if every == 2 else None,
        "final_logit_softcapping": 30.0 if every == 2 else None, "rope_local_base_freq": 10000.0, "rope_theta": 1e6,
    }  # fmt: skip
    tensors = folders.weights(config, "<u2", head_norms=head_norms)
    for layer in range(2):
        for part in ("pre", "post"):
            tensors[f"model.layers.{layer}.{part}_feedforward_layernorm.weight"] = tensors["model.norm.weight"]
    path = folders.folder(tmp_path / "m", config, tensors)
    found, _ = converted(path)
    arch = f"gemma{2 if every == 2 else 3}"
    pairs = {
        "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm", "input_layernorm": "attn_norm",
        **({"self_attn.q_norm": "attn_q_norm"} if head_norms else {}),
    }  # fmt: skip
    for before, after in pairs.items():
        given = tensors[f"model.layers.1.{before}.weight"]
        np.testing.assert_array_equal(found.tensors[f"blk.1.{after}.weight"][1], wide(given) + np.float32(1))
    np.testing.assert_array_equal(found.tensors["blk.1.attn_q.weight"][1], tensors["model.layers.1.self_attn.q_proj.weight"])
    assert found.values[f"{arch}.attention.sliding_window"] == 64 and found.values["tokenizer.ggml.add_space_prefix"] is False
    assert found.values.get("gemma3.rope.freq_base") == (1e6 if every == 6 else None)
    assert found.values.get("gemma2.final_logit_softcapping") == (30.0 if every == 2 else None)
    folders.folder(path, {**config, "layer_types": ["full_attention"] * 2}, tensors)
    assert "layer_types" in refused(path)
    folders.folder(path, {**config, "query_pre_attn_scalar": 5}, tensors)
    assert "query_pre_attn_scalar" in refused(path)


def test_numbers_between_types_are_rounded_to_even(tmp_path: Path) -> None:
    config = {**SMALL, "architectures": ["Qwen2ForCausalLM"]}
    tensors = folders.weights(config)
    values = tensors["lm_head.weight"]
    values[0, :6] = [1.00390625, 1.01171875, np.nan, np.inf, -0.0, 3e38]
    path = folders.folder(tmp_path / "m", config, tensors)
    bits = converted(path, "BF16")[0].tensors["output.weight"][1]
    assert [hex(bit) for bit in bits[0, :6]] == ["0x3f80", "0x3f82", "0x7fc0", "0x7f80", "0x8000", "0x7f62"]
    assert "values beyond 65504" in refused(path, "F16")


def test_rotations_are_told_in_llama_cpps_words(tmp_path: Path) -> None:
    config = {**SMALL, "architectures": ["LlamaForCausalLM"], "rope_theta": 500000.0, "rope_scaling": LLAMA3}
    found, _ = converted(folders.folder(tmp_path / "l3", config, folders.weights(config)))
    assert found.values["llama.rope.freq_base"] == 500000.0 and "llama.rope.scaling.type" not in found.values
    np.testing.assert_allclose(found.tensors["rope_freqs.weight"][1], [1.0, 8.0], rtol=1e-6)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e6, "beta_fast": 32}
    config = {**SMALL, "architectures": ["Qwen2ForCausalLM"], "rope_parameters": yarn}
    found, _ = converted(folders.folder(tmp_path / "yarn", config, folders.weights(config)))
    told = {key.removeprefix("qwen2.rope."): value for key, value in found.values.items() if ".rope." in key}
    assert told == {
        "freq_base": 1e6, "scaling.type": b"yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64,
        "scaling.yarn_beta_fast": 32.0,
    }  # fmt: skip


def test_shared_embeddings_and_shards(tmp_path: Path) -> None:
    config = {**SMALL, "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
    tensors = folders.weights(config, "<u2")
    path = folders.folder(tmp_path / "m", config, tensors)
    whole, _ = converted(path)
    assert "output.weight" not in whole.tensors
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for part, inside in parts.items():
        (path / part).write_bytes(folders.safetensors({name: tensors[name] for name in inside}))
    (path / "model.safetensors").unlink()
    index = {"weight_map": {name: part for part, inside in parts.items() for name in inside}}
    folders.folder(path, config, {}, {"model.safetensors.index.json": index})
    (path / "model.safetensors").unlink()
    sharded, _ = converted(path, "BF16")
    assert sharded.tensors.keys() == whole.tensors.keys() and sharded.values == whole.values
    assert all((sharded.tensors[name][1] == whole.tensors[name][1]).all() for name in whole.tensors)
    (path / "model-00002-of-00002.safetensors").unlink()
    assert "is missing" in refused(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "'MixtralForCausalLM'; these are converted: LlamaForCausalLM"),
        ({"architectures": []}, "no architecture"),
        ({"architectures": ["LlamaForCausalLM"] * 2}, "no architecture, or several"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised already"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"hidden_size": 32}, "is expected"),
        ({"hidden_size": -1}, "no hidden_size"),
        ({"hidden_size": True}, "no hidden_size"),
        ({"num_hidden_layers": 3}, "is missing"),
        ({"num_hidden_layers": 1 << 40}, "no num_hidden_layers"),
        ({"num_hidden_layers": 1}, "has no tensor"),
        ({"num_attention_heads": 3}, "do not fit"),
        ({"num_key_value_heads": 0}, "no num_key_value_heads"),
        ({"rms_norm_eps": "x"}, "no number rms_norm_eps"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "without original_max"),
        ({"rope_scaling": [1]}, "no object"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 9.0}}, "do not fit each other"),
        ({"rope_theta": float("nan")}, "is not an object of JSON"),
        ({"vocab_size": 13}, "is expected"),
        ({"partial_rotary_factor": 0.5}, "partial rotation"),
    ],
)
def test_what_llama_cpp_would_read_otherwise_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    config = {**SMALL, "architectures": ["LlamaForCausalLM"]}
    path = folders.folder(tmp_path / "m", {**config, **changes}, folders.weights(config))
    assert said in refused(path)
    assert not (tmp_path / "o.gguf").exists()


def test_links_pickles_and_odd_files_are_never_read(tmp_path: Path) -> None:
    config = {**SMALL, "architectures": ["LlamaForCausalLM"]}
    path = folders.folder(tmp_path / "m", config, folders.weights(config))
    (path / "model.safetensors").rename(tmp_path / "elsewhere")
    (path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    assert "never read" in refused(path)
    (path / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refused(path)
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").mkdir()
    assert "not a plain file" in refused(path)
    (path / "config.json").write_bytes(b"[" * 100_000)
    assert "not an object of JSON" in refused(path)
    (path / "config.json").unlink()
    assert "no config.json" in refused(path)


def test_a_file_that_would_be_too_large_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**SMALL, "architectures": ["LlamaForCausalLM"]}
    path = folders.folder(tmp_path / "m", config, folders.weights(config))
    assert "jobs.max_output_bytes" in refused(path, most=1000)
    assert not (tmp_path / "o.gguf").exists()
    monkeypatch.setattr("engines.convert.gguf.Writer.write", lambda *_: (_ for _ in ()).throw(OSError(errno.EFBIG, "too large")))
    assert "larger than it may" in refused(path)


def test_names_and_sizes_are_written_as_llama_cpp_writes_them() -> None:
    assert [size_label(count) for count in (900, 7_000, 494_032_768, 1_543_714_304, 8_030_261_248, 70_553_706_496)] == [
        "0.9K", "7.0K", "494M", "1.5B", "8.0B", "71B",
    ]  # fmt: skip
    assert title("qwen2.5-0.5b-instruct") == "Qwen2.5 0.5b Instruct" and title("") == "model"
