"""OpenAI's Responses API as a wire format. An engine that speaks it gets the client's own values, any other a chat completion that asks the
same (gateway.wire.responses.chat), and its answer is translated before any policy reads it.

To policies, limits and records a response is a chat. No engine keeps anything of it: `store` is always false there. What is kept is kept
by the gateway, where that is configured; `previous_response_id` then puts the conversation so far in front of the request, before any
policy reads it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from gateway.core.errors import EngineError, GatehouseError, RequestError
from gateway.core.slices import Steps
from gateway.core.tools import CallReader, ToolUse
from gateway.core.types import InferenceRequest, ResponseHead, Usage
from gateway.core.wire import EventReader, HashBody, Memory, RequestTexts, WholeAnswer, WireApi
from gateway.wire.bodies import decode_error
from gateway.wire.chats import COUNT_PATH, counted
from gateway.wire.json_api import ENCODER, JsonApi
from gateway.wire.openai import usage as openai_usage
from gateway.wire.openai.answers import CountAnswer
from gateway.wire.openai.structure import only_keys, only_keys_steps
from gateway.wire.responses import answers, calls, chat, fields, references, replay, structure
from gateway.wire.responses.chat_stream import ChatReader
from gateway.wire.responses.passages import ResponsesTexts
from gateway.wire.responses.stream import ResponsesReader
from gateway.wire.responses.views import ResponsesRequest

DIALECT: Final = "responses"
"""Its name in `engines[].apis`."""
PATH: Final = b"/v1/responses"
_NOT_KEPT: Final = Raw(b"false")
_ITEMS: Final = msgspec.json.Decoder(list[Raw])


class ResponsesApi(JsonApi):
    """`POST /v1/responses`"""

    __slots__ = ()

    def __init__(self, path: bytes = PATH, known: frozenset[str] = fields.TOP, *, generates: bool = True) -> None:
        super().__init__("chat", (path,), ResponsesRequest, known, generates=generates, dialect=DIALECT)
        self.remembers_any = True

    # --- requests

    def _in_order(self, request: InferenceRequest, body: bytes) -> bool:
        keys = structure.plain_keys(request.fields, request.view)
        return keys >= 0 and only_keys(body, keys)

    def _in_order_steps(self, request: InferenceRequest, body: bytes) -> Generator[None, None, bool]:
        keys = structure.plain_keys(request.fields, request.view)
        return keys >= 0 and (yield from only_keys_steps(body, keys))

    def _structure(self, fields: dict[str, Raw]) -> structure.ResponsesStructure:
        return structure.ResponsesStructure(self.operation, self._known, fields)

    def _finish(self, request: InferenceRequest, length: int) -> None:
        view, found = request.view, request.fields
        if view.background is True:
            raise RequestError("background: responses in the background are not supported; leave it out.", param="background")
        for name, why in fields.REFUSED.items():
            if name in found and bytes(found.pop(name)) != b"null":
                raise RequestError(f"{name}: {why}.", param=name, code="unsupported_parameter")
        for name in fields.LEFT_OUT:
            found.pop(name, None)
        found["store"] = _NOT_KEPT
        request.prompt_tokens = length >> 2
        request.max_tokens = view.max_output_tokens or 0
        request.stream = view.stream is True

    def settle_unknown(self, request: InferenceRequest, policy: str, tools: Sequence[str] = ()) -> None:
        structure.settle_unknown(request.fields, request.unknown, policy, tools)

    def target(self, request: InferenceRequest, name: str | None, salt: bytes = b"") -> tuple[bytes, bytes]:
        model = name or request.model
        if request.foreign:
            asked = {"model": model, **chat.request_fields(request.fields, request.stream)}
            if salt:
                asked["cache_salt"] = salt.decode()
            return self._foreign_path(), ENCODER.encode(asked)
        if salt:
            return request.path, ENCODER.encode({**request.fields, "model": model, "cache_salt": salt.decode()})
        if model != request.model:
            return request.path, ENCODER.encode({**request.fields, "model": model})
        return request.path, ENCODER.encode(request.fields)

    def _foreign_path(self) -> bytes:
        return chat.PATH

    def texts(self, request: InferenceRequest) -> RequestTexts:
        return ResponsesTexts(request)

    def texts_steps(self, request: InferenceRequest) -> Generator[None, None, RequestTexts]:
        found = ResponsesTexts(request, False)
        yield from found.reading()
        return found

    def detail(self, request: InferenceRequest, hash_body: HashBody) -> dict[str, Any] | None:
        memory = request.memory
        if memory is None:
            return {"api": "responses"}
        return {"api": "responses", "previous_response": memory.previous, "kept_as": memory.identity if memory.keeps else ""}

    def messages(self, request: InferenceRequest) -> Sequence[Any] | None:
        turns: list[Any] = request.view.turns()
        return turns

    def turns(self, request: InferenceRequest) -> Sequence[Any] | None:
        turns: list[Any] = request.view.calling(request.fields["input"])
        return turns

    def tools(self, request: InferenceRequest) -> list[str]:
        return calls.offered(request.fields)

    def tool_uses(self, request: InferenceRequest) -> Sequence[ToolUse]:
        return calls.in_request(request.fields)

    def user(self, request: InferenceRequest) -> str:
        return request.view.user or ""

    def answer_schema(self, request: InferenceRequest) -> bytes | None:
        try:
            asked = chat.answer_format(request.fields)
        except msgspec.DecodeError as error:
            raise decode_error(error) from None
        if asked is None or asked.type == "text":
            return None
        if asked.type == "json_object":
            return b""
        return None if asked.schema is UNSET else bytes(asked.schema)

    def repair(self, request: InferenceRequest, content: str, advice: str) -> bool:
        more = [{"role": "assistant", "content": content}, {"role": "user", "content": advice}]
        request.fields["input"] = joined(items_of(request.fields["input"]), [Raw(ENCODER.encode(one)) for one in more])
        return True

    # --- conversations that are kept

    def remembers(self, request: InferenceRequest, keeping: bool) -> Memory | None:
        view = request.view
        previous = view.previous_response_id or ""
        referred: list[str] = []
        if view.input.__class__ is list and any(item.type == fields.REFERENCE for item in view.input):
            referred = references.named(request.fields["input"])
        if not keeping:
            if referred:
                place = f"input[{[item.type for item in view.input].index(fields.REFERENCE)}]"
                raise RequestError(
                    f"{place}: item_reference names an item of an earlier response, and this gateway keeps none (setting: responses); "
                    "send the item itself. Clients do so with store: false.",
                    param=place,
                    code="unsupported_content",
                )
            if previous:
                raise RequestError(
                    "previous_response_id: this gateway keeps no responses (setting: responses); send the whole input.",
                    param="previous_response_id",
                    code="unsupported_parameter",
                )
            if view.store is True:
                raise RequestError(
                    "store: this gateway keeps no responses (setting: responses); send store: false.",
                    param="store",
                    code="unsupported_parameter",
                )
            return None
        keeps = view.store is not False
        return Memory(previous, keeps, referred=referred) if keeps or previous or referred else None

    def recalled(self, request: InferenceRequest, items: Sequence[Raw]) -> None:
        self._reread(request, joined(items, items_of(request.fields["input"])), items, "previous_response_id")

    def referred(self, request: InferenceRequest, items: Sequence[Raw]) -> None:
        self._reread(request, joined(references.with_items(request.fields["input"], items), ()), items, "input")

    def _reread(self, request: InferenceRequest, given: Raw, kept: Sequence[Raw], param: str) -> None:
        """The view is read anew, as policies and routing see the whole conversation."""
        request.fields["input"] = given
        request.prompt_tokens += sum([len(bytes(item)) for item in kept]) >> 2
        try:
            request.view.input = msgspec.json.decode(given, type=structure.INPUT)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise RequestError(f"{param}: what was kept cannot be read.", param=param) from None

    def said(self, request: InferenceRequest) -> list[Raw]:
        return items_of(request.fields["input"])

    # --- answers

    def received(self, request: InferenceRequest, body: bytes) -> bytes:
        body = super().received(request, body)
        if request.foreign:
            return chat.response_of(request, body)
        view = answers.viewed(body)
        if view is not None and view.status == "failed":
            raise EngineError("The engine failed while it was answering.")
        if request.memory is None:
            return body
        document = answers.decoded(body)
        answers.branded(document, request.memory)
        return ENCODER.encode(document)

    def _usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        return openai_usage.usage_of(body) if request.foreign else answers.usage_of(body)

    def answer_finish(self, body: bytes) -> str:
        return answers.finish_of(answers.viewed(body)) or openai_usage.finish_in(body)

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        return answers.ResponsesAnswer(body, chat.echo(request) if inspected else None)

    def tool_calls(self, body: bytes) -> tuple[bytes, Sequence[ToolUse]]:
        return calls.of_answer(body)

    def contents(self, body: bytes) -> Sequence[str]:
        return answers.contents(body)

    def call_reader(self) -> CallReader | None:
        return calls.ResponseCalls()

    def replayed(self, body: bytes, events: bool, stream: bool, include_usage: bool) -> bytes:
        if events == stream:
            return body
        return replay.as_stream(body) if stream else replay.as_whole(body)

    def whole_steps(self, events: bytes) -> Steps[bytes]:
        return replay.whole_steps(events)

    # --- event streams

    def reader(self, request: InferenceRequest) -> EventReader:
        return ChatReader(request) if request.foreign else ResponsesReader(request)

    def error_event(self, error: GatehouseError) -> bytes:
        return b'event: error\ndata: {"type":"error","code":%b,"message":%b,"param":%b,"sequence_number":0}\n\n' % (
            ENCODER.encode(error.code),
            ENCODER.encode(error.message),
            ENCODER.encode(error.param),
        )


class CountApi(ResponsesApi):
    """`POST /v1/responses/input_tokens`: how long a response's prompt would be, by the engine's own tokenizer and template. It costs a
    request and no tokens, and nothing of it is kept."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(PATH + b"/input_tokens", fields.COUNTED, generates=False)
        self.counts = True

    def _finish(self, request: InferenceRequest, length: int) -> None:
        super()._finish(request, length)
        del request.fields["store"]
        request.prompt_tokens = request.max_tokens = 0
        request.stream = False

    def _foreign_path(self) -> bytes:
        return COUNT_PATH

    def detail(self, request: InferenceRequest, hash_body: HashBody) -> dict[str, Any] | None:
        memory = request.memory
        return {"api": "input_tokens"} if memory is None else {"api": "input_tokens", "previous_response": memory.previous}

    def answer_schema(self, request: InferenceRequest) -> bytes | None:
        return None

    def remembers(self, request: InferenceRequest, keeping: bool) -> Memory | None:
        memory = super().remembers(request, keeping)
        if memory is None or not (memory.previous or memory.referred):
            return None
        return Memory(memory.previous, False, referred=memory.referred)

    def _reread(self, request: InferenceRequest, given: Raw, kept: Sequence[Raw], param: str) -> None:
        super()._reread(request, given, kept, param)
        request.prompt_tokens = 0

    def received(self, request: InferenceRequest, body: bytes) -> bytes:
        return b'{"object":"response.input_tokens","input_tokens":%d}' % counted(body)

    def answer_usage(self, request: InferenceRequest, body: bytes) -> Usage | None:
        return Usage()

    def answer(self, request: InferenceRequest, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
        return CountAnswer(body)

    def tool_calls(self, body: bytes) -> tuple[bytes, Sequence[ToolUse]]:
        return body, ()

    def contents(self, body: bytes) -> Sequence[str]:
        return ()


def items_of(given: Raw) -> list[Raw]:
    """The items of an input; of one that is a text, the message that it stands for."""
    if bytes(given).lstrip()[:1] == b'"':
        return [Raw(b'{"role":"user","content":%b}' % bytes(given))]
    return _ITEMS.decode(given)


def joined(first: Sequence[Raw], then: Sequence[Raw]) -> Raw:
    return Raw(ENCODER.encode([*first, *then]))


APIS: Final[tuple[WireApi, ...]] = (ResponsesApi(), CountApi())
