"""The OpenAI API's requests and answers as typed views (gateway.wire.openai reads and writes with them).

A view declares only the fields that policy, routing and limits need, with their bounds (OpenAI API reference).
Everything else passes through untouched.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, json

from gateway.wire.openai.parts import joined, separated

# --- requests

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Choices = Annotated[int, Meta(ge=1, le=128)]
Text = Annotated[str, Meta(max_length=16 * 1024 * 1024)]
Stops = Annotated[list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=16)]


class StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class ImageUrl(Struct, gc=False):
    url: str


class Part(Struct, gc=False):
    """One part of a message's content; `text` if it is a text part."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    video_url: ImageUrl | str | None = None
    audio_url: ImageUrl | str | None = None


class FunctionCall(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class ToolCall(Struct, gc=False):
    function: FunctionCall | None = None


_SOURCES: Final = {"system": "system", "developer": "system", "assistant": "assistant", "tool": "tool", "function": "tool"}
"""Who said a message, by its role."""


class Message(Struct, gc=False):
    role: Annotated[str, Meta(max_length=64)]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None


class Inference(Struct, gc=False, kw_only=True):
    """The fields of every request."""

    model: ModelName
    stream: bool | None = None


class Generation(Inference, gc=False, kw_only=True):
    """The fields that chat and completions share."""

    stream_options: StreamOptions | UnsetType | None = UNSET
    max_tokens: Tokens | None = None
    n: Choices | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: str | Stops | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=1024)] | None = None


class ChatRequest(Generation, gc=False, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    def sources(self) -> list[str]:
        """For each of `texts` who said it."""
        found: list[str] = []
        for message in self.messages:
            source = _SOURCES.get(message.role, "user")
            content = message.content
            if isinstance(content, str):
                found.append(source)
            elif content:
                found.extend([source] * len(joined([part.text for part in content if part.text is not None])))
            if message.tool_calls:
                found.extend([source for c in message.tool_calls if c.function and c.function.arguments])
        return found

    def texts(self) -> list[str]:
        """Every text that a person or a tool wrote, in order: contents, the parts of a message joined, tool-call arguments."""
        found: list[str] = []
        for message in self.messages:
            content = message.content
            if isinstance(content, str):
                found.append(content)
            elif content:
                found.extend(joined([part.text for part in content if part.text is not None]))
            if message.tool_calls:
                found.extend(c.function.arguments for c in message.tool_calls if c.function and c.function.arguments)
        return found

    def replace(self, texts: list[str]) -> None:
        """Replaces each text that `texts` gave, in the same order."""
        new = iter(texts)
        for message in self.messages:
            content = message.content
            if isinstance(content, str):
                message.content = next(new)
            elif content:
                parts = [part for part in content if part.text is not None]
                old = [part.text for part in parts if part.text is not None]
                count = min(len(old), 2)
                for part, text in zip(parts, separated(old, [next(new) for _ in range(count)]), strict=True):
                    part.text = text
            for call in message.tool_calls or ():
                if call.function and call.function.arguments:
                    call.function.arguments = next(new)


class ToolFunction(Struct, gc=False):
    name: str = ""


class Tool(Struct, gc=False):
    """A tool that a request offers, in the current form (`tools`) or the old one (`functions`)."""

    type: str = ""
    name: str = ""
    function: ToolFunction | None = None
    custom: ToolFunction | None = None

    @property
    def names(self) -> list[str]:
        """Every name that an engine may read as the tool's; its type where it has none."""
        inner = [given.name for given in (self.function, self.custom) if given is not None]
        return [name for name in (self.name, *inner) if name] or [self.type]


class Metadata(Struct):
    """What is read of `metadata`. data_label: what kind of data the request holds, as the client says."""

    data_label: str = ""


METADATA: Final = json.Decoder(Metadata | None)
TOOLS: Final = json.Decoder(list[Tool] | None)
Prompt = str | list[str | int | list[int]]
"""One text, or several texts and token lists."""


def _strings_of(prompt: Prompt) -> list[str]:
    return [prompt] if isinstance(prompt, str) else [p for p in prompt if isinstance(p, str)]


def _replaced(prompt: Prompt, texts: list[str]) -> Prompt:
    new = iter(texts)
    return next(new) if isinstance(prompt, str) else [next(new) if isinstance(p, str) else p for p in prompt]


class CompletionRequest(Generation, gc=False, kw_only=True):
    prompt: Prompt = ""
    max_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None  # 0 with echo scores the prompt
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Choices | None = None
    suffix: str | None = None

    def texts(self) -> list[str]:
        found = _strings_of(self.prompt)
        return found if self.suffix is None else [*found, self.suffix]

    def replace(self, texts: list[str]) -> None:
        if self.suffix is not None:
            *texts, self.suffix = texts
        self.prompt = _replaced(self.prompt, texts)


class EmbeddingRequest(Inference, gc=False, kw_only=True):
    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1, max_length=262_144)]
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None

    def texts(self) -> list[str]:
        return _strings_of(self.input)

    def replace(self, texts: list[str]) -> None:
        self.input = _replaced(self.input, texts)


class ClassifyRequest(EmbeddingRequest, gc=False, kw_only=True):
    """POST /v1/classify in vLLM's shape: the same `input` as embeddings."""


DEFAULT_MODERATION: Final = "omni-moderation-latest"
"""The model of a moderation request that names none (OpenAI API reference)."""


