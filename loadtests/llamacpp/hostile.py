"""GGUF headers as they are written, and at random otherwise: any key with any value of any type, any tensor of any type and shape."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engines.llamacpp.cursor import FORMATS
from engines.llamacpp.gguf import TENSOR_TYPES

ALIGNMENT: Final = 32
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
_WHOLE: Final = (
    *(0, 1, 2, 3, 7, 31, 33, 64, 100, 128, 255, 256, 1000, 65535, 65536, 1 << 20),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1),
)
_REAL: Final = (0.0, -0.0, -1.0, 1e-30, 1.0, 1e30, float("inf"), float("-inf"), float("nan"))
_TEXTS: Final = (
    *("", "x", "llama", "gpt2", "bert", "t5", "rwkv", "default", "none", "yarn", "longrope", "linear", "llama-bpe", "a\0b", "%s%n"),
    "é" * 300,
)
_GUESSES: Final = (
    ("expert_used_count", 1), ("expert_count", 2), ("epsilon", 1e-5), ("scale", 1.0), ("causal", False), ("freq_base", 10000.0),
    ("sliding_window", 16), ("dimension_sections", (8, 4, 4, 0)), ("conv_kernel", 4), ("inner_size", 128), ("state_size", 16),
    ("group_count", 1), ("time_step_rank", 4), ("head_size", 32), ("head_count", 2), ("dimension_count", 32), ("key_length", 32),
    ("value_length", 32), ("_rank", 16), ("_length", 64), ("l_cache", 3), ("vocab_size", 365), ("bias", 8.0), ("softcapping", 30.0),
)  # fmt: skip
"""End of a key -> a value that many architectures take."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a header. kind: its type; items: that of an array's values."""

    kind: int
    value: Any
    items: int = 0

    def encoded(self) -> bytes:
        return struct.pack("<I", self.kind) + (self._array() if self.kind == ARRAY else _packed(self.kind, self.value))

    def _array(self) -> bytes:
        return struct.pack("<IQ", self.items, len(self.value)) + b"".join(_packed(self.items, one) for one in self.value)


def _packed(kind: int, value: Any) -> bytes:
    if kind == STRING:
        data = str(value).encode()
        return struct.pack("<Q", len(data)) + data
    return FORMATS[kind].pack(value)


def value_of(found: Any) -> Value:
    """As the writers of files have it."""
    if isinstance(found, bool):
        return Value(BOOL, found)
    if isinstance(found, (list, tuple)):
        kinds = {str: STRING, float: F32, bool: BOOL}
        return Value(ARRAY, tuple(found), kinds.get(type(found[0]), I32))
    return Value({int: U32, float: F32, str: STRING}[type(found)], found)


