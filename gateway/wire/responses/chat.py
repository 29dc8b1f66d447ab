"""Translation between the Responses API and chat completions, for engines that speak only these: a request there, a whole answer back.

Kept: every text, its order, functions with their schemas, calls with their arguments byte for byte, results, images and files. A custom
tool becomes a function with one text, `input`, and its calls custom ones again; the tools of a namespace become functions with its name in
front (gateway.wire.responses.tool_names). What chat completions have no place for is left out where
it changes no answer (`include`, `prompt_cache_key`, `truncation`, encrypted reasoning), and otherwise refused.
"""

from __future__ import annotations

from time import time
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from gateway.core.errors import EngineError, RequestError
from gateway.core.types import InferenceRequest
from gateway.wire.bodies import decode_error
from gateway.wire.chats import CHAT, ChatAnswer, ChatCall, ChatMessage
from gateway.wire.openai.views import UsageView
from gateway.wire.responses.answers import branded
from gateway.wire.responses.tool_names import NAMESPACE, OfferedTool, ToolNames, tool_names
from gateway.wire.responses.views import CHOICE, REASONING, SAID, TEXT, TOOLS, Choice, Format, Named, Said, SaidPart, Tool

PATH: Final = b"/v1/chat/completions"
_ENCODER: Final = msgspec.json.Encoder()
_SAME: Final = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop")
_ALSO: Final = ("logit_bias", "user", "parallel_tool_calls")
_WITH_USAGE: Final = {"include_usage": True}
_FREE: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The parameters of the function that stands for a custom tool."""
_NULL: Final = b"null"
_ROLES: Final = {"developer": "system"}
REASONS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""A chat's finish reason -> why a response is incomplete."""
_ECHOED: Final[tuple[tuple[str, Raw], ...]] = (
    ("instructions", Raw(_NULL)),
    ("max_output_tokens", Raw(_NULL)),
    ("max_tool_calls", Raw(_NULL)),
    ("metadata", Raw(b"{}")),
    ("parallel_tool_calls", Raw(b"true")),
    ("prompt_cache_key", Raw(_NULL)),
    ("reasoning", Raw(_NULL)),
    ("safety_identifier", Raw(_NULL)),
    ("service_tier", Raw(_NULL)),
    ("temperature", Raw(_NULL)),
    ("text", Raw(b'{"format":{"type":"text"}}')),
    ("tool_choice", Raw(b'"auto"')),
    ("tools", Raw(b"[]")),
    ("top_logprobs", Raw(_NULL)),
    ("top_p", Raw(_NULL)),
    ("truncation", Raw(b'"disabled"')),
    ("user", Raw(_NULL)),
)
"""What a response repeats of its request, and what it says where the request does not."""


# --- requests


def request_fields(fields: dict[str, Raw], stream: bool) -> dict[str, Any]:
    """The fields of a chat completion that asks the same, without its model. Raises RequestError for what cannot be said in one."""
    try:
        names = tool_names(fields)
        found: dict[str, Any] = {"messages": _messages(fields, names)}
        for name in (*_SAME, *_ALSO):
            if name in fields and bytes(fields[name]) != _NULL:
                found[name] = fields[name]
        if "max_output_tokens" in fields:
            found["max_tokens"] = fields["max_output_tokens"]
        if "tools" in fields:
            _add_tools(fields, found, names)
        if (asked := answer_format(fields)) is not None and asked.type != "text":
            found["response_format"] = _response_format(asked)
        if "reasoning" in fields and (reasoning := REASONING.decode(fields["reasoning"])) is not None and reasoning.effort:
            found["reasoning_effort"] = reasoning.effort
    except msgspec.DecodeError as error:
        raise decode_error(error) from None
    _no_scores(fields)
    if stream:
        found["stream"], found["stream_options"] = True, _WITH_USAGE
    return found


def _no_scores(fields: dict[str, Raw]) -> None:
    if "top_logprobs" in fields and bytes(fields["top_logprobs"]) not in (_NULL, b"0"):
        raise _unsupported("top_logprobs", "this model's engine gives no log probabilities in this API; leave it out")


