"""Build the ONNX graph of a BERT encoder from its weights: `python -m engines.onnx.build_bert SOURCE TARGET`.

SOURCE is a Hugging Face folder (config.json, model.safetensors, tokenizer.json and, where there are, the Sentence Transformers
files); TARGET gets model.onnx and copies of the rest, ready for an engine of the runtime `onnx`. Needs the `onnx` package,
which a serving machine does not.

The graph is "BERT: Pre-training of Deep Bidirectional Transformers" (Devlin et al., 2018) as Hugging Face implements it,
in operators of ai.onnx 20: inputs input_ids, attention_mask, token_type_ids [batch, length] (int64), output
last_hidden_state [batch, length, hidden] (float32).
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

OPSET = 20
IR_VERSION = 9
MASKED = -1e9
"""Added to the scores of masked positions: exp of it is 0 in float32."""
DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
COPIED = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "modules.json", "sentence_bert_config.json",
    "1_Pooling/config.json",
)  # fmt: skip


def read_safetensors(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file (8 bytes header length, JSON header, data). Raises ValueError."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    if length > len(raw) - 8:
        raise ValueError(f"{path}: the header reaches beyond the file")
    header: dict[str, Any] = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = memoryview(raw)[8 + length + begin : 8 + length + end]
        found[name] = np.frombuffer(data, DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return found


class Graph:
    """Collects nodes and constants; every method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: Array) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        names = [name] if outputs == 1 else [f"{name}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names[0]

    def linear(self, name: str, value: str, weight: Array, bias: Array) -> str:
        """value @ weight + bias."""
        product = self.add("MatMul", value, self.constant(f"{name}.weight", weight))
        return self.add("Add", product, self.constant(f"{name}.bias", bias))

    def norm(self, name: str, value: str, weights: Mapping[str, Array], epsilon: float) -> str:
        scale = self.constant(f"{name}.weight", weights[f"{name}.weight"])
        return self.add(
            "LayerNormalization", value, scale, self.constant(f"{name}.bias", weights[f"{name}.bias"]), axis=-1, epsilon=epsilon
        )


def build(config: Mapping[str, Any], weights: Mapping[str, Array]) -> onnx.ModelProto:
    """The model. `config` is Hugging Face's, `weights` have its names, with or without the prefix `bert.`."""
    weights = {name.removeprefix("bert."): value.astype(np.float32) for name, value in weights.items() if value.dtype.kind == "f"}
    graph = Graph()
    hidden = _embed(graph, weights, float(config["layer_norm_eps"]))
    bias = _mask_bias(graph)
    for layer in range(int(config["num_hidden_layers"])):
        hidden = _layer(graph, f"encoder.layer.{layer}", hidden, bias, weights, config)
    graph.nodes[-1].output[0] = "last_hidden_state"
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", int(config["hidden_size"])])
    made = helper.make_graph(graph.nodes, "bert", inputs, [output], list(graph.constants.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="gatehouse")
    onnx.checker.check_model(model)
    return model


def _embed(graph: Graph, weights: Mapping[str, Array], epsilon: float) -> str:
    words = graph.add("Gather", graph.constant("words", weights["embeddings.word_embeddings.weight"]), "input_ids")
    types = graph.add("Gather", graph.constant("types", weights["embeddings.token_type_embeddings.weight"]), "token_type_ids")
    length = graph.add("Shape", "input_ids", start=1, end=2)
    table = graph.constant("positions", weights["embeddings.position_embeddings.weight"])
    positions = graph.add("Slice", table, graph.constant("zero", np.array([0])), length)
    summed = graph.add("Add", graph.add("Add", words, types), positions)
    return graph.norm("embeddings.LayerNorm", summed, weights, epsilon)


def _mask_bias(graph: Graph) -> str:
    """[batch, 1, 1, length]: 0 where a token is, MASKED where padding is."""
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    spread = graph.add("Unsqueeze", mask, graph.constant("axes", np.array([1, 2])))
    inverse = graph.add("Sub", graph.constant("one", np.array(1, np.float32)), spread)
    return graph.add("Mul", inverse, graph.constant("masked", np.array(MASKED, np.float32)))


def _layer(graph: Graph, name: str, hidden: str, bias: str, weights: Mapping[str, Array], config: Mapping[str, Any]) -> str:
    epsilon = float(config["layer_norm_eps"])
    attended = _attention(graph, f"{name}.attention", hidden, bias, weights, int(config["num_attention_heads"]))
    hidden = graph.norm(f"{name}.attention.output.LayerNorm", graph.add("Add", attended, hidden), weights, epsilon)
    inner = graph.linear(
        f"{name}.inner", hidden, weights[f"{name}.intermediate.dense.weight"].T, weights[f"{name}.intermediate.dense.bias"]
    )
    outer = graph.add("Gelu", inner)
    outer = graph.linear(f"{name}.outer", outer, weights[f"{name}.output.dense.weight"].T, weights[f"{name}.output.dense.bias"])
    return graph.norm(f"{name}.output.LayerNorm", graph.add("Add", outer, hidden), weights, epsilon)


def _attention(graph: Graph, name: str, hidden: str, bias: str, weights: Mapping[str, Array], heads: int) -> str:
    """Self-attention with queries, keys and values of one matrix product; the scale is folded into the queries' weights."""
    size = weights[f"{name}.self.query.weight"].shape[0]
    scale = np.float32(1 / np.sqrt(size // heads))
    parts = [(f"{name}.self.{part}", scale if part == "query" else np.float32(1)) for part in ("query", "key", "value")]
    weight = np.concatenate([weights[f"{part}.weight"].T * factor for part, factor in parts], axis=1)
    offset = np.concatenate([weights[f"{part}.bias"] * factor for part, factor in parts])
    joined = graph.linear(f"{name}.qkv", hidden, weight, offset)
    split = graph.add("Split", joined, axis=2, num_outputs=3, outputs=3)
    shape = graph.constant("heads", np.array([0, 0, heads, size // heads]))
    query, key, value = (graph.add("Reshape", f"{split[:-2]}_{index}", shape) for index in range(3))
    scores = graph.add("MatMul", graph.add("Transpose", query, perm=[0, 2, 1, 3]), graph.add("Transpose", key, perm=[0, 2, 3, 1]))
    shares = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
    mixed = graph.add("Transpose", graph.add("MatMul", shares, graph.add("Transpose", value, perm=[0, 2, 1, 3])), perm=[0, 2, 1, 3])
    flat = graph.add("Reshape", mixed, graph.constant("flat", np.array([0, 0, size])))
    return graph.linear(f"{name}.out", flat, weights[f"{name}.output.dense.weight"].T, weights[f"{name}.output.dense.bias"])


def convert(source: Path, target: Path) -> Path:
    """Write the folder `target` from the folder `source`; the path of the graph."""
    config = json.loads((source / "config.json").read_bytes())
    if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
        raise ValueError(f"{source}: expected a BERT model with gelu, received {config.get('model_type')} with {config.get('hidden_act')}")
    model = build(config, read_safetensors(source / "model.safetensors"))
    target.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (source / name).is_file():
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, target / name)
    fresh = target / "model.onnx.tmp"
    onnx.save(model, str(fresh))
    return fresh.replace(target / "model.onnx")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m engines.onnx.build_bert SOURCE TARGET")
    print(convert(Path(sys.argv[1]), Path(sys.argv[2])))
