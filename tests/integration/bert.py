"""BERT encoders with random weights, made here in the files that Hugging Face and Sentence Transformers use."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

Array = NDArray[np.float32]
WORDS = (
    *("the", "a", "cat", "sat", "on", "mat", "feline", "rested", "rug", "stock", "markets", "fell", "today", "after", "bank"),
    *("raised", "interest", "rates", "by", "half", "and", "so", "gateway", "short"),
)
"""Words that are one token; all others are spelled in characters, and those it does not know are unknown."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a BERT encoder. most: tokens of a text."""

    hidden: int = 48
    layers: int = 2
    heads: int = 4
    vocabulary: int = 0
    most: int = 256


MINILM = Shape(hidden=384, layers=6, heads=12, vocabulary=30522)
"""The sizes of all-MiniLM-L6-v2, which many serve."""


def source(folder: Path, shape: Shape, seed: int = 7) -> Path:
    """Writes config.json, model.safetensors, tokenizer.json and the files of Sentence Transformers; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    words = _words()
    vocabulary = max(shape.vocabulary, len(words))
    config = {
        "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "intermediate_size": 4 * shape.hidden,
        "max_position_embeddings": 2 * shape.most, "vocab_size": vocabulary, "architectures": ["BertModel"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": shape.most}))
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Normalize"}]))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    _tokenizer(words).save(str(folder / "tokenizer.json"))
    write_safetensors(folder / "model.safetensors", dict(_weights(shape, vocabulary, np.random.default_rng(seed))))
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """The format of github.com/huggingface/safetensors: the header's length in 8 bytes, the header as JSON, the data."""
    header: dict[str, Any] = {}
    offset = 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.tobytes())


def _weights(shape: Shape, vocabulary: int, random: np.random.Generator) -> Iterator[tuple[str, Array]]:
    def drawn(*dims: int) -> Array:
        return random.standard_normal(dims, np.float32) / np.float32(dims[-1] ** 0.5)

    def dense(name: str, rows: int, columns: int) -> Iterator[tuple[str, Array]]:
        yield f"{name}.weight", drawn(rows, columns)
        yield f"{name}.bias", drawn(rows)

    def norm(name: str) -> Iterator[tuple[str, Array]]:
        yield f"{name}.weight", 1 + drawn(shape.hidden) / 4
        yield f"{name}.bias", drawn(shape.hidden)

    yield "embeddings.word_embeddings.weight", drawn(vocabulary, shape.hidden)
    yield "embeddings.position_embeddings.weight", drawn(2 * shape.most, shape.hidden)
    yield "embeddings.token_type_embeddings.weight", drawn(2, shape.hidden)
    yield from norm("embeddings.LayerNorm")
    for layer in range(shape.layers):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from dense(f"{name}.attention.{part}", shape.hidden, shape.hidden)
        yield from norm(f"{name}.attention.output.LayerNorm")
        yield from dense(f"{name}.intermediate.dense", 4 * shape.hidden, shape.hidden)
        yield from dense(f"{name}.output.dense", shape.hidden, 4 * shape.hidden)
        yield from norm(f"{name}.output.LayerNorm")


def _words() -> Sequence[str]:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789.,'")
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]


def _tokenizer(words: Sequence[str]) -> Tokenizer:
    """WordPiece, as BERT's: lower case, words and punctuation apart, [CLS] and [SEP] around a text."""
    made = Tokenizer(models.WordPiece({word: index for index, word in enumerate(dict.fromkeys(words))}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made
