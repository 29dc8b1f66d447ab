"""The bodies of the OpenAI paths as typed, bounded structures.

A parameter that is not listed here is refused by name (400 `unsupported_parameter`), never ignored. Those that cannot change the answer of
a local model (`user`, `metadata`, ...) are listed and have no effect.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from engines.chat.defaults import Defaults, Share, Temperature
from engines.chat.sampling import SamplingParams
from engines.sidecar.shell import ApiError

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_IDS = 1 << 20
"""Most tokens of a prompt that is given as such."""
_Items = Meta(min_length=1, max_length=MAX_IDS)
Prompt = str | Annotated[list[Token | str | Annotated[list[Token], _Items]], _Items]
"""OpenAI's four forms: a text, texts, tokens, lists of tokens."""
MAX_CHOICES = 16
MAX_PROMPTS = 256
MAX_GRAMMAR = 64 * 1024
"""Longest GBNF grammar, in characters."""


class StreamOptions(Struct, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Common(Struct, forbid_unknown_fields=True, kw_only=True):
    """The parameters that chat and text completion share."""

    model: str = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=0, le=4096)] | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=1024)] | None = None
    grammar: Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR)] | None = None
    response_format: dict[str, Any] | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatRequest(Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(Common, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Prompt
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | UnsetType | None = UNSET
    best_of: int | None = None


class EmbeddingRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/embeddings`."""

    input: Prompt
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: str | None = None


T = TypeVar("T")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def parse(body: bytes, kind: type[T]) -> T:
    """Decode a body. A parameter that is null counts as absent, known or not. Raises ApiError 400 that names the parameter."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        if (rest := _without_unknown_nulls(body, kind)) is not None:
            return parse(rest, kind)
        raise _invalid(str(exc)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ApiError(400, f"the body is not valid JSON: {exc}", code="invalid_json") from None


def _without_unknown_nulls(body: bytes, kind: type[Any]) -> bytes | None:
    """The body without parameters that are null and unknown; None if there are none."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    rest = {name: value for name, value in fields.items() if name in kind.__struct_fields__ or bytes(value) != b"null"}
    return msgspec.json.encode(rest) if len(rest) < len(fields) else None


def _invalid(message: str) -> ApiError:
    where = _PATH.search(message)
    param = where.group(1) if where else None
    unknown = _UNKNOWN.search(message)
    if unknown:
        name = f"{param}.{unknown.group(1)}" if param else unknown.group(1)
        return ApiError(400, f"the parameter {name} is not supported", param=name, code="unsupported_parameter")
    missing = _MISSING.search(message)
    if missing:
        name = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return ApiError(400, f"the parameter {name} is required", param=name, code="missing_required_parameter")
    return ApiError(400, f"{param or 'body'}: {_PATH.sub('', message)}", param=param, code="invalid_value")


def unsupported(param: str, why: str) -> ApiError:
    """A 400 for something that this engine does not do."""
    return ApiError(400, f"{param} is not supported: {why}", param=param, code="unsupported_parameter")


def prompts_of(value: Prompt, param: str) -> list[str | list[int]]:
    """The prompts in one of OpenAI's four forms. Raises ApiError 400."""
    if isinstance(value, str):
        return [value]
    if len(value) > MAX_PROMPTS and not isinstance(value[0], int):
        raise ApiError(400, f"{param} may hold at most {MAX_PROMPTS} prompts", param=param)
    tokens = [item for item in value if isinstance(item, int)]
    texts = [item for item in value if not isinstance(item, int)]
    if tokens and texts:
        raise ApiError(400, f"{param} mixes tokens with texts or lists", param=param)
    return [tokens] if tokens else list(texts)


def check_common(body: Common) -> None:
    """Rules that concern more than one parameter. Raises ApiError 400."""
    if body.store:
        raise unsupported("store", "nothing is kept")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise unsupported("stream_options.include_obfuscation", "chunks are not padded")
    if None not in (body.repeat_penalty, body.repetition_penalty) and body.repeat_penalty != body.repetition_penalty:
        raise ApiError(400, "repetition_penalty is another name of repeat_penalty; send one", param="repetition_penalty")


def sampling_params(request: Common, defaults: Defaults, n_vocab: int, seed: int, grammar: str | None) -> SamplingParams:
    """The settings of one sequence; `seed` is used if the request names none. Raises ApiError 400."""

    def pick(value: float | None, default: float) -> float:
        return default if value is None else value

    top_k = defaults.top_k if request.top_k is None else request.top_k
    repeat = request.repeat_penalty if request.repeat_penalty is not None else request.repetition_penalty
    return SamplingParams(
        temperature=pick(request.temperature, defaults.temperature),
        top_p=pick(request.top_p, defaults.top_p),
        top_k=max(top_k, 0),
        min_p=pick(request.min_p, defaults.min_p),
        typical_p=pick(request.typical_p, defaults.typical_p),
        presence_penalty=pick(request.presence_penalty, 0.0),
        frequency_penalty=pick(request.frequency_penalty, 0.0),
        repeat_penalty=pick(repeat, defaults.repeat_penalty),
        repeat_last_n=defaults.repeat_last_n if request.repeat_last_n is None else request.repeat_last_n,
        seed=seed % (2**32 - 1),
        logit_bias=_bias(request.logit_bias, n_vocab),
        grammar=grammar,
    )


def _bias(bias: dict[str, float] | None, n_vocab: int) -> tuple[tuple[int, float], ...]:
    if not bias:
        return ()
    items = []
    for key, value in bias.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10 or int(key) >= n_vocab:
            raise ApiError(400, f"logit_bias: {key[:32]!r} is not a token of this model", param="logit_bias")
        if not -100 <= value <= 100:
            raise ApiError(400, f"logit_bias: {key!r} has {value}, not a number from -100 to 100", param="logit_bias")
        # OpenAI: -100 bans a token, 100 makes it the only choice
        items.append((int(key), float("-inf") if value <= -100 else value))
    return tuple(items)
