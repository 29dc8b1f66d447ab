"""Types of the operations below /engines. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange
    from gatehouse.client.types.status import EndpointView


class BatchingSpec(TypedDict):
    """Dynamic batching of an ONNX engine: a batch runs when it is full or when its oldest item has waited long enough."""

    max_batch: NotRequired[int]
    max_delay_ms: NotRequired[float]


class Breaker(TypedDict):
    """state: hold it `open` (no requests) or `closed` (requests whatever happens); `auto` lets it decide again."""

    state: Literal["auto", "closed", "open"]


class DnsSpec(TypedDict):
    """Which records of the host name in `url` name the engine's addresses, and how they are followed. servers: whom to ask,
    ADDRESS:PORT; empty: those of the machine. min_ttl, max_ttl: bounds of the time between two questions. keep: for how long addresses
    stay in use that the name no longer has, or while it cannot be resolved. networks: where they may be; empty: anywhere but this
    machine and its links.
    """

    records: NotRequired[Literal["address", "srv"]]
    servers: NotRequired[list[str]]
    timeout: NotRequired[float]
    min_ttl: NotRequired[float]
    max_ttl: NotRequired[float]
    keep: NotRequired[float]
    max_addresses: NotRequired[int]
    networks: NotRequired[list[str]]


class EndpointDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: EndpointView


class EngineCostSpec(TypedDict):
    """What an engine of one's own costs: `rate` for each hour of each of its `devices`, shared by its slots. prefill, decode: rates for
    the time until the first event of a stream and after it, `rate` where absent. slots: by how many the devices are shared, where that
    is not the engine's own number.
    """

    rate: float
    devices: NotRequired[int]
    currency: NotRequired[str]
    prefill: NotRequired[float | None]
    decode: NotRequired[float | None]
    slots: NotRequired[int | None]


class EngineDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: StoredEngineView


class EngineLog(TypedDict):
    """The last lines that the processes of an engine have written, the newest last."""

    engine: str
    lines: list[str]


class EnginePage(TypedDict):
    items: list[StoredEngineView]
    cursor: str | None


class EnginePatch(TypedDict):
    name: NotRequired[str]
    runtime: NotRequired[str]
    version: NotRequired[str | None]
    model: NotRequired[str | None]
    device: NotRequired[str | None]
    fallback: NotRequired[Literal["cpu"] | None]
    slots: NotRequired[int | None]
    context: NotRequired[int | None]
    queue: NotRequired[int | None]
    threads: NotRequired[int | None]
    sha256: NotRequired[str | None]
    batching: NotRequired[BatchingSpec | None]
    options: NotRequired[dict[str, Any] | None]
    url: NotRequired[str | None]
    api_key: NotRequired[str | None]
    tls: NotRequired[EngineTls | None]
    headers: NotRequired[dict[str, str] | None]
    weight: NotRequired[float | None]
    health: NotRequired[HealthSpec | None]
    timeouts: NotRequired[TimeoutsSpec | None]
    max_idle_connections: NotRequired[int | None]
    prefix_salt: NotRequired[Literal["cache_salt", "none"] | None]
    apis: NotRequired[list[Literal["messages", "responses"]] | None]
    warmup: NotRequired[WarmupSpec | None]
    rollout: NotRequired[RolloutSpec | None]
    lifecycle: NotRequired[LifecycleSpec | None]
    cost: NotRequired[EngineCostSpec | None]
    clearance: NotRequired[list[str] | None]
    scale: NotRequired[ScaleSpec | None]
    dns: NotRequired[DnsSpec | None]
    joined: NotRequired[JoinedSpec | None]


class EngineSettings(TypedDict):
    name: str
    runtime: str
    version: NotRequired[str]
    model: NotRequired[str | None]
    device: NotRequired[str]
    fallback: NotRequired[Literal["cpu"] | None]
    slots: NotRequired[int | None]
    context: NotRequired[int]
    queue: NotRequired[int]
    threads: NotRequired[int]
    sha256: NotRequired[str | None]
    batching: NotRequired[BatchingSpec]
    options: NotRequired[dict[str, Any]]
    url: NotRequired[str | None]
    api_key: NotRequired[str | None]
    tls: NotRequired[EngineTls | None]
    headers: NotRequired[dict[str, str]]
    weight: NotRequired[float]
    health: NotRequired[HealthSpec]
    timeouts: NotRequired[TimeoutsSpec]
    max_idle_connections: NotRequired[int]
    prefix_salt: NotRequired[Literal["cache_salt", "none"]]
    apis: NotRequired[list[Literal["messages", "responses"]]]
    warmup: NotRequired[WarmupSpec]
    rollout: NotRequired[RolloutSpec]
    lifecycle: NotRequired[LifecycleSpec]
    cost: NotRequired[EngineCostSpec | None]
    clearance: NotRequired[list[str] | None]
    scale: NotRequired[ScaleSpec | None]
    dns: NotRequired[DnsSpec | None]
    joined: NotRequired[JoinedSpec | None]


class EngineTls(TypedDict):
    """TLS towards an external engine. Certificates are files of the machine: they belong in the configuration file."""

    server_name: NotRequired[str | None]


class HealthSpec(TypedDict):
    """Active probing and passive outlier detection for an endpoint. metrics: where an external engine tells its load, a path or
    :PORT/path; null: it is not asked.
    """

    interval: NotRequired[float]
    timeout: NotRequired[float]
    rise: NotRequired[int]
    fall: NotRequired[int]
    path: NotRequired[str | None]
    metrics: NotRequired[str | None]
    slow_start: NotRequired[float]


class JoinedSpec(TypedDict):
    """An engine that joined machines bring, each an endpoint of its own. machines: patterns of the names of those that may. networks:
    where they may be; empty: anywhere but this machine and its links. place: what some of them are to start for it; None: they start it
    themselves.
    """

    machines: NotRequired[list[str]]
    networks: NotRequired[list[str]]
    place: NotRequired[PlaceSpec | None]


class LifecycleSpec(TypedDict):
    """When a sidecar runs: from the start or the first request, and until when. group: one engine of a group is loaded at a time."""

    load: NotRequired[Literal["eager", "lazy"]]
    idle_ttl: NotRequired[float]
    pinned: NotRequired[bool]
    group: NotRequired[str | None]


class PlaceSpec(TypedDict):
    """What the gateway has joined machines start where they have room for it. model: of the gateway's model files, by its name; they are
    sent there. device: `cpu`, `cuda` (any one GPU) or GPUs by number. copies: machines that are to run it at once. The rest: as of any
    engine.
    """

    runtime: Literal["llama.cpp", "onnx"]
    model: str
    device: NotRequired[str]
    fallback: NotRequired[Literal["cpu"] | None]
    copies: NotRequired[int]
    slots: NotRequired[int | None]
    context: NotRequired[int]
    queue: NotRequired[int]
    threads: NotRequired[int]
    options: NotRequired[dict[str, Any]]


class RolloutSpec(TypedDict):
    """How an engine's traffic moves from its old process to its new one: in these shares, each for `step_seconds`."""

    steps: NotRequired[list[float]]
    step_seconds: NotRequired[float]
    max_failures: NotRequired[int]
    stop_first: NotRequired[bool]


