"""Makes the demo classifier of names and places: `python -m engines.demo.names [--out FOLDER] [--steps N]`, some minutes on one core.

Three convolutions over the tokens of a text, the later ones dilated, give each token the probabilities of B-PER, I-PER, B-LOC, I-LOC and O
(Yu and Koltun, 2016; Strubell et al., 2017, "Fast and Accurate Entity Recognition with Iterated Dilated Convolutions"). It learns from
sentences that are put together from data/names.yaml, and from plain prose (prose.py) with and without names put into it. Half of the names
are drawn letter by letter from what the lists look like, so that it goes by the form of a name and what stands around it, and not by the
name. It never sees the names and sentences that `measured` counts. Demo quality.

Needs `numpy`, `tokenizers`, `onnx` and `botocore`. Writes model.onnx (float16 table), tokenizer.json and config.json, as an export of a
BERT for named entities has them.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from engines.demo.folder import Adam, replace_folder
from engines.demo.guard import harmless
from engines.demo.phrases import Phrases, Span
from engines.demo.prose import prose

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

DATA = Path(__file__).parent / "data" / "names.yaml"
OUT = Path(__file__).parent / "artefacts" / "demo-names"
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
VOCABULARY = 6000
SIZE = 64
WIDTH = 96
TAPS = ((5, 1), (3, 2), (3, 5))
"""Tokens that each convolution reads, and how far they are apart."""
MAX_LENGTH = 256
CUT = 56
"""Tokens of a text in training."""
STEPS = 1500
BATCH = 64
RATE = 0.003
SPLIT, SPLIT_NAMES = 0.05, 0.4
"""Shares of tokens that are taken apart in training: a name that it has never seen comes in other pieces than those in the lists (Provilkov
et al., 2020, "BPE-Dropout")."""
DROPPED = 0.05
"""Share of tokens hidden at random in training, so that no single one decides."""
SEED = 21


class Row(NamedTuple):
    """A text as the model learns it."""

    ids: list[int]
    labels: list[int]


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE with capital letters; it can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, min_frequency=3, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<pad>"],
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def labelled(tokenizer: Tokenizer, text: str, spans: Sequence[Span]) -> Row:
    """The tokens of a text and the label of each: B for the first of an entity, I for all that follow."""
    encoding = tokenizer.encode(text)
    labels = []
    for start, end in encoding.offsets:
        while start < end and text[start].isspace():
            start += 1
        inside = next((span for span in spans if span.start <= start < span.end and start < end), None)
        prefix = "" if inside is None else "B-" if start == inside.start else "I-"
        labels.append(LABELS.index(f"{prefix}{inside.kind}") if inside else 0)
    return Row(encoding.ids, labels)


class Splitter:
    """Takes tokens apart at random, into pieces that are tokens themselves."""

    def __init__(self, tokenizer: Tokenizer, draw: random.Random) -> None:
        self._known: dict[str, int] = tokenizer.get_vocab()
        self._texts = {number: text for text, number in self._known.items()}
        self._draw = draw

    def split(self, row: Row) -> Row:
        ids, labels = [], []
        for number, label in zip(row.ids, row.labels, strict=True):
            pieces = [number]
            if self._draw.random() < (SPLIT_NAMES if label else SPLIT):
                pieces = self._pieces(self._texts[number])
            ids += pieces
            labels += [label, *[label + label % 2] * (len(pieces) - 1)]  # I- follows B- among the labels
        return Row(ids, labels)

    def _pieces(self, text: str) -> list[int]:
        cuts = [cut for cut in range(1, len(text)) if text[:cut] in self._known and text[cut:] in self._known]
        if not cuts:
            return [self._known[text]]
        cut = self._draw.choice(cuts)
        behind = self._pieces(text[cut:]) if self._draw.random() < 0.3 else [self._known[text[cut:]]]
        return [self._known[text[:cut]], *behind]


class Model:
    """The parameters, what they compute, and their gradients. Texts of a batch are padded; the mask is 0 where they are."""

    def __init__(self, vocabulary: int, numbers: np.random.Generator) -> None:
        def drawn(rows: int, columns: int) -> Floats:
            found: Floats = (numbers.normal(0, 1, (rows, columns)) * np.sqrt(2 / rows)).astype(np.float32)
            return found

        self.table = numbers.normal(0, 0.3, (vocabulary, SIZE)).astype(np.float32)
        sizes = [SIZE, *[WIDTH] * (len(TAPS) - 1)]
        self.weights = [drawn(taps * size, WIDTH) for (taps, _), size in zip(TAPS, sizes, strict=True)]
        self.biases = [np.zeros(WIDTH, np.float32) for _ in TAPS]
        self.outer, self.outer_bias = drawn(WIDTH, len(LABELS)) * np.float32(0.3), np.zeros(len(LABELS), np.float32)

    @property
    def parameters(self) -> tuple[Floats, ...]:
        return self.table, *self.weights, *self.biases, self.outer, self.outer_bias

    def forward(self, ids: Integers, mask: Floats) -> tuple[Floats, list[Floats], list[Floats]]:
        """(logits [rows, length, labels], the columns that each convolution read, what it gave before the sum)."""
        hidden = self.table[ids] * mask
        columns, given = [], []
        for number, ((taps, apart), weight, bias) in enumerate(zip(TAPS, self.weights, self.biases, strict=True)):
            read = _shifted(hidden, taps, apart)
            out = np.maximum(read @ weight + bias, 0) * mask
            columns.append(read)
            given.append(out)
            hidden = out if number == 0 else hidden + out
        return hidden @ self.outer + self.outer_bias, [*columns, hidden], given

    def gradients(self, ids: Integers, mask: Floats, wanted: Integers) -> list[Floats]:
        """Of the mean cross entropy of the tokens, for each parameter."""
        logits, columns, given = self.forward(ids, mask)
        powers = np.exp(logits - logits.max(axis=2, keepdims=True))
        error = powers / powers.sum(axis=2, keepdims=True)
        np.put_along_axis(error, wanted[..., None], np.take_along_axis(error, wanted[..., None], 2) - 1, 2)
        error *= mask / mask.sum()
        hidden = columns.pop()
        outer = _flat(hidden).T @ _flat(error)
        outer_bias = _flat(error).sum(axis=0)
        back = error @ self.outer.T
        weights: list[Floats] = []
        biases: list[Floats] = []
        for number in reversed(range(len(TAPS))):
            through = back * (given[number] > 0)
            weights.insert(0, _flat(columns[number]).T @ _flat(through))
            biases.insert(0, _flat(through).sum(axis=0))
            below = _gathered(through @ self.weights[number].T, *TAPS[number])
            back = below * mask if number == 0 else back + below
        table = np.zeros_like(self.table)
        np.add.at(table, ids.ravel(), _flat(back))
        return [table, *weights, *biases, outer, outer_bias]


def _flat(values: Floats) -> Floats:
    return values.reshape(-1, values.shape[-1])


def _places(taps: int, apart: int) -> Iterator[int]:
    """How far each token that a convolution reads is from its middle."""
    return ((number - taps // 2) * apart for number in range(taps))


def _shifted(values: Floats, taps: int, apart: int) -> Floats:
    """[rows, length, taps x size]: what a convolution reads at each place, 0 beyond the ends."""
    reach = taps // 2 * apart
    length = values.shape[1]
    wide = np.pad(values, ((0, 0), (reach, reach), (0, 0)))
    return np.concatenate([wide[:, reach + place : reach + place + length] for place in _places(taps, apart)], axis=2)


def _gathered(values: Floats, taps: int, apart: int) -> Floats:
    """The transpose of `_shifted`."""
    reach = taps // 2 * apart
    rows, length, size = values.shape
    wide = np.zeros((rows, length + 2 * reach, size // taps), np.float32)
    for number, place in enumerate(_places(taps, apart)):
        wide[:, reach + place : reach + place + length] += values[:, :, number * (size // taps) : (number + 1) * (size // taps)]
    return wide[:, reach : reach + length]


def train(phrases: Phrases, tokenizer: Tokenizer, steps: int) -> Model:
    """Adam on freshly made texts."""
    numbers = np.random.default_rng(SEED)
    model = Model(tokenizer.get_vocab_size(), numbers)
    adam = Adam(model.parameters)
    splitter = Splitter(tokenizer, random.Random(SEED))
    for step in range(steps):
        rows = [splitter.split(labelled(tokenizer, *phrases.sample())) for _ in range(BATCH)]
        width = min(CUT, max(len(row.ids) for row in rows))
        ids, wanted = np.zeros((BATCH, width), np.int64), np.zeros((BATCH, width), np.int64)
        mask = np.zeros((BATCH, width, 1), np.float32)
        for number, row in enumerate(rows):
            length = min(width, len(row.ids))
            ids[number, :length], wanted[number, :length], mask[number, :length] = row.ids[:length], row.labels[:length], 1
        ids[numbers.random(ids.shape) < DROPPED] = 0  # the padding's vector, a token like any other here
        adam.step(model.gradients(ids, mask, wanted), RATE * (1 - step / steps))
    return model


def to_onnx(model: Model) -> onnx.ModelProto:
    """input_ids, attention_mask [batch, length] -> logits [batch, length, labels]. Padding changes nothing."""
    constants: dict[str, Any] = {
        "table": model.table.astype(np.float16), "outer": model.outer, "outer_bias": model.outer_bias, "deep": np.array([1]),
    }  # fmt: skip
    nodes: list[Any] = []

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    mask = add("Unsqueeze", add("Cast", "attention_mask", to=TensorProto.FLOAT), "deep")
    table = add("Transpose", add("Cast", add("Gather", "table", "input_ids"), to=TensorProto.FLOAT), perm=[0, 2, 1])
    hidden = add("Mul", table, mask)
    for number, ((taps, apart), weight, bias) in enumerate(zip(TAPS, model.weights, model.biases, strict=True)):
        size = len(weight) // taps
        constants[f"weight_{number}"] = weight.reshape(taps, size, WIDTH).transpose(2, 1, 0)
        constants[f"bias_{number}"] = bias
        reach = taps // 2 * apart
        read = add("Conv", hidden, f"weight_{number}", f"bias_{number}", dilations=[apart], kernel_shape=[taps], pads=[reach, reach])
        out = add("Mul", add("Relu", read), mask)
        hidden = out if number == 0 else add("Add", hidden, out)
    product = add("MatMul", add("Transpose", hidden, perm=[0, 2, 1]), "outer")
    nodes.append(helper.make_node("Add", [product, "outer_bias"], ["logits"], name="logits"))
    graph = helper.make_graph(
        nodes,
        "demo-names",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", len(LABELS)])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, producer_name="gatehouse")
    onnx.checker.check_model(made)
    return made


def heldout(data: dict[str, Any], seed: int = SEED) -> list[tuple[str, list[Span]]]:
    """The texts that were held apart: sentences and names that no training text has, and clean texts."""
    held = data["heldout"]
    draw = random.Random(seed)
    found = [Phrases.held(held, draw, sentence) for sentence in held["sentences"] for _ in range(5)]
    return [*found, *((text, []) for text in held["clean"])]


def measured(find: Callable[[str], list[Span]], texts: Sequence[tuple[str, Sequence[Span]]]) -> dict[str, tuple[float, float]]:
    """(recall, precision) of exact spans by kind, and as `characters` how much of the letters of all entities was found as any entity, and
    how much of what was found is part of one."""
    wanted: dict[str, list[bool]] = {"PER": [], "LOC": []}
    given: dict[str, list[bool]] = {"PER": [], "LOC": []}
    letters = hidden = covered = 0
    for text, spans in texts:
        found = find(text)
        for span in spans:
            wanted[span.kind].append(span in found)
        for span in found:
            given[span.kind].append(span in spans)
        right = {place for span in spans for place in range(span.start, span.end)}
        reached = {place for span in found for place in range(span.start, span.end)}
        letters, hidden, covered = letters + len(right), hidden + len(right & reached), covered + len(reached)
    shares = {kind: (sum(wanted[kind]) / len(wanted[kind]), sum(given[kind]) / max(1, len(given[kind]))) for kind in wanted}
    return {**shares, "characters": (hidden / letters, hidden / max(1, covered))}


def main() -> None:
    """Makes the model."""
    parser = argparse.ArgumentParser(description="Makes the demo classifier of names and places.")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    phrases = Phrases(data, random.Random(SEED), [*data["filler"], *harmless(), *prose()])
    tokenizer = train_tokenizer([*(phrases.sample()[0] for _ in range(12000)), *phrases.prose])
    model = train(phrases, tokenizer, arguments.steps)
    config = {
        "architectures": ["GatehouseDemoForTokenClassification"],
        "id2label": {str(index): label for index, label in enumerate(LABELS)},
        "max_position_embeddings": MAX_LENGTH,
        "model_type": "gatehouse-demo-names",
        "vocab_size": tokenizer.get_vocab_size(),
    }
    replace_folder(arguments.out, to_onnx(model), tokenizer, config)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
