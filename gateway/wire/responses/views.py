"""OpenAI's Responses API as typed views: the fields that policy, routing and limits need, with their bounds (API reference, "Create a model
response"). Everything else passes through untouched.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, json

from gateway.wire.openai.views import ModelName, Penalty, Tokens

# --- requests

Kind = Annotated[str, Meta(max_length=64)]
Role = Literal["user", "assistant", "system", "developer", ""]
Effort = Annotated[str, Meta(max_length=32)]


class Part(Struct, gc=False):
    """One part of a content; `text` if it is a text."""

    type: Kind
    text: str | None = None


class Item(Struct, gc=False):
    """One item of the input: a message, a call of a tool, what it gave, or a thought."""

    type: Kind | UnsetType = UNSET
    role: Role = ""
    content: str | list[Part] | None = None


class Turn(Struct, gc=False):
    role: str
    content: str | list[Part] | None


class ResponsesRequest(Struct, gc=False, kw_only=True):
    """POST /v1/responses"""

    model: ModelName
    input: str | Annotated[list[Item], Meta(min_length=1, max_length=100_000)]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=10_000_000)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None

    def turns(self) -> list[Any]:
        """The conversation, with its instructions in front."""
        found: list[Any] = [] if self.instructions is None else [Turn("system", self.instructions)]
        if isinstance(self.input, str):
            found.append(Turn("user", self.input))
        else:
            found += [item for item in self.input if item.role]
        return found

    def calling(self, given: Raw) -> list[Any]:
        """The turns with the calls among them; given: the input."""
        if isinstance(self.input, str):
            return self.turns()
        return [
            Spoken("assistant", [Call(Function(item.name, item.arguments or item.input))]) if item.name else item
            for item in CALLED.decode(given)
        ]


class Function(Struct, gc=False):
    name: str
    arguments: str


class Call(Struct, gc=False):
    function: Function


class Spoken(Struct, gc=False):
    """A turn of the model that calls a tool."""

    role: str
    tool_calls: list[Call]


class Called(Struct, gc=False):
    """One item as the limits on loops read it."""

    role: Any = ""
    name: Any = ""
    arguments: Any = ""
    input: Any = ""

    def spoken(self) -> Spoken:
        return Spoken("assistant", [Call(Function(str(self.name), str(self.arguments or self.input or "")))])


CALLED: Final = json.Decoder(list[Called])


class Named(Struct):
    """A tool that a request offers."""

    type: str = ""
    name: str = ""
    namespace: str | None = None
    tools: list[Named] = []


NAMED: Final = json.Decoder(list[Named] | None)


class SaidPart(Struct):
    """One part of a content as a translation reads it."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | None = None
    detail: str | None = None
    file_data: str | None = None
    filename: str | None = None


class Said(Struct):
    """One item as a translation reads it."""

    type: str = "message"
    id: str | None = None
    role: str = ""
    content: str | list[SaidPart] | None = None
    summary: list[SaidPart] = []
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    arguments: str = ""
    input: str = ""
    output: Any = None


SAID: Final = json.Decoder(str | list[Said])


class Tool(Struct):
    """One tool as a translation reads it."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: Raw | UnsetType = UNSET
    strict: bool | None = None
    tools: list[Tool] = []


class Choice(Struct):
    """`tool_choice` that is an object."""

    type: str
    name: str = ""
    namespace: str | None = None
    mode: str = "auto"
    tools: list[Named] = []


class Format(Struct):
    """The form that an answer is asked to have."""

    type: str = "text"
    name: str = ""
    schema: Raw | UnsetType = UNSET
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct):
    format: Format | None = None
    verbosity: str | None = None


class Reasoning(Struct):
    effort: Effort | None = None


TOOLS: Final = json.Decoder(list[Tool] | None)
CHOICE: Final = json.Decoder(str | Choice | None)
TEXT: Final = json.Decoder(TextConfig | None)
REASONING: Final = json.Decoder(Reasoning | None)

# --- answers of engines that speak the API


class InputDetails(Struct, gc=False):
    cached_tokens: int | None = None


class OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class CountsView(Struct, gc=False):
    """`usage`."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class Incomplete(Struct, gc=False):
    reason: str | None = None


class ResponseView(Struct, gc=False):
    """A response as far as it is settled by."""

    id: str = ""
    usage: CountsView | None = None
    status: str | None = None
    incomplete_details: Incomplete | None = None


class EventView(Struct, gc=False):
    """What settling reads of an event."""

    type: str = ""
    response: ResponseView | None = None


class KindView(Struct, gc=False):
    """What is known of an event whose response is not as it should be."""

    type: str = ""


ANSWER: Final = json.Decoder(ResponseView)
EVENT: Final = json.Decoder(EventView)
KIND: Final = json.Decoder(KindView)