class ScaleSpec(TypedDict):
    """How many replicas of an engine there are to be, by its load. target, target_kv: shares of slots and of KV memory in use to aim at.
    max_wait: for how long a queue may stand before one more is wanted. stabilization: for how long fewer must have been enough before
    one is taken away. devices: those of the copies, in turn; empty: the engine's own.
    """

    min: NotRequired[int]
    max: NotRequired[int]
    target: NotRequired[float]
    target_kv: NotRequired[float]
    max_wait: NotRequired[float]
    stabilization: NotRequired[float]
    devices: NotRequired[list[str]]


class StoredEngineView(TypedDict):
    """An engine with its settings and its state."""

    name: str
    runtime: str
    state: str
    source: str
    reason: NotRequired[str | None]
    reason_code: NotRequired[str | None]
    plan: NotRequired[dict[str, Any] | None]
    model: NotRequired[str | None]
    slots: NotRequired[int | None]
    device: NotRequired[str | None]
    version: NotRequired[str]
    sha256: NotRequired[str | None]
    lifecycle: NotRequired[dict[str, Any] | None]
    rollout: NotRequired[dict[str, Any] | None]
    idle: NotRequired[str | None]
    confinement: NotRequired[dict[str, Any] | None]
    restarts: NotRequired[int]
    last_end: NotRequired[dict[str, Any] | None]
    machines: NotRequired[list[dict[str, Any]] | None]
    settings: dict[str, Any]
    in_force: bool
    failed: bool
    revision: NotRequired[int | None]
    created_at: NotRequired[str | None]
    updated_at: NotRequired[str | None]
    updated_by: NotRequired[str | None]


class TimeoutsSpec(TypedDict):
    """Deadlines of an exchange with an engine, each bounded by the request's own."""

    connect: NotRequired[float]
    first_byte: NotRequired[float]
    between_bytes: NotRequired[float]
    total: NotRequired[float]


class WarmupSpec(TypedDict):
    """The request that an engine's new process must answer before it replaces the old one."""

    enabled: NotRequired[bool]
    prompt: NotRequired[str]
    max_tokens: NotRequired[int]
    timeout: NotRequired[float]
