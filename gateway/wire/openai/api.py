"""The OpenAI API as wire formats, one object per operation. Policy reads a typed view of a request; what is forwarded is a top-level object
written anew, with the client's own bytes as its values."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from gateway.core.errors import GatehouseError, RequestError
from gateway.core.moderation import Judgement
from gateway.core.slices import Steps
from gateway.core.tools import CallReader, ToolUse
from gateway.core.types import InferenceRequest, ResponseHead, Usage
from gateway.core.wire import EventReader, RequestTexts, WholeAnswer, WireApi
from gateway.wire.bodies import decode_error, plain
from gateway.wire.json_api import ENCODER, FIELDS, JsonApi
from gateway.wire.openai import calls, replay, schemas
from gateway.wire.openai.answers import OpenAiAnswer
from gateway.wire.openai.fields import KNOWN
from gateway.wire.openai.passages import SILENT, ChatTexts, OpenAiTexts, RerankTexts
from gateway.wire.openai.stream import DONE, OpenAiReader
from gateway.wire.openai.structure import in_order, in_order_steps, settle_unknown
from gateway.wire.openai.usage import finish_in
from gateway.wire.openai.views import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    ModerationPart,
    ModerationRequest,
    RerankRequest,
    ScoreRequest,
    StreamOptions,
)

_encode: Final = ENCODER.encode
_WITH_USAGE: Final = Raw(b'{"include_usage":true}')
SALT: Final = "cache_salt"
"""vLLM's field for the isolation domain of a cached prefix; a client's own is dropped (gateway.wire.openai.fields)."""
TRUNCATED: Final = b"content-type: application/json\r\ncontent-length: %d\r\nx-gatehouse-truncated: %b\r\n"


def utf8_length(text: str) -> int:
    """Bytes of a text. One that is not Unicode is refused elsewhere."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class OpenAiApi(JsonApi):
    """Base of all operations. view: the type of the request. read: the fields whose texts the view gives and replaces."""

    __slots__ = ("read",)

    def __init__(
        self,
        operation: str,
        path: bytes,
        view: type[Struct],
        read: frozenset[str],
        *,
        generates: bool = False,
        moderates: bool = False,
        aliases: tuple[bytes, ...] = (),
    ) -> None:
        super().__init__(operation, (path, *aliases), view, KNOWN[operation], generates=generates, moderates=moderates)
        self.read = read

    # --- requests

    def _in_order(self, request: InferenceRequest, body: bytes) -> bool:
        return in_order(body, request.fields, self.messages(request))

    def _in_order_steps(self, request: InferenceRequest, body: bytes) -> Generator[None, None, bool]:
        return (yield from in_order_steps(body, request.fields, self.messages(request)))

    def _finish(self, request: InferenceRequest, length: int) -> None:
        """The parts of the request that limits and the relay read."""
        view, fields = request.view, request.fields
        request.prompt_tokens, request.max_tokens = length >> 2, self._wanted(view)
        if "store" in fields and bytes(fields["store"]) != b"false" and bytes(fields["store"]) != b"null":
            request.unknown += ("store",)
        if self.generates and view.n is not None:
            request.choices = view.n
        if self.generates and view.stream is True:
            request.stream = True
            options = view.stream_options
            request.include_usage = options is not UNSET and options is not None and options.include_usage is True
            if not request.include_usage:
                fields["stream_options"] = (
                    _asking_for_usage(fields["stream_options"]) if isinstance(options, StreamOptions) else _WITH_USAGE
                )

    def settle_unknown(self, request: InferenceRequest, policy: str, tools: Sequence[str] = ()) -> None:
        settle_unknown(request.fields, self.operation, request.unknown, policy, tools)

    def _wanted(self, view: Any) -> int:
        """The most tokens that the request may generate; 0 when it sets no bound."""
        return 0

    def target(self, request: InferenceRequest, name: str | None, salt: bytes = b"") -> tuple[bytes, bytes]:
        if salt and self.generates:
            return request.path, _encode({**request.fields, "model": name or request.model, SALT: salt.decode()})
        if name is not None and name != request.model:
            return request.path, _encode({**request.fields, "model": name})
        return request.path, _encode(request.fields)

    def texts(self, request: InferenceRequest) -> RequestTexts:
        return self._texts(request, True)

    def texts_steps(self, request: InferenceRequest) -> Generator[None, None, RequestTexts]:
        found = self._texts(request, False)
        yield from found.reading()
        return found

    def _texts(self, request: InferenceRequest, at_once: bool) -> OpenAiTexts:
        return OpenAiTexts(request, self.read, at_once)

    def user(self, request: InferenceRequest) -> str:
        user = getattr(request.view, "user", None)
        return user if isinstance(user, str) else ""

    # --- answers

    def answer_lines(self, head: ResponseHead, length: int) -> bytes:
        if not self.generates:
            truncated = head.get(b"x-gatehouse-truncated")
            if truncated is not None and truncated.isdigit():
                return TRUNCATED % (length, truncated)
        return b"content-type: application/json\r\ncontent-length: %d\r\n" % length

    def answer_finish(self, body: bytes) -> str:
        return finish_in(body) if self.generates else ""

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        return OpenAiAnswer(body, self.generates, inspected)

    def tool_calls(self, body: bytes) -> tuple[bytes, Sequence[ToolUse]]:
        return calls.of_answer(body) if self.generates and calls.suspicious(body) else (body, ())

    def contents(self, body: bytes) -> Sequence[str]:
        return schemas.contents(body)

    def call_reader(self) -> CallReader | None:
        return calls.OpenAiCalls() if self.generates else None

    def replayed(self, body: bytes, events: bool, stream: bool, include_usage: bool) -> bytes:
        if events == stream:
            return replay.told(body, include_usage) if events else body
        return replay.as_stream(body, include_usage) if stream else replay.as_whole(body)

    def whole_steps(self, events: bytes) -> Steps[bytes]:
        return replay.whole_steps(events)

    # --- event streams

    def reader(self, request: InferenceRequest) -> EventReader:
        return OpenAiReader(request.include_usage)

    def error_event(self, error: GatehouseError) -> bytes:
        return b"data: %b\n\n%b" % (error.body(), DONE)


