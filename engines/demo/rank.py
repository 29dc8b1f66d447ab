"""Makes the demo reranker: `python -m engines.demo.rank [--out FOLDER] [--steps N]`, two minutes on one core.

A cross-encoder with the table of the demo embedding model (engines.demo.embed): each token of the query looks for the most similar token of
the document (Khattab and Zaharia, 2020, "ColBERT", here inside one graph), rare tokens count more, and the cosine of both texts' weighted
means is the second feature. A logistic regression of the two on questions and answers of data/*.yaml gives the score. It never sees
heldout.yaml, on which `accuracy` is measured.

Needs `numpy`, `tokenizers` and `onnx`. Writes model.onnx (float16 table), tokenizer.json and config.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, processors

from engines.demo import embed
from engines.demo.folder import Adam, replace_folder
from engines.demo.source import Source, load

Floats = NDArray[np.float32]
OUT = Path(__file__).parent / "artefacts" / "demo-rerank"
MAX_LENGTH = 512
SEPARATOR = "<pad>"
"""The token between query and document; it is no text's own, and weighs nothing."""
NEGATIVES = 8
RATE = 0.05
ROUNDS = 400
SEED = 20


class Ranker:
    """Unit vectors and weights of tokens, and what turns a pair's two features into a score."""

    def __init__(self, table: embed.Table) -> None:
        self.tokenizer = table.tokenizer
        self.vectors: Floats = table.vectors / (np.linalg.norm(table.vectors, axis=1, keepdims=True) + 1e-9)
        texts = [set(encoding.ids) for encoding in self.tokenizer.encode_batch([passage.text for passage in table.texts])]
        seen = np.zeros(len(self.vectors))
        for ids in texts:
            seen[list(ids)] += 1
        self.weights: Floats = np.log((len(texts) + 1) / (seen + 1)).astype(np.float32)
        self.weights[self.tokenizer.token_to_id(SEPARATOR)] = 0
        self.scale: Floats = np.ones(2, np.float32)
        self.offset: Floats = np.zeros(1, np.float32)

    def features(self, query: str, document: str) -> Floats:
        """(weighted mean of each query token's best match, cosine of both weighted means): as the graph computes them."""
        one, two = (self.tokenizer.encode(text).ids for text in (query, document))
        q, d, w, v = self.vectors[one], self.vectors[two], self.weights[one], self.weights[two]
        best = float((w * (q @ d.T).max(axis=1)).sum() / (w.sum() + 1e-6))
        a, b = w @ q, v @ d
        return np.array([best, a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-6)], np.float32)

    def score(self, query: str, document: str) -> float:
        """Before the logistic function."""
        return float(self.features(query, document) @ self.scale + self.offset[0])

    def fit(self, source: Source) -> None:
        """The logistic regression: each topic's questions with its own answers, and with those of other topics."""
        random, pairs, wanted = np.random.default_rng(SEED), [], []
        for number, topic in enumerate(source.topics):
            for _, seed in topic.seeds[:6]:
                others = [
                    source.topics[(number + 1 + step) % len(source.topics)]
                    for step in random.integers(0, len(source.topics) - 1, NEGATIVES)
                ]
                for other, right in ((topic, 1.0), *((other, 0.0) for other in others)):
                    pairs.append(self.features(seed, other.answer))
                    wanted.append(right)
        found, right_ones = np.array(pairs), np.array(wanted, np.float32)
        adam = Adam((self.scale, self.offset))
        for _ in range(ROUNDS):
            errors = (1 / (1 + np.exp(-(found @ self.scale + self.offset))) - right_ones).astype(np.float32)
            adam.step([errors @ found / len(errors), np.array([errors.mean()], np.float32)], RATE)

    def accuracy(self, source: Source) -> float:
        """Share of held-out questions whose own topic's answer is among the first three of all answers."""
        answers = {topic.id: topic.answer for topic in source.topics}
        questions = [(topic, text) for topic, texts in source.heldout.items() if topic in answers for text in texts]
        right = 0
        for topic, text in questions:
            order = sorted(answers, key=lambda one: -self.score(text, answers[one]))
            right += topic in order[:3]
        return right / len(questions)

    def pairing(self) -> Tokenizer:
        """The tokenizer, which puts the separator between two texts and tells them apart by their types."""
        tokenizer = Tokenizer.from_str(self.tokenizer.to_str())
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A:0", pair=f"$A:0 {SEPARATOR}:0 $B:1", special_tokens=[(SEPARATOR, tokenizer.token_to_id(SEPARATOR))]
        )
        return tokenizer


