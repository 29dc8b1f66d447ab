"""A model's tokens by its `tokenizer.json`, as `engines.chat.conversation.Vocabulary`: bytes of single tokens, and control tokens apart.

Hugging Face's tokenizers decode lists of tokens; a stream needs the bytes of each, because a character may span several. Two kinds of
vocabulary can tell them: those whose letters stand for bytes (GPT-2's alphabet), and those of SentencePiece, with `▁` for a space and
`<0x0A>` for a byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engines.sidecar.loading import LoadError

LONG_TEXT = 2048
"""Characters."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class GenaiVocabulary:
    """Thread-safe: nothing is changed after construction. n_vocab: tokens that the graph knows."""

    def __init__(self, path: Path, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        content = path.read_text("utf-8", "replace")
        try:
            described = json.loads(content)
            self._parsing, self._plain = Tokenizer.from_str(content), Tokenizer.from_str(content)
        except Exception as exc:  # noqa: BLE001 - boundary: the tokenizers package raises bare Exception for an unusable file
            raise LoadError("model_invalid", f"{path}: {exc}") from None
        for tokenizer in (self._parsing, self._plain):
            tokenizer.no_padding()
            tokenizer.no_truncation()
        self._plain.encode_special_tokens = True  # the text of a control token is plain text
        kinds = set(_types(described.get("decoder"))) | set(_types(described.get("pre_tokenizer")))
        if "ByteLevel" in kinds:
            self._letters: dict[str, int] | None = {letter: byte for byte, letter in _letters()}
        elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
            self._letters = None
        else:
            raise LoadError("model_invalid", f"{path}: neither a byte-level nor a SentencePiece vocabulary")
        added = [item for item in described.get("added_tokens") or () if isinstance(item, dict) and isinstance(item.get("id"), int)]
        self._added = {item["id"]: str(item["content"]) for item in added}
        self._control = {item["id"] for item in added if item.get("special")}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokenizer = self._parsing if parse_special else self._plain
        whole = text.encode("utf-8", "replace").decode()  # JSON within a text may name half a character
        if len(whole) > LONG_TEXT:  # only the call for several texts gives up the interpreter's lock meanwhile
            found = tokenizer.encode_batch([whole], add_special_tokens=add_special)[0]
        else:
            found = tokenizer.encode(whole, add_special_tokens=add_special)
        tokens: list[int] = found.ids
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        return b"" if token in self._control else self.special_piece(token)

    def special_piece(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        text: str | None = self._parsing.id_to_token(token)
        if text is None:
            return b""
        if self._letters is not None:
            return bytes(self._letters[letter] for letter in text if letter in self._letters)
        byte = _BYTE.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()

    def control_texts(self) -> list[str]:
        return [self._added[token] for token in sorted(self._control)]


def _types(part: Any) -> Iterator[str]:
    """The types of a decoder or pre-tokenizer and of those in it."""
    if isinstance(part, dict):
        yield str(part.get("type"))
        for key in ("decoders", "pretokenizers"):
            for inner in part.get(key) or ():
                yield from _types(inner)


def _letters() -> Iterator[tuple[int, str]]:
    """GPT-2's alphabet: each byte and the letter that stands for it. Source: Radford et al., GPT-2's encoder.py."""
    shown = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = 0
    for byte in range(256):
        if byte in shown:
            yield byte, chr(byte)
        else:
            yield byte, chr(256 + others)
            others += 1
