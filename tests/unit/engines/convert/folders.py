"""Hugging Face folders, made here, and what a GGUF file holds, read back without our writer."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
TYPES = {0: ("<f4", "F32"), 1: ("<f2", "F16"), 30: ("<u2", "BF16")}
NAMES = {"<f4": "F32", "<f2": "F16", "<u2": "BF16"}
SMALL = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 12, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
TOKENS = ("<|end|>", "a", "b", "c", "ab", "abc", "\u0120", "d", "e", "f")
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def tokenizer(**changes: Any) -> dict[str, Any]:
    """A byte-level tokenizer as Qwen's. changes: of the model."""
    return {
        "added_tokens": [{"id": 0, "content": TOKENS[0], "special": True, "normalized": False}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}, BYTES],
        },
        "post_processor": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {text: id for id, text in enumerate(TOKENS) if id},
            "merges": [["a", "b"], ["ab", "c"]],
            **changes,
        },
    }


def weights(config: Mapping[str, Any], dtype: str = "<f4", biases: tuple[str, ...] = (), head_norms: bool = False) -> dict[str, Array]:
    """All tensors of a dense model, each value its own."""
    width = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj", (queries, hidden)), ("self_attn.k_proj", (keys, hidden)), ("self_attn.v_proj", (keys, hidden)),
            ("self_attn.o_proj", (hidden, queries)), ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)), ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
        ):  # fmt: skip
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
            if name in biases:
                shapes[f"model.layers.{layer}.{name}.bias"] = shape[:1]
        for name in ("self_attn.q_norm", "self_attn.k_norm") if head_norms else ():
            shapes[f"model.layers.{layer}.{name}.weight"] = (width,)
    random = np.random.default_rng(7)
    made = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    if dtype == "<u2":
        return {name: (value.view("<u4") >> 16).astype("<u2") for name, value in made.items()}
    return {name: value.astype(dtype) for name, value in made.items()}


def safetensors(tensors: Mapping[str, Array]) -> bytes:
    header, parts, at = dict[str, Any](), [], 0
    for name, value in tensors.items():
        parts.append(value.tobytes())
        header[name] = {
            "dtype": NAMES[value.dtype.newbyteorder("<").str],
            "shape": list(value.shape),
            "data_offsets": [at, at + value.nbytes],
        }
        at += value.nbytes
    return raw(header, b"".join(parts))


def raw(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + data


def folder(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Array], files: Mapping[str, Any] | None = None) -> Path:
    """files: others, by name; None for one that is not to be there."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_bytes(safetensors(tensors))
    for name, value in {"config.json": config, "tokenizer.json": tokenizer(), **(files or {})}.items():
        if value is not None:
            (path / name).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


class Gguf:
    """values: the keys; tensors: (name of the type, the raw values with the slowest dimension first)."""

    def __init__(self, path: Path) -> None:
        self._data, self._at = path.read_bytes(), 0
        magic, version, count, keys = self._take("<4sIQQ")
        assert (magic, version) == (b"GGUF", 3)
        self.values: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string().decode()
            assert key not in self.values
            self.values[key] = self._value(self._take("<I")[0])
        described = [(self._string().decode(), self._take(f"<{self._take('<I')[0]}Q"), *self._take("<IQ")) for _ in range(count)]
        base = self._at + -self._at % 32
        self.tensors: dict[str, tuple[str, Array]] = {}
        for name, dimensions, type, offset in described:
            shape, start = dimensions[::-1], base + offset
            assert start % 32 == 0
            if type == 8:  # Q8_0: a factor and 32 whole numbers
                rows = np.frombuffer(self._data, np.uint8, int(np.prod(shape)) // 32 * 34, start).reshape(-1, 34)
                self.tensors[name] = ("Q8_0", (rows[:, :2].copy().view("<f2") * rows[:, 2:].view("i1").astype("<f4")).reshape(shape))
                continue
            self.tensors[name] = (TYPES[type][1], np.frombuffer(self._data, TYPES[type][0], int(np.prod(shape)), start).reshape(shape))

    def _take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def _string(self) -> bytes:
        length = self._take("<Q")[0]
        self._at += length
        return self._data[self._at - length : self._at]

    def _value(self, type: int) -> Any:
        if type == 9:
            inner, count = self._take("<IQ")
            return [self._value(inner) for _ in range(count)]
        if type == 8:
            return self._string()
        return self._take({0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}[type])[0]


def halved(values: Array, heads: int) -> Array:
    """Rows of a query or key in Hugging Face's order, of those in llama.cpp's."""
    return values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def of_gguf(path: Path, source: Path) -> Path:
    """The folder of which a GGUF file of the architecture `llama` with a GPT-2 tokenizer could have been made; weights F32."""
    given = Gguf(source)
    values = {key.removeprefix("llama."): value for key, value in given.values.items()}
    heads, kv = values["attention.head_count"], values.get("attention.head_count_kv", values["attention.head_count"])
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
    names |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    names |= {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    whole = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    tensors = {}
    for name, (_, value) in given.tensors.items():
        stem = name.removesuffix(".weight")
        if stem in whole:
            tensors[f"{whole[stem]}.weight"] = value
            continue
        _, layer, part = stem.split(".")
        turned = halved(value, {"attn_q": heads, "attn_k": kv}[part]) if part in ("attn_q", "attn_k") else value
        tensors[f"model.layers.{layer}.{names[part]}.weight"] = turned
    texts = [text.decode() for text in given.values["tokenizer.ggml.tokens"]]
    special = [id for id, type in enumerate(given.values["tokenizer.ggml.token_type"]) if type == 3]
    config = {
        **SMALL, "architectures": ["LlamaForCausalLM"], "hidden_size": values["embedding_length"], "vocab_size": len(texts),
        "intermediate_size": values["feed_forward_length"], "num_hidden_layers": values["block_count"], "num_attention_heads": heads,
        "num_key_value_heads": kv, "max_position_embeddings": values["context_length"],
        "rms_norm_eps": values["attention.layer_norm_rms_epsilon"], "rope_theta": values["rope.freq_base"],
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }  # fmt: skip
    bos, eos = texts[values["tokenizer.ggml.bos_token_id"]], texts[values["tokenizer.ggml.eos_token_id"]]
    merges = [merge.decode().split(" ") for merge in given.values["tokenizer.ggml.merges"]]
    made = {
        **tokenizer(vocab={text: id for id, text in enumerate(texts) if id not in special}, merges=merges),
        "added_tokens": [{"id": id, "content": texts[id], "special": True} for id in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    }
    settings = {"bos_token": bos, "eos_token": eos, "chat_template": given.values["tokenizer.chat_template"].decode()}
    return folder(path, config, tensors, {"tokenizer.json": made, "tokenizer_config.json": settings})