def to_onnx(ranker: Ranker) -> onnx.ModelProto:
    """(input_ids, attention_mask, token_type_ids) [batch, length] -> logits [batch, 1]."""

    def node(kind: str, inputs: str, output: str, **options: Any) -> onnx.NodeProto:
        return helper.make_node(kind, inputs.split(), [output], name=output, **options)

    nodes = [
        node("Gather", "table input_ids", "half"),
        node("Cast", "half", "vectors", to=TensorProto.FLOAT),
        node("Gather", "weights input_ids", "plain"),
        node("Cast", "attention_mask", "mask", to=TensorProto.FLOAT),
        node("Cast", "token_type_ids", "second", to=TensorProto.FLOAT),
        node("Mul", "mask second", "of_document"),
        node("Sub", "mask of_document", "of_query"),
        node("Mul", "plain of_query", "query_weights"),
        node("Mul", "plain of_document", "document_weights"),
        node("Transpose", "vectors", "turned", perm=[0, 2, 1]),
        node("MatMul", "vectors turned", "similar"),
        node("Sub", "one of_document", "elsewhere"),
        node("Mul", "elsewhere four", "penalty"),
        node("Unsqueeze", "penalty axis_one", "penalties"),
        node("Sub", "similar penalties", "allowed"),
        node("ReduceMax", "allowed", "best", axes=[2], keepdims=0),
        node("Mul", "best query_weights", "weighted"),
        node("ReduceSum", "weighted axis_one", "matched", keepdims=1),
        node("ReduceSum", "query_weights axis_one", "total", keepdims=1),
        node("Add", "total small", "total_safe"),
        node("Div", "matched total_safe", "first_feature"),
        node("Unsqueeze", "query_weights axis_one", "query_row"),
        node("MatMul", "query_row vectors", "query_mean"),
        node("Unsqueeze", "document_weights axis_one", "document_row"),
        node("MatMul", "document_row vectors", "document_mean"),
        node("Mul", "query_mean document_mean", "products"),
        node("ReduceSum", "products axis_two", "inner", keepdims=0),
        node("ReduceL2", "query_mean", "query_norm", axes=[2], keepdims=0),
        node("ReduceL2", "document_mean", "document_norm", axes=[2], keepdims=0),
        node("Mul", "query_norm document_norm", "norms"),
        node("Add", "norms small", "norms_safe"),
        node("Div", "inner norms_safe", "second_feature"),
        node("Concat", "first_feature second_feature", "features", axis=1),
        node("MatMul", "features scale", "scaled"),
        node("Add", "scaled offset", "logits"),
    ]
    values = {
        "table": ranker.vectors.astype(np.float16), "weights": ranker.weights, "scale": ranker.scale[:, None], "offset": ranker.offset,
        "one": np.float32(1), "four": np.float32(4), "small": np.float32(1e-6),
        "axis_one": np.array([1], np.int64), "axis_two": np.array([2], np.int64),
    }  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "demo-rerank", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="gatehouse")
    onnx.checker.check_model(model)
    return model


def main() -> None:
    """Makes the model and prints its accuracy."""
    parser = argparse.ArgumentParser(description="Makes the demo reranker.")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=embed.STEPS)
    arguments = parser.parse_args()
    source = load()
    table = embed.Table(source)
    table.train(arguments.steps)
    ranker = Ranker(table)
    ranker.fit(source)
    config = {
        "model_type": "gatehouse-demo-rerank",
        "architectures": ["GatehouseDemoForSequenceClassification"],
        "id2label": {"0": "relevant"},
        "max_position_embeddings": MAX_LENGTH,
    }
    replace_folder(arguments.out, to_onnx(ranker), ranker.pairing(), config)
    print(f"held-out questions with their answer among the first three: {ranker.accuracy(source):.0%}; written to {arguments.out}")


if __name__ == "__main__":
    main()