class ModerationPart(Struct, gc=False):
    """A part of a message; only its text can be judged."""

    type: Annotated[str, Meta(max_length=64)]
    text: Text | None = None


class ModerationRequest(Struct, gc=False, kw_only=True):
    """POST /v1/moderations: a text, several texts, or the parts of one message."""

    model: ModelName = DEFAULT_MODERATION
    input: Text | Annotated[list[Text | ModerationPart], Meta(min_length=1, max_length=2048)]

    def texts(self) -> list[str]:
        if isinstance(self.input, str):
            return [self.input]
        return [item if isinstance(item, str) else item.text or "" for item in self.input]

    def replace(self, texts: list[str]) -> None:
        if isinstance(self.input, str):
            self.input = texts[0]
            return
        for index, text in enumerate(texts):
            item = self.input[index]
            self.input[index] = text if isinstance(item, str) else ModerationPart(item.type, text)


class RerankRequest(Inference, gc=False, kw_only=True):
    """POST /v1/rerank in the shape of Cohere and Jina."""

    query: Text
    documents: Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=2048)]
    top_n: Annotated[int, Meta(ge=1, le=2048)] | None = None

    def texts(self) -> list[str]:
        found = [self.query]
        for document in self.documents:
            found.append(document if isinstance(document, str) else str(document.get("text", "")))
        return found

    def replace(self, texts: list[str]) -> None:
        self.query = texts[0]
        for i, text in enumerate(texts[1:]):
            document = self.documents[i]
            self.documents[i] = text if isinstance(document, str) else {**document, "text": text}


class ScoreRequest(Inference, gc=False, kw_only=True):
    """POST /v1/score in vLLM's shape: one text against one or many, or as many against as many."""

    text_1: Text | Annotated[list[Text], Meta(min_length=1, max_length=2048)]
    text_2: Text | Annotated[list[Text], Meta(min_length=1, max_length=2048)]

    def texts(self) -> list[str]:
        return [text for given in (self.text_1, self.text_2) for text in ([given] if isinstance(given, str) else given)]

    def replace(self, texts: list[str]) -> None:
        size = 1 if isinstance(self.text_1, str) else len(self.text_1)
        self.text_1 = texts[0] if isinstance(self.text_1, str) else texts[:size]
        self.text_2 = texts[size] if isinstance(self.text_2, str) else texts[size:]


# --- answers


class PromptDetails(Struct, gc=False):
    cached_tokens: int | None = None
    image_tokens: int | None = None
    audio_tokens: int | None = None


class CompletionDetails(Struct, gc=False):
    reasoning_tokens: int | None = None
    audio_tokens: int | None = None


class UsageView(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class ErrorView(Struct, gc=False):
    """What tells an error from an answer."""

    error: Raw = Raw(b"null")
    choices: Raw = Raw(b"null")


class AnswerView(Struct, gc=False):
    usage: UsageView | None = None


class _PlainPromptDetails(Struct, gc=False, forbid_unknown_fields=True):
    cached_tokens: int | UnsetType | None = UNSET
    image_tokens: int | UnsetType | None = UNSET
    audio_tokens: int | UnsetType | None = UNSET


class _PlainCompletionDetails(Struct, gc=False, forbid_unknown_fields=True):
    reasoning_tokens: int | UnsetType | None = UNSET
    audio_tokens: int | UnsetType | None = UNSET


class PlainUsage(Struct, gc=False, forbid_unknown_fields=True):
    prompt_tokens: int | UnsetType | None = UNSET
    completion_tokens: int | UnsetType | None = UNSET
    total_tokens: int | UnsetType | None = UNSET
    prompt_tokens_details: _PlainPromptDetails | UnsetType | None = UNSET
    completion_tokens_details: _PlainCompletionDetails | UnsetType | None = UNSET


class PlainMessage(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str
    refusal: UnsetType | None = UNSET
    reasoning_content: UnsetType | None = UNSET
    tool_calls: Annotated[list[Any], Meta(max_length=0)] | UnsetType | None = UNSET


class PlainChoice(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    index: int | UnsetType = UNSET
    message: PlainMessage
    logprobs: UnsetType | None = UNSET
    finish_reason: Literal["stop", "length"] | UnsetType | None = UNSET


class PlainAnswer(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A chat's answer with one text a choice, and nothing that guardrails would remove. Most answers are of this form. Encoded, it has
    every key that the engine wrote, and each once."""

    id: str | UnsetType | None = UNSET
    object: Literal["chat.completion"] | UnsetType | None = UNSET
    created: int | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    choices: list[PlainChoice]
    service_tier: str | UnsetType | None = UNSET
    usage: PlainUsage | UnsetType | None = UNSET


class TokenScore(Struct, gc=False):
    """The log probability of a token, without those of its alternatives."""

    token: Any = None
    logprob: Any = None
    bytes: Any = None


class Scores(Struct, gc=False):
    """The log probabilities of a choice, of a chat or of a completion."""

    content: list[TokenScore] | None = None
    tokens: Any = None
    token_logprobs: Any = None
    text_offset: Any = None


class Delta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(Struct, gc=False):
    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class ChunkView(Struct, gc=False):
    """The parts of one streamed chunk that settle and guardrails read."""

    choices: list[Choice] = []
    usage: UsageView | None = None
    error: Raw | UnsetType = UNSET
