"""Bytes of single tokens, by the two kinds of vocabulary; control tokens apart from a client's text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from engines.demo import genai
from engines.genai.vocabulary import GenaiVocabulary
from engines.sidecar.loading import LoadError


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> GenaiVocabulary:
    return GenaiVocabulary(genai.write(tmp_path_factory.mktemp("m")) / "tokenizer.json", 1536)


@pytest.mark.parametrize("text", ["Gatehouse is", "é 😀\n\t\x00", "  two  spaces", "<|im_start|>user", "é long 😀 " * 300])
def test_the_bytes_of_tokens_are_those_of_the_text(levels: GenaiVocabulary, text: str) -> None:
    plain = levels.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(map(levels.piece, plain)) == text.encode() and levels.detokenize(plain) == text
    parsed = levels.tokenize(text, add_special=False, parse_special=True)
    assert b"".join(map(levels.special_piece, parsed)) == text.encode()
    assert (1 in parsed) == text.startswith("<|im_start|>") and 1 not in plain


def test_half_a_character_is_read_as_a_question_mark(levels: GenaiVocabulary) -> None:
    assert levels.detokenize(levels.tokenize("a\ud800b", add_special=False, parse_special=True)) == "a?b"


def test_control_tokens(levels: GenaiVocabulary) -> None:
    assert levels.control_texts() == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert (levels.piece(2), levels.special_piece(2), levels.special_piece(1_000_000)) == (b"", b"<|im_end|>", b"")


def sentencepiece(folder: Path) -> Path:
    vocabulary = {"<unk>": 0, "<s>": 1, "▁": 2, "a": 3, "<0xC3>": 4, "<0xA9>": 5}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken("<s>", special=True)])
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_sentencepieces_marks_and_bytes(tmp_path: Path) -> None:
    made = GenaiVocabulary(sentencepiece(tmp_path), 6)
    tokens = made.tokenize("a é", add_special=False, parse_special=True)
    assert tokens == [3, 2, 4, 5] and made.detokenize(tokens) == "a é"
    assert made.control_texts() == ["<s>"]


@pytest.mark.parametrize("content", ["{}", "noise"])
def test_what_is_no_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(LoadError, match=r"tokenizer\.json"):
        GenaiVocabulary(tmp_path / "tokenizer.json", 1)


def test_a_vocabulary_of_another_kind(tmp_path: Path) -> None:
    path = sentencepiece(tmp_path)
    described = json.loads(path.read_text())
    described |= {"decoder": None, "pre_tokenizer": None}
    path.write_text(json.dumps(described))
    with pytest.raises(LoadError, match="neither a byte-level nor a SentencePiece vocabulary"):
        GenaiVocabulary(path, 6)
