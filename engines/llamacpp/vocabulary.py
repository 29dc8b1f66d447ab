"""What llama.cpp does not check in a GGUF file's vocabulary but ends the process for, at the load or at a request's text."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

TOKENS: Final = "tokenizer.ggml.tokens"
TYPES: Final = "tokenizer.ggml.token_type"
MAX_TOKENS: Final = 1 << 21
_LENGTH: Final = struct.Struct("<Q").unpack_from
_BYTE_TYPE: Final = 6
_SHOWN: Final = 64
_ABSENT: Final = (-1, 0xFFFFFFFF)
_NO_BEGIN: Final = frozenset({"glm4", "chatglm-bpe"})
"""Splitters (`tokenizer.ggml.pre`) for which llama.cpp knows no first token by itself."""
_MARKS: Final[Mapping[str, tuple[tuple[str, int | None, bool], ...]]] = {
    "llama": (("bos", 1, True), ("eos", 2, False)),
    "bert": (("bos", 101, True), ("seperator", 102, True), ("unknown", 100, True)),
    "gpt2": (("bos", 11, True), ("eos", 11, False)),
    "t5": (("bos", None, False), ("eos", 1, True)),
}
"""Kind of vocabulary -> tokens that llama.cpp puts around a text: as the key has it, the token where the key is absent, and whether it is
put there unless the file says otherwise."""


class Seen(NamedTuple):
    """What is known of a vocabulary's tokens. repeated: one that is there twice. bytes: whether each byte has a token."""

    repeated: str | None
    bytes: bool


def look(data: mmap.mmap | bytes, at: int, count: int) -> Seen:
    """Look at so many strings, each a length and its bytes, which have been checked. llama.cpp reads a token up to its first NUL, and
    names an empty one by its number."""
    seen: set[bytes] = set()
    for number in range(count):
        length = _LENGTH(data, at)[0]
        word = data[at + 8 : at + 8 + length]
        at += 8 + length
        word = word.partition(b"\0")[0] or b"[EMPTY_%d]" % number
        if word in seen:
            return Seen(word.decode("utf-8", "replace")[:_SHOWN], False)
        seen.add(word)
    return Seen(None, all(b"<0x%02X>" % byte in seen or bytes((byte,)) in seen for byte in range(256)))


def check(pairs: Mapping[str, Any], count: int, seen: Seen | None, byte_typed: bool) -> str | None:
    """What is wrong, naming the key. Numbers of tokens have been checked. byte_typed: the type of a token says that it is a byte's."""
    kind, pre = pairs.get("tokenizer.ggml.model"), pairs.get("tokenizer.ggml.pre")
    if seen is not None and seen.repeated is not None:
        return f"{TOKENS} has {seen.repeated!r} twice"
    if kind == "llama" and seen is not None and not seen.bytes:
        return f"{TOKENS} lacks the token of a byte (<0x00> to <0xFF>), and a text with it would end the engine"
    if kind == "bert" and byte_typed:
        return f"{TYPES} has a {_BYTE_TYPE} (byte), and a vocabulary of the kind bert has no bytes"
    for name, default, added in _MARKS.get(kind, ()) if isinstance(kind, str) else ():
        none = kind == "gpt2" and name == "bos" and pre in _NO_BEGIN
        wanted = kind == "bert" or pairs.get(f"tokenizer.ggml.add_{name}_token", added and not none)
        known = pairs.get(f"tokenizer.ggml.{name}_token_id", -1)
        if wanted and known in _ABSENT and (none or default is None or default >= count):
            return f"tokenizer.ggml.{name}_token_id is missing, and a vocabulary of the kind {kind} needs that token"
    return None


def byte_typed(data: bytes) -> bool:
    """Whether one of the types, 32 bits each, is a byte's."""
    return any(value == _BYTE_TYPE for (value,) in struct.iter_unpack("<i", data))
