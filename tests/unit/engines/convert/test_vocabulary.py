"""Tokenizers: those that llama.cpp reads in the same way, special tokens and templates, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from engines.convert import vocabulary
from engines.convert.folder import Folder, Refused
from engines.convert.gguf import Writer
from tests.unit.engines.convert.folders import BYTES, SPLIT, TOKENS, Gguf, tokenizer

SIZE = 12


def written(path: Path, files: dict[str, Any], config: dict[str, Any] | None = None) -> dict[str, Any]:
    for name, value in files.items():
        (path / name).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    made = Writer()
    vocabulary.write(Folder(path), config or {}, SIZE, made)
    (path / "o.gguf").unlink(missing_ok=True)
    made.write(path / "o.gguf", lambda share: None)
    return {key.removeprefix("tokenizer."): value for key, value in Gguf(path / "o.gguf").values.items()}


def split(pattern: str, **more: Any) -> dict[str, Any]:
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **more}
    return {"type": "Sequence", "pretokenizers": [step, BYTES]}


@pytest.mark.parametrize(
    ("before", "merges_ignored", "name"),
    [
        (split(SPLIT), False, "qwen2"),
        (split(SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")), True, "llama-bpe"),
        ({"type": "ByteLevel", "add_prefix_space": False}, False, "gpt-2"),
        (
            {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {**BYTES, "use_regex": True}]},
            False,
            "smollm",
        ),
        (split(SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")), False, None),
        (split(SPLIT), True, None),
        (split(SPLIT, invert=True), False, None),
        (split(SPLIT, behavior="Removed"), False, None),
        (split(SPLIT + "|x"), False, None),
        (split(""), False, None),
        ({"type": "ByteLevel", "add_prefix_space": True}, False, None),
        ({"type": "Metaspace"}, False, None),
        ({"type": "Sequence", "pretokenizers": []}, False, None),
        ({"type": "Sequence", "pretokenizers": 7}, False, None),
        (None, False, None),
    ],
)
def test_how_texts_are_split(before: Any, merges_ignored: bool, name: str | None) -> None:
    given = {**tokenizer(ignore_merges=merges_ignored), "pre_tokenizer": before}
    if name is not None:
        assert vocabulary.pre_tokenizer(given) == name
        return
    with pytest.raises(Refused):
        vocabulary.pre_tokenizer(given)


def test_special_tokens_and_templates(tmp_path: Path) -> None:
    added = [
        {"id": 0, "content": TOKENS[0], "special": True},
        {"id": 10, "content": "<|looks|>", "special": False},
        {"id": 11, "content": "\u2581tool", "special": False},
    ]
    bos = {"SpecialToken": {"id": "<|looks|>"}}
    post = {"type": "Sequence", "processors": [{"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A"}}], "pair": []}]}
    settings = {
        "bos_token": {"content": "<|looks|>"}, "eos_token": TOKENS[0], "pad_token": None, "add_bos_token": False,
        "chat_template": [{"name": "default", "template": "D"}, {"name": "tool use", "template": "T"}],
    }  # fmt: skip
    files = {"tokenizer.json": {**tokenizer(), "added_tokens": added, "post_processor": post}, "tokenizer_config.json": settings}
    found = written(tmp_path, files, {"eos_token_id": 7, "pad_token_id": 5})
    assert found["ggml.tokens"][9:] == [b"f", b"<|looks|>", b" tool"] and found["ggml.token_type"][9:] == [1, 3, 4]
    assert (found["ggml.bos_token_id"], found["ggml.eos_token_id"], found["ggml.padding_token_id"]) == (10, 0, 5)
    assert found["ggml.add_bos_token"] is True
    assert (found["chat_template"], found["chat_template.tool_use"], found["chat_templates"]) == (b"D", b"T", [b"tool_use"])
    (tmp_path / "chat_template.jinja").write_text("J")
    assert written(tmp_path, {"tokenizer_config.json": {}})["chat_template"] == b"J"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"merges": [["a", ""], ["", "a"]]}, "not two parts"),
        ({"merges": [["a", "b", "c"]]}, "not two parts"),
        ({"merges": ["a"]}, "not two parts"),
        ({"merges": [["a", "c"]]}, "no token"),
        ({"merges": [["x", "b"]]}, "no token"),
        ({"merges": []}, "0 merges"),
        ({"merges": {"a": "b"}}, "0 merges"),
        ({"type": "Unigram"}, "no BPE model"),
        ({"byte_fallback": True}, "tokenizer.model"),
        ({"continuing_subword_prefix": "##"}, "parts of words"),
        ({"vocab": {}}, "no vocabulary"),
        ({"vocab": {"a": 12}}, "the embeddings have 12 rows"),
        ({"vocab": {"a": -1}}, "the embeddings have 12 rows"),
        ({"vocab": {"a": True}}, "the embeddings have 12 rows"),
        ({"vocab": {"a": 1 << 70}}, "the embeddings have 12 rows"),
        ({"vocab": {"a": 1, "b": 1}}, "two tokens have the number 1"),
        ({"vocab": {"a": 0}}, "'a' in the vocabulary"),
        ({"vocab": {"a" * 5000: 1}}, "5000 characters"),
        ({"vocab": {"": 1}}, "0 characters"),
    ],
)
def test_tokenizers_that_lie_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as caught:
        written(tmp_path, {"tokenizer.json": tokenizer(**changes)})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": [{"id": 12, "content": "x"}]},
        {"added_tokens": [{"id": 1}]},
        {"added_tokens": [{"id": 10, "content": "x"}, {"id": 10, "content": "y"}]},
        {"added_tokens": [7]},
        {"normalizer": {"type": "Lowercase"}},
        {"post_processor": {"type": "BertProcessing"}},
        {"post_processor": {"type": "Sequence", "processors": [7]}},
        {"model": 7},
    ],
)
def test_what_is_unknown_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        written(tmp_path, {"tokenizer.json": {**tokenizer(), **changes}})


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def piece(text: str, score: float, type: int = 1) -> bytes:
    return field(1, field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score) + field(3, type))


PIECES = piece("<unk>", 0.0, 2) + piece("<s>", 0.0, 3) + piece("<0x0A>", 0.0, 6) + piece("\u2581a", -1.5) + piece("<tool>", 0.0, 4)


def test_sentencepiece(tmp_path: Path) -> None:
    model = PIECES + field(2, field(3, 2)) + field(3, field(3, 0))
    added = {"5": {"content": "<|x|>"}, "6": {"content": "\u2581y"}, "1": {"content": "<s>", "special": True}}
    settings = {"added_tokens_decoder": added, "bos_token": "<s>"}
    found = written(
        tmp_path, {"tokenizer.model": model, "tokenizer_config.json": settings, "added_tokens.json": {"z": 7}}, {"bos_token_id": 1}
    )
    assert found["ggml.model"] == b"llama" and found["ggml.pre"] == b"default" and found["ggml.add_space_prefix"] is False
    assert found["ggml.tokens"][:9] == [b"<unk>", b"<s>", b"<0x0A>", "\u2581a".encode(), b"<tool>", b"<|x|>", b" y", b"z", b"[PAD8]"]
    assert found["ggml.token_type"][:9] == [2, 3, 6, 1, 1, 3, 4, 4, 5]
    assert found["ggml.scores"][:9] == [0.0, -1000.0, 0.0, -1.5, 0.0, -1000.0, -1000.0, -1000.0, -10000.0]
    assert found["ggml.bos_token_id"] == 1


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (PIECES, {}, "not a BPE model"),
        (PIECES + field(2, field(3, 1)), {}, "not a BPE model"),
        (field(2, field(3, 2)), {}, "not a BPE model"),
        (b"\x0a\xff\xff\xff\xff\x0f", {}, "is not SentencePiece's"),
        (piece("", 0.0) + field(2, field(3, 2)), {}, "has no text"),
        (piece("a", 0.0, 9) + field(2, field(3, 2)), {}, "the type 9"),
        (PIECES * 3 + field(2, field(3, 2)), {}, "more tokens than"),
        (PIECES + field(2, field(3, 2)), {"added_tokens.json": {"a": 12}}, "the number 12"),
        (PIECES + field(2, field(3, 2)), {"added_tokens.json": {"a": "1"}}, "the number 1"),
        (PIECES + field(2, field(3, 2)), {"tokenizer_config.json": {"added_tokens_decoder": {"-1": {"content": "x"}}}}, "the number -1"),
        (PIECES + field(2, field(3, 2)), {"tokenizer_config.json": {"added_tokens_decoder": {"1": {}}}}, "has no text"),
    ],
)
def test_sentencepieces_that_lie_are_refused(tmp_path: Path, model: bytes, more: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as caught:
        written(tmp_path, {"tokenizer.model": model, **more})
    assert said in str(caught.value)
