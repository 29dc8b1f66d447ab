"""Makes the demo embedding model: `python -m engines.demo.embed [--out FOLDER] [--steps N]`, a minute on one core.

The model is a table of token vectors; a text's embedding is their mean. It knows the vocabulary of data/*.yaml and little
else: texts about the same Gatehouse topic are near each other. It is made in three steps, all from the hand-written data:

1. A byte-level BPE tokenizer (lower case, so that "API key" and "api key" are the same).
2. Vectors from counts: positive pointwise mutual information of tokens with topics and with their neighbours, reduced by a
   singular value decomposition (Levy and Goldberg, 2014; Levy, Goldberg and Dagan, 2015).
3. A short contrastive training moves questions, varied by phrasing.py, towards their topic's prototype and away from the
   others (Snell, Swersky and Zemel, 2017), with Adam in plain numpy. It never sees heldout.yaml, on which `accuracy` is measured.

Needs `numpy`, `tokenizers` and `onnx`. Writes model.onnx (float16 table), tokenizer.json and config.json.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from engines.demo.phrasing import framed, varied
from engines.demo.source import Source, load

Floats = NDArray[np.float32]

VOCABULARY = 2000
SIZE = 96
MAX_LENGTH = 512
STEPS = 600
BATCH = 128
RATE = 0.02
TEMPERATURE = 0.1
DROPPED_TOKENS = 0.1
"""Share of tokens left out at random in training, so that no single word decides."""
NEIGHBOURS = 5
TOPIC_WEIGHT, NEIGHBOUR_WEIGHT = 2.0, 0.3
RARITY = 1e-2
"""Smooth inverse frequency: a token's weight is RARITY / (RARITY + its share of the text)."""
UNKNOWN_NORM = 0.05
"""Norm of the vectors of tokens that do not occur in the data. Not zero, so that every text has a direction."""
QUESTION_SHARE = 0.6
SEED = 20
OUT = Path(__file__).parent / "artefacts" / "demo-embed"


@dataclass(frozen=True, slots=True)
class Passage:
    """A text, its topic, and its weight in the counts."""

    topic: str
    text: str
    weight: float


