"""The fields of OpenAI's Responses requests that may reach an engine, by their place; everything else is unknown
(`models[].unknown_fields`). Kinds of items, parts and tools that are not listed are refused.

The lists are those of the API reference ("Create a model response") and of openai-python 3.52, and the sampling fields that vLLM adds, as
of November 2026.

Left out on purpose: what names a server, a container, a file or a store that the engine would use for the caller (`file_search`,
`image_generation`, `file_id`, `container_id`, `server_url`), as these belong to the operator of the engine and not to one of its callers.
"""

from __future__ import annotations

from typing import Final

from gateway.wire.openai.fields import names

TOP: Final = names(
    "model input instructions max_output_tokens max_tool_calls metadata parallel_tool_calls reasoning safety_identifier prompt_cache_key",
    "prompt_cache_retention prompt_cache_options service_tier stream stream_options temperature text tool_choice tools top_logprobs top_p",
    "truncation user include store previous_response_id background context_management conversation prompt client_metadata",
    "top_k min_p presence_penalty frequency_penalty repetition_penalty seed stop logit_bias",
)
COUNTED: Final = names(
    "model input instructions parallel_tool_calls personality previous_response_id reasoning text tool_choice tools truncation",
    "conversation",
)
"""What a request to count its tokens may have."""
REFUSED: Final[dict[str, str]] = {
    "conversation": "conversations are not kept here; send the items, or previous_response_id where responses are stored",
    "prompt": "no prompt templates are kept here; send instructions and input",
}
"""Known fields that may only be null -> why."""
LEFT_OUT: Final = ("previous_response_id", "client_metadata")
"""No engine gets them: the gateway's own, and what a client says of itself (Codex: its installation, session and sandbox)."""
REFERENCE: Final = "item_reference"
"""An item of an earlier answer that is kept here, by its identifier."""
_CALLED: Final = "type id call_id status caller"
ITEM: Final[dict[str, frozenset[str]]] = {
    "message": names("type id role content status phase"),
    "reasoning": names("type id summary content encrypted_content status"),
    "function_call": names(_CALLED, "name arguments namespace async"),
    "function_call_output": names(_CALLED, "output name namespace"),
    "custom_tool_call": names(_CALLED, "name input namespace async"),
    "custom_tool_call_output": names(_CALLED, "output name namespace"),
    "local_shell_call": names(_CALLED, "action"),
    "local_shell_call_output": names(_CALLED, "output"),
    "shell_call": names(_CALLED, "action max_output_length"),
    "shell_call_output": names(_CALLED, "output max_output_length"),
    "apply_patch_call": names(_CALLED, "operation"),
    "apply_patch_call_output": names(_CALLED, "output"),
    "computer_call": names(_CALLED, "action actions pending_safety_checks"),
    "computer_call_output": names(_CALLED, "output acknowledged_safety_checks"),
    "web_search_call": names("type id status action"),
    "code_interpreter_call": names("type id status code outputs"),
    "mcp_call": names("type id status name server_label arguments output error"),
    "mcp_list_tools": names("type id server_label tools error"),
    REFERENCE: names("type id"),
}
"""The items of `input` -> the names in there. One without a type is a message."""
PART: Final[dict[str, frozenset[str]]] = {
    "input_text": names("type text prompt_cache_breakpoint"),
    "output_text": names("type text annotations logprobs"),
    "refusal": names("type refusal"),
    "reasoning_text": names("type text"),
    "summary_text": names("type text"),
    "input_image": names("type image_url detail prompt_cache_breakpoint"),
    "input_file": names("type file_data filename detail prompt_cache_breakpoint"),
    "text": names("type text"),
}
"""The parts of a content -> the names in there."""
TOOL: Final[dict[str, frozenset[str]]] = {
    "function": names("type name description parameters strict defer_loading output_schema allowed_callers async"),
    "custom": names("type name description format defer_loading allowed_callers"),
    "local_shell": names("type"),
    "shell": names("type allowed_callers"),
    "apply_patch": names("type allowed_callers"),
    "web_search": names("type filters search_context_size user_location search_content_types external_web_access"),
    "web_search_preview": names("type search_context_size user_location search_content_types"),
    "code_interpreter": names("type container"),
    "mcp": names("type server_label server_description allowed_tools require_approval defer_loading"),
    "computer": names("type"),
    "computer_use_preview": names("type display_width display_height environment"),
    "namespace": names("type name description tools"),
}
"""The tools that may be offered -> the names in there."""
AT_ENGINES: Final = frozenset({"web_search", "web_search_preview", "code_interpreter", "mcp"})
"""Tools that the engine runs by itself, which the caller does not see (gateway.wire.engine_tools): their types are unknown fields."""
IN_NAMESPACE: Final = {kind: TOOL[kind] for kind in ("function", "custom")}
"""The tools that a namespace may have -> the names in there."""
CHOICE: Final = names("type name namespace mode tools")
TEXT: Final = names("format verbosity")
FORMAT: Final = names("type name description schema strict")
REASONING: Final = names("effort summary generate_summary")
METADATA: Final = "metadata"
NEVER: Final = names("file_id file_ids file_url container_id container vector_store_ids server_url connector_id tunnel_id")
"""Inside an item or a tool: they never reach an engine, whatever `unknown_fields` says."""
