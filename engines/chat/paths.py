"""The paths of a runtime that generates text: one table for all of them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from engines.chat.chat_handler import ChatHandler
from engines.chat.completion_handler import CompletionHandler
from engines.chat.engine import TextEngine
from engines.chat.tokens import VocabularyTokenizer
from engines.sidecar.shell import Handler, Request, Response, Stream
from engines.sidecar.tokens import TokenHandler


class TextPaths(ABC):
    """What a runtime inherits for its text: `routes` is its `engines.sidecar.shell.Runtime.routes`, more or less."""

    def __init__(self) -> None:
        self._created = int(time.time())

    @abstractmethod
    def generator(self) -> TextEngine:
        """The loaded engine. Raises ApiError where there is none, or none that generates."""

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What requests may call the model."""

    def tokens(self) -> TokenHandler:
        """Answers what the model's tokens are. Raises ApiError."""
        engine = self.generator()
        return TokenHandler(VocabularyTokenizer(engine.vocabulary, engine, engine.context_size))

    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """The OpenAI paths of text, and those of tokens."""
        return {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/chat/completions/input_tokens"): self._count,
            ("POST", "/v1/completions"): self._complete,
            ("POST", "/v1/completions/input_tokens"): self._count_prompts,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/v1/models"): self._models,
        }

    async def _chat(self, request: Request) -> Response | Stream:
        return await ChatHandler(self.generator()).chat(request)

    async def _count(self, request: Request) -> Response:
        return await ChatHandler(self.generator()).count(request)

    async def _complete(self, request: Request) -> Response | Stream:
        return await CompletionHandler(self.generator()).complete(request)

    async def _count_prompts(self, request: Request) -> Response:
        return await CompletionHandler(self.generator()).count(request)

    async def _tokenize(self, request: Request) -> Response:
        return await self.tokens().tokenize(request)

    async def _detokenize(self, request: Request) -> Response:
        return await self.tokens().detokenize(request)

    async def _models(self, request: Request) -> Response:
        entries = [{"id": name, "object": "model", "created": self._created, "owned_by": "gatehouse"} for name in self.names()]
        return Response(msgspec.json.encode({"object": "list", "data": entries}))
