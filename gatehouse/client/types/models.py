"""Types of the operations below /models. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class BreakerSpec(TypedDict):
    """Circuit breaker of every endpoint: opens after consecutive failures, for longer each time."""

    failures: NotRequired[int]
    open_for: NotRequired[float]
    open_max: NotRequired[float]
    max_ejected: NotRequired[float]


class CacheSpec(TypedDict):
    """Which answers of a model are kept, where and for how long. policy: which answer goes first where there is no room: the one that
    was used longest ago, least often, or stored first. max_entries, max_bytes: of the process's memory; workers have equal shares.
    max_answer_bytes: of one answer. compress_above: bytes from which an answer is kept compressed; 0: never. temperature: `zero` for
    requests that say `temperature: 0`, `any` for all. sharing: who gets an answer that somebody else caused; null: as the model's
    `prefix_sharing`, within a tenant at most. charge: whether an answer from the cache costs what the engine's did. deduplicate: whether
    requests that ask the same at the same time share one engine call. also_in: where answers are kept besides the memory of a process;
    null: nowhere. semantic: null: only the same request gets an answer again.
    """

    ttl: NotRequired[float]
    policy: NotRequired[Literal["fifo", "lfu", "lru"]]
    max_entries: NotRequired[int]
    max_bytes: NotRequired[int]
    max_answer_bytes: NotRequired[int]
    compress_above: NotRequired[int]
    operations: NotRequired[list[Literal["chat", "classify", "completions", "embeddings", "rerank", "score"]]]
    temperature: NotRequired[Literal["any", "zero"]]
    sharing: NotRequired[Literal["key", "tenant"] | None]
    charge: NotRequired[bool]
    deduplicate: NotRequired[bool]
    also_in: NotRequired[Literal["disk", "redis"] | None]
    semantic: NotRequired[SemanticSpec | None]


class CanarySpec(TypedDict):
    """One engine of a model's pool is on trial: it gets nothing more when it fares worse than allowed, until a person puts it back.
    engine: of the pool. window: seconds that are looked back on. min_requests: in the window at each side, below which nothing is
    judged. max_errors: share of failed requests; errors_over: the same above the other engines' share. max_first_token: seconds, the
    95th percentile of streams; first_token_factor: the same as a multiple of the others'. min_tokens_per_second: of one request, on
    average; tokens_factor: the same as a multiple of the others'. null: not looked at.
    """

    engine: str
    window: NotRequired[float]
    min_requests: NotRequired[int]
    max_errors: NotRequired[float | None]
    errors_over: NotRequired[float | None]
    max_first_token: NotRequired[float | None]
    first_token_factor: NotRequired[float | None]
    min_tokens_per_second: NotRequired[float | None]
    tokens_factor: NotRequired[float | None]


class CaseSpec(TypedDict):
    """The model for some labels, where the classifier is sure enough."""

    labels: list[str]
    min_score: NotRequired[float]
    model: str


class ChooseStep(TypedDict):
    """Chooses a model by an earlier classification: the first case that fits, else the default."""

    by: str
    cases: list[CaseSpec]
    default: str


class ClassifyStep(TypedDict):
    """A classifier labels a text: the prompt, or what an earlier step generated."""

    model: str
    input: NotRequired[str]


class EngineState(TypedDict):
    engine: str
    state: str
    version: str


class GenerateStep(TypedDict):
    """A chat. model, or choice: an earlier step that chooses one. input: the conversation, or one text as a user's message. documents:
    put before the last message of the user. system: put first. max_tokens: the most it generates; the last step takes the request's own.
    """

    model: NotRequired[str | None]
    choice: NotRequired[str | None]
    input: NotRequired[str]
    documents: NotRequired[str | None]
    system: NotRequired[str | None]
    max_tokens: NotRequired[int | None]


class HedgeSpec(TypedDict):
    """after: seconds without an answer, or `p95`: what 95 of 100 answers of the model took so far. budget: share of the requests under
    way that may have a second attempt. operations: those that may.
    """

    after: NotRequired[float | Literal["p95"]]
    budget: NotRequired[float]
    operations: NotRequired[list[Literal["chat", "classify", "completions", "embeddings", "infer", "rerank", "score", "tokenize"]]]


class ModelAction(TypedDict):
    """The engines acted on, with their present state."""

    model: str
    action: str
    engines: list[EngineState]


class ModelPage(TypedDict):
    items: list[StoredModelView]
    cursor: str | None


class ModelPatch(TypedDict):
    name: NotRequired[str]
    pool: NotRequired[list[str | PoolMemberSpec] | None]
    pipeline: NotRequired[PipelineSpec | None]
    aliases: NotRequired[list[str] | None]
    fallbacks: NotRequired[list[str] | None]
    upstream_model: NotRequired[str | None]
    routing: NotRequired[RoutingSpec | None]
    max_tokens: NotRequired[int | None]
    prefix_sharing: NotRequired[Literal["global", "key", "tenant"] | None]
    created: NotRequired[int | None]
    owned_by: NotRequired[str | None]
    unknown_fields: NotRequired[Literal["drop", "forward", "refuse"] | None]
    engine_tools: NotRequired[list[str] | None]
    cache: NotRequired[CacheSpec | None]
    shadow: NotRequired[ShadowSpec | None]
    canary: NotRequired[CanarySpec | None]
    hedge: NotRequired[HedgeSpec | None]
    count_prompts: NotRequired[bool | Literal["auto"] | None]


class ModelSpec(TypedDict):
    """A public model name and what is behind it: a pool of engines, or a pipeline of steps that ask other models."""

    name: str
    pool: NotRequired[list[str | PoolMemberSpec]]
    pipeline: NotRequired[PipelineSpec | None]
    aliases: NotRequired[list[str]]
    fallbacks: NotRequired[list[str]]
    upstream_model: NotRequired[str | None]
    routing: NotRequired[RoutingSpec]
    max_tokens: NotRequired[int | None]
    prefix_sharing: NotRequired[Literal["global", "key", "tenant"]]
    created: NotRequired[int]
    owned_by: NotRequired[str]
    unknown_fields: NotRequired[Literal["drop", "forward", "refuse"]]
    engine_tools: NotRequired[list[str]]
    cache: NotRequired[CacheSpec | None]
    shadow: NotRequired[ShadowSpec | None]
    canary: NotRequired[CanarySpec | None]
    hedge: NotRequired[HedgeSpec | None]
    count_prompts: NotRequired[bool | Literal["auto"]]


class ModelsModelDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: ModelAction


class PipelineSpec(TypedDict):
    """steps: in the order in which they run; the last one generates the answer. timeout: seconds for all of them. parallel: a step
    begins when those are over whose results it uses, beside others.
    """

    steps: list[StepSpec]
    timeout: NotRequired[float]
    parallel: NotRequired[bool]


class PoolMemberSpec(TypedDict):
    """One member of a pool: an engine, its weight, and its own name for the model if that differs."""

    engine: str
    weight: NotRequired[float]
    model: NotRequired[str | None]


class QueueSpec(TypedDict):
    """Admission beyond the engines' slots: a bounded queue per pool, a deadline for each entry, shares by the tenants' weights."""

    size: NotRequired[int]
    timeout: NotRequired[float]
    weights: NotRequired[dict[str, float]]


class RankStep(TypedDict):
    """The documents that fit a text best, best first. documents: the request's, or those of an earlier step. min_score: those below are
    left out.
    """

    model: str
    query: NotRequired[str]
    documents: NotRequired[str]
    top: NotRequired[int]
    min_score: NotRequired[float | None]


class ResourceModelDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: StoredModelView


class RetrySpec(TypedDict):
    """Retries before the first byte, within a budget: a share of the requests in flight."""

    attempts: NotRequired[int]
    budget: NotRequired[float]
    backoff: NotRequired[float]


class RoutingSpec(TypedDict):
    """How a model's pool is used: which selector with which settings, over which key, with which bound on the load."""

    policy: NotRequired[str]
    settings: NotRequired[dict[str, Any]]
    key: NotRequired[str]
    bound: NotRequired[float]
    breaker: NotRequired[BreakerSpec]
    queue: NotRequired[QueueSpec]
    retry: NotRequired[RetrySpec]


