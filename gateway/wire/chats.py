"""Chat completions as other formats read them, to say the same in their own shape: whole ones, the chunks of streams, and counts of their
prompts' tokens."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType, json

from gateway.core.errors import EngineError
from gateway.wire.openai.views import UsageView


class ChatFunction(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class ChatCall(Struct, gc=False):
    index: int = 0
    id: str | None = None
    function: ChatFunction | None = None


class ChatText(Struct, gc=False):
    """A part of a content that is a list."""

    type: str = ""
    text: str = ""


class ChatMessage(Struct, gc=False):
    """A message, or a piece of one."""

    content: str | list[ChatText] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatCall] | None = None

    def thought(self) -> str:
        """Engines write one or the other name, some both."""
        return self.reasoning_content or self.reasoning or ""

    def text(self) -> str:
        """Its content, without a refusal."""
        content = self.content
        if content.__class__ is list:
            content = "".join([part.text for part in content])
        return content or ""  # type: ignore[return-value]

    def said(self) -> str:
        return self.text() + (self.refusal or "")


class ChatChoice(Struct, gc=False):
    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None

    def stopped_at(self) -> str | None:
        """The stop sequence that ended the answer, where the engine says it (vLLM, SGLang)."""
        for found in (self.stop_reason, self.matched_stop):
            if isinstance(found, str):
                return found
        return None


class ChatAnswer(Struct, gc=False):
    """A whole chat completion, or a chunk of one."""

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[ChatChoice] = []
    usage: UsageView | None = None
    error: Raw | UnsetType = UNSET


CHAT: Final = json.Decoder(ChatAnswer)

# --- counts

COUNT_PATH: Final = b"/v1/chat/completions/input_tokens"
"""Where an engine that speaks only chat completions counts."""


class CountView(Struct, gc=False):
    """The answer to a count."""

    input_tokens: Annotated[int, Meta(ge=0, le=1_000_000_000)]


_COUNT: Final = json.Decoder(CountView)


def counted(body: bytes) -> int:
    """How many tokens an engine says a prompt has. Raises EngineError."""
    try:
        return _COUNT.decode(body).input_tokens
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's answer is not a token count.") from None
