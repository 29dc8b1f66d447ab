"""The tokenizer keeps every byte, and says of itself what a GGUF file must say."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engines.demo.chatml import SPECIAL_TOKENS
from engines.demo.corpus import Corpus
from engines.demo.source import load
from engines.demo.tokenizer import train, vocabulary

SIZE = 600


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    examples = itertools.islice(Corpus(load(), 4).examples(), 200)
    return train([piece.text for example in examples for piece in example.pieces if piece.learned], SIZE)


def test_special_tokens_come_first(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1


def test_vocabulary_has_all_bytes_and_only_possible_merges(tokenizer: Tokenizer) -> None:
    words = vocabulary(tokenizer)
    assert len(words.tokens) == len(set(words.tokens)) == SIZE
    assert len(words.merges) == SIZE - 256 - len(SPECIAL_TOKENS)
    for merge in words.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= set(words.tokens)


@given(st.text())
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    if not any(token in text for token in SPECIAL_TOKENS):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_training_is_repeatable() -> None:
    texts = ["a key is a key", "an engine is an engine", "the engine has the key"] * 3
    assert vocabulary(train(texts, 290)) == vocabulary(train(texts, 290))
