"""Settings of the configuration file and the store as frozen, parsed objects; nothing is built from them here.

Names and defaults are those of docs/configuration.md. Durations are seconds (float), sizes bytes (int); the YAML forms
"1s", "50ms", "64MiB" are converted by gateway.config. An absent field has the default written here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from gateway.core.alert_specs import AlertsSpec, WebhookSpec
from gateway.core.approval_specs import ApprovalsSpec
from gateway.core.audit_specs import EncryptionSpec, PrivacySpec, TextSpec
from gateway.core.batch_specs import BatchesSpec, FilesSpec, UploadsSpec
from gateway.core.cache_specs import CacheSpec, CachesSpec
from gateway.core.conversations import ResponsesSpec
from gateway.core.fleet_specs import (
    DnsSpec,
    JoinedSpec,
    LifecycleSpec,
    MachinesSpec,
    ModelSharingSpec,
    ModelSignaturesSpec,
    RolloutSpec,
    ScaleSpec,
    TicketsSpec,
)
from gateway.core.guardrail_specs import GuardrailSpec, LabelSpec
from gateway.core.hedge_specs import HedgeSpec
from gateway.core.identity_specs import (
    ApiKeysSpec,
    BindingSpec,
    ClaimSpec,
    ClaimsSpec,
    GatewayTokensSpec,
    IdentitySpec,
    LdapSpec,
    OidcSpec,
    RoleSpec,
    StaticKeySpec,
    StepUpSpec,
)
from gateway.core.job_specs import JobsSpec
from gateway.core.limit_specs import BudgetSpec, LimitMatchSpec, LimitSpec, LoopSpec, RateSpec, RollingSpec, WeightsSpec
from gateway.core.listen_specs import CorsSpec, SocketsSpec
from gateway.core.moderation_specs import ModerationSpec
from gateway.core.pipeline_specs import PipelineSpec
from gateway.core.price_specs import CostCentreSpec, EngineCostSpec, PriceSpec, SessionsSpec, UsageSpec
from gateway.core.redis_specs import RedisSpec
from gateway.core.retention_specs import CheckpointSpec, RetentionSpec
from gateway.core.rollout_specs import CanarySpec, ShadowSpec
from gateway.core.secret import Secret
from gateway.core.spec import DURATIONS, Amount, ClientTlsSpec, EngineName, Name, Natural, Overlap, Period, Positive, Seconds, Spec, Timeout
from gateway.core.telemetry_specs import ExporterSpec, TelemetrySpec, TracesSpec

__all__ = [
    "DEFAULT_SLOTS",
    "DURATIONS",
    "EXTERNAL_SLOTS",
    "AlertsSpec",
    "Amount",
    "ApiKeysSpec",
    "AuditSpec",
    "BatchesSpec",
    "BatchingSpec",
    "BindingSpec",
    "BreakerSpec",
    "BudgetSpec",
    "CheckpointSpec",
    "ClaimSpec",
    "ClaimsSpec",
    "ClientTlsSpec",
    "ConfigSpec",
    "CorsSpec",
    "CostCentreSpec",
    "DnsSpec",
    "EngineCostSpec",
    "EngineSpec",
    "ExporterSpec",
    "FilesSpec",
    "GatewayTokensSpec",
    "GuardrailSpec",
    "HealthSpec",
    "HedgeSpec",
    "HookSpec",
    "IdentitySpec",
    "JobsSpec",
    "JoinedSpec",
    "LabelSpec",
    "LdapSpec",
    "LifecycleSpec",
    "LimitMatchSpec",
    "LimitSpec",
    "ListenSpec",
    "LoopSpec",
    "MachinesSpec",
    "ModelSharingSpec",
    "ModelSignaturesSpec",
    "ModelSpec",
    "Name",
    "Natural",
    "NetworkSpec",
    "OidcSpec",
    "Overlap",
    "Period",
    "PipelineSpec",
    "PoolMemberSpec",
    "Positive",
    "PriceSpec",
    "QueueSpec",
    "RateSpec",
    "RedisSpec",
    "RetrySpec",
    "RoleSpec",
    "RollingSpec",
    "RolloutSpec",
    "RoutingSpec",
    "ScaleSpec",
    "Seconds",
    "SessionsSpec",
    "SidecarSpec",
    "SinkSpec",
    "SocketsSpec",
    "Spec",
    "StaticKeySpec",
    "StepUpSpec",
    "StoreSpec",
    "StreamSpec",
    "TelemetrySpec",
    "TicketsSpec",
    "Timeout",
    "TimeoutsSpec",
    "TlsSpec",
    "TracesSpec",
    "UploadsSpec",
    "UsageSpec",
    "WarmupSpec",
    "WebhookSpec",
    "WeightsSpec",
]

DEFAULT_SLOTS = 8
"""Requests that run at once in a sidecar if neither the configuration nor the sidecar says."""
EXTERNAL_SLOTS = 256
"""Requests that run at once in an external engine, which batches and queues by itself, if neither the configuration nor the engine says."""


class TlsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Server-side TLS of a listener. `client_ca` asks clients for a certificate; `require_client` insists."""

    cert: str
    key: str
    client_ca: str | None = None
    require_client: bool = False