def passages(source: Source) -> list[Passage]:
    """Every text in the data with its topic; each subject outside Gatehouse is a topic of its own."""
    found = []
    for topic in source.topics:
        found += [Passage(topic.id, text, 1) for _, text in topic.seeds]
        found += [Passage(topic.id, topic.answer, 2), Passage(topic.id, topic.more, 2)]
    for talk in source.talks:
        found += [Passage(talk.id, text, 1) for text in talk.ask]
        found.append(Passage(talk.id, talk.answer, 1))
    found += [Passage(f"outside:{subject}", subject, 1) for subject in source.outside.subjects]
    found += [Passage("outside", question, 1) for question in source.outside.questions]
    return [passage for passage in found if passage.text]


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE on lower-case text; it can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, min_frequency=2, initial_alphabet=alphabet, special_tokens=["<pad>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def information(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positive pointwise mutual information of rows and columns, with column counts smoothed by the power 0.75."""
    rows = counts.sum(axis=1, keepdims=True)
    columns = counts.sum(axis=0, keepdims=True) ** 0.75
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(counts / (rows * (columns / columns.sum())))
    return np.maximum(np.where(np.isfinite(found), found, 0), 0)


def count(texts: Sequence[Passage], tokens: Sequence[Sequence[int]], topics: dict[str, int], size: int) -> tuple[Any, Any, Any]:
    """Weighted counts: [tokens, topics], [tokens, nearby tokens] and [tokens]."""
    by_topic, near, total = np.zeros((size, len(topics))), np.zeros((size, size)), np.zeros(size)
    for passage, ids in zip(texts, tokens, strict=True):
        for place, token in enumerate(ids):
            by_topic[token, topics[passage.topic]] += passage.weight
            total[token] += passage.weight
            for other in range(max(0, place - NEIGHBOURS), min(len(ids), place + NEIGHBOURS + 1)):
                if other != place:
                    near[token, ids[other]] += passage.weight / abs(place - other)
    return by_topic, near, total


def leading(matrix: NDArray[np.float64], random: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first SIZE left singular vectors and values, by random projection (Halko, Martinsson and Tropp, 2011)."""
    basis, _ = np.linalg.qr(matrix @ random.normal(size=(matrix.shape[1], 2 * SIZE)))
    for _ in range(4):
        basis, _ = np.linalg.qr(matrix @ (matrix.T @ basis))
    left, values, _ = np.linalg.svd(basis.T @ matrix, full_matrices=False)
    return (basis @ left)[:, :SIZE], values[:SIZE]


class Table:
    """Token vectors [vocabulary, SIZE] and topic prototypes [topics, SIZE], and their training."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.texts = passages(source)
        self.tokenizer = train_tokenizer([passage.text for passage in self.texts])
        self.topics = {topic: index for index, topic in enumerate(dict.fromkeys(passage.topic for passage in self.texts))}
        self._questions = [(self.topics[topic.id], kind, seed) for topic in source.topics for kind, seed in topic.seeds]
        self._random, self._numbers = random.Random(SEED), np.random.default_rng(SEED)
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch([passage.text for passage in self.texts])]
        self.vectors = self._from_counts(tokens)
        self.prototypes = np.zeros((len(self.topics), SIZE), np.float32)
        for passage, ids in zip(self.texts, tokens, strict=True):
            self.prototypes[self.topics[passage.topic]] += self.embed_tokens(ids)

    def _from_counts(self, tokens: Sequence[Sequence[int]]) -> Floats:
        by_topic, near, total = count(self.texts, tokens, self.topics, self.tokenizer.get_vocab_size())
        left, values = leading(np.hstack([TOPIC_WEIGHT * information(by_topic), NEIGHBOUR_WEIGHT * information(near)]), self._numbers)
        found = left * np.sqrt(values) * (RARITY / (RARITY + total / total.sum()))[:, None]
        found /= np.linalg.norm(found, axis=1).mean()
        unknown = self._numbers.normal(size=found.shape)
        unknown *= UNKNOWN_NORM / np.linalg.norm(unknown, axis=1, keepdims=True)
        vectors: Floats = np.where((total > 0)[:, None], found, unknown).astype(np.float32)
        return vectors

    def embed_tokens(self, ids: Sequence[int]) -> Floats:
        """The embedding of a text's tokens."""
        vector: Floats = self.vectors[list(ids)].mean(axis=0)
        return vector / np.float32(np.linalg.norm(vector) + 1e-9)

    def embed(self, text: str) -> Floats:
        """The embedding of a text."""
        return self.embed_tokens(self.tokenizer.encode(text).ids)

    def _sample(self) -> tuple[int, str]:
        """(topic index, text): a varied question, or a text of the data unchanged."""
        if self._random.random() < QUESTION_SHARE:
            topic, kind, seed = self._random.choice(self._questions)
            return topic, varied(self._random, self.source.frames, framed(self._random, self.source.frames, kind, seed))
        passage = self._random.choice(self.texts)
        return self.topics[passage.topic], passage.text

    def train(self, steps: int) -> None:
        """Pulls texts towards their topic's prototype and pushes them away from the others."""
        parameters = (self.vectors, self.prototypes)
        first = [np.zeros_like(parameter) for parameter in parameters]
        second = [np.zeros_like(parameter) for parameter in parameters]
        for step in range(1, steps + 1):
            samples = [self._sample() for _ in range(BATCH)]
            encodings = self.tokenizer.encode_batch([text for _, text in samples])
            gradients = self._gradients([encoding.ids for encoding in encodings], np.array([topic for topic, _ in samples]))
            for parameter, gradient, one, two in zip(parameters, gradients, first, second, strict=True):
                one += 0.1 * (gradient - one)
                two += 0.01 * (gradient * gradient - two)
                rate = RATE * (1 - step / steps)
                parameter -= rate * (one / (1 - 0.9**step)) / (np.sqrt(two / (1 - 0.99**step)) + 1e-8)

    def _gradients(self, tokens: Sequence[Sequence[int]], wanted: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Gradients of the mean cross entropy of cosines divided by TEMPERATURE, with respect to vectors and prototypes."""
        rows = len(tokens)
        lengths = np.array([len(ids) for ids in tokens])
        flat, row = np.concatenate([np.asarray(ids) for ids in tokens]), np.repeat(np.arange(rows), lengths)
        shares = ((self._numbers.random(len(flat)) >= DROPPED_TOKENS) / lengths[row]).astype(np.float32)[:, None]
        sums = np.zeros((rows, SIZE), np.float32)
        np.add.at(sums, row, self.vectors[flat] * shares)
        norms = np.linalg.norm(sums, axis=1, keepdims=True) + 1e-6
        heights = np.linalg.norm(self.prototypes, axis=1, keepdims=True) + 1e-6
        texts, topics = sums / norms, self.prototypes / heights
        scores = np.exp((texts @ topics.T - 1) / TEMPERATURE)
        errors = scores / scores.sum(axis=1, keepdims=True)
        errors[np.arange(rows), wanted] -= 1
        errors /= rows * TEMPERATURE
        for_texts, for_topics = errors @ topics, errors.T @ texts
        for_sums = (for_texts - texts * (for_texts * texts).sum(axis=1, keepdims=True)) / norms
        for_vectors = np.zeros_like(self.vectors)
        np.add.at(for_vectors, flat, for_sums[row] * shares)
        return for_vectors, (for_topics - topics * (for_topics * topics).sum(axis=1, keepdims=True)) / heights

    def accuracy(self) -> float:
        """Share of held-out questions whose nearest text in the data has the right topic."""
        known = np.array([self.embed(passage.text) for passage in self.texts])
        questions = [(topic, text) for topic, texts in self.source.heldout.items() for text in texts]
        right = sum(self.texts[int((known @ self.embed(text)).argmax())].topic == topic for topic, text in questions)
        return right / len(questions)


def to_onnx(vectors: Floats) -> onnx.ModelProto:
    """input_ids [batch, length] -> token_embeddings [batch, length, SIZE], looked up in a float16 table."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["half"], name="lookup"),
        helper.make_node("Cast", ["half"], ["token_embeddings"], name="widen", to=TensorProto.FLOAT),
    ]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    outputs = [helper.make_tensor_value_info("token_embeddings", TensorProto.FLOAT, ["batch", "length", SIZE])]
    graph = helper.make_graph(nodes, "demo-embed", inputs, outputs, [numpy_helper.from_array(vectors.astype(np.float16), "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="gatehouse")
    onnx.checker.check_model(model)
    return model


def write(table: Table, folder: Path) -> None:
    """Writes the model's folder through a temporary one, so that a failed write leaves the old folder in place."""
    fresh = folder.with_name(f"{folder.name}.tmp")
    fresh.mkdir(parents=True)
    onnx.save(to_onnx(table.vectors), str(fresh / "model.onnx"))
    table.tokenizer.save(str(fresh / "tokenizer.json"), pretty=False)
    config = {
        "model_type": "gatehouse-demo-embed",
        "max_position_embeddings": MAX_LENGTH,
        "hidden_size": SIZE,
        "vocab_size": len(table.vectors),
    }
    (fresh / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if folder.exists():
        shutil.rmtree(folder)
    fresh.rename(folder)


def main() -> None:
    """Makes the model and prints its accuracy."""
    parser = argparse.ArgumentParser(description="Makes the demo embedding model.")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    table = Table(load())
    print(f"{len(table.texts)} texts, {len(table.topics)} topics, {len(table.vectors)} tokens")
    print(f"held-out questions, from counts: {table.accuracy():.0%}")
    table.train(arguments.steps)
    write(table, arguments.out)
    print(f"after {arguments.steps} steps: {table.accuracy():.0%}; written to {arguments.out}")


if __name__ == "__main__":
    main()
