"""Translation between Anthropic's Messages API and chat completions, for engines that speak only these: a request there, a whole answer
back.

Kept: every text, its order, tools with their names and schemas, calls with their arguments byte for byte, results, images and documents.
What chat completions have no place for is left out where it changes no answer (`cache_control`, signatures, `service_tier`,
`context_management`), or where a model decides it by itself (`thinking`, `effort`); anything else is refused.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from gateway.core.errors import EngineError, RequestError
from gateway.wire.anthropic.views import CHOICE, FORMAT, METADATA, OUTPUT, SAID, SYSTEM, TOOLS, Format, OutputConfig, Part, Said, Source
from gateway.wire.bodies import decode_error
from gateway.wire.chats import CHAT, ChatAnswer, ChatMessage
from gateway.wire.openai.views import UsageView

PATH: Final = b"/v1/chat/completions"
_ENCODER: Final = msgspec.json.Encoder()
_SAME: Final = ("max_tokens", "temperature", "top_p", "top_k")
_WITH_USAGE: Final = {"include_usage": True}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
STOPS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""A chat's finish reason -> a message's stop reason."""
_SILENT: Final = frozenset({"redacted_thinking", "tool_reference"})


# --- requests


def request_fields(fields: dict[str, Raw], stream: bool) -> dict[str, Any]:
    """The fields of a chat completion that asks the same, without its model. Raises RequestError for what cannot be said in one."""
    try:
        found: dict[str, Any] = {"messages": _messages(fields)}
        for name in _SAME:
            if name in fields:
                found[name] = fields[name]
        if "stop_sequences" in fields:
            found["stop"] = fields["stop_sequences"]
        if "metadata" in fields and (metadata := METADATA.decode(fields["metadata"])) is not None and metadata.user_id:
            found["user"] = metadata.user_id
        _add_tools(fields, found)
        if (asked := answer_format(fields)) is not None and asked.type == "json_schema":
            if asked.schema is UNSET:
                raise RequestError("output_config.format: json_schema needs a schema.", param="output_config.format")
            found["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked.schema}}
    except msgspec.DecodeError as error:
        raise decode_error(error) from None
    if stream:
        found["stream"], found["stream_options"] = True, _WITH_USAGE
    return found


def answer_format(fields: dict[str, Raw]) -> Format | None:
    """The form that the answer is asked to have."""
    config: OutputConfig | None = OUTPUT.decode(fields["output_config"]) if "output_config" in fields else None
    if config is not None and config.format is not None:
        return config.format
    if "output_format" not in fields:
        return None
    asked: Format | None = FORMAT.decode(fields["output_format"])
    return asked


def _messages(fields: dict[str, Raw]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "system" in fields:
        system = SYSTEM.decode(fields["system"])
        if system:
            found.append({"role": "system", "content": _content(system, "system")})
    said = SAID.decode(fields["messages"])
    for number, message in enumerate(said):
        place = f"messages[{number}].content"
        if message.content.__class__ is str:
            found.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            found.append(_assistant(message, place))
        else:
            _add_user(found, message, place)
    if said[-1].role == "assistant":
        raise RequestError(
            "messages: the last one is the assistant's; this model's engine cannot continue an answer. End with a user message.",
            param="messages",
            code="unsupported_content",
        )
    return found


def _content(content: str | list[Part], place: str) -> Any:
    """A content as a chat has it: one text, or parts."""
    if isinstance(content, str):
        return content
    parts = [made for at, block in enumerate(content) for made in _parts(block, f"{place}[{at}]")]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _parts(block: Part, place: str) -> list[dict[str, Any]]:
    """The parts of a chat's message that say what a block says."""
    kind = block.type
    if kind == "text":
        return [{"type": "text", "text": block.text}]
    if kind == "image" and isinstance(block.source, Source) and block.source.type == "base64":
        url = f"data:{block.source.media_type};base64,{block.source.data}"
        return [{"type": "image_url", "image_url": {"url": url}}]
    if kind == "document" and isinstance(block.source, Source):
        return [*_texts(block.title, block.context), *_document(block, block.source, place)]
    if kind == "search_result" and isinstance(block.source, str):
        return [*_texts(block.title, block.source), *_inner(block.content, place)]
    if kind in _SILENT:
        return []
    raise RequestError(f"{place}: this model's engine takes no block of type {kind[:64]!r}.", param=place, code="unsupported_content")


def _texts(*texts: str | None) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts if text]


def _document(block: Part, source: Source, place: str) -> list[dict[str, Any]]:
    if source.type == "text":
        return _texts(source.data)
    if source.type == "content":
        return _inner(source.content, f"{place}.source.content")
    data = f"data:{source.media_type};base64,{source.data}"
    return [{"type": "file", "file": {"filename": block.title or "document", "file_data": data}}]


def _inner(content: str | list[Part] | None, place: str) -> list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return _texts(content)
    return [made for at, block in enumerate(content) for made in _parts(block, f"{place}[{at}]")]


def _assistant(message: Said, place: str) -> dict[str, Any]:
    """A turn of the model: its thoughts, its text, its calls."""
    said: list[Part] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(message.content):
        assert isinstance(block, Part)
        if block.type == "tool_use":
            function = {"name": block.name, "arguments": bytes(block.input).decode()}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type == "thinking":
            thoughts.append(block.thinking)
        elif calls and block.type == "text":
            raise RequestError(
                f"{place}[{at}]: a chat completion cannot have text after a tool call; put the text first.",
                param=f"{place}[{at}]",
                code="unsupported_content",
            )
        else:
            said.append(block)
    content = _content(said, place) if said else None
    found: dict[str, Any] = {"role": "assistant", "content": content or ("" if not calls else None)}
    if thoughts:
        found["reasoning_content"] = "".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


def _add_user(found: list[dict[str, Any]], message: Said, place: str) -> None:
    """A turn of the user: results of tools first, as a chat wants them right behind the calls, then what else it says. An image in a result
    follows as the user's, as a chat's results are texts."""
    rest: list[dict[str, Any]] = []
    for at, block in enumerate(message.content):
        assert isinstance(block, Part)
        where = f"{place}[{at}]"
        if block.type != "tool_result":
            rest += _parts(block, where)
            continue
        parts = _inner(block.content, f"{where}.content")
        texts = [part for part in parts if part["type"] == "text"]
        rest += [part for part in parts if part["type"] != "text"]
        content: Any = texts if len(texts) > 1 else texts[0]["text"] if texts else ""
        found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
    if rest:
        one = len(rest) == 1 and rest[0]["type"] == "text"
        found.append({"role": message.role, "content": rest[0]["text"] if one else rest})


def _add_tools(fields: dict[str, Raw], found: dict[str, Any]) -> None:
    tools = TOOLS.decode(fields["tools"]) if "tools" in fields else None
    if not tools:
        return
    shown: list[dict[str, Any]] = []
    for number, tool in enumerate(tools):
        if tool.type not in ("custom", "") or tool.input_schema is UNSET:
            raise RequestError(
                f"tools[{number}]: this model's engine takes only tools with an input_schema of their own.",
                param=f"tools[{number}]",
                code="unsupported_content",
            )
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema
        if tool.strict is not None:
            function["strict"] = tool.strict
        shown.append({"type": "function", "function": function})
    found["tools"] = shown
    choice = CHOICE.decode(fields["tool_choice"]) if "tool_choice" in fields else None
    if choice is None:
        return
    if choice.type == "tool":
        found["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice.type in _CHOICES:
        found["tool_choice"] = _CHOICES[choice.type]
    else:
        raise RequestError("tool_choice.type: known are auto, any, tool and none.", param="tool_choice.type")
    if choice.disable_parallel_tool_use:
        found["parallel_tool_calls"] = False


# --- whole answers


def counts(view: UsageView | None) -> dict[str, int]:
    """`usage` of a message. The prompt's tokens are told apart by whether they came from the cache."""
    if view is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = view.prompt_tokens_details.cached_tokens if view.prompt_tokens_details is not None else None
    prompt = view.prompt_tokens or 0
    known = min(max(cached or 0, 0), prompt)
    return {
        "input_tokens": prompt - known,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": known,
        "output_tokens": view.completion_tokens or 0,
    }


def stop_reason(finish: str | None, stopped_at: str | None, calls: bool) -> str:
    """Why the message ended."""
    if stopped_at is not None and finish == "stop":
        return "stop_sequence"
    if calls and finish == "stop":
        return "tool_use"
    return STOPS.get(finish or "stop", "end_turn")


def message_of(body: bytes) -> bytes:
    """A whole chat completion as a message. Raises EngineError for one that cannot be said as one."""
    try:
        chat: ChatAnswer = CHAT.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's answer is not a chat completion.") from None
    if not chat.choices or chat.choices[0].message is None:
        raise EngineError("The engine's answer has no message.")
    choice = chat.choices[0]
    message: ChatMessage = choice.message  # type: ignore[assignment]
    blocks: list[dict[str, Any]] = []
    if thought := message.thought():
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    if text := message.said():
        blocks.append({"type": "text", "text": text})
    calls = message.tool_calls or []
    for call in calls:
        name = call.function.name if call.function is not None else None
        given = arguments((call.function.arguments if call.function is not None else None) or "{}")
        if not name or (given is None and choice.finish_reason != "length"):
            raise EngineError("The engine's answer has a tool call that cannot be read.")
        if given is not None:  # else it was cut off, and the stop reason says so
            blocks.append({"type": "tool_use", "id": call.id or f"toolu_{chat.id}_{len(blocks)}", "name": name, "input": given})
    stopped = choice.stopped_at()
    return _ENCODER.encode(
        {
            "id": message_id(chat.id),
            "type": "message",
            "role": "assistant",
            "model": chat.model,
            "content": blocks,
            "stop_reason": stop_reason(choice.finish_reason, stopped, bool(calls)),
            "stop_sequence": stopped if choice.finish_reason == "stop" else None,
            "usage": counts(chat.usage),
        }
    )


def message_id(given: str) -> str:
    """The identifier of a message, from that of a chat completion."""
    return f"msg_{given.removeprefix('chatcmpl-')}"


def arguments(text: str) -> Raw | None:
    """The arguments of a call as the client gets them: the model's own bytes. None for what is no JSON object."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError, RecursionError):
        return None
    return Raw(text.encode()) if value.__class__ is dict else None
