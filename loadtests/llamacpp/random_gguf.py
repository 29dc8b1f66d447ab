"""Writes GGUF files with random weights: small ones for tests, a 200M-parameter one for benchmarks.

The format is described in ggml's docs/gguf.md (version 3). Weights are random, so the text is noise; everything else (vocabulary,
template, tensors) is what a real llama-architecture file has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

ALIGNMENT = 32
F32, F16, Q8_0 = 0, 1, 8
Weights = NDArray[numpy.float32]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama-architecture model."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 128
    context: int = 2048
    extra_words: int = 0

    @property
    def parameters(self) -> int:
        """Weights in all matrices, for a vocabulary of `len(vocabulary(self))` tokens."""
        head = self.width // self.heads
        attention = 2 * self.width * self.width + 2 * self.width * head * self.kv_heads
        return self.layers * (attention + 3 * self.width * self.feed_forward) + 2 * self.width * len(vocabulary(self.extra_words)[0])


def vocabulary(extra_words: int = 0) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores, types of a SentencePiece-style vocabulary: control tokens, 256 bytes, ASCII, some words, invented words."""
    tokens = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    tokens += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    tokens += [("<|im_start|>", 0.0, CONTROL), ("<|im_end|>", 0.0, CONTROL)]
    tokens += [(word, 0.0, USER_DEFINED) for word in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
    plain = [chr(code) for code in range(33, 127)] + ["▁"]
    plain += ["th", "the", "▁the", "he", "el", "hel", "hello", "▁hello", "wor", "world", "▁world", '":', '{"', '"}', "▁a", "in", "er", "on"]
    tokens += [(word, -float(rank), NORMAL) for rank, word in enumerate(plain)]
    tokens += [(f"▁w{number:x}q", -float(1000 + number), NORMAL) for number in range(extra_words)]
    return [token[0] for token in tokens], [token[1] for token in tokens], [token[2] for token in tokens]


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, numpy.uint16):
        return struct.pack("<IH", 2, value)
    if isinstance(value, numpy.int32):
        return struct.pack("<Ii", 5, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    head = struct.pack("<I", 9)
    if isinstance(value[0], str):
        return head + struct.pack("<IQ", 8, len(value)) + b"".join(map(_string, value))
    if isinstance(value[0], float):
        return head + struct.pack("<IQ", 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
    return head + struct.pack("<IQ", 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def quantise(weights: NDArray[numpy.float32]) -> bytes:
    """Q8_0: blocks of 32 values as a half-precision scale and 32 signed bytes."""
    blocks = weights.reshape(-1, 32)
    scale = (numpy.abs(blocks).max(axis=1) / 127.0).astype(numpy.float16)
    divisor = numpy.where(scale == 0, numpy.float32(1), scale.astype(numpy.float32))
    out = numpy.empty(len(blocks), numpy.dtype([("d", "<f2"), ("q", "i1", 32)]))
    out["d"] = scale
    out["q"] = numpy.rint(blocks / divisor[:, None]).clip(-127, 127)
    return out.tobytes()


def metadata(shape: Shape, *, template: str | None = CHATML, **changes: Any) -> dict[str, Any]:
    """Key-values of a file; `changes` replace or (None) remove entries, with `__` for the dots of a key."""
    tokens, scores, types = vocabulary(shape.extra_words)
    values: dict[str, Any] = {
        "general.architecture": "llama", "general.name": "random", "general.file_type": 7,
        "llama.block_count": shape.layers, "llama.context_length": shape.context, "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.feed_forward, "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.width // shape.heads, "llama.rope.freq_base": 10000.0, "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_space_prefix": False,
    }  # fmt: skip
    if template is not None:
        values["tokenizer.chat_template"] = template
    for key, value in changes.items():
        values[key.replace("__", ".")] = value
    return {key: value for key, value in values.items() if value is not None}


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and numpy shapes (rows, columns) of the tensors."""
    vocab = len(vocabulary(shape.extra_words)[0])
    kv = shape.width // shape.heads * shape.kv_heads
    yield "token_embd.weight", (vocab, shape.width)
    yield "output_norm.weight", (shape.width,)
    yield "output.weight", (vocab, shape.width)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (shape.width,)
        yield block + "attn_q.weight", (shape.width, shape.width)
        yield block + "attn_k.weight", (kv, shape.width)
        yield block + "attn_v.weight", (kv, shape.width)
        yield block + "attn_output.weight", (shape.width, shape.width)
        yield block + "ffn_norm.weight", (shape.width,)
        yield block + "ffn_gate.weight", (shape.feed_forward, shape.width)
        yield block + "ffn_up.weight", (shape.feed_forward, shape.width)
        yield block + "ffn_down.weight", (shape.width, shape.feed_forward)


def write(
    path: Path, shape: Shape, *, values: Mapping[str, Any] | None = None, seed: int = 1, kind: int = Q8_0, scale: float = 1.0,
    entries: Sequence[tuple[str, tuple[int, ...]]] | None = None, own: Callable[[str, tuple[int, ...]], Weights | None] | None = None,
) -> Path:  # fmt: skip
    """Write a model file; `scale` stretches the output layer (larger: more decided, less uniform text). `entries`: these tensors only.
    own: weights of a tensor instead of random ones, or None."""
    values = metadata(shape) if values is None else values
    entries = list(tensors(shape)) if entries is None else entries
    head = [b"GGUF", struct.pack("<IQQ", 3, len(entries), len(values))]
    head += [_string(key) + _value(value) for key, value in values.items()]
    offset = 0
    for name, dims in entries:
        number = F32 if len(dims) == 1 else kind
        head.append(_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *reversed(dims), number, offset))
        offset += _padded(_bytes(dims, number))
    data = b"".join(head)
    generator = numpy.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(data + bytes(-len(data) % ALIGNMENT))
        for name, dims in entries:
            given = own(name, dims) if own is not None else None
            body = _tensor(generator, name, dims, kind, scale) if given is None else _packed(given, kind)
            file.write(body + bytes(-len(body) % ALIGNMENT))
    return path


def write_circles(path: Path, shape: Shape, *, kind: int = Q8_0, circle: int = 24, wrong: float = 0.0) -> Path:
    """Write a model that runs in circles: after token t comes the next one of its block of `circle` tokens, after the last the first.

    It computes all that a model of this shape computes, but its layers add nothing. At temperature 1 the next token is nearly certain; at a
    higher one it is left now and then, for a random token and its circle. wrong: share of the tokens after which another one comes, as a
    draft model is wrong now and then; those below 300 are right.
    """
    size = len(vocabulary(shape.extra_words)[0])
    embedding = numpy.random.default_rng(2).standard_normal((size, shape.width), numpy.float32) / numpy.float32(shape.width**0.5)
    following = [token // circle * circle + (token + 1) % circle for token in range(size)]
    following = [token if token < size else size // circle * circle for token in following]
    if wrong:
        others = [token for token in range(300, size) if token * 7919 % 1000 < 1000 * wrong]
        for token, other in zip(others, others[1:] + others[:1], strict=True):
            following[token], following[other] = following[other], following[token]
    output = numpy.zeros_like(embedding)
    output[following] = embedding

    def own(name: str, dims: tuple[int, ...]) -> Weights | None:
        if name == "token_embd.weight":
            return embedding
        if name == "output.weight":
            return output
        return numpy.zeros(dims, numpy.float32) if name.endswith(("attn_output.weight", "ffn_down.weight")) else None

    return write(path, shape, kind=kind, own=own)


def write_windowed(path: Path, shape: Shape, window: int) -> Path:
    """Write a model of the gemma2 architecture: every second layer looks at the last `window` tokens only."""
    values = metadata(shape, general__architecture="gemma2")
    values = {key.replace("llama.", "gemma2.", 1) if key.startswith("llama.") else key: value for key, value in values.items()}
    head = shape.width // shape.heads
    values |= {"gemma2.attention.sliding_window": window, "gemma2.attention.key_length": head, "gemma2.attention.value_length": head}
    entries = [entry for entry in tensors(shape) if entry[0] != "output.weight"]
    for layer in range(shape.layers):
        entries += [(f"blk.{layer}.{name}.weight", (shape.width,)) for name in ("post_attention_norm", "post_ffw_norm")]

    def own(name: str, dims: tuple[int, ...]) -> Weights | None:
        decided = numpy.random.default_rng(3).standard_normal(dims, numpy.float32) * numpy.float32(4 / dims[-1] ** 0.5)
        return decided if name == "token_embd.weight" else None

    return write(path, shape, values=values, kind=F32, entries=entries, own=own)


def write_lora(path: Path, shape: Shape, *, rank: int = 4, seed: int = 1, alpha: float = 32.0, architecture: str = "llama") -> Path:
    """Write a LoRA adapter with random weights for a model of this shape."""
    values = {"general.architecture": architecture, "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": alpha}
    entries = []
    for name, (rows, columns) in ((name, dims) for name, dims in tensors(shape) if name.endswith(("attn_q.weight", "ffn_down.weight"))):
        entries += [(f"{name}.lora_a", (rank, columns)), (f"{name}.lora_b", (rows, rank))]
    return write(path, shape, values=values, seed=seed, kind=F32, entries=entries)


def write_parts(directory: Path, name: str, shape: Shape, count: int) -> list[Path]:
    """Write a model in `count` files, the tensors spread over them in order."""
    entries = list(tensors(shape))
    each = -(-len(entries) // count)
    files = []
    for number in range(count):
        values = {"split.no": numpy.uint16(number), "split.count": numpy.uint16(count), "split.tensors.count": numpy.int32(len(entries))}
        file = directory / f"{name}-{number + 1:05}-of-{count:05}.gguf"
        mine = entries[number * each : (number + 1) * each]
        files.append(write(file, shape, values=values if number else {**metadata(shape), **values}, seed=number, entries=mine))
    return files


def _tensor(generator: numpy.random.Generator, name: str, dims: tuple[int, ...], kind: int, scale: float) -> bytes:
    if len(dims) == 1:
        return numpy.ones(dims, numpy.float32).tobytes()
    weights = generator.standard_normal(dims, numpy.float32) / numpy.float32(dims[-1] ** 0.5)
    if name == "output.weight":
        weights *= numpy.float32(scale)
    return _packed(weights, kind)


def _packed(weights: Weights, kind: int) -> bytes:
    if kind == Q8_0:
        return quantise(weights)
    return weights.astype(numpy.float16 if kind == F16 else numpy.float32).tobytes()


def _bytes(dims: tuple[int, ...], kind: int) -> int:
    count = int(numpy.prod(dims))
    return {F32: count * 4, F16: count * 2, Q8_0: count // 32 * 34}[kind]


def _padded(size: int) -> int:
    return size + -size % ALIGNMENT
