"""`POST /tokenize` and `/detokenize` in vLLM's shape, for every runtime: tokens of a text or a chat, and the text of tokens.

Source: vLLM's documentation of its OpenAI-compatible server, "Tokenizer API".
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from engines.sidecar.shell import ApiError, Request, Response

MAX_TOKENS = 1 << 17
"""Most tokens whose texts are asked for at once."""
PORTION = 1 << 16
"""Tokens that are written, or forgotten, in one go: after each portion other threads get the interpreter. Of fewer, the event loop writes
the answer itself."""
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either `prompt` or `messages`; `add_special_tokens` is true for a prompt unless it says false."""

    model: str = ""
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Tokens of the model's vocabulary."""

    tokens: Annotated[list[Token], Meta(max_length=MAX_TOKENS)]
    model: str = ""


class Tokenizer(ABC):
    """What a runtime's model can say of tokens. longest: tokens that it takes at once. vocabulary: tokens that there are."""

    longest: int
    vocabulary: int

    @abstractmethod
    def text(self, text: str, special: bool) -> list[int]:
        """Tokens of a text, with those that the model puts around one if `special`. In any thread."""

    @abstractmethod
    def joined(self, tokens: Sequence[int]) -> str:
        """The text of tokens. In any thread."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """A token as text."""

    async def chat(self, request: Request, body: TokenizeRequest) -> list[int]:
        """Tokens of a chat as a request for its answer has them. Raises ApiError 400 where the model has no chats."""
        raise ApiError(400, "this model has no chats; send prompt", param="messages")


class TokenHandler:
    """Both paths for one loaded model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize"""
        body, tokenizer = _parsed(request.body, TokenizeRequest), self._tokenizer
        if body.messages is not None and body.prompt is None:
            if body.add_generation_prompt is False or body.add_special_tokens:
                wrong = "add_special_tokens" if body.add_special_tokens else "add_generation_prompt"
                raise ApiError(400, f"{wrong}: a chat's tokens are those of a request for its answer; leave it out", param=wrong)
            tokens = await tokenizer.chat(request, body)
        elif body.prompt is not None and body.messages is None:
            tokens = await asyncio.to_thread(tokenizer.text, body.prompt, body.add_special_tokens is not False)
        else:
            raise ApiError(400, "send either prompt or messages", param="prompt")
        pieces: list[str] | None = None
        count = len(tokens)
        if body.return_token_strs:
            if count > MAX_TOKENS:
                await asyncio.to_thread(_forget, tokens)
                raise ApiError(400, f"return_token_strs: of at most {MAX_TOKENS} tokens, not {count}", param="return_token_strs")
            pieces = await asyncio.to_thread(lambda: list(map(tokenizer.piece, tokens)))
        if count <= PORTION:
            return Response(_answer(tokens, tokenizer.longest, pieces))
        return Response(await asyncio.to_thread(_answer, tokens, tokenizer.longest, pieces))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize"""
        tokens = _parsed(request.body, DetokenizeRequest).tokens
        if tokens and max(tokens) >= self._tokenizer.vocabulary:
            raise ApiError(400, f"tokens: each must be below {self._tokenizer.vocabulary}", param="tokens")
        return Response(msgspec.json.encode({"prompt": await asyncio.to_thread(self._tokenizer.joined, tokens)}))


def _answer(tokens: list[int], longest: int, pieces: list[str] | None) -> bytes:
    """The body of an answer to `/tokenize`. Forgets the tokens."""
    count, encode = len(tokens), msgspec.json.encode
    written = b",".join(encode(tokens[start : start + PORTION])[1:-1] for start in range(0, count, PORTION))
    _forget(tokens)
    return b'{"count":%d,"max_model_len":%d,"tokens":[%b],"token_strs":%b}' % (count, longest, written, encode(pieces))


def _forget(tokens: list[int]) -> None:
    """Empties the list."""
    while tokens:
        del tokens[-PORTION:]


T = TypeVar("T")


def _parsed(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        _, _at, path = str(exc).partition("- at `$.")
        raise ApiError(400, str(exc), param=path.strip("`").partition("[")[0] or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ApiError(400, f"the body is not valid JSON: {exc}", code="invalid_json") from None
