"""Tokens of texts and chats as a model's vocabulary and template have them."""

from __future__ import annotations

from collections.abc import Sequence

from engines.chat.conversation import Vocabulary
from engines.chat.engine import TextEngine
from engines.chat.params import ChatRequest
from engines.sidecar.shell import Request
from engines.sidecar.tokens import Tokenizer, TokenizeRequest


class VocabularyTokenizer(Tokenizer):
    """engine: renders chats, if the model generates. longest: tokens that the model takes at once."""

    def __init__(self, vocabulary: Vocabulary, engine: TextEngine | None, longest: int) -> None:
        self._vocabulary, self._engine = vocabulary, engine
        self.longest, self.vocabulary = longest, vocabulary.n_vocab

    def text(self, text: str, special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=special, parse_special=True)

    def joined(self, tokens: Sequence[int]) -> str:
        return self._vocabulary.detokenize(tokens)

    def piece(self, token: int) -> str:
        return self._vocabulary.special_piece(token).decode("utf-8", "replace")

    async def chat(self, request: Request, body: TokenizeRequest) -> list[int]:
        engine = self._engine
        if engine is None:
            return await super().chat(request, body)
        chat = ChatRequest(messages=body.messages or [], tools=body.tools, chat_template_kwargs=body.chat_template_kwargs)
        check = engine.grammars.of(request.cache_salt)
        conversation = await engine.prepare(lambda: engine.converser.prepare(chat, check), lambda made: None)
        return list(conversation.tokens)