def answer_format(fields: dict[str, Raw]) -> Format | None:
    """The form that the answer is asked to have."""
    if "text" not in fields:
        return None
    config = TEXT.decode(fields["text"])
    return None if config is None else config.format


def _response_format(asked: Format) -> dict[str, Any]:
    if asked.type == "json_object":
        return {"type": "json_object"}
    if asked.type != "json_schema" or asked.schema is UNSET:
        raise RequestError("text.format: known are text, json_object, and json_schema with a schema.", param="text.format")
    described: dict[str, Any] = {"name": asked.name or "answer", "schema": asked.schema}
    if asked.strict is not None:
        described["strict"] = asked.strict
    return {"type": "json_schema", "json_schema": described}


def _messages(fields: dict[str, Raw], names: ToolNames) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "instructions" in fields and (text := msgspec.json.decode(fields["instructions"])):
        found.append({"role": "system", "content": text})
    said = SAID.decode(fields["input"])
    if isinstance(said, str):
        found.append({"role": "user", "content": said})
        return found
    turns = _Turns(found, names)
    for number, item in enumerate(said):
        turns.add(item, f"input[{number}]")
    turns.end()
    return found


class _Turns:
    """Puts what the model said in one go (thoughts, a text, calls) into one message of a chat."""

    def __init__(self, found: list[dict[str, Any]], names: ToolNames) -> None:
        self._found, self._names = found, names
        self._thoughts: list[str] = []
        self._open: dict[str, Any] | None = None

    def add(self, item: Said, place: str) -> None:
        kind = item.type
        if kind == "reasoning":
            if self._open is not None:
                self.end()
            parts = (item.content if isinstance(item.content, list) else ()) or item.summary
            self._thoughts += [part.text for part in parts if part.text]
        elif kind in ("function_call", "custom_tool_call"):
            given = item.arguments if kind == "function_call" else _ENCODER.encode({"input": item.input}).decode()
            name = self._names.in_chat(item.namespace or "", item.name)
            call = {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": given}}
            self._spoken().setdefault("tool_calls", []).append(call)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._heard()
            self._result(item, f"{place}.output")
        elif kind == "message":
            self._message(item, place)
        else:
            raise _unsupported(place, f"this model's engine takes no item of type {kind[:64]!r}")

    def _message(self, item: Said, place: str) -> None:
        content = _content(item.content, f"{place}.content")
        if item.role != "assistant":
            self._heard()
            self._found.append({"role": _ROLES.get(item.role, item.role), "content": content})
            return
        if self._open is not None:
            self.end()
        self._spoken()["content"] = content

    def _spoken(self) -> dict[str, Any]:
        """The message of the model that is being put together."""
        if self._open is None:
            self._open = {"role": "assistant", "content": None}
            if self._thoughts:
                self._open["reasoning_content"] = "".join(self._thoughts)
                self._thoughts = []
        return self._open

    def _heard(self) -> None:
        """Somebody else speaks: thoughts that led to nothing are over."""
        self.end()
        self._thoughts = []

    def end(self) -> None:
        if self._open is not None:
            if self._open["content"] is None and "tool_calls" not in self._open:
                self._open["content"] = ""
            self._found.append(self._open)
            self._open = None

    def _result(self, item: Said, place: str) -> None:
        """A result. What it has besides texts follows as the user's, as a chat's results are texts."""
        output = item.output
        if output is None or isinstance(output, str):
            self._found.append({"role": "tool", "tool_call_id": item.call_id, "content": output or ""})
            return
        parts = [made for at, part in enumerate(msgspec.convert(output, list[SaidPart])) for made in _parts(part, f"{place}[{at}]")]
        texts = [part for part in parts if part["type"] == "text"]
        content: Any = texts if len(texts) > 1 else texts[0]["text"] if texts else ""
        self._found.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        rest = [part for part in parts if part["type"] != "text"]
        if rest:
            self._found.append({"role": "user", "content": rest})


def _content(content: str | list[SaidPart] | None, place: str) -> Any:
    """A content as a chat has it: one text, or parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [made for at, part in enumerate(content) for made in _parts(part, f"{place}[{at}]")]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _parts(part: SaidPart, place: str) -> list[dict[str, Any]]:
    kind = part.type
    if kind in ("input_text", "output_text", "text"):
        return [{"type": "text", "text": part.text}]
    if kind == "refusal":
        return [{"type": "text", "text": part.refusal}]
    if kind == "input_image" and part.image_url is not None:
        image = {"url": part.image_url} if part.detail is None else {"url": part.image_url, "detail": part.detail}
        return [{"type": "image_url", "image_url": image}]
    if kind == "input_file" and part.file_data is not None:
        return [{"type": "file", "file": {"filename": part.filename or "file", "file_data": part.file_data}}]
    raise _unsupported(place, f"this model's engine takes no part of type {kind[:64]!r} without its content")


def _add_tools(fields: dict[str, Raw], found: dict[str, Any], names: ToolNames) -> None:
    choice = CHOICE.decode(fields["tool_choice"]) if "tool_choice" in fields else None
    allowed = choice.tools if isinstance(choice, Choice) and choice.type == "allowed_tools" else None
    shown: list[dict[str, Any]] = []
    for number, tool in enumerate(TOOLS.decode(fields["tools"]) or ()):
        if tool.type == NAMESPACE:
            about = tool.description or ""
            for inner in tool.tools:
                if allowed is None or _is_allowed(allowed, tool.name, inner.name):
                    shown.append(_function(inner, names.in_chat(tool.name, inner.name), about))
                    about = ""
        elif tool.type not in ("function", "custom"):
            raise _unsupported(f"tools[{number}]", f"this model's engine has no tool of type {tool.type[:64]!r}")
        elif allowed is None or _is_allowed(allowed, "", tool.name):
            shown.append(_function(tool, tool.name, ""))
    if not shown:
        found.pop("parallel_tool_calls", None)
        return
    found["tools"] = shown
    if allowed is not None:
        choice = choice.mode  # type: ignore[union-attr]
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise RequestError("tool_choice: known are auto, none, required, or an object with a type.", param="tool_choice")
        found["tool_choice"] = choice
    elif choice is not None:
        if choice.type not in ("function", "custom") or not choice.name:
            raise _unsupported("tool_choice", f"this model's engine has no tool of type {choice.type[:64]!r}")
        name = names.in_chat(choice.namespace or "", choice.name)
        found["tool_choice"] = {"type": "function", "function": {"name": name}}


def _is_allowed(allowed: list[Named], namespace: str, name: str) -> bool:
    """Whether `allowed_tools` names a tool, or the whole namespace that it is in."""
    for one in allowed:
        if one.type == NAMESPACE:
            if namespace and one.name == namespace:
                return True
        elif one.name == name and (one.namespace or "") == namespace:
            return True
    return False


def _function(tool: Tool, name: str, about: str) -> dict[str, Any]:
    """A tool as a chat has it. about: what its namespace says of itself; the first function that is shown says it."""
    function: dict[str, Any] = {"name": name}
    described = [text for text in (about, tool.description) if text]
    if described or tool.description is not None:
        function["description"] = "\n\n".join(described)
    if tool.type == "custom":
        function["parameters"] = _FREE
    elif tool.parameters is not UNSET:
        function["parameters"] = tool.parameters
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _unsupported(place: str, why: str) -> RequestError:
    return RequestError(f"{place}: {why}.", param=place, code="unsupported_content")


# --- answers


def echo(request: InferenceRequest) -> dict[str, Any]:
    """What a response repeats of its request."""
    fields = request.fields
    return {name: fields.get(name, otherwise) for name, otherwise in _ECHOED}


def frame(request: InferenceRequest, identity: str, model: str, created: int) -> dict[str, Any]:
    """A response that has not said anything yet."""
    found: dict[str, Any] = {
        "id": identity,
        "object": "response",
        "created_at": created or int(time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": model or request.model,
        "output": [],
        "previous_response_id": None,
        "store": False,
        "usage": None,
        **echo(request),
    }
    if request.memory is not None:
        branded(found, request.memory)
    return found


def counts(view: UsageView | None) -> dict[str, Any] | None:
    """`usage` of a response."""
    if view is None:
        return None
    cached = view.prompt_tokens_details.cached_tokens if view.prompt_tokens_details is not None else None
    thought = view.completion_tokens_details.reasoning_tokens if view.completion_tokens_details is not None else None
    prompt, generated = view.prompt_tokens or 0, view.completion_tokens or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached or 0, "cache_write_tokens": 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": thought or 0},
        "total_tokens": prompt + generated,
    }


def ended(document: dict[str, Any], finish: str | None) -> str:
    """Says in a response why it ended; returns its status."""
    reason = REASONS.get(finish or "")
    document["status"] = status = "completed" if reason is None else "incomplete"
    if reason is not None:
        document["incomplete_details"] = {"reason": reason}
    return status


def response_of(request: InferenceRequest, body: bytes) -> bytes:
    """A whole chat completion as a response. Raises EngineError for one that cannot be said as one."""
    try:
        chat: ChatAnswer = CHAT.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's answer is not a chat completion.") from None
    if not chat.choices or chat.choices[0].message is None:
        raise EngineError("The engine's answer has no message.")
    choice = chat.choices[0]
    message: ChatMessage = choice.message  # type: ignore[assignment]
    memory = request.memory  # the id of an item that is kept contains its response's (gateway.wire.responses.references)
    base = memory.identity.removeprefix("resp_") if memory is not None and memory.keeps else chat.id.removeprefix("chatcmpl-")
    document = frame(request, f"resp_{base}", chat.model, chat.created)
    cut = ended(document, choice.finish_reason) == "incomplete"
    output: list[dict[str, Any]] = document["output"]
    text, calls = message.text(), message.tool_calls or ()
    if thought := message.thought():
        output.append(reasoning_item(f"rs_{base}", thought, _status(cut and not (text or message.refusal or calls))))
    status = _status(cut and not calls)
    if text:
        output.append(message_item(f"msg_{base}", status, [text_part(text)]))
    if message.refusal:
        output.append(message_item(f"msg_{base}_1", status, [{"type": "refusal", "refusal": message.refusal}]))
    names = tool_names(request.fields)
    for number, call in enumerate(calls):
        item = _called(call, number, base, names, cut and number == len(calls) - 1)
        if item is not None:
            output.append(item)
    document["usage"] = counts(chat.usage)
    return _ENCODER.encode(document)


def _status(cut: bool) -> str:
    """Of an item. In an answer that was cut off it is the last item that was."""
    return "incomplete" if cut else "completed"


def _called(call: ChatCall, number: int, base: str, names: ToolNames, cut: bool) -> dict[str, Any] | None:
    """A call; None for one of a custom tool that was cut off: it cannot be read."""
    name = call.function.name if call.function is not None else None
    if not name:
        raise EngineError("The engine's answer has a tool call that cannot be read.")
    given = (call.function.arguments if call.function is not None else None) or ""
    tool = names.of(name)
    if cut and tool.custom:
        return None
    return call_item(f"fc_{base}_{number}", call.id or f"call_{base}_{number}", tool, given, _status(cut))


def call_item(identity: str, call_id: str, tool: OfferedTool, given: str, status: str) -> dict[str, Any]:
    """A call. Raises EngineError for one of a custom tool whose input cannot be read."""
    kind = "custom_tool_call" if tool.custom else "function_call"
    item: dict[str, Any] = {"id": identity, "type": kind, "status": status, "call_id": call_id}
    if tool.namespace:
        item["namespace"] = tool.namespace
    item["name"] = tool.name
    if tool.custom:
        item["input"] = free_input(given)
    else:
        item["arguments"] = given
    return item


def free_input(given: str) -> str:
    """The input of a custom tool, from the arguments of the function that stands for it. Raises EngineError."""
    try:
        found = msgspec.json.decode(given or "{}")
        text = found["input"]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, KeyError, TypeError):
        raise EngineError("The engine's answer has a tool call that cannot be read.") from None
    if not isinstance(text, str):
        raise EngineError("The engine's answer has a tool call that cannot be read.")
    return text


def reasoning_item(identity: str, thought: str, status: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": thought}]
    return {"id": identity, "type": "reasoning", "status": status, "summary": [], "content": content}


def message_item(identity: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": identity, "type": "message", "status": status, "role": "assistant", "content": content}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
