"""Tokens of texts as a folder's `tokenizer.json` has them."""

from __future__ import annotations

from collections.abc import Sequence

from engines.onnx.text import TextReader
from engines.sidecar.tokens import Tokenizer


class TextTokenizer(Tokenizer):
    """The tokenizer that a text model reads with."""

    def __init__(self, reader: TextReader) -> None:
        self._reader, self._tokenizer = reader, reader.tokenizer
        self.longest, self.vocabulary = reader.max_length, reader.vocabulary

    def text(self, text: str, special: bool) -> list[int]:
        tokens: list[int] = self._reader.encode(self._reader.whole(text, "prompt"), special).ids
        return tokens

    def joined(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def piece(self, token: int) -> str:
        return self._tokenizer.id_to_token(token) or ""
