"""OpenAI's response shapes as bytes: whole bodies, and SSE chunks from templates that are encoded once a request."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from engines.chat.conversation import Vocabulary
from engines.chat.generation import Generation
from engines.chat.sampling import TopLogprobs

Scores = Sequence[tuple[int, TopLogprobs]]
DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def usage(generation: Generation[Any]) -> dict[str, Any]:
    """OpenAI's `usage`."""
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


def prompt_header(generation: Generation[Any]) -> tuple[tuple[bytes, bytes], ...]:
    """Says at the head of a stream how many tokens its prompts have: who gives it up before its usage is charged for these."""
    return ((b"x-gatehouse-prompt-tokens", b"%d" % generation.prompt_tokens),)


def chat_logprobs(vocabulary: Vocabulary, scores: Scores) -> dict[str, Any]:
    """`logprobs` of a chat choice."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        piece = vocabulary.special_piece(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(piece)}

    content = []
    for token, score in scores:
        content.append({**entry(token, score.logprob), "top_logprobs": [entry(*top) for top in score.top]})
    return {"content": content, "refusal": None}


def text_logprobs(vocabulary: Vocabulary, scores: Sequence[tuple[int, TopLogprobs | None]], offset: int) -> dict[str, Any]:
    """`logprobs` of a text completion; a token without a score (the first of an echoed prompt) has null."""
    tokens, logprobs, tops, offsets = [], [], [], []
    for token, score in scores:
        tokens.append(_text(vocabulary, token))
        offsets.append(offset)
        offset += len(vocabulary.piece(token).decode("utf-8", "replace"))  # control tokens are not part of the text
        logprobs.append(None if score is None else max(score.logprob, -9999.0))
        tops.append(None if score is None else {_text(vocabulary, item): max(value, -9999.0) for item, value in score.top})
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def _text(vocabulary: Vocabulary, token: int) -> str:
    """A token's text; bytes that are not whole characters are written as OpenAI does, so that tokens stay distinguishable."""
    piece = vocabulary.special_piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class Envelope:
    """What every body and chunk of one request starts and ends with."""

    def __init__(self, prefix: str, kind: str, model: str, *, with_usage: bool) -> None:
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self.kind = kind
        self.model = model
        self.created = int(time.time())
        chunk = kind + ".chunk" if kind == "chat.completion" else kind
        shared = _encode({"id": self.id, "object": chunk, "created": self.created, "model": model})
        self._start = b"data: " + shared[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"
        start = self._start.replace(b"%", b"%%")
        self._content = start + b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}' + self._tail
        self._text = start + b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}' + self._tail

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        """A response that is not streamed."""
        return _encode(
            {"id": self.id, "object": self.kind, "created": self.created, "model": self.model, "choices": choices, "usage": usage}
        )  # fmt: skip

    def content(self, index: int, text: str) -> bytes:
        """A chat chunk that is nothing but text: the hot one."""
        return self._content % (index, _encode(text))

    def text(self, index: int, text: str) -> bytes:
        """A completion chunk that is nothing but text."""
        return self._text % (index, _encode(text))

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """Any other chunk."""
        return self._start + _encode(choice) + self._tail

    def usage(self, report: dict[str, Any]) -> bytes:
        """The chunk of `stream_options.include_usage`."""
        return self._start + b'],"usage":' + _encode(report) + b"}\n\n"