ProxyProtocol = Literal["off", "optional", "required"]
Forwarding = Literal["x-forwarded-for", "forwarded", "either"]
"""The header in which trusted proxies name their clients. Of two that are there, both must name the same one."""


class ListenSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The two listeners and the bounds on what they read from a client."""

    data: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:8081"
    grpc: str | None = None
    tls: TlsSpec | None = None
    admin_tls: TlsSpec | None = None
    cors: CorsSpec = CorsSpec()
    sockets: SocketsSpec = SocketsSpec()
    trusted_peers: tuple[str, ...] = ()
    admin_trusted_peers: tuple[str, ...] = ()
    forwarding: Forwarding = "x-forwarded-for"
    admin_forwarding: Forwarding = "x-forwarded-for"
    networks: tuple[str, ...] = ()
    admin_networks: tuple[str, ...] = ()
    proxy_protocol: ProxyProtocol = "off"
    admin_proxy_protocol: ProxyProtocol = "off"
    max_connections: Positive = 4096
    max_connections_per_peer: Positive = 1024
    max_header_bytes: Positive = 16 * 1024
    max_headers: Positive = 64
    max_body_bytes: Positive = 8 * 1024 * 1024
    max_upload_bytes: Positive = 64 * 1024 * 1024
    max_json_depth: Positive = 64
    max_json_nodes: Annotated[int, Meta(ge=256, le=1 << 24)] = 65_536
    header_timeout: Timeout = 10.0
    body_timeout: Timeout = 30.0
    keep_alive_timeout: Seconds = 75.0
    request_timeout: Timeout = 600.0
    drain_delay: Seconds = 0.0
    drain_timeout: Seconds = 30.0
    memory_bytes: Annotated[int, Meta(ge=1024 * 1024, le=1 << 53)] = 256 * 1024 * 1024
    memory_share: Annotated[float, Meta(gt=0, le=1)] = 0.5


class NetworkSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """countries: a database of the countries of addresses. tenants: where the credentials of each may be used."""

    countries: str | None = None
    tenants: dict[Name, tuple[str, ...]] = {}


class StoreSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where operators' decisions are kept: `sqlite` (in the state directory) or a PostgreSQL URL.

    upstreams: networks and host-name patterns where external engines of the store may be. history: how many entries of the configuration's
    history are kept; 0: none.
    """

    url: str = "sqlite"
    poll_interval: Timeout = 0.5
    upstreams: tuple[str, ...] = ()
    history: Annotated[int, Meta(ge=0, le=10000)] = 200


class BatchingSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Dynamic batching of an ONNX engine: a batch runs when it is full or when its oldest item has waited long enough."""

    max_batch: Annotated[int, Meta(ge=1, le=1024)] = 32
    max_delay_ms: Annotated[float, Meta(ge=0, le=1000)] = 2.0


class HealthSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Active probing and passive outlier detection for an endpoint. metrics: where an external engine tells its load, a path or :PORT/path;
    null: it is not asked."""

    interval: Timeout = 1.0
    timeout: Timeout = 2.0
    rise: Positive = 1
    fall: Positive = 3
    path: str | None = None
    metrics: Annotated[str, Meta(pattern=r"^(:[0-9]{1,5})?/[!-~]{0,256}$")] | None = "/metrics"
    slow_start: Seconds = 0.0


class TimeoutsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Deadlines of an exchange with an engine, each bounded by the request's own."""

    connect: Timeout = 2.0
    first_byte: Timeout = 120.0
    between_bytes: Timeout = 60.0
    total: Timeout = 600.0


class WarmupSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The request that an engine's new process must answer before it replaces the old one."""

    enabled: bool = True
    prompt: Annotated[str, Meta(min_length=1, max_length=8192)] = "Hello"
    max_tokens: Annotated[int, Meta(ge=1, le=1024)] = 4
    timeout: Timeout = 60.0


class EngineSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine: a sidecar that Gatehouse starts (`llama.cpp`, `onnx`, a plug-in's) or an OpenAI-compatible server, which it starts
    (`command`) or which runs elsewhere (`external`).
    clearance: labels of data that it may see, `*` for all; by default a sidecar all, an external engine none. A name with ~ or @ is that of
    a copy or of one address (gateway.config.expand)."""

    name: EngineName
    runtime: Name
    version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "1"
    model: str | None = None
    device: Annotated[
        str,
        Meta(
            pattern=r"^(cpu|metal|(rocm|vulkan):\d+(,\d+)*|cuda:(\d+|(GPU|MIG)-[0-9a-fA-F-]{8,64})(,(\d+|(GPU|MIG)-[0-9a-fA-F-]{8,64}))*)$"
        ),
    ] = "cpu"
    fallback: Literal["cpu"] | None = None
    slots: Annotated[int, Meta(ge=1, le=1024)] | None = None
    context: Annotated[int, Meta(ge=64, le=4 * 1024 * 1024)] = 2048
    queue: Annotated[int, Meta(ge=0, le=10000)] = 64
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")] | None = None
    batching: BatchingSpec = BatchingSpec()
    options: dict[str, Any] = {}
    url: str | None = None
    api_key: Secret | None = None
    tls: ClientTlsSpec | None = None
    headers: dict[str, str] = {}
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    health: HealthSpec = HealthSpec()
    timeouts: TimeoutsSpec = TimeoutsSpec()
    max_idle_connections: Positive = 128
    prefix_salt: Literal["none", "cache_salt"] = "none"
    apis: tuple[Literal["messages", "responses"], ...] = ()
    warmup: WarmupSpec = WarmupSpec()
    rollout: RolloutSpec = RolloutSpec()
    lifecycle: LifecycleSpec = LifecycleSpec()
    cost: EngineCostSpec | None = None
    clearance: tuple[str, ...] | None = None
    scale: ScaleSpec | None = None
    dns: DnsSpec | None = None
    joined: JoinedSpec | None = None

    @property
    def process_settings(self) -> tuple[Any, ...]:
        """The settings a sidecar is started with: changing one needs a new process. All others can change while it runs."""
        return (
            self.runtime, self.version, self.model, self.device, self.fallback, self.slots, self.context, self.queue, self.threads,
            self.sha256, self.batching, self.options, self.api_key if self.runtime == "command" else None,
        )  # fmt: skip

    @property
    def foreign(self) -> bool:
        """Whether its server is not one of ours: it is asked with a key and headers, and knows no isolation domains of ours."""
        return self.runtime in ("external", "command") and self.joined is None

    @property
    def start_slots(self) -> int:
        """Requests that run at once until the engine has reported its own number, if none is configured."""
        if self.slots is not None:
            return self.slots
        return EXTERNAL_SLOTS if self.foreign else DEFAULT_SLOTS


class BreakerSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Circuit breaker of every endpoint: opens after consecutive failures, for longer each time."""

    failures: Annotated[int, Meta(ge=1, le=5)] = 5
    open_for: Seconds = 1.0
    open_max: Seconds = 30.0
    max_ejected: Annotated[float, Meta(ge=0, le=1)] = 0.5


class QueueSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Admission beyond the engines' slots: a bounded queue per pool, a deadline for each entry, shares by the tenants' weights."""

    size: Natural = 256
    timeout: Seconds = 30.0
    weights: dict[Name, Annotated[float, Meta(gt=0, le=1000)]] = {}


class RetrySpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Retries before the first byte, within a budget: a share of the requests in flight."""

    attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    budget: Annotated[float, Meta(ge=0, le=1)] = 0.2
    backoff: Seconds = 0.025


class RoutingSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a model's pool is used: which selector with which settings, over which key, with which bound on the load."""

    policy: str = "consistent_hash"
    settings: dict[str, Any] = {}
    key: Annotated[str, Meta(pattern=r"^(prefix|session|tenant|key|header:[A-Za-z0-9-]+)$")] = "prefix"
    bound: Annotated[float, Meta(ge=1.0, le=10.0)] = 1.25
    breaker: BreakerSpec = BreakerSpec()
    queue: QueueSpec = QueueSpec()
    retry: RetrySpec = RetrySpec()


class PoolMemberSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One member of a pool: an engine, its weight, and its own name for the model if that differs."""

    engine: EngineName
    weight: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    model: str | None = None


class ModelSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A public model name and what is behind it: a pool of engines, or a pipeline of steps that ask other models."""

    name: Name
    pool: tuple[str | PoolMemberSpec, ...] = ()
    pipeline: PipelineSpec | None = None
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    upstream_model: str | None = None
    routing: RoutingSpec = RoutingSpec()
    max_tokens: Positive | None = None
    prefix_sharing: Literal["key", "tenant", "global"] = "tenant"
    created: Natural = 0
    owned_by: str = "gatehouse"
    unknown_fields: Literal["refuse", "drop", "forward"] = "refuse"
    engine_tools: tuple[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}(:[!-~]{1,128})?$")], ...] = ()
    cache: CacheSpec | None = None
    shadow: ShadowSpec | None = None
    canary: CanarySpec | None = None
    hedge: HedgeSpec | None = None
    count_prompts: bool | Literal["auto"] = "auto"


class HookSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Code of an installed plug-in that runs before a request is forwarded and after it has ended."""

    name: Name
    type: str
    settings: dict[str, Any] = {}


class SinkSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One audit sink. `file` is the local, chained log that all other sinks are fed from. name: where a sink has come to in the log is kept
    by it; by default its type."""

    type: str
    name: Annotated[str, Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,62})?$")] = ""
    path: str | None = None
    segment_bytes: Positive = 256 * 1024 * 1024
    segment_age: Timeout | None = 86400.0
    settings: dict[str, Any] = {}


class AuditSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The audit log. `write` survives a kill -9 of the process, `fsync` a power loss. `body_hashes`: records prove what the bodies were."""

    durability: Literal["async", "write", "fsync"] = "write"
    sinks: tuple[SinkSpec, ...] = (SinkSpec(type="file"),)
    encryption: EncryptionSpec | None = None
    text: TextSpec = TextSpec()
    privacy: PrivacySpec = PrivacySpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    retention: RetentionSpec = RetentionSpec()
    body_hashes: bool = True
    queue: Positive = 65536
    timeout: Timeout = 5.0


class StreamSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Streams to clients: comments while an engine is silent, and how many bytes one stream may hold."""

    keep_alive: Seconds = 15.0
    buffer_bytes: Annotated[int, Meta(ge=16 * 1024, le=256 * 1024)] = 64 * 1024
    send_timeout: Timeout = 60.0


class ConfigSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole configuration file."""

    version: Literal[1]
    listen: ListenSpec = ListenSpec()
    network: NetworkSpec = NetworkSpec()
    state_dir: Annotated[str, Meta(min_length=1)] = "./var"
    replica: Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")] | None = None
    store: StoreSpec = StoreSpec()
    redis: RedisSpec | None = None
    caches: CachesSpec = CachesSpec()
    engines: tuple[EngineSpec, ...] = ()
    machines: MachinesSpec = MachinesSpec()
    tickets: TicketsSpec = TicketsSpec()
    models: tuple[ModelSpec, ...] = ()
    model_dirs: tuple[str, ...] = ()
    uploads: UploadsSpec = UploadsSpec()
    model_sharing: ModelSharingSpec = ModelSharingSpec()
    model_signatures: ModelSignaturesSpec = ModelSignaturesSpec()
    files: FilesSpec = FilesSpec()
    batches: BatchesSpec = BatchesSpec()
    jobs: JobsSpec = JobsSpec()
    identity: IdentitySpec = IdentitySpec()
    roles: dict[Name, RoleSpec] = {}
    bindings: tuple[BindingSpec, ...] = ()
    limits: tuple[LimitSpec, ...] = ()
    prices: tuple[PriceSpec, ...] = ()
    usage: UsageSpec = UsageSpec()
    alerts: AlertsSpec = AlertsSpec()
    labels: dict[Name, LabelSpec] = {}
    guardrails: tuple[GuardrailSpec, ...] = ()
    moderation: ModerationSpec = ModerationSpec()
    approvals: ApprovalsSpec = ApprovalsSpec()
    responses: ResponsesSpec | None = None
    hooks: tuple[HookSpec, ...] = ()
    audit: AuditSpec = AuditSpec()
    telemetry: TelemetrySpec = TelemetrySpec()
    stream: StreamSpec = StreamSpec()
    insecure: bool = False
    watch: bool = False


class SidecarSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a supervisor tells a new sidecar: one JSON line on standard input, which then stays open as its lifeline.

    `device`: as the sidecar sees it after placement (`cpu`, or `cuda:0` with one visible device). `wanted`: what the configuration
    asked for, so that health can show a fallback. `fallback`: what the runtime may use if its library does not support the device.
    `socket`: the path of a Unix socket (mode 0600). `key`: what a server that the sidecar starts is to ask its callers for.
    """

    name: str
    runtime: str
    model: str
    socket: str
    state_dir: str
    device: str = "cpu"
    wanted: str = "cpu"
    fallback: Literal["cpu"] | None = None
    slots: int = 8
    context: int = 2048
    queue: int = 64
    threads: int = 0
    sha256: str | None = None
    batching: BatchingSpec = field(default_factory=BatchingSpec)
    options: dict[str, Any] = {}
    key: str | None = None
    drain_timeout: float = 30.0
