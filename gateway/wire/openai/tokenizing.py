"""Tokens of texts and texts of tokens in vLLM's shape (`/tokenize`, `/detokenize`), passed to engines that have a tokenizer for it.

Neither generates: they cost a request and no tokens. Token ids are nothing that guardrails can read: where they read a model's requests or
answers, what they would have to read as ids is refused before an engine is asked.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.core.errors import EngineError, GuardrailViolation, RequestError
from gateway.core.types import InferenceRequest, ResponseHead, Usage
from gateway.core.wire import WholeAnswer, WireApi
from gateway.wire.json_api import ENCODER, FIELDS
from gateway.wire.openai.api import OpenAiApi
from gateway.wire.openai.tokenizing_views import DetokenizeRequest, TokenizeRequest

MOST_INSPECTED: Final = 8 * 1024 * 1024
"""Bytes of an answer with tokens that is looked through: more than a million tokens."""


class TokensApi(OpenAiApi):
    """Either way: a request is counted, and none of its tokens."""

    __slots__ = ()

    def _finish(self, request: InferenceRequest, length: int) -> None:
        request.prompt_tokens = 0

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        return Usage()

    def target(self, request: InferenceRequest, name: str | None, salt: bytes = b"") -> tuple[bytes, bytes]:
        return self.paths[0], super().target(request, name)[1]


class TokenizeApi(TokensApi):
    """The answer has ids, and where it is asked for the tokens themselves, which say the caller's own text again in pieces."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("tokenize", b"/tokenize", TokenizeRequest, frozenset(), aliases=(b"/v1/tokenize",))

    def _finish(self, request: InferenceRequest, length: int) -> None:
        super()._finish(request, length)
        if (request.view.prompt is None) == (request.view.messages is None):
            raise RequestError("Send either prompt or messages.", param="prompt", code="invalid_value")

    def unanswerable(self, request: InferenceRequest) -> str:
        if not request.view.return_token_strs:
            return ""
        return "This model's guardrails inspect answers, and the texts of tokens cannot be inspected: leave out return_token_strs."

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        return Figures(body, ("count", "max_model_len", "tokens")) if inspected else WholeAnswer(body)

    def opening(self, request: InferenceRequest) -> Any:
        return request.view.prompt


class DetokenizeApi(TokensApi):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("tokenize", b"/detokenize", DetokenizeRequest, frozenset(), aliases=(b"/v1/detokenize",))

    def unreadable(self, request: InferenceRequest) -> str:
        return "Token ids cannot be inspected; send text."

    def unanswerable(self, request: InferenceRequest) -> str:
        return "This model's guardrails inspect answers, so its token ids cannot be turned into text."

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        if inspected:
            raise GuardrailViolation(self.unanswerable(request))
        return WholeAnswer(body)


class Figures(WholeAnswer):
    """An answer of which only these figures pass."""

    __slots__ = ()

    def __init__(self, body: bytes, names: tuple[str, ...]) -> None:
        super().__init__(body)
        if len(body) > MOST_INSPECTED:
            message = f"This model's guardrails inspect answers, and one with tokens of more than {MOST_INSPECTED} bytes is not inspected"
            raise GuardrailViolation(f"{message}: send a shorter text.")
        try:
            found = FIELDS.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise EngineError("The engine's answer has no tokens.") from None
        kept = {name: found[name] for name in names if name in found}
        for value in kept.values():
            if not _whole_numbers(value):
                raise EngineError("The engine's answer has tokens that are not numbers.")
        self.body = ENCODER.encode(kept)


def _whole_numbers(value: Raw) -> bool:
    """Whether a JSON value is a whole number or a list of such. Millions of them are not decoded for it."""
    data = bytes(value)
    inside = data[1:-1] if data[:1] == b"[" else data
    return not inside.translate(None, b"-0123456789, \t\r\n")


APIS: Final[tuple[WireApi, ...]] = (TokenizeApi(), DetokenizeApi())
