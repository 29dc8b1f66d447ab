"""Anthropic's Messages API as typed views: the fields that policy, routing and limits need, with their bounds (API reference, "Create a
Message"). Everything else passes through untouched.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, json

from gateway.wire.openai.views import ModelName, Tokens

# --- requests

BlockType = Annotated[str, Meta(max_length=64)]
Role = Literal["user", "assistant", "system"]
Stops = Annotated[list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=64)]


class Block(Struct, gc=False):
    """One block of a message; `text` if it is a text block."""

    type: BlockType
    text: str | None = None


class Message(Struct, gc=False):
    role: Role
    content: str | list[Block]


class Turn(Struct, gc=False):
    """The system prompt as a turn of the conversation."""

    role: str
    content: str | list[Block]


class CountRequest(Struct, gc=False, kw_only=True):
    """POST /v1/messages/count_tokens"""

    model: ModelName
    messages: Annotated[list[Message], Meta(min_length=1, max_length=100_000)]
    system: str | list[Block] | UnsetType = UNSET

    def turns(self) -> list[Any]:
        """The conversation, with its system prompt in front."""
        return [*self.messages] if self.system is UNSET else [Turn("system", self.system), *self.messages]


class MessagesRequest(CountRequest, gc=False, kw_only=True):
    """POST /v1/messages"""

    max_tokens: Tokens
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None
    stop_sequences: Stops | None = None


class Function(Struct, gc=False):
    name: str
    arguments: str


class Call(Struct, gc=False):
    function: Function


class Step(Struct, gc=False):
    """One turn as the limits on loops read it. What tools gave is no turn of the user."""

    role: str
    tool_calls: list[Call]


class StepBlock(Struct, gc=False):
    type: str
    name: Any = ""
    input: Raw = Raw(b"")


class StepMessage(Struct, gc=False):
    role: str
    content: str | list[StepBlock]

    def step(self) -> Step:
        blocks = () if isinstance(self.content, str) else self.content
        calls = [Call(Function(str(block.name), bytes(block.input).decode())) for block in blocks if block.type.endswith("tool_use")]
        told = any(block.type.endswith("tool_result") for block in blocks)
        return Step("tool" if told else self.role, calls)


STEPS: Final = json.Decoder(list[StepMessage])


class Named(Struct):
    """A tool that a request offers. type: of one that Anthropic defines; else `custom` or empty."""

    name: str = ""
    type: str = ""


class Metadata(Struct):
    user_id: Annotated[str, Meta(max_length=512)] | None = None


NAMED: Final = json.Decoder(list[Named] | None)
METADATA: Final = json.Decoder(Metadata | None)


class Format(Struct):
    """The form that an answer is asked to have."""

    type: str = ""
    schema: Raw | UnsetType = UNSET


class OutputConfig(Struct):
    format: Format | None = None


FORMAT: Final = json.Decoder(Format | None)
OUTPUT: Final = json.Decoder(OutputConfig | None)


class Source(Struct):
    """Where the content of an image or a document is."""

    type: str = ""
    media_type: str = ""
    data: str = ""
    content: str | list[Part] | None = None


class Part(Struct):
    """One block of a message as a translation reads it."""

    type: str
    text: str = ""
    source: Source | str | None = None
    title: str | None = None
    context: str | None = None
    id: str = ""
    name: str = ""
    input: Raw = Raw(b"{}")
    tool_use_id: str = ""
    content: str | list[Part] | None = None
    thinking: str = ""


class Said(Struct):
    """One message as a translation reads it."""

    role: str
    content: str | list[Part]


SAID: Final = json.Decoder(list[Said])
SYSTEM: Final = json.Decoder(str | list[Part])


class Tool(Struct):
    """One tool as a translation reads it."""

    name: str = ""
    type: str = "custom"
    description: str | None = None
    input_schema: Raw | UnsetType = UNSET
    strict: bool | None = None


class Choice(Struct):
    """`tool_choice`."""

    type: str
    name: str = ""
    disable_parallel_tool_use: bool | None = None


TOOLS: Final = json.Decoder(list[Tool] | None)
CHOICE: Final = json.Decoder(Choice | None)

# --- answers of engines that speak the API


class CountsView(Struct, gc=False):
    """`usage`: tokens of the prompt that were not cached, were read from the cache, were written to it; tokens of the answer."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class MessageView(Struct, gc=False):
    usage: CountsView | None = None
    stop_reason: str | None = None


class DeltaView(Struct, gc=False):
    stop_reason: str | None = None


class EventView(Struct, gc=False):
    """What settling reads of an event."""

    type: str = ""
    message: MessageView | None = None
    delta: DeltaView | None = None
    usage: CountsView | None = None


ANSWER: Final = json.Decoder(MessageView)
EVENT: Final = json.Decoder(EventView)
