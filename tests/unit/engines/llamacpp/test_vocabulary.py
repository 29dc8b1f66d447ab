"""Vocabularies that would end llama.cpp are refused by their key before it sees them."""

from pathlib import Path
from typing import Any

import pytest

from engines.llamacpp.cursor import GgufError
from engines.llamacpp.gguf import KEPT_ARRAY, describe, read
from engines.llamacpp.vocabulary import check, look
from loadtests.llamacpp import random_bert
from loadtests.llamacpp.random_gguf import BYTE, F32, NORMAL, Shape, metadata, vocabulary, write

SHAPE = Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32)
TOKENS, *_ = vocabulary()
BERT = random_bert.metadata(random_bert.Shape())
BERT_TYPES = BERT["tokenizer.ggml.token_type"]
ABSENT = 0xFFFFFFFF


def refused(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(GgufError) as caught:
        describe(read(write(tmp_path / "m.gguf", SHAPE, values=metadata(SHAPE, **changes))))
    return str(caught.value)


def replaced(at: int, token: str) -> list[str]:
    return [*TOKENS[:at], token, *TOKENS[at + 1 :]]


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        (replaced(300, "hello"), "hello"),
        (replaced(300, "</s>\0x"), "</s>"),
        ([*replaced(300, "")[:-1], "[EMPTY_300]"], "[EMPTY_300]"),
    ],
)
def test_a_token_that_is_there_twice(tmp_path: Path, tokens: list[str], shown: str) -> None:
    """llama.cpp reads one up to its first NUL, and names an empty one by its number."""
    assert f"tokenizer.ggml.tokens has {shown!r} twice" in refused(tmp_path, tokenizer__ggml__tokens=tokens)


def test_the_same_in_a_vocabulary_too_long_to_be_kept(tmp_path: Path) -> None:
    many = [*TOKENS, *(f"w{number}" for number in range(KEPT_ARRAY)), "w7"]
    changes = {"tokenizer__ggml__scores": [0.0] * len(many), "tokenizer__ggml__token_type": [NORMAL] * len(many)}
    assert "'w7' twice" in refused(tmp_path, tokenizer__ggml__tokens=many, **changes)


def test_empty_tokens_are_no_repetition() -> None:
    assert look(bytes(24), 0, 3).repeated is None


def test_bytes_without_a_token_would_end_the_engine_at_a_text_with_them(tmp_path: Path) -> None:
    assert "lacks the token of a byte" in refused(tmp_path, tokenizer__ggml__tokens=replaced(TOKENS.index("<0xE9>"), "other"))
    values = metadata(SHAPE, tokenizer__ggml__tokens=replaced(TOKENS.index("<0x61>"), "other"))
    assert "a" in TOKENS, "the letter itself"
    assert describe(read(write(tmp_path / "m.gguf", SHAPE, values=values))).vocabulary == len(TOKENS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.token_type": [*BERT_TYPES[:-1], BYTE]}, "tokenizer.ggml.token_type has a 6"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
    ],
)
def test_a_bert_has_no_bytes(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    values = {key: value for key, value in {**BERT, **changes}.items() if value is not None}
    entries = list(random_bert.tensors(random_bert.Shape()))
    with pytest.raises(GgufError, match=words):
        describe(read(write(tmp_path / "m.gguf", random_bert.Shape(), values=values, entries=entries, kind=F32)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "count", "pairs", "missing"),
    [
        ("bert", 60, {}, "bos"),
        ("bert", 60, {"bos_token_id": 2}, "seperator"),
        ("bert", 60, {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": ABSENT}, "unknown"),
        ("bert", 60, {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}, None),
        ("bert", 30_522, {}, None),
        ("gpt2", 300, {"pre": "glm4"}, None),
        ("gpt2", 300, {"pre": "glm4", "add_bos_token": True}, "bos"),
        ("gpt2", 300, {"pre": "glm4", "add_bos_token": True, "bos_token_id": 5}, None),
        ("gpt2", 300, {}, None),
        ("gpt2", 9, {}, "bos"),
        ("gpt2", 9, {"add_bos_token": False}, None),
        ("gpt2", 9, {"bos_token_id": 1, "add_eos_token": True}, "eos"),
        ("t5", 300, {}, None),
        ("t5", 300, {"add_bos_token": True}, "bos"),
        ("rwkv", 3, {"add_bos_token": True}, None),
        (None, 3, {}, None),
        (["llama"], 3, {}, None),
    ],
)  # fmt: skip
def test_the_tokens_around_a_text_are_there(kind: Any, count: int, pairs: dict[str, Any], missing: str | None) -> None:
    found = check({f"tokenizer.ggml.{key}": value for key, value in {"model": kind, **pairs}.items()}, count, None, False)
    assert found == (missing and f"tokenizer.ggml.{missing}_token_id is missing, and a vocabulary of the kind {kind} needs that token")