class ChatApi(OpenAiApi):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("chat", b"/v1/chat/completions", ChatRequest, frozenset({"messages"}), generates=True)

    def _wanted(self, view: Any) -> int:
        # Two names for one bound; it is not known here which one an engine obeys.
        one: int = view.max_completion_tokens or 0
        other: int = view.max_tokens or 0
        choices: int = view.n or 1
        return max(one, other) * choices

    def _texts(self, request: InferenceRequest, at_once: bool) -> OpenAiTexts:
        return ChatTexts(request, self.read, at_once)

    def strings(self, request: InferenceRequest) -> list[Raw] | None:
        if request.unknown:  # their names are texts, too
            return None
        for message in request.view.messages:
            if type(message.content) is list:  # its parts are read together
                return None
        return [value for name, value in request.fields.items() if name not in SILENT]

    def tools(self, request: InferenceRequest) -> list[str]:
        return [name for use in calls.offered(request.fields) for name in use.names]

    def messages(self, request: InferenceRequest) -> Sequence[Any] | None:
        messages: list[Any] = request.view.messages
        return messages

    def tool_uses(self, request: InferenceRequest) -> Sequence[ToolUse]:
        return calls.in_request(request.fields)

    def unanswerable(self, request: InferenceRequest) -> str:
        given = request.fields.get("modalities")
        if given is None:
            return ""
        asked = plain(given, "modalities")
        if not isinstance(asked, list) or "audio" not in asked:
            return ""
        return "modalities: this model's guardrails inspect answers, and audio cannot be inspected: leave out audio."

    def answer_schema(self, request: InferenceRequest) -> bytes | None:
        given = request.fields.get("response_format")
        return None if given is None else schemas.asked(given)

    def repair(self, request: InferenceRequest, content: str, advice: str) -> bool:
        if request.choices > 1:
            return False
        request.fields["messages"] = schemas.going_on(request.fields["messages"], content, advice)
        return True


class ChatCountApi(ChatApi):
    """`POST /v1/chat/completions/input_tokens`: how many tokens the prompt of this chat has, by the engine's own tokenizer and template. It
    costs a request and no tokens."""

    __slots__ = ()

    def __init__(self) -> None:
        OpenAiApi.__init__(self, "chat", b"/v1/chat/completions/input_tokens", ChatRequest, frozenset({"messages"}))
        self.counts = True

    def _finish(self, request: InferenceRequest, length: int) -> None:
        request.prompt_tokens = 0

    def answer_schema(self, request: InferenceRequest) -> bytes | None:
        return None

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        return Usage()


class CompletionsApi(OpenAiApi):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("completions", b"/v1/completions", CompletionRequest, frozenset({"prompt", "suffix"}), generates=True)

    def _finish(self, request: InferenceRequest, length: int) -> None:
        super()._finish(request, length)
        request.choices = self._answers(request.view)

    def _wanted(self, view: Any) -> int:
        wanted: int = view.max_tokens or 0
        return wanted * self._answers(view) if wanted else 0

    def _answers(self, view: Any) -> int:
        """How many answers the engine generates: one or more for each prompt, of which it may return the best only."""
        answers: int = max(view.n or 1, view.best_of or 1)
        return answers * prompts_in(view.prompt) if isinstance(view.prompt, list) else answers

    def unreadable(self, request: InferenceRequest) -> str:
        return _token_ids(request.view.prompt)

    def opening(self, request: InferenceRequest) -> Any:
        return request.view.prompt