class SemanticSpec(TypedDict):
    """Whether an answer may be given to a similar request: of tenants that ask for it (`caches.semantic`), the last question's words
    apart the same. model: the public name of the embedding model that says how similar. threshold: the least cosine. words: `same`: the
    words with content must be the same, in their order; `free`: only numbers, negations, names and the like. max_entries: of one
    isolation domain. timeout: how long a request waits for the embedding model.
    """

    model: str
    threshold: NotRequired[float]
    words: NotRequired[Literal["free", "same"]]
    max_entries: NotRequired[int]
    timeout: NotRequired[float]


class ShadowSpec(TypedDict):
    """A sample of a model's requests is also put to another model, whose answers nobody gets. model: the candidate. share, key: of the
    requests; those with the same key are mirrored together, as in `routing.key`; `request`: each by itself. timeout: seconds from the
    end of the request to the end of the candidate's answer. concurrency, queue: mirrored requests that run and wait at once, of the
    process; workers have equal shares. spare: the share of the candidate's slots that they leave free. compare: whether texts are
    compared.
    """

    model: str
    share: NotRequired[float]
    key: NotRequired[str]
    timeout: NotRequired[float]
    concurrency: NotRequired[int]
    queue: NotRequired[int]
    spare: NotRequired[float]
    compare: NotRequired[bool]


class StepSpec(TypedDict):
    """One step: a name, and exactly one of the others. timeout: seconds for this step alone, within that of the pipeline."""

    name: str
    timeout: NotRequired[float | None]
    classify: NotRequired[ClassifyStep | None]
    embed: NotRequired[RankStep | None]
    rerank: NotRequired[RankStep | None]
    choose: NotRequired[ChooseStep | None]
    generate: NotRequired[GenerateStep | None]


class StoredModelView(TypedDict):
    """A model with its settings and its state. reason: why its newest revision is not in force."""

    name: str
    source: str
    ready: bool
    pool: list[dict[str, Any]]
    aliases: NotRequired[list[str]]
    fallbacks: NotRequired[list[str]]
    queued: NotRequired[int]
    settings: dict[str, Any]
    in_force: bool
    failed: bool
    reason: NotRequired[str | None]
    revision: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]
