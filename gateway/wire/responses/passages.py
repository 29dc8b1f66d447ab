"""The texts of a Responses request: instructions, items with all their parts, tools, and whatever else can reach a model."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from gateway.core.types import InferenceRequest
from gateway.wire.bodies import may_speak, plain
from gateway.wire.openai.fields import names
from gateway.wire.openai.parts import Place
from gateway.wire.passages import BlockTexts

_SILENT: Final = frozenset({"model", "previous_response_id"})
"""Fields that hold nothing that a user wrote, or that reach no engine."""
_FIRST: Final = ("instructions", "input")
_WORDS: Final = names(
    "type id role content status phase user assistant system developer message input_text output_text text refusal input_image",
    "image_url detail auto low high input_file file_data filename reasoning summary summary_text reasoning_text encrypted_content",
    "annotations logprobs function_call function_call_output call_id name arguments output in_progress completed",
    "incomplete commentary final_answer custom_tool_call custom_tool_call_output input local_shell_call local_shell_call_output action",
    "command env exec timeout_ms",
    "working_directory shell_call shell_call_output commands max_output_length stdout stderr outcome exit exit_code timeout",
    "apply_patch_call apply_patch_call_output operation create_file update_file delete_file path diff computer_call computer_call_output",
    "actions pending_safety_checks acknowledged_safety_checks computer_screenshot web_search_call query search url caller direct",
    "code_interpreter_call mcp_call mcp_list_tools outputs error code_interpreter container mcp server_label server_description",
    "require_approval",
    "function custom local_shell shell apply_patch web_search web_search_preview computer computer_use_preview description parameters",
    "strict format grammar syntax definition lark regex namespace async tools",
    "properties required items enum const anyOf oneOf allOf $ref $defs $schema definitions default pattern minimum maximum",
    "exclusiveMinimum exclusiveMaximum minItems maxItems minLength maxLength additionalProperties propertyNames schema json_schema",
    "object string number integer boolean array null none required allowed_tools mode tools effort minimal medium xhigh concise detailed",
    "verbosity json_object data_label title",
)
"""Words of the format itself, as keys and as values, which no user wrote."""
_OPAQUE: Final[dict[Any, str]] = {"reasoning": "encrypted_content", "input_image": "image_url", "input_file": "file_data"}
_SOURCES: Final = {"developer": "system"}
_MESSAGE: Final = frozenset({"role", "content"})
_TOLD: Final = "_output"
"""Ends the type of an item with what a tool gave."""
_BY_ENGINE: Final = frozenset({"code_interpreter_call", "mcp_call", "mcp_list_tools"})
"""Items that say what a tool that the engine ran has given."""

_NONE: Final[dict[str, Any]] = {}


class ResponsesTexts(BlockTexts):
    """Every text of one request."""

    __slots__ = ()

    def __init__(self, request: InferenceRequest, at_once: bool = True) -> None:
        super().__init__(request, _WORDS, _OPAQUE, _TOLD, at_once)

    def reading(self) -> Generator[None, None, None]:
        fields = self._request.fields
        for name in _FIRST:
            if name not in fields:
                continue
            found = self._decoded[name] = plain(fields[name], name)
            yield
            if found.__class__ is str:
                self._one(self._decoded, name, found, "system" if name == "instructions" else "user")
            elif found.__class__ is list:
                for item in found:
                    self._read(item)
                self._thoughts(found)
            yield
        for name in self._request.unknown:
            if name in fields:
                self._name(name)
        for name, raw in fields.items():
            if name not in _FIRST and name not in _SILENT and may_speak(bytes(raw)):
                self._decoded[name] = plain(raw, name)
                yield
                self._item(self._decoded, name, "other")
                yield

    def _thoughts(self, items: list[dict[str, Any]]) -> None:
        """Reasoning of several items in a row, which the translation into a chat makes one text of."""
        run: list[list[Place]] = []
        for item in [*items, _NONE]:
            if item.get("type") == "reasoning":
                run.append(_reasoning(item))
                continue
            if sum(map(bool, run)) > 1:
                self._together([place for places in run for place in places], "assistant")
            run = []

    def _read(self, item: dict[str, Any]) -> None:
        kind, role = item.get("type", "message"), item.get("role")
        if kind == "message":
            self._content(item, "content", item.get("content"), _SOURCES.get(str(role), str(role)))
            if len(item) > 2:
                self._object(item, _MESSAGE, "other")
            return
        source = "tool" if kind.endswith(_TOLD) or kind in _BY_ENGINE else "assistant"
        opaque = self._opaque.get(kind, "")
        for name, value in item.items():
            self._name(name)
            if name in ("content", "summary", "output") and value.__class__ in (str, list):
                self._content(item, name, value, source)
            elif name != opaque or not self._is_opaque(value):
                self._item(item, name, source)


def _reasoning(item: dict[str, Any]) -> list[Place]:
    """The texts of a reasoning item that the translation into a chat takes: its content, or else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if parts and parts.__class__ is list:
            return [(one, "text") for one in parts if one.__class__ is dict and one.get("text").__class__ is str]
    return []
