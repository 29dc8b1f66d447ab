"""A bounded reader of GGUF headers: what llama.cpp may see has been checked here first.

Format: ggml's docs/gguf.md, versions 2 and 3, little-endian. A header is key-values, then tensor descriptions, then aligned
tensor data. Every size and count is bounded before it is used, so that a hostile or damaged file costs neither memory
nor time, and no native parser reads beyond it: counts, string and array lengths, types, dimensions and their product, alignment,
order and end of every tensor. Nothing is read but the header (the file is mapped).

A model may lie in several files, `NAME-00001-of-0000M.gguf` and so on, as llama.cpp's `gguf-split` writes them: the first holds the
key-values of the whole and is the one that is configured; llama.cpp finds the others beside it by their names.

`python -m engines.llamacpp.gguf FILE` prints the file's metadata as one JSON line, or one line on standard error that says what is
wrong with it (exit code 1): how a supervisor looks into a file without parsing it in its own process.
"""

from __future__ import annotations

import mmap
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engines.confinement import confine
from engines.llamacpp import recurrent, sanity, vocabulary
from engines.llamacpp.cursor import FORMATS, SCALARS, Cursor, GgufError
from engines.sidecar.loading import readable
from engines.windows import DEFAULT_WINDOWS, windowed

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_PAIRS = 65_536
MAX_TENSORS = 100_000
MAX_KEY = 65_535
MAX_STRING = 16 * 1024 * 1024
MAX_ARRAY = 1 << 24
MAX_NAME = 63
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
MAX_PARTS = 1024
_WIDEST = 1 << 24
KEPT_ARRAY = 4096
"""Longer arrays (a vocabulary) are checked, but only their type and length are kept."""
MAX_STRINGS, KEPT_STRINGS = 1 << 22, 1 << 16
"""The most strings in all arrays of a file, and how many of them are kept; those of later arrays are not."""

_STRING, _ARRAY = 8, 9
FLOAT32 = 6

# ggml type -> (name, elements in a block, bytes of a block)
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip

RANK = 4
"""The pooling type of rerankers: the model gives a score for each class, not an embedding."""
_PART = re.compile(r"(?P<name>.+)-\d{5}-of-\d{5}\.gguf", re.DOTALL)
_SAMPLING = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Array:
    """An array value. `values` is None when it is longer than `KEPT_ARRAY`. seen: of a vocabulary's tokens. byte_typed: of their types."""

    kind: int
    count: int
    values: tuple[Any, ...] | None
    seen: vocabulary.Seen | None = None
    byte_typed: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor description: `dims` in ggml's order (fastest first), `offset` from the start of the data, `size` in bytes."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Gguf:
    """A checked header. kinds: types of the values."""

    version: int
    pairs: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_size: int
    kinds: Mapping[str, int]


def read(path: Path) -> Gguf:
    """Read and check a file's header. Raises GgufError (content) or OSError (the file itself)."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            head = file.read(4)
            raise GgufError("the file is truncated" if MAGIC.startswith(head) else f"wrong magic {head!r}, not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse(data)


def parse(data: mmap.mmap | bytes) -> Gguf:
    """Check a whole file's bytes. Raises GgufError, nothing else."""
    cursor = Cursor(data)
    magic = cursor.take(4)
    if magic != MAGIC:
        raise GgufError(f"wrong magic {magic!r}, not a GGUF file")
    version = cursor.u32()
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise GgufError("the file is big-endian" if swapped in VERSIONS else f"GGUF version {version} is not supported")
    tensor_count, pair_count = cursor.u64(), cursor.u64()
    if tensor_count > MAX_TENSORS:
        raise GgufError(f"{tensor_count} tensors are more than {MAX_TENSORS}")
    if pair_count > MAX_PAIRS:
        raise GgufError(f"{pair_count} key-values are more than {MAX_PAIRS}")
    pairs = _pairs(cursor, pair_count)
    alignment = pairs.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise GgufError(f"general.alignment is {alignment!r}, not a power of two from 8 to {MAX_ALIGNMENT}")
    tensors = _tensors(cursor, tensor_count, alignment)
    start = cursor.at + -cursor.at % alignment
    if tensors:
        end = start + tensors[-1].offset + tensors[-1].size
        if end > cursor.size:
            raise GgufError(f"the file is truncated: {end} bytes expected, {cursor.size} there")
    return Gguf(version, pairs, tensors, start, cursor.size, cursor.kinds)


