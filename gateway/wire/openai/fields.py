"""The fields of requests that may reach an engine, by operation and place; everything else is unknown (`models[].unknown_fields`).

Where the lists come from, and when they were last compared with it, field by field:
- OpenAI: the API reference, as of openai-python 3.52 (November 2026).
- vLLM: `ChatCompletionRequest` and `CompletionRequest` at commit 002032ee2b18 (November 2026), and its page "OpenAI-Compatible Server".
- SGLang: `ChatCompletionRequest`, `CompletionRequest` and the parts of messages at commit 004c82e07d87 (November 2026).
- llama.cpp: the server's README at commit 00dc8057ab28 (November 2026).

Documented fields that are left out on purpose: those in NEVER, with which a client would choose an upstream, a file, a program, a slot or a
place in the engine's queue, or would send a prompt that guardrails cannot read; those in STORED, which name media that an engine keeps for
all its callers; with which an engine searches the web by itself (`web_search_options`, gateway.wire.engine_tools);
what would show the operator's own template or switch off a choice of theirs (`return_prompt_text`, `watermarking`); what
makes metrics grow (`custom_labels`); and what is for debugging an engine (`return_routed_experts`, `response_fields`, `n_cache_reuse`).
"""

from __future__ import annotations

import difflib
from typing import Any, Final

from gateway.core.errors import RequestError


def names(*lines: str) -> frozenset[str]:
    """A set of names, from a space-separated list."""
    return frozenset(" ".join(lines).split())


_COMMON = names(
    # OpenAI
    "model stream stream_options max_tokens n temperature top_p presence_penalty frequency_penalty stop seed logit_bias user "
    "logprobs response_format "
    # vLLM
    "use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens "
    "skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens allowed_token_ids bad_words "
    "prompt_logprobs add_special_tokens "
    "structured_outputs guided_json guided_regex guided_choice guided_grammar guided_whitespace_pattern structural_tag "
    "return_tokens_as_token_ids return_token_ids repetition_detection echo truncation_side logprob_token_ids "
    "thinking_token_budget "
    # SGLang
    "regex ebnf json_schema stop_regex no_stop_trim return_hidden_states return_cached_tokens_details "
    # llama.cpp, ours and llama-server
    "typical_p repeat_penalty repeat_last_n dynatemp_range dynatemp_exponent dry_multiplier dry_base dry_allowed_length dry_penalty_last_n "
    "dry_sequence_breakers xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta grammar min_keep n_probs n_keep n_indent "
    "samplers cache_prompt return_tokens timings_per_token return_progress post_sampling_probs t_max_predict_ms "
    # without effect on a local model
    "metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options",
)
KNOWN: Final[dict[str, frozenset[str]]] = {
    "chat": _COMMON
    | names(
        "messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls functions function_call",
        "reasoning_effort modalities audio prediction verbosity moderation add_generation_prompt",
        "continue_final_message documents chat_template_kwargs media_io_kwargs mm_processor_kwargs include_reasoning",
        "separate_reasoning stream_reasoning max_dynamic_patch min_dynamic_patch return_prompt_token_ids return_meta_info task reasoning",
        "use_audio_in_video reasoning_format reasoning_budget parse_tool_calls thinking_budget_tokens",
    ),
    "completions": _COMMON | frozenset({"prompt", "suffix", "best_of"}),
    "embeddings": names(
        "model input dimensions encoding_format user truncate_prompt_tokens truncation_side add_special_tokens normalize embd_normalize",
        "use_activation embed_dtype endianness prompt_name input_type",
    ),
    "classify": names("model input user truncate_prompt_tokens truncation_side add_special_tokens activation softmax use_activation"),
    "moderations": names("model input user"),
    "tokenize": names(
        "model prompt messages tokens add_special_tokens return_token_strs add_generation_prompt continue_final_message tools",
        "chat_template_kwargs mm_processor_kwargs",
    ),
    "score": names("model text_1 text_2 user truncate_prompt_tokens truncation_side encoding_format use_activation instruction"),
    "images": names(
        "model prompt n size quality response_format style user background moderation output_compression output_format stream",
        "negative_prompt seed num_inference_steps guidance_scale",
    ),
    "transcriptions": names(
        "model prompt language response_format temperature timestamp_granularities[] include[] stream chunking_strategy",
        "known_speaker_names[] known_speaker_references[] hotwords vad_filter",
        # vLLM
        "to_language seed top_p top_k min_p frequency_penalty repetition_penalty presence_penalty max_completion_tokens",
    ),
    "translations": names(
        "model prompt language response_format temperature stream to_language seed top_p top_k min_p frequency_penalty",
        "repetition_penalty presence_penalty max_completion_tokens hotwords vad_filter",
    ),
    "speech": names("model input voice instructions response_format speed stream stream_format language task_type"),
    "rerank": names(
        "model query documents top_n return_documents max_chunks_per_doc max_tokens_per_doc rank_fields",
        "truncate_prompt_tokens truncation_side user instruction use_activation",
    ),
}
"""Operation -> the names at the top level."""

DROPPED: Final = frozenset({"api_base", "base_url", "api_key", "api_version", "extra_headers", "cache_salt", "extra_key"})
"""Fields meant for other gateways, and the salt that this gateway derives itself: never forwarded, never an error."""

