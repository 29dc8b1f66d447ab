"""The demo chat model as a folder for onnxruntime-genai: the weights of demo-chat.gguf as an ONNX decoder with past and present keys.

    python -m engines.demo.genai FOLDER

The matrices stay what they are in the GGUF file, 8 bits in blocks of 32 (MatMulNBits takes Q8_0's numbers as they are), so that both
runtimes compute with the same model. Needs the packages `onnx` and `numpy`; for tests, comparisons and whoever wants to try the runtime.

Source: onnxruntime's operators GroupQueryAttention, MatMulNBits and SimplifiedLayerNormalization (docs/ContribOperators.md); the layout of
`genai_config.json` as onnxruntime-genai's model builder writes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engines.demo.chatml import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END

GGUF = Path(__file__).parent / "artefacts" / "demo-chat.gguf"
BLOCK = 32
DOMAIN = "com.microsoft"
_SCALARS = {0: "B", 1: "b", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9
Array = NDArray[Any]


class GgufReader:
    """The key-values and matrices of a GGUF file that is known to be good (engines.llamacpp.gguf checks those that are not)."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        self._at = 8
        tensors, pairs = self._scalar(10), self._scalar(10)
        self.pairs = {self._string(): self._value(self._scalar(4)) for _ in range(pairs)}
        found = [self._tensor() for _ in range(tensors)]
        start = self._at + -self._at % 32
        self.matrices = {name: self._weights(shape, kind, start + offset) for name, shape, kind, offset in found}

    def _scalar(self, kind: int) -> Any:
        form = np.dtype(_SCALARS[kind])
        value = np.frombuffer(self._data, form, 1, self._at)[0]
        self._at += form.itemsize
        return value.item()

    def _string(self) -> str:
        length = self._scalar(10)
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(kind)
        item, count = self._scalar(4), self._scalar(10)
        return [self._value(item) for _ in range(count)]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        shape = tuple(self._scalar(10) for _ in range(self._scalar(4)))[::-1]
        return name, shape, self._scalar(4), self._scalar(10)

    def _weights(self, shape: tuple[int, ...], kind: int, at: int) -> tuple[Array, Array | None]:
        """Numbers and scales: F32 has none, Q8_0 has one for each block of a row."""
        count = int(np.prod(shape))
        if kind == 0:
            return np.frombuffer(self._data, "<f4", count, at).reshape(shape), None
        blocks = np.frombuffer(self._data, np.dtype([("scale", "<f2"), ("numbers", "i1", BLOCK)]), count // BLOCK, at)
        return blocks["numbers"].reshape(shape), blocks["scale"].astype(np.float32).reshape(shape[0], -1)


class Graph:
    """Collects nodes and constants of the decoder."""

    def __init__(self, reader: GgufReader) -> None:
        self.reader = reader
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, inputs: list[str], name: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """Adds a node; the name of its first output."""
        names = [name, *(f"{name}.{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, inputs, names, name, domain=domain, **attributes))
        return name

    def constant(self, name: str, value: Array) -> str:
        """Adds a constant."""
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def norm(self, x: str, name: str, epsilon: float) -> str:
        """RMSNorm."""
        scale = self.constant(f"{name}.weight", self.reader.matrices[f"{name}.weight"][0])
        return self.node("SimplifiedLayerNormalization", [x, scale], name, axis=-1, epsilon=epsilon)

    def product(self, x: str, weight: str, name: str) -> str:
        """x times a transposed 8-bit matrix, computed with 8 bits as llama.cpp does (level 4): sixteen times as fast as with 32."""
        numbers, scales = self.reader.matrices[weight]
        assert scales is not None
        rows, columns = numbers.shape
        unsigned = (numbers.astype(np.int16) + 128).astype(np.uint8).reshape(rows, columns // BLOCK, BLOCK)
        inputs = [x, self.constant(f"{name}.numbers", unsigned), self.constant(f"{name}.scales", scales.reshape(-1))]
        return self.node("MatMulNBits", inputs, name, domain=DOMAIN, K=columns, N=rows, bits=8, block_size=BLOCK, accuracy_level=4)


def decoder(reader: GgufReader) -> onnx.ModelProto:
    """The whole model: tokens and past keys and values in, logits and present ones out."""
    shape = {key.partition(".")[2]: value for key, value in reader.pairs.items() if key.startswith("llama.")}
    layers, heads, width = shape["block_count"], shape["attention.head_count"], shape["embedding_length"]
    graph = Graph(reader)
    cosine, sine = _rotations(shape["context_length"], width // heads, shape["rope.freq_base"])
    graph.constant("cosine", cosine)
    graph.constant("sine", sine)
    numbers, scales = reader.matrices["token_embd.weight"]
    assert scales is not None
    graph.constant("token_embd.weight", numbers.astype(np.float32) * scales.repeat(BLOCK, 1))
    graph.constant("one", np.array(1, np.int64))
    graph.constant("last", np.array([1], np.int64))
    graph.node("ReduceSum", ["attention_mask", "last"], "seen", keepdims=0)
    graph.node("Cast", [graph.node("Sub", ["seen", "one"], "before")], "lengths", to=TensorProto.INT32)
    graph.node("Gather", [graph.node("Shape", ["attention_mask"], "mask"), "one"], "total")
    graph.node("Cast", ["total"], "longest", to=TensorProto.INT32)
    x = graph.node("Gather", ["token_embd.weight", "input_ids"], "embedded")
    for layer in range(layers):
        x = _block(graph, x, layer, heads, shape["attention.layer_norm_rms_epsilon"])
    graph.norm(x, "output_norm", shape["attention.layer_norm_rms_epsilon"])
    graph.product("output_norm", "token_embd.weight", "logits")
    past: list[Any] = []
    present: list[Any] = []
    for layer in range(layers):
        for part in ("key", "value"):
            cells = ["batch", heads, "past", width // heads]
            past.append(helper.make_tensor_value_info(f"past_key_values.{layer}.{part}", TensorProto.FLOAT, cells))
            present.append(helper.make_tensor_value_info(f"present.{layer}.{part}", TensorProto.FLOAT, ["batch", heads, "all", cells[3]]))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "all"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", len(reader.pairs["tokenizer.ggml.tokens"])])
    made = helper.make_graph(graph.nodes, "demo-chat", [ids, mask, *past], [logits, *present], graph.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8, producer_name="gatehouse")


def _block(graph: Graph, x: str, layer: int, heads: int, epsilon: float) -> str:
    at = f"blk.{layer}."
    normal = graph.norm(x, at + "attn_norm", epsilon)
    query, key, value = (graph.product(normal, f"{at}attn_{name}.weight", f"{at}{name}") for name in "qkv")
    outputs = [f"{at}attention", f"present.{layer}.key", f"present.{layer}.value"]
    past = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
    graph.nodes.append(
        helper.make_node(
            "GroupQueryAttention", [query, key, value, *past, "lengths", "longest", "cosine", "sine"], outputs, outputs[0], domain=DOMAIN,
            num_heads=heads, kv_num_heads=heads, do_rotary=1, rotary_interleaved=1,  # pairs are adjacent in GGUF's order of llama models
        )
    )  # fmt: skip
    x = graph.node("Add", [x, graph.product(outputs[0], f"{at}attn_output.weight", f"{at}attn_output")], f"{at}attended")
    normal = graph.norm(x, at + "ffn_norm", epsilon)
    gate = graph.product(normal, f"{at}ffn_gate.weight", f"{at}gate")
    gate = graph.node("Mul", [gate, graph.node("Sigmoid", [gate], f"{at}sigmoid")], f"{at}silu")
    up = graph.product(normal, f"{at}ffn_up.weight", f"{at}up")
    down = graph.product(graph.node("Mul", [gate, up], f"{at}gated"), f"{at}ffn_down.weight", f"{at}down")
    return graph.node("Add", [x, down], f"{at}out")


def _rotations(length: int, width: int, base: float) -> tuple[Array, Array]:
    frequency = base ** (-np.arange(width // 2, dtype=np.float64) / (width // 2))
    angle = np.outer(np.arange(length), frequency)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def tokenizer(reader: GgufReader) -> dict[str, Any]:
    """`tokenizer.json` of GPT-2's byte-level BPE with the file's tokens and merges."""
    tokens, merges = reader.pairs["tokenizer.ggml.tokens"], reader.pairs["tokenizer.ggml.merges"]
    special = [
        {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for number, text in enumerate(SPECIAL_TOKENS)
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)}, "merges": [merge.split(" ") for merge in merges],
        },
    }  # fmt: skip


def settings(reader: GgufReader) -> dict[str, Any]:
    """`genai_config.json`."""
    pairs = reader.pairs
    heads, width = pairs["llama.attention.head_count"], pairs["llama.embedding_length"]
    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past_key_values.%d.key",
              "past_value_names": "past_key_values.%d.value"}  # fmt: skip
    outputs = {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    return {
        "model": {
            "type": "llama", "context_length": pairs["llama.context_length"], "vocab_size": len(pairs["tokenizer.ggml.tokens"]),
            "bos_token_id": pairs["tokenizer.ggml.bos_token_id"], "eos_token_id": [pairs["tokenizer.ggml.eos_token_id"]],
            "pad_token_id": pairs["tokenizer.ggml.padding_token_id"],
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []}, "filename": "model.onnx",
                "head_size": width // heads, "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads,
                "num_hidden_layers": pairs["llama.block_count"], "inputs": inputs, "outputs": outputs,
            },
        },
        "search": {
            "do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 40, "repetition_penalty": 1.0,
            "max_length": pairs["llama.context_length"], "min_length": 0, "num_beams": 1, "num_return_sequences": 1,
            "past_present_share_buffer": False,
        },
    }  # fmt: skip


def write(folder: Path, source: Path = GGUF) -> Path:
    """Writes the model's folder, which may exist, and returns it. Raises OSError."""
    reader = GgufReader(source)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(decoder(reader).SerializeToString(deterministic=True))
    described = {"tokenizer_class": "GPT2Tokenizer", "bos_token": END_OF_TEXT, "eos_token": TURN_END, "pad_token": END_OF_TEXT,
                 "add_bos_token": False, "add_prefix_space": False, "chat_template": CHAT_TEMPLATE}  # fmt: skip
    files = {"tokenizer.json": tokenizer(reader), "tokenizer_config.json": described, "genai_config.json": settings(reader)}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]))
