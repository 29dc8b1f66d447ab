"""Small graphs and folders that the tests of the ONNX runtime load; made with the `onnx` package in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "a",
    "b",
    "rather",
    "longer",
    "text",
    "with",
    "several",
    "more",
    "words",
    "in",
    "it",
    "cat",
    "dog",
)
MAX_LENGTH = 16
SIZE = 8

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "FP16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16, "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE, "BYTES": TensorProto.STRING,
}  # fmt: skip

Ports = Sequence[tuple[str, str, Sequence[Any]]]


def graph(
    nodes: Sequence[onnx.NodeProto], inputs: Ports, outputs: Ports, constants: dict[str, Any] | None = None, opset: int = 17
) -> onnx.ModelProto:
    """A checked model; ports are (name, datatype, shape)."""
    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, ONNX_TYPES[kind], list(shape)) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, ONNX_TYPES[kind], list(shape)) for name, kind, shape in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, producer_name="tests")
    onnx.checker.check_model(model)
    return model


def identity(datatype: str, shape: Sequence[Any] = ("n",)) -> onnx.ModelProto:
    """y = x."""
    return graph([helper.make_node("Identity", ["x"], ["y"])], [("x", datatype, shape)], [("y", datatype, shape)])


def every_type() -> onnx.ModelProto:
    """One input and one output of every datatype but BF16, `in_X` -> `out_X`, all of length n."""
    kinds = [kind for kind in ONNX_TYPES if kind != "BF16"]
    return graph(
        [helper.make_node("Identity", [f"in_{kind}"], [f"out_{kind}"]) for kind in kinds],
        [(f"in_{kind}", kind, ["n"]) for kind in kinds],
        [(f"out_{kind}", kind, ["n"]) for kind in kinds],
    )


def brain() -> onnx.ModelProto:
    """BF16: same [n] = x, wide [n] = x as FP32."""
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT)]
    return graph(nodes, [("x", "BF16", ["n"])], [("same", "BF16", ["n"]), ("wide", "FP32", ["n"])])


def affine() -> onnx.ModelProto:
    """y [n, 3] = x [n, 4] @ w + 1; rows are independent."""
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "one"], ["y"])]
    return graph(nodes, [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 3])], {"w": weight, "one": np.float32(1)})


def mixing() -> onnx.ModelProto:
    """y = softmax of x over the rows: a row depends on its company."""
    return graph([helper.make_node("Softmax", ["x"], ["y"], axis=0)], [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])])


def lookup() -> onnx.ModelProto:
    """y [n, 2] = table[index [n, 1]]: an index beyond the table fails the run."""
    nodes = [helper.make_node("Gather", ["table", "index"], ["g"]), helper.make_node("Squeeze", ["g", "axis"], ["y"])]
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    return graph(nodes, [("index", "INT64", ["n", 1])], [("y", "FP32", ["n", 2])], {"table": table, "axis": np.array([1])})


def convolution() -> onnx.ModelProto:
    """Image-shaped: pixels UINT8 [n, 3, h, w] -> features FP32 [n, 2, h, w], a 3 x 3 convolution, sizes dynamic."""
    weight = np.linspace(-1, 1, 2 * 3 * 3 * 3, dtype=np.float32).reshape(2, 3, 3, 3)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["real", "w"], ["features"], pads=[1, 1, 1, 1]),
    ]
    return graph(nodes, [("pixels", "UINT8", ["n", 3, "h", "w"])], [("features", "FP32", ["n", 2, "h", "w"])], {"w": weight})


def named(scale: int = 2) -> onnx.ModelProto:
    """INT64 and strings: count [n] -> doubled [n], name [n] -> name_out [n]."""
    nodes = [helper.make_node("Mul", ["count", "k"], ["doubled"]), helper.make_node("Identity", ["name"], ["name_out"])]
    ports = [("count", "INT64", ["n"]), ("name", "BYTES", ["n"])]
    return graph(nodes, ports, [("doubled", "INT64", ["n"]), ("name_out", "BYTES", ["n"])], {"k": np.int64(scale)})


def reciprocal() -> onnx.ModelProto:
    """y = 1 / x: zero gives infinity, which JSON cannot carry."""
    return graph([helper.make_node("Reciprocal", ["x"], ["y"])], [("x", "FP32", ["n"])], [("y", "FP32", ["n"])])


def stubborn() -> onnx.ModelProto:
    """y = x [n] reshaped to (5, 7): only 35 values will do."""
    return graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], [("x", "FP32", ["n"])], [("y", "FP32", [5, 7])], {"shape": np.array([5, 7])}
    )


def tokenizer() -> Tokenizer:
    """Words split at spaces, [CLS] and [SEP] around them."""
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def embedding_folder(root: Path, *, dependent: bool = False, config: dict[str, Any] | None = None) -> Path:
    """A text model: last_hidden_state = table[input_ids] * mask; with `dependent`, scaled by the largest value of the whole batch."""
    table = np.random.default_rng(7).normal(size=(len(WORDS), SIZE)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "axis"], ["wide"]),
        helper.make_node("Mul", ["rows", "wide"], ["plain" if dependent else "last_hidden_state"]),
    ]
    if dependent:
        nodes.append(helper.make_node("ReduceMax", ["plain"], ["top"], keepdims=0))
        nodes.append(helper.make_node("Sub", ["plain", "top"], ["last_hidden_state"]))
    ports = [("input_ids", "INT64", ["b", "t"]), ("attention_mask", "INT64", ["b", "t"])]
    save(
        graph(nodes, ports, [("last_hidden_state", "FP32", ["b", "t", SIZE])], {"table": table, "axis": np.array([2])}), root / "model.onnx"
    )
    tokenizer().save(str(root / "tokenizer.json"))
    (root / "config.json").write_text(json.dumps({"max_position_embeddings": MAX_LENGTH, **(config or {})}))
    return root


def classifier_folder(root: Path, labels: Sequence[str] = ("cats", "dogs"), **config: Any) -> Path:
    """logits [b, labels]: how often `cat` and `dog` occur, times 2."""
    table = np.zeros((len(WORDS), len(labels)), np.float32)
    table[WORDS.index("cat"), 0] = 2
    table[WORDS.index("dog"), len(labels) - 1] = 2
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axis"], ["logits"], keepdims=0),
    ]
    made = graph(
        nodes, [("input_ids", "INT64", ["b", "t"])], [("logits", "FP32", ["b", len(labels)])], {"table": table, "axis": np.array([1])}
    )
    save(made, root / "model.onnx")
    tokenizer().save(str(root / "tokenizer.json"))
    names = {str(index): label for index, label in enumerate(labels)}
    architecture = ["BertForSequenceClassification"]
    (root / "config.json").write_text(
        json.dumps({"architectures": architecture, "id2label": names, "max_position_embeddings": 16, **config})
    )
    return root


def tagger_folder(root: Path) -> Path:
    """A token classifier: `cat` begins a PER and `dog` goes on, `text` is a LOC; reads 16 tokens at a time."""
    labels = ("O", "B-PER", "I-PER", "B-LOC")
    table = np.zeros((len(WORDS), len(labels)), np.float32)
    table[:, 0] = 3
    for word, label in (("cat", 1), ("dog", 2), ("text", 3)):
        table[WORDS.index(word), label] = 9
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["logits"])]
    made = graph(nodes, [("input_ids", "INT64", ["b", "t"])], [("logits", "FP32", ["b", "t", len(labels)])], {"table": table})
    save(made, root / "model.onnx")
    tokenizer().save(str(root / "tokenizer.json"))
    names = {str(index): label for index, label in enumerate(labels)}
    config = {"architectures": ["BertForTokenClassification"], "id2label": names, "max_position_embeddings": 16}
    (root / "config.json").write_text(json.dumps(config))
    return root


BERT_WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "Anna",
    "Ko",
    "##wal",
    "##ski",
    "Kra",
    "##kow",
    "lives",
    "in",
    "write",
    "to",
    ".",
    "say",
    "not",
)
BERT_LABELS = ("O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")


def bert_ner_folder(root: Path) -> Path:
    """As the usual export of a BERT for named entities: a WordPiece tokenizer with [CLS] and [SEP], three inputs, the labels of CoNLL-2003.
    Tokens of another sentence (`token_type_ids`) and padding are no entities, so each input counts."""
    root.mkdir(parents=True, exist_ok=True)
    table = np.zeros((len(BERT_WORDS), len(BERT_LABELS)), np.float32)
    table[:, 0] = 3
    for word, label in (("Anna", "B-PER"), ("Ko", "I-PER"), ("##wal", "I-PER"), ("##ski", "O"), ("Kra", "B-LOC"), ("##kow", "I-LOC")):
        table[BERT_WORDS.index(word), BERT_LABELS.index(label)] = 9
    first = np.array([[1.0], [0.0]], np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["scores"]),
        helper.make_node("Gather", ["first", "token_type_ids"], ["sentence"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["there"]),
        helper.make_node("Mul", ["scores", "sentence"], ["sized"]),
        helper.make_node("Mul", ["sized", "there"], ["logits"]),
    ]
    inputs = [(name, "INT64", ["batch", "tokens"]) for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = [("logits", "FP32", ["batch", "tokens", len(BERT_LABELS)])]
    save(graph(nodes, inputs, outputs, {"table": table, "first": first, "last": np.array([2], np.int64)}), root / "model.onnx")
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(BERT_WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(root / "tokenizer.json"))
    names = {str(index): label for index, label in enumerate(BERT_LABELS)}
    config = {
        "architectures": ["BertForTokenClassification"],
        "model_type": "bert",
        "id2label": names,
        "label2id": {label: int(index) for index, label in names.items()},
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    (root / "config.json").write_text(json.dumps(config))
    return root


def endless() -> onnx.ModelProto:
    """y = x after a loop that does not end."""
    inputs = [_value("round", "INT64", []), _value("going", "BOOL", []), _value("old", "FP32", ["n"])]
    nodes = [helper.make_node("Identity", ["going"], ["go_on"]), helper.make_node("Identity", ["old"], ["new"])]
    body = helper.make_graph(nodes, "body", inputs, [_value("go_on", "BOOL", []), _value("new", "FP32", ["n"])])
    loop = helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    return graph([loop], [("x", "FP32", ["n"])], [("y", "FP32", ["n"])], {"yes": np.array(True)})


def rounds() -> onnx.ModelProto:
    """y [1] = as many as `count` [1] says, each added in a round of a loop."""
    inputs = [_value("round", "INT64", []), _value("going", "BOOL", []), _value("old", "INT64", [1])]
    nodes = [helper.make_node("Identity", ["going"], ["go_on"]), helper.make_node("Add", ["old", "one"], ["new"])]
    body = helper.make_graph(nodes, "body", inputs, [_value("go_on", "BOOL", []), _value("new", "INT64", [1])])
    nodes = [
        helper.make_node("Squeeze", ["count"], ["times"]),
        helper.make_node("Sub", ["count", "count"], ["zero"]),
        helper.make_node("Loop", ["times", "yes", "zero"], ["y"], body=body),
    ]
    constants = {"yes": np.array(True), "one": np.array([1], np.int64)}
    return graph(nodes, [("count", "INT64", [1])], [("y", "INT64", [1])], constants)


def _value(name: str, kind: str, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ONNX_TYPES[kind], list(shape))