class InputApi(OpenAiApi):
    """Operations over `input`: embeddings and classification."""

    __slots__ = ()

    def __init__(self, operation: str, path: bytes, view: type[Struct], aliases: tuple[bytes, ...] = ()) -> None:
        super().__init__(operation, path, view, frozenset({"input"}), aliases=aliases)

    def unreadable(self, request: InferenceRequest) -> str:
        return _token_ids(request.view.input)

    def opening(self, request: InferenceRequest) -> Any:
        return request.view.input


class RerankApi(OpenAiApi):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("rerank", b"/v1/rerank", RerankRequest, frozenset({"query", "documents"}), aliases=(b"/rerank", b"/v2/rerank"))

    def _finish(self, request: InferenceRequest, length: int) -> None:
        """The engine reads the query with each of the documents."""
        view = request.view
        super()._finish(request, length + (len(view.documents) - 1) * utf8_length(view.query))

    def target(self, request: InferenceRequest, name: str | None, salt: bytes = b"") -> tuple[bytes, bytes]:
        # One path for all engines: not all of them know all three.
        return self.paths[0], super().target(request, name)[1]

    def _texts(self, request: InferenceRequest, at_once: bool) -> OpenAiTexts:
        return RerankTexts(request, self.read, at_once)

    def opening(self, request: InferenceRequest) -> Any:
        return request.view.query


class ScoreApi(OpenAiApi):
    """Scores of pairs of texts, in vLLM's shape."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("score", b"/v1/score", ScoreRequest, frozenset({"text_1", "text_2"}), aliases=(b"/score",))

    def _finish(self, request: InferenceRequest, length: int) -> None:
        """One text is read with each of the others."""
        one, others = request.view.text_1, request.view.text_2
        if isinstance(one, list) and len(one) == 1:
            one = one[0]
        more = (len(others) - 1) * utf8_length(one) if isinstance(one, str) and isinstance(others, list) else 0
        super()._finish(request, length + more)

    def target(self, request: InferenceRequest, name: str | None, salt: bytes = b"") -> tuple[bytes, bytes]:
        return self.paths[0], super().target(request, name)[1]

    def opening(self, request: InferenceRequest) -> Any:
        return request.view.text_1


class ModerationApi(OpenAiApi):
    """Judgements of texts (API reference, "Create moderation")."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("moderations", b"/v1/moderations", ModerationRequest, frozenset({"input"}), moderates=True)

    def _finish(self, request: InferenceRequest, length: int) -> None:
        super()._finish(request, length)
        for index, item in enumerate(request.view.input):
            if isinstance(item, ModerationPart) and (item.type != "text" or item.text is None):
                place = f"input[{index}]"
                raise RequestError(f"{place}: only text can be moderated, not {item.type[:64]!r}.", param=place, code="unsupported_content")
        if "model" not in request.fields:
            request.fields["model"] = Raw(ENCODER.encode(request.model))

    def judged(self, request: InferenceRequest) -> list[str]:
        given = request.view.input
        if not isinstance(given, str) and isinstance(given[0], ModerationPart):
            return ["\n".join(request.view.texts())]  # parts are one message
        texts: list[str] = request.view.texts()
        return texts

    def judgement(self, request: InferenceRequest, identity: str, results: Sequence[Judgement]) -> bytes:
        found = [
            {
                "flagged": result.flagged,
                "categories": result.categories,
                "category_scores": result.scores,
                "category_applied_input_types": {name: ["text"] for name in result.categories},
            }
            for result in results
        ]
        return ENCODER.encode({"id": f"modr-{identity}", "model": request.model, "results": found})

    def opening(self, request: InferenceRequest) -> Any:
        texts = request.view.texts()
        return texts[0] if texts else None


APIS: Final[tuple[WireApi, ...]] = (
    ChatApi(),
    ChatCountApi(),
    CompletionsApi(),
    InputApi("embeddings", b"/v1/embeddings", EmbeddingRequest),
    RerankApi(),
    ScoreApi(),
    InputApi("classify", b"/v1/classify", ClassifyRequest, aliases=(b"/classify",)),
    ModerationApi(),
)


def prompts_in(prompt: list[Any]) -> int:
    """The number of prompts in a list: its bare token ids together are one, each text and each list of ids is one."""
    return max(1, sum(not isinstance(item, int) for item in prompt))


def _token_ids(given: Any) -> str:
    """Why guardrails cannot read a prompt or an input; "" when it is all text."""
    if isinstance(given, list) and not all(isinstance(item, str) for item in given):
        return "Token ids cannot be inspected; send text."
    return ""


def _asking_for_usage(options: Raw) -> Raw:
    """The client's stream options plus a request for usage; the other options are kept."""
    try:
        return Raw(msgspec.json.encode({**FIELDS.decode(options), "include_usage": True}))
    except msgspec.DecodeError as error:
        raise decode_error(error) from None