@dataclass(slots=True)
class Header:
    """A file's key-values and tensors: name -> (dimensions, the fastest first; type)."""

    values: dict[str, Value]
    tensors: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def copy(self) -> Header:
        return Header(dict(self.values), dict(self.tensors))

    def write(self, path: Path) -> None:
        """With weights that are all alike."""
        head = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.values))]
        head += [_packed(STRING, key) + value.encoded() for key, value in self.values.items()]
        offset, bodies = 0, []
        for name, (dims, kind) in self.tensors.items():
            head.append(_packed(STRING, name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
            body = _weights(dims, kind)
            bodies.append(body)
            offset += len(body)
        start = b"".join(head)
        path.write_bytes(start + bytes(-len(start) % ALIGNMENT) + b"".join(bodies))


def _weights(dims: tuple[int, ...], kind: int) -> bytes:
    _name, block, size = TENSOR_TYPES.get(kind, ("", 1, 4))
    count = 1
    for dim in dims:
        count *= dim
    body = struct.pack("<f", 0.02) * count if kind == 0 else bytes(count // block * size)
    return body + bytes(-len(body) % ALIGNMENT)


def guess(key: str) -> Value:
    """A value that a key may have."""
    return value_of(next((value for end, value in _GUESSES if key.endswith(end)), 1))


def changed(header: Header, keys: list[str], chance: random.Random) -> tuple[Header, str]:
    """A copy with one to three changes, and what they are."""
    made, said = header.copy(), []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        ways: tuple[Callable[[Header, list[str], random.Random], str], ...] = (_value, _value, _further, _further, _vocabulary, _tensor)
        said.append(chance.choice(ways)(made, keys, chance))
    return made, ", ".join(said)


def _value(header: Header, keys: list[str], chance: random.Random) -> str:
    """Another value of a key, of the same type or of another; or none."""
    key = chance.choice([key for key in header.values if key != "general.architecture"])
    known = header.values[key]
    if chance.random() < 0.1:
        del header.values[key]
        return f"no {key}"
    return _set(header, key, _other(known, chance))


def _further(header: Header, keys: list[str], chance: random.Random) -> str:
    """A key that the file has not, or has already."""
    architecture = header.values["general.architecture"].value
    key = f"{architecture}.{chance.choice(keys)}"
    return _set(header, key, _other(header.values.get(key, guess(key)), chance))


def _set(header: Header, key: str, value: Value) -> str:
    header.values[key] = value
    shown = repr(value.value)
    return f"{key} = {shown if len(shown) < 60 else shown[:60] + '...'} (type {value.kind})"


def _other(known: Value, chance: random.Random) -> Value:
    if known.kind == ARRAY:
        return _other_array(known, chance)
    if chance.random() < 0.1:
        kind = chance.choice((U32, F32, BOOL, STRING, ARRAY))
        if kind == ARRAY:
            return Value(ARRAY, tuple(chance.choice(_WHOLE[:10]) for _ in range(chance.choice((0, 1, 2, 4, 512)))), I32)
        return _other(Value(kind, None), chance)
    if known.kind == F32:
        return Value(F32, chance.choice(_REAL))
    if known.kind == STRING:
        return Value(STRING, chance.choice(_TEXTS))
    if known.kind == BOOL:
        return Value(BOOL, chance.random() < 0.5)
    near = [known.value + step for step in (-1, 1)] + [known.value * 2, known.value // 2] if isinstance(known.value, int) else []
    return Value(U32, chance.choice([*_WHOLE, *(one for one in near if 0 <= one < 1 << 32)]))


def _other_array(known: Value, chance: random.Random) -> Value:
    items, way = list(known.value), chance.randrange(6)
    if way == 0:
        items = items[: chance.choice((0, 1, len(items) // 2, max(0, len(items) - 1)))]
    elif way == 1:
        items += items[-1:] * chance.choice((1, 512))
    elif way == 2 and items:
        items = [items[0]] * len(items)
    elif items:
        for _ in range(chance.choice((1, 1, 8))):
            at = chance.randrange(len(items))
            items[at] = _other(Value(known.items, items[at]), chance).value if known.items != STRING else chance.choice((*_TEXTS, items[0]))
            if known.items == I32:
                items[at] = chance.choice((-1, 0, 1, 2, 3, 4, 5, 6, 7, 1000, -(1 << 31), (1 << 31) - 1))
            elif known.items == F32:
                items[at] = chance.choice(_REAL)
    return Value(ARRAY, tuple(items), known.items)


def _vocabulary(header: Header, keys: list[str], chance: random.Random) -> str:
    """Another kind of tokenizer, or a number of a token."""
    if chance.random() < 0.5:
        names = [f"{name}_token_id" for name in ("bos", "eos", "unknown", "seperator", "padding", "mask", "eot", "eom", "fim_pre", "cls")]
        count = len(header.values["tokenizer.ggml.tokens"].value) if "tokenizer.ggml.tokens" in header.values else 365
        return _set(header, f"tokenizer.ggml.{chance.choice(names)}", Value(U32, chance.choice((0, 1, count - 1, count, (1 << 32) - 1))))
    if chance.random() < 0.3:
        merges = chance.choice((("a b",), ("", " ", "a", "a b c"), ("\0 \0",), ("a" * 5000 + " b",)))
        return _set(header, "tokenizer.ggml.merges", Value(ARRAY, merges, STRING))
    key = chance.choice(("model", "pre", "add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "precompiled_charsmap"))
    if key.startswith("add"):
        return _set(header, f"tokenizer.ggml.{key}", Value(BOOL, chance.random() < 0.5))
    if key == "precompiled_charsmap":
        return _set(
            header, f"tokenizer.ggml.{key}", Value(ARRAY, tuple(chance.randrange(256) for _ in range(chance.choice((1, 4, 64)))), 0)
        )
    models = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "hybriddko", "x")
    splitters = (
        "default",
        "llama-bpe",
        "deepseek-llm",
        "falcon",
        "qwen2",
        "chatglm-bpe",
        "gpt-4o",
        "jina-v2-zh",
        "tekken",
        "x",
        "glm4",
        "hunyuan",
    )
    return _set(header, f"tokenizer.ggml.{key}", Value(STRING, chance.choice(models if key == "model" else splitters)))


def _tensor(header: Header, keys: list[str], chance: random.Random) -> str:
    """A tensor less, of another type or shape, or under another name."""
    if not header.tensors:
        return "nothing"
    name = chance.choice(list(header.tensors))
    dims, kind = header.tensors[name]
    way = chance.randrange(4)
    if way == 0:
        del header.tensors[name]
        return f"no tensor {name}"
    if way == 1:
        other = chance.choice(list(TENSOR_TYPES))
        if dims[0] % TENSOR_TYPES[other][1]:
            other = chance.choice((1, 24, 26, 28, 30))
        header.tensors[name] = dims, other
        return f"{name} of type {TENSOR_TYPES[other][0]}"
    if way == 2:
        made = list(dims)
        at = chance.randrange(len(made))
        made[at] = chance.choice((1, made[at] * 2, max(1, made[at] // 2), made[at] + 32))
        if chance.random() < 0.2:
            made = [*made, 1][:4] if chance.random() < 0.5 else made[::-1]
        header.tensors[name] = tuple(made), kind
        return f"{name} of shape {made}"
    swapped = chance.choice(list(header.tensors))
    header.tensors[name], header.tensors[swapped] = header.tensors[swapped], header.tensors[name]
    return f"{name} and {swapped} swapped"
