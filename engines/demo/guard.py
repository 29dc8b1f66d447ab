"""Makes the demo classifier of prompt injections: `python -m engines.demo.guard [--out FOLDER] [--steps N]`, a minute on one core.

It reads pairs of neighbouring tokens, like the linear classifiers that spam filters use: the vectors of a text's tokens and of its hashed
pairs of tokens are averaged and their greatest values taken (Joulin et al., 2016, "Bag of Tricks for Efficient Text Classification"), and a
small layer decides between `safe` and `injection`. It learns from sentences that are put together from data/guard.yaml, in part between
sentences that are harmless, and never sees the texts that `measured` counts. Demo quality: it knows the forms in its data and what is
close to them.

Needs `numpy`, `tokenizers` and `onnx`. Writes model.onnx (float16 tables), tokenizer.json and config.json.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from engines.demo.folder import Adam, replace_folder
from engines.demo.source import load

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

DATA = Path(__file__).parent / "data" / "guard.yaml"
OUT = Path(__file__).parent / "artefacts" / "demo-guard"
LABELS = ("safe", "injection")
VOCABULARY = 3000
PAIRS = 32768
"""Rows of the table that pairs of tokens are hashed into."""
FIRST, SECOND = 31337, 7919
SIZE = 16
HIDDEN = 32
MAX_LENGTH = 256
STEPS = 2000
BATCH = 128
RATE = 0.01
DROPPED = 0.1
"""Share of tokens left out at random in training, so that no single word decides."""
LOOSE = 0.1
EMBEDDED = 0.35
"""Share of texts that stand between harmless sentences."""
SMALLEST = -1e4
SEED = 20


class Corpus:
    """Texts that are made of data/guard.yaml, without end."""

    def __init__(self, data: dict[str, Any], random: random.Random, harmless: Sequence[str]) -> None:
        """harmless: further clean texts."""
        self._words: dict[str, list[str]] = data["words"]
        self._frames = (data["clean"], data["injection"])
        self._filler: list[str] = data["filler"] * 5 + list(harmless)
        self._loose = [word for words in self._words.values() for text in words for word in text.split()]
        self._random = random

    def sample(self, label: int) -> str:
        """A text of this label."""
        draw = self._random
        text = self._filled(draw.choice(self._frames[label]))
        kind = 1.0 if label else draw.random()
        if kind < 0.35:
            text = draw.choice(self._filler)
        elif kind < LOOSE + 0.35:  # the same words without their sense
            text = " ".join(draw.choices(self._loose, k=draw.randrange(2, 12)))
        if draw.random() < EMBEDDED:
            clean = [self._filled(draw.choice(self._frames[0])) if draw.random() < 0.5 else draw.choice(self._filler) for _ in range(4)]
            before, behind = draw.randrange(3), draw.randrange(3)
            text = " ".join((*clean[:before], text, *clean[2 : 2 + behind]))
        if draw.random() < 0.15 and len(text) > 4:  # a slip of the finger
            place = draw.randrange(len(text) - 1)
            text = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
        return text

    def _filled(self, frame: str) -> str:
        text = re.sub(r"\{(\w+)\}", lambda found: self._random.choice(self._words[found[1]]), frame)
        return re.sub(r" +", " ", text).strip()


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE on lower-case text without compatibility forms; it can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, min_frequency=3, initial_alphabet=alphabet, special_tokens=["<pad>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Model:
    """The parameters, what they compute, and their gradients. A row of tokens that is left out is -1."""

    def __init__(self, vocabulary: int, numbers: np.random.Generator) -> None:
        def drawn(*shape: int) -> Floats:
            return numbers.normal(0, 0.1, shape).astype(np.float32)

        self.tokens, self.pairs = drawn(vocabulary, SIZE) * np.float32(0.2), np.zeros((PAIRS, SIZE), np.float32)
        self.inner, self.inner_bias = drawn(2 * SIZE, HIDDEN) * 2, np.zeros(HIDDEN, np.float32)
        self.outer, self.outer_bias = drawn(HIDDEN, 2) * 2, np.zeros(2, np.float32)

    @property
    def parameters(self) -> tuple[Floats, ...]:
        return self.tokens, self.pairs, self.inner, self.inner_bias, self.outer, self.outer_bias

    def scores(self, rows: Sequence[Integers]) -> Floats:
        """The probability of an injection for each text."""
        found = np.empty(len(rows), np.float32)
        for index, ids in enumerate(rows):
            logits = self._forward(ids)[0]
            found[index] = 1 / (1 + np.exp(logits[0] - logits[1]))
        return found

    def _forward(self, ids: Integers) -> tuple[Any, ...]:
        hashed = (ids[:-1] * FIRST + ids[1:] * SECOND) % PAIRS
        vectors = self.tokens[ids].copy()
        vectors[:-1] += self.pairs[hashed]
        top = vectors.argmax(axis=0)
        pooled = np.concatenate([vectors.mean(axis=0), vectors[top, np.arange(SIZE)]])
        before = pooled @ self.inner + self.inner_bias
        hidden = np.maximum(before, 0)
        return hidden @ self.outer + self.outer_bias, hashed, top, pooled, before, hidden

    def gradients(self, rows: Sequence[Integers], wanted: Sequence[int]) -> list[Floats]:
        """Of the mean cross entropy, for each parameter."""
        found = [np.zeros_like(parameter) for parameter in self.parameters]
        tokens, pairs, inner, inner_bias, outer, outer_bias = found
        for ids, label in zip(rows, wanted, strict=True):
            logits, hashed, top, pooled, before, hidden = self._forward(ids)
            powers = np.exp(logits - logits.max())
            error = powers / powers.sum()
            error[label] -= 1
            error /= len(rows)
            outer += np.outer(hidden, error)
            outer_bias += error
            back = (self.outer @ error) * (before > 0)
            inner += np.outer(pooled, back)
            inner_bias += back
            spread = self.inner @ back
            each = np.tile(spread[:SIZE] / len(ids), (len(ids), 1))
            each[top, np.arange(SIZE)] += spread[SIZE:]
            np.add.at(tokens, ids, each)
            np.add.at(pairs, hashed, each[:-1])
        return found


def train(corpus: Corpus, tokenizer: Tokenizer, steps: int) -> Model:
    """Adam on freshly made texts, as many of one label as of the other."""
    numbers = np.random.default_rng(SEED)
    model = Model(tokenizer.get_vocab_size(), numbers)
    adam = Adam(model.parameters)
    for step in range(steps):
        labels = [index % 2 for index in range(BATCH)]
        encodings = tokenizer.encode_batch([corpus.sample(label) for label in labels])
        rows = []
        for encoding in encodings:
            ids = np.asarray(encoding.ids[:MAX_LENGTH], np.int64)
            kept = ids[numbers.random(len(ids)) >= DROPPED]
            rows.append(kept if len(kept) > 1 else np.resize(ids, 2))
        adam.step(model.gradients(rows, labels), RATE * (1 - step / steps))
    return model


def to_onnx(model: Model) -> onnx.ModelProto:
    """input_ids, attention_mask [batch, length] -> logits [batch, 2]. Padding changes nothing."""
    constants: dict[str, Any] = {
        "tokens": model.tokens.astype(np.float16), "pairs": model.pairs.astype(np.float16), "inner": model.inner,
        "inner_bias": model.inner_bias, "outer": model.outer, "outer_bias": model.outer_bias, "first": np.array(FIRST),
        "second": np.array(SECOND), "rows": np.array(PAIRS), "zero": np.array([0]), "one": np.array([1]), "last": np.array([-1]),
        "end": np.array([1 << 40]), "axis": np.array([1]), "ahead": np.array([0, 0, 0, 1]), "deep": np.array([2]),
        "none": np.array(0, np.int64), "smallest": np.array(SMALLEST, np.float32), "unit": np.array(1, np.float32),
    }  # fmt: skip
    nodes: list[Any] = []

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    following = add("Pad", add("Slice", "input_ids", "one", "end", "axis"), "ahead", "none")
    after = add("Cast", add("Pad", add("Slice", "attention_mask", "one", "end", "axis"), "ahead", "none"), to=TensorProto.FLOAT)
    hashed = add("Mod", add("Add", add("Mul", "input_ids", "first"), add("Mul", following, "second")), "rows")
    token = add("Cast", add("Gather", "tokens", "input_ids"), to=TensorProto.FLOAT)
    pair = add("Mul", add("Cast", add("Gather", "pairs", hashed), to=TensorProto.FLOAT), add("Unsqueeze", after, "deep"))
    mask = add("Unsqueeze", add("Cast", "attention_mask", to=TensorProto.FLOAT), "deep")
    vectors = add("Mul", add("Add", token, pair), mask)
    mean = add("Div", add("ReduceSum", vectors, "axis", keepdims=0), add("ReduceSum", mask, "axis", keepdims=0))
    hidden_padding = add("Mul", add("Sub", "unit", mask), "smallest")
    top = add("ReduceMax", add("Add", vectors, hidden_padding), "axis", keepdims=0)
    pooled = add("Concat", mean, top, axis=1)
    hidden = add("Relu", add("Add", add("MatMul", pooled, "inner"), "inner_bias"))
    nodes.append(helper.make_node("Add", [add("MatMul", hidden, "outer"), "outer_bias"], ["logits"], name="logits"))
    del constants["zero"], constants["last"]
    graph = helper.make_graph(
        nodes,
        "demo-guard",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, producer_name="gatehouse")
    onnx.checker.check_model(made)
    return made


def harmless() -> list[str]:
    """Clean texts: all that the other demo models are made of."""
    source = load()
    found = [text for topic in source.topics for _, text in topic.seeds]
    found += [text for topic in source.topics for text in (topic.answer, topic.more)]
    return [text for text in (*found, *source.outside.subjects, *source.outside.questions) if text]


def measured(score: Callable[[str], float], data: dict[str, Any], threshold: float) -> tuple[float, float]:
    """(recall, share of false positives) on the texts that were held apart."""
    held = data["heldout"]
    found = [sum(score(text) >= threshold for text in held[name]) / len(held[name]) for name in ("injection", "clean")]
    return found[0], found[1]


def main() -> None:
    """Makes the model and prints its figures."""
    parser = argparse.ArgumentParser(description="Makes the demo classifier of prompt injections.")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    corpus = Corpus(data, random.Random(SEED), harmless())
    tokenizer = train_tokenizer([corpus.sample(index % 2) for index in range(8000)])
    model = train(corpus, tokenizer, arguments.steps)

    def score(text: str) -> float:
        return float(model.scores([np.asarray(tokenizer.encode(text).ids, np.int64)])[0])

    for threshold in (0.5, 0.7, 0.9):
        recall, wrong = measured(score, data, threshold)
        print(f"held apart, threshold {threshold}: recall {recall:.2f}, false positives {wrong:.2f}")
    config = {
        "architectures": ["GatehouseDemoForSequenceClassification"],
        "id2label": {str(index): label for index, label in enumerate(LABELS)},
        "max_position_embeddings": MAX_LENGTH,
        "model_type": "gatehouse-demo-guard",
        "vocab_size": tokenizer.get_vocab_size(),
    }
    replace_folder(arguments.out, to_onnx(model), tokenizer, config)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