NEVER: Final = DROPPED | names(
    # upstreams and their parameters
    "fallbacks models route provider providers extra_body extra_query deployment_id azure_endpoint api_type organization proxy "
    "kv_transfer_params ec_transfer_params vllm_xargs bootstrap_host bootstrap_port bootstrap_room bootstrap_addr remote_host remote_port "
    "data_parallel_rank routed_dp_rank disagg_prefill_dp_rank data_parallel_rank_decode modality "
    # prompts that are not text
    "input_ids "
    # files, programs, pickled tensors, corpora
    "lora_path lora lora_request lora_adapter chat_template custom_logit_processor custom_params logits_processors prompt_embeds "
    "input_embeds image_embeds audio_embeds ngram_corpus_id "
    # scheduling, slots and names of requests
    "priority id_slot slot_id session_params session_id rid request_id return_prompt_hidden_states "
    # aliases of bounds that limits count by
    "n_predict n_cmpl max_new_tokens num_predict "
    # many tokens in one event: a stream that its client gives up is charged by its events
    "stream_interval",
)
"""Fields that never reach an engine, whatever `unknown_fields` says."""
STORED: Final = frozenset({"uuid", "content_hash", "file_id"})
"""In a part of a message: names of media that the engine has from an earlier request, of whichever caller. As NEVER."""

MESSAGE: Final = names(
    "role content name tool_calls tool_call_id function_call refusal audio annotations reasoning reasoning_content", "prefix tools"
)
CALL: Final = names("id type function custom index")
FUNCTION: Final = frozenset({"name", "arguments"})
TEXT_PART: Final = frozenset({"type", "text"})
PART: Final = names(
    "type text refusal image_url video_url audio_url input_audio file prompt_cache_breakpoint cache_control thinking modalities"
)
PROSE: Final = frozenset({"text", "refusal", "thinking"})
"""The texts of a part. Its other fields hold media or a short setting, never an address."""
MEDIA: Final[dict[str, frozenset[str]]] = {
    "image_url": names("url detail max_dynamic_patch min_dynamic_patch"),
    "video_url": names("url detail max_dynamic_patch min_dynamic_patch fps max_frames"),
    "audio_url": frozenset({"url"}),
    "input_audio": frozenset({"data", "format"}),
    "file": frozenset({"file_data", "filename"}),
}
"""Where a part of a message has media -> the names in there."""
DOCUMENT: Final = names("text title id content")
STREAM_OPTIONS: Final = names("include_usage include_obfuscation continuous_usage_stats")
TOOL: Final = names("type function custom defer_loading")
TOOL_KINDS: Final = frozenset({"", "function", "custom"})
"""Tools that the caller runs. Any other is run by the engine, which fetches, runs or asks something (gateway.wire.engine_tools): its type
is an unknown field."""
AUDIO: Final = names("data format transcript expires_at")
"""Of a sound in a message. Its `id` names one that the engine generated and kept (gateway.wire.engine_tools): it is an unknown field."""
TOOL_FUNCTION: Final = names("name description parameters strict defer_loading")
OFFERS: Final = ("tools", "functions")
"""Where a request offers tools."""
TEMPLATE: Final = "chat_template_kwargs"
FREE: Final = frozenset({TEMPLATE, "mm_processor_kwargs", "media_io_kwargs"})
"""Arguments that an engine hands to a function. Names of NEVER are none."""
ARGUMENTS: Final = NEVER | names(
    "messages conversation tokenize tokenizer tokenizer_kwargs padding truncation max_length return_tensors return_dict",
    "return_assistant_tokens_mask",
)
"""Names with which the arguments of a template would replace what the request says elsewhere."""
FORMAT: Final = names("type json_schema schema")


def wrong_case(name: str, known: frozenset[str], place: str) -> None:
    """Refuses a name that differs only in case from a declared one, which engines written in Go treat as the same. Raises RequestError."""
    folded = name.casefold()
    if folded != name and folded in known:
        param = f"{place}{name}"
        raise RequestError(f"{param[:256]}: the name of this field is {folded!r}; write it in lower case.", param=param[:256])


def never(place: str) -> bool:
    """Whether the field at a place may not reach an engine, whatever `unknown_fields` says."""
    name = place.rpartition(".")[2].casefold()
    return name in NEVER or (name in STORED and ".content[" in place)


def unheard(place: str) -> RequestError:
    """The 400 for a field that never reaches an engine."""
    text = f"{place[:256]}: this field never reaches an engine; leave it out."
    return RequestError(text, param=place[:256], code="unsupported_parameter")


def refused(place: str, known: frozenset[str]) -> RequestError:
    """The 400 for a field that is unknown at its place."""
    name = place.rpartition(".")[2]
    near = difflib.get_close_matches(name[:64], known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if never(place):
        text = f"{place[:256]}: this field never reaches an engine; leave it out.{hint}"
    else:
        text = f"{place[:256]}: this field is not known here; {f'did you mean {near[0]!r}?' if near else 'leave it out.'}"
    return RequestError(text, param=place[:256], code="unsupported_parameter")


def forbidden(value: Any) -> str | None:
    """A name of NEVER inside a value, or None."""
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, dict):
            for key in found:
                if key.casefold() in NEVER:
                    return str(key)
            stack.extend(found.values())
        elif isinstance(found, list):
            stack.extend(found)
    return None
