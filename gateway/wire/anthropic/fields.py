"""The fields of Anthropic's requests that may reach an engine, by their place; everything else is unknown (`models[].unknown_fields`).

The lists are those of the API reference ("Create a Message", "Count tokens in a Message") and of the official SDKs, as of November 2026.

Left out on purpose: what names a server or a container that the engine would connect to (`mcp_servers`, `container`), and files that the
API's operator keeps for all its callers (`file_id`).
"""

from __future__ import annotations

from typing import Final

from gateway.wire.openai.fields import names

_BOTH = names(
    "model messages system tools tool_choice thinking output_config output_format cache_control diagnostics context_management",
)
COUNT: Final = _BOTH | frozenset({"speed"})
TOP: Final = _BOTH | names("max_tokens metadata stop_sequences stream temperature top_p top_k service_tier inference_geo speed")
MESSAGE: Final = names("role content")
BLOCK: Final[dict[str, frozenset[str]]] = {
    "text": names("type text cache_control citations"),
    "image": names("type source cache_control transformations"),
    "document": names("type source title context citations cache_control"),
    "search_result": names("type source title content citations cache_control"),
    "thinking": names("type thinking signature"),
    "redacted_thinking": names("type data"),
    "tool_use": names("type id name input cache_control caller toolset_name"),
    "tool_result": names("type tool_use_id content is_error cache_control toolset_name"),
    "server_tool_use": names("type id name input cache_control caller"),
    "tool_reference": names("type tool_name cache_control"),
}
"""The blocks of a message -> the names in there. A block of another type that ends with `_tool_result` is what a server's tool gave."""
SOURCE: Final[dict[str, frozenset[str]]] = {
    "base64": names("type media_type data"),
    "text": names("type media_type data"),
    "content": names("type content"),
}
SERVER_RESULT: Final = "_tool_result"
"""Ends the type of a block with the result of a tool that the API's own server ran."""
NEVER: Final = names("mcp_servers container betas user_profile_id workspace_id")
"""At the top level, besides those of gateway.wire.openai.fields.NEVER."""
THREAD: Final = "thread"
"""At the top level: the server is to hold the conversation, or to go on with one, of which the request then has only the end. Dropped or
passed on, what was said before would be lost, or unseen by policies."""
NO_THREADS: Final = "thread_unsupported_request"
"""The API's own code for it: clients then send the whole conversation."""
METADATA: Final = names("user_id data_label")
TOOL: Final = names(
    "name description input_schema type cache_control strict input_examples defer_loading allowed_callers eager_input_streaming"
)
AT_CLIENTS: Final = ("bash_", "computer_", "memory_", "text_editor_", "tool_search_tool_")
"""How the types of tools begin that Anthropic defines and the caller runs, or that only look through the request's own. Any other is run by
the engine, which fetches pages, runs code or asks a server: its type is an unknown field."""
CHOICE: Final = names("type name disable_parallel_tool_use")
