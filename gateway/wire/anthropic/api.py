"""Anthropic's Messages API as wire formats. An engine that speaks it gets the client's own values, any other a chat completion that says
the same (gateway.wire.anthropic.chat), and its answer is translated before any policy reads it.

To policies, limits and records a message is a chat: both are the operation `chat`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from gateway.core.errors import GatehouseError
from gateway.core.slices import Steps
from gateway.core.tools import CallReader, ToolUse
from gateway.core.types import Headers, InferenceRequest, ResponseHead, Usage
from gateway.core.wire import JSON, EventReader, HashBody, RequestTexts, WholeAnswer, WireApi
from gateway.wire.anthropic import answers, calls, chat, fields, replay, structure
from gateway.wire.anthropic.chat_stream import ChatReader
from gateway.wire.anthropic.passages import MessagesTexts
from gateway.wire.anthropic.stream import MessagesReader
from gateway.wire.anthropic.views import METADATA, STEPS, CountRequest, MessagesRequest
from gateway.wire.bodies import decode_error
from gateway.wire.chats import COUNT_PATH, counted
from gateway.wire.json_api import ENCODER, JsonApi
from gateway.wire.openai import calls as openai_calls
from gateway.wire.openai import usage as openai_usage
from gateway.wire.openai.answers import CountAnswer
from gateway.wire.openai.structure import only_keys, only_keys_steps

DIALECT: Final = "messages"
"""Its name in `engines[].apis`."""
VERSION: Final = b"anthropic-version"
_DEFAULT_VERSION: Final = b"2023-06-01"
_VERSION: Final = re.compile(rb"\d{4}-\d{2}-\d{2}")


class MessagesApi(JsonApi):
    """`POST /v1/messages`, and the base of the other."""

    __slots__ = ("_name",)

    def __init__(self, path: bytes, view: type[Struct], known: frozenset[str], name: str, *, generates: bool = True) -> None:
        super().__init__("chat", (path,), view, known, prefix=path, generates=generates, dialect=DIALECT)
        self._name = name

    # --- requests

    def _content(self, headers: Headers) -> bytes:
        """The version of the API that the client speaks goes along."""
        version = headers.get(VERSION)
        if version is None or version == _DEFAULT_VERSION or not _VERSION.fullmatch(version):
            return _WITH_VERSION
        return JSON + b"anthropic-version: %b\r\n" % version

    def _in_order(self, request: InferenceRequest, body: bytes) -> bool:
        keys = structure.plain_keys(request.fields, request.view)
        return keys >= 0 and only_keys(body, keys)

    def _in_order_steps(self, request: InferenceRequest, body: bytes) -> Generator[None, None, bool]:
        keys = structure.plain_keys(request.fields, request.view)
        return keys >= 0 and (yield from only_keys_steps(body, keys))

    def _structure(self, fields: dict[str, Raw]) -> structure.MessagesStructure:
        return structure.MessagesStructure(self.operation, self._known, fields)

    def _finish(self, request: InferenceRequest, length: int) -> None:
        """The parts of the request that limits and the relay read."""
        view = request.view
        request.prompt_tokens = length >> 2
        request.max_tokens = view.max_tokens
        request.stream = view.stream is True

    def settle_unknown(self, request: InferenceRequest, policy: str, tools: Sequence[str] = ()) -> None:
        structure.settle_unknown(request.fields, self._known, request.unknown, policy, tools)

    def target(self, request: InferenceRequest, name: str | None, salt: bytes = b"") -> tuple[bytes, bytes]:
        model = name or request.model
        if request.foreign:
            asked = {"model": model, **chat.request_fields(request.fields, request.stream)}
            if salt:
                asked["cache_salt"] = salt.decode()
            return self._foreign_path(), ENCODER.encode(asked)
        if model != request.model:
            return request.path, ENCODER.encode({**request.fields, "model": model})
        return request.path, ENCODER.encode(request.fields)

    def _foreign_path(self) -> bytes:
        return chat.PATH

    def texts(self, request: InferenceRequest) -> RequestTexts:
        return MessagesTexts(request)

    def texts_steps(self, request: InferenceRequest) -> Generator[None, None, RequestTexts]:
        found = MessagesTexts(request, False)
        yield from found.reading()
        return found

    def detail(self, request: InferenceRequest, hash_body: HashBody) -> dict[str, Any] | None:
        return {"api": self._name}

    def messages(self, request: InferenceRequest) -> Sequence[Any] | None:
        turns: list[Any] = request.view.turns()
        return turns

    def turns(self, request: InferenceRequest) -> Sequence[Any] | None:
        return [message.step() for message in STEPS.decode(request.fields["messages"])]

    def tools(self, request: InferenceRequest) -> list[str]:
        return calls.offered(request.fields)

    def tool_uses(self, request: InferenceRequest) -> Sequence[ToolUse]:
        return calls.in_request(request.fields)

    def user(self, request: InferenceRequest) -> str:
        found = self._metadata(request, METADATA)
        return "" if found is None else found.user_id or ""

    def answer_schema(self, request: InferenceRequest) -> bytes | None:
        try:
            asked = chat.answer_format(request.fields)
        except msgspec.DecodeError as error:
            raise decode_error(error) from None
        if asked is None or asked.type != "json_schema" or asked.schema is UNSET:
            return None
        return bytes(asked.schema)

    def repair(self, request: InferenceRequest, content: str, advice: str) -> bool:
        more = [{"role": "assistant", "content": content}, {"role": "user", "content": advice}]
        before = bytes(request.fields["messages"]).rstrip()[:-1]
        request.fields["messages"] = Raw(before + b"," + ENCODER.encode(more)[1:])
        return True

    # --- answers

    def received(self, request: InferenceRequest, body: bytes) -> bytes:
        body = super().received(request, body)
        return chat.message_of(body) if request.foreign else body

    def _usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        return openai_usage.usage_of(body) if request.foreign else answers.usage_of(body)

    def answer_finish(self, body: bytes) -> str:
        return answers.finish_in(body) or openai_usage.finish_in(body)

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        return answers.MessagesAnswer(body, inspected)

    def tool_calls(self, body: bytes) -> tuple[bytes, Sequence[ToolUse]]:
        return openai_calls.of_answer(body) if openai_calls.suspicious(body) else (body, ())

    def contents(self, body: bytes) -> Sequence[str]:
        blocks = answers.decoded(body)["content"]
        for block in blocks:
            if block["type"] in openai_calls.TYPES:
                return ()
        return ["".join([str(block.get("text") or "") for block in blocks if block["type"] == "text"])]

    def call_reader(self) -> CallReader | None:
        return calls.MessageCalls()

    def replayed(self, body: bytes, events: bool, stream: bool, include_usage: bool) -> bytes:
        if events == stream:
            return body
        return replay.as_stream(body) if stream else replay.as_whole(body)

    def whole_steps(self, events: bytes) -> Steps[bytes]:
        return replay.whole_steps(events)

    # --- event streams and errors

    def reader(self, request: InferenceRequest) -> EventReader:
        return ChatReader() if request.foreign else MessagesReader()

    def error_event(self, error: GatehouseError) -> bytes:
        return b"event: error\ndata: %b\n\n" % ENCODER.encode(answers.error_document(error, b""))

    def error_body(self, error: GatehouseError, headers: Headers, request_id: bytes = b"") -> bytes:
        return ENCODER.encode(answers.error_document(error, request_id))

    def error_status(self, error: GatehouseError) -> int:
        return answers.status_of(error)

    def identity_lines(self, request_id: bytes) -> bytes:
        return b"request-id: %b\r\n" % request_id


class CountApi(MessagesApi):
    """`POST /v1/messages/count_tokens`: how long a message's prompt is, by the engine's own tokenizer and template. It costs a request
    and no tokens."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(b"/v1/messages/count_tokens", CountRequest, fields.COUNT, "count_tokens", generates=False)
        self.counts = True

    def _finish(self, request: InferenceRequest, length: int) -> None:
        request.prompt_tokens = 0

    def _foreign_path(self) -> bytes:
        return COUNT_PATH

    def received(self, request: InferenceRequest, body: bytes) -> bytes:
        return b'{"input_tokens":%d}' % counted(body)

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        return Usage()

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        return CountAnswer(body)

    def tool_calls(self, body: bytes) -> tuple[bytes, Sequence[ToolUse]]:
        return body, ()

    def contents(self, body: bytes) -> Sequence[str]:
        return ()


_WITH_VERSION: Final = JSON + b"anthropic-version: 2023-06-01\r\n"
APIS: Final[tuple[WireApi, ...]] = (
    MessagesApi(b"/v1/messages", MessagesRequest, fields.TOP, "messages"),
    CountApi(),
)