def _pairs(cursor: Cursor, count: int) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for number in range(count):
        cursor.where, start = f"key {number}", cursor.at
        key = cursor.string(MAX_KEY)
        cursor.where = f"key {key[:64]!r}"
        if key in pairs:
            cursor.fail("the key is there twice")
        cursor.kinds[key] = cursor.u32()
        pairs[key] = _value(cursor, cursor.kinds[key])
        if key in (vocabulary.TOKENS, vocabulary.TYPES) and isinstance(pairs[key], Array):
            pairs[key] = _of_tokens(cursor, pairs[key], start)
    return pairs


def _of_tokens(cursor: Cursor, array: Array, key: int) -> Array:
    """With what llama.cpp cannot bear in it. key: where its key begins."""
    if array.count > vocabulary.MAX_TOKENS:
        cursor.fail(f"{array.count} tokens are more than {vocabulary.MAX_TOKENS}")
    first = key + 8 + FORMATS[10].unpack_from(cursor.data, key)[0] + 16
    if array.kind == _STRING:
        return replace(array, seen=vocabulary.look(cursor.data, first, array.count))
    return replace(array, byte_typed=array.kind in (4, 5) and vocabulary.byte_typed(cursor.data[first : cursor.at]))


def _value(cursor: Cursor, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string(MAX_STRING)
    if kind in FORMATS:
        return cursor.scalar(kind)
    if kind != _ARRAY:
        cursor.fail(f"unknown value type {kind}")
    item, count = cursor.u32(), cursor.u64()
    if count > MAX_ARRAY:
        cursor.fail(f"an array of {count} values is longer than {MAX_ARRAY}")
    if item == _STRING:
        return _strings(cursor, count)
    if item not in FORMATS:
        cursor.fail(f"arrays of type {item} are not supported")
    form = struct.Struct(f"<{count}{SCALARS[item]}")
    data = cursor.take(form.size)
    return Array(item, count, tuple(form.unpack(data)) if count <= KEPT_ARRAY else None)


def _strings(cursor: Cursor, count: int) -> Array:
    if count * 8 > cursor.size - cursor.at:
        cursor.fail(f"the file is truncated: {count} strings expected")
    cursor.strings += count
    if cursor.strings > MAX_STRINGS:
        cursor.fail(f"{cursor.strings} strings in arrays are more than {MAX_STRINGS}")
    if count <= min(KEPT_ARRAY, KEPT_STRINGS - cursor.kept):
        cursor.kept += count
        return Array(_STRING, count, tuple(cursor.string(MAX_STRING) for _ in range(count)))
    unpack, data, at, size = FORMATS[10].unpack_from, cursor.data, cursor.at, cursor.size
    for _ in range(count):
        if at + 8 > size:
            cursor.fail("the file is truncated in an array of strings")
        length = unpack(data, at)[0]
        if length > MAX_STRING:
            cursor.fail(f"a string of {length} bytes is longer than {MAX_STRING}")
        at += 8 + length
    if at > size:
        cursor.fail("the file is truncated in an array of strings")
    cursor.at = at
    return Array(_STRING, count, None)


def _tensors(cursor: Cursor, count: int, alignment: int) -> tuple[Tensor, ...]:
    tensors: list[Tensor] = []
    names: set[str] = set()
    expected = 0
    for number in range(count):
        cursor.where = f"tensor {number}"
        tensor = _tensor(cursor)
        cursor.where = f"tensor {tensor.name!r}"
        if tensor.name in names:
            cursor.fail("the name is there twice")
        if tensor.offset != expected:
            cursor.fail(f"starts at {tensor.offset}, but the one before it ends at {expected}")
        expected = tensor.offset + tensor.size + -tensor.size % alignment
        names.add(tensor.name)
        tensors.append(tensor)
    return tuple(tensors)


def _tensor(cursor: Cursor) -> Tensor:
    name = cursor.string(MAX_NAME)
    count = cursor.u32()
    if not 1 <= count <= MAX_DIMS:
        cursor.fail(f"{count} dimensions, 1 to {MAX_DIMS} are possible")
    dims = tuple(cursor.u64() for _ in range(count))
    kind, offset = cursor.u32(), cursor.u64()
    if kind not in TENSOR_TYPES:
        cursor.fail(f"unknown tensor type {kind}")
    _name, block, size = TENSOR_TYPES[kind]
    elements = 1
    for dim in dims:
        elements *= dim
    if not 0 < elements < 2**62 or max(dims) >= 2**62:
        cursor.fail(f"absurd dimensions {dims}")
    if dims[0] % block:
        cursor.fail(f"rows of {dims[0]} values are not a multiple of the type's block of {block}")
    return Tensor(name, dims, kind, offset, elements // block * size)


def read_model(path: Path) -> Gguf:
    """The checked header of a model, the tensors of all its files together; `file_size` is their sum.

    Raises GgufError, naming the file that is missing or wrong, or OSError.
    """
    first = read(path)
    count = _whole(first, "split.count", 1)
    if count <= 1:
        return first
    if count > MAX_PARTS:
        raise GgufError(f"split.count is {count}, more than {MAX_PARTS}")
    files = _files(path, count)
    number = _whole(first, "split.no", -1)
    if number != 0:
        raise GgufError(f"this is part {number + 1} of {count}; the model is its first part, {files[0].name}")
    if path.name != files[0].name:
        raise GgufError(f"the file is the first of {count} parts and must be named {files[0].name}")
    tensors = list(first.tensors)
    size = first.file_size
    for number, file in enumerate(files[1:], 1):
        part = _part(file, number, count)
        tensors += part.tensors
        size += part.file_size
    _complete(first, tensors)
    return Gguf(first.version, first.pairs, tuple(tensors), first.data_offset, size, first.kinds)


def files_of(path: Path, model: Gguf) -> list[Path]:
    """The files of a model that `read_model` has read, in order."""
    count = _whole(model, "split.count", 1)
    return _files(path, count) if count > 1 else [path]


def _files(path: Path, count: int) -> list[Path]:
    match = _PART.fullmatch(path.name)
    name = match["name"] if match is not None else path.name.removesuffix(".gguf")
    return [path.with_name(f"{name}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


def _part(file: Path, number: int, count: int) -> Gguf:
    if not file.is_file():
        raise GgufError(f"part {number + 1} of {count} is missing: {file.name}")
    try:
        part = read(file)
    except GgufError as exc:
        raise GgufError(f"part {number + 1} of {count}, {file.name}: {exc}") from None
    said = _whole(part, "split.no", -1), _whole(part, "split.count", -1)
    if said != (number, count):
        raise GgufError(f"{file.name} says that it is part {said[0] + 1} of {said[1]}, not {number + 1} of {count}")
    return part


def _complete(first: Gguf, tensors: list[Tensor]) -> None:
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise GgufError("a tensor is in several parts")
    wanted = _whole(first, "split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise GgufError(f"the parts hold {len(tensors)} tensors together, split.tensors.count is {wanted}")


def _whole(file: Gguf, key: str, default: int) -> int:
    value = file.pairs.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GgufError(f"{key} is not a whole number")
    return value


@dataclass(frozen=True, slots=True)
class Metadata:
    """What placement and health need to know of a model; sizes in bytes."""

    architecture: str
    name: str
    quantisation: str
    parameters: int
    layers: int
    width: int
    context: int
    vocabulary: int
    has_template: bool
    weights: int
    layer_sizes: tuple[int, ...]
    input_size: int
    output_size: int
    kv_per_token: tuple[int, ...]
    """Bytes of keys and values of one token at 16 bits, for each layer."""
    pooling: int
    """llama.cpp's pooling type: 0 none, 1 mean, 2 first token, 3 last token, 4 rank; models other than 0 make embeddings or scores."""
    feed_forward: int
    """The feed-forward's width, of all experts that a token uses together; 0 if the file does not say."""
    heads: int
    sampling: dict[str, float]
    """What the file recommends (`general.sampling.*`), under the names of `options.Defaults`."""
    window: int = 0
    """Tokens that layers with a sliding window look back; 0: there are none, or nothing is known of them."""
    windowed: tuple[bool, ...] = ()
    """Which layers have the window."""


def describe(file: Gguf) -> Metadata:
    """The metadata of a checked header. Raises GgufError when a necessary key is missing or absurd."""
    pairs = file.pairs
    architecture = pairs.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise GgufError("general.architecture is missing")
    number = _numbers(pairs, architecture)
    layers, width = number("block_count", 1, sanity.MOST_LAYERS), number("embedding_length", 1, 1 << 20)
    wrong = sanity.check(pairs, architecture, layers, number)
    wrong = wrong or recurrent.check(pairs, architecture, layers, number, {tensor.name for tensor in file.tensors})
    if wrong := wrong or sanity.check_types((tensor.name, len(tensor.dims), tensor.kind) for tensor in file.tensors):
        raise GgufError(wrong)
    context, experts = number("context_length", sanity.LEAST_CONTEXT, 1 << 31), number("expert_used_count", 0, 65_536, 0)
    wide = _largest(pairs, architecture, number, "feed_forward_length")
    tokens = _vocabulary(pairs)
    sizes = [0] * layers
    input_size = output_size = 0
    for tensor in file.tensors:
        if tensor.name.startswith("blk."):
            index = tensor.name[4:].split(".", 1)[0]
            if not index.isascii() or not index.isdigit() or len(index) > 4 or int(index) >= layers:
                raise GgufError(f"tensor {tensor.name!r} belongs to no layer; {architecture}.block_count is {layers}")
            sizes[int(index)] += tensor.size
        elif tensor.name.startswith("token_"):
            input_size += tensor.size
        else:
            output_size += tensor.size
    pattern = pairs.get(f"{architecture}.attention.sliding_window_pattern")
    kinds: dict[str, int] = {}
    for tensor in file.tensors:
        kinds[TENSOR_TYPES[tensor.kind][0]] = kinds.get(TENSOR_TYPES[tensor.kind][0], 0) + tensor.size
    return Metadata(
        architecture=architecture, name=str(pairs.get("general.name", "")), quantisation=max(kinds, key=kinds.__getitem__, default=""),
        parameters=sum(_elements(tensor) for tensor in file.tensors), layers=layers, width=width, context=context, vocabulary=tokens,
        has_template=isinstance(pairs.get("tokenizer.chat_template"), str), weights=sum(tensor.size for tensor in file.tensors),
        layer_sizes=tuple(sizes), input_size=input_size, output_size=output_size,
        kv_per_token=_kv(pairs, architecture, number, layers, width), pooling=_pooling(architecture, number, file.tensors),
        feed_forward=max(wide, experts * number("expert_feed_forward_length", 0, _WIDEST, wide)),
        heads=_largest(pairs, architecture, number, "attention.head_count"),
        sampling={ours: pairs[f"general.sampling.{theirs}"] for theirs, ours in _SAMPLING.items() if _plain(pairs, theirs)},
        window=number("attention.sliding_window", 0, 1 << 31, DEFAULT_WINDOWS.get(architecture, 0)),
        windowed=windowed(architecture, layers, pattern.values if isinstance(pattern, Array) else pattern),
    )  # fmt: skip


def _largest(pairs: dict[str, Any], architecture: str, number: Callable[..., int], key: str) -> int:
    """A number that may differ from layer to layer: the largest; 0 if the file does not say."""
    value = pairs.get(f"{architecture}.{key}")
    if not isinstance(value, Array):
        return number(key, 0, _WIDEST, 0)
    return max((one for one in value.values or () if isinstance(one, int) and 0 <= one <= _WIDEST), default=0)


def _pooling(architecture: str, number: Callable[..., int], tensors: Sequence[Tensor]) -> int:
    pooling = number("pooling_type", 0, 4, 0)
    if pooling == RANK and not any(tensor.name == "cls.output.weight" for tensor in tensors):
        raise GgufError(f"{architecture}.pooling_type is {RANK} (rank): it is a reranker, and the tensor cls.output.weight is missing")
    return pooling


def _plain(pairs: dict[str, Any], name: str) -> bool:
    value = pairs.get(f"general.sampling.{name}")
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _elements(tensor: Tensor) -> int:
    _name, block, size = TENSOR_TYPES[tensor.kind]
    return tensor.size // size * block


def _numbers(pairs: dict[str, Any], architecture: str) -> Callable[..., int]:
    def number(key: str, low: int, high: int, default: int | None = None) -> int:
        value = pairs.get(f"{architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise GgufError(f"{architecture}.{key} is missing or not a whole number")
        if not low <= value <= high:
            raise GgufError(f"{architecture}.{key} is {value}, not {low} to {high}")
        return value

    return number


def _vocabulary(pairs: dict[str, Any]) -> int:
    tokens = pairs.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Array) or tokens.kind != _STRING or not tokens.count:
        raise GgufError("tokenizer.ggml.tokens is missing or not a list of strings")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        array = pairs.get(key)
        if array is not None and (not isinstance(array, Array) or array.count != tokens.count):
            raise GgufError(f"{key} does not have one value for each of the {tokens.count} tokens")
    for key, value in pairs.items():
        if not (key.startswith("tokenizer.ggml.") and key.endswith("_token_id")) or value == 0xFFFFFFFF:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < tokens.count:
            raise GgufError(f"{key} is {value!r}, but there are {tokens.count} tokens")
    types = pairs.get(vocabulary.TYPES)
    if wrong := vocabulary.check(pairs, tokens.count, tokens.seen, isinstance(types, Array) and types.byte_typed):
        raise GgufError(wrong)
    return tokens.count


def _kv(pairs: dict[str, Any], architecture: str, number: Callable[..., int], layers: int, width: int) -> tuple[int, ...]:
    """Bytes of K and V a token costs in each layer, at two bytes a value; encoder-only models keep none."""
    heads = pairs.get(f"{architecture}.attention.head_count")
    if isinstance(heads, Array):
        counts = heads.values or ()
    else:
        counts = (number("attention.head_count", 1, 65_536),) * layers
    shared = pairs.get(f"{architecture}.attention.head_count_kv", heads)
    if isinstance(shared, Array):
        kv_counts = shared.values or ()
    else:
        kv_counts = (number("attention.head_count_kv", 0, 65_536, counts[0] if counts else 1),) * layers
    if len(counts) < layers or len(kv_counts) < layers or not all(isinstance(n, int) and 0 <= n <= 65_536 for n in (*counts, *kv_counts)):
        raise GgufError(f"{architecture}.attention.head_count does not fit {layers} layers")
    default = width // max(1, max(counts, default=1))
    key = number("attention.key_length", 0, 65_536, default)
    value = number("attention.value_length", 0, 65_536, default)
    return tuple(2 * count * (key + value) for count in kv_counts[:layers])


def main(arguments: list[str]) -> int:
    """Print a file's metadata; see the module's docstring."""
    try:
        print(msgspec.json.encode(describe(read_model(Path(arguments[0])))).decode())
    except (GgufError, OSError) as exc:
        print(f"{arguments[0]}: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    confine(reads=(file for argument in sys.argv[1:] for file in readable(Path(argument))))
    sys.exit(main(sys.argv[1:]))
