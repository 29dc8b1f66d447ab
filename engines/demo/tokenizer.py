"""The demo model's tokenizer: GPT-2's byte-level BPE, which llama.cpp knows as model `gpt2` with pre-tokenizer `gpt-2`.

Needs the package `tokenizers`; only training and its tests import this module.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engines.demo.chatml import SPECIAL_TOKENS


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer as a GGUF file describes it: tokens by id and merges in order, both in GPT-2's byte alphabet."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]


def train(texts: Iterable[str], size: int) -> Tokenizer:
    """Learns `size` tokens, including 256 bytes and the special tokens, from `texts`, which must not contain special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL_TOKENS),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The learned tokens and merges of `tokenizer`."""
    model = json.loads(tokenizer.to_str())["model"]
    by_id = sorted(model["vocab"].items(), key=lambda item: int(item[1]))
    merges = tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    return Vocabulary(tokens=tuple(token for token, _ in by_id), merges=merges)
