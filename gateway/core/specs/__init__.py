"""Settings of the configuration file and the store as frozen, parsed objects; nothing is built from them here.

Names and defaults are those of docs/configuration.md. Durations are seconds (float), sizes bytes (int); the YAML forms
"1s", "50ms", "64MiB" are converted by gateway.config. An absent field has the default written here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.core.specs.alerts import AlertsSpec, WebhookSpec
from gateway.core.specs.approvals import ApprovalsSpec
from gateway.core.specs.audit import EncryptionSpec, PrivacySpec, TextSpec
from gateway.core.specs.base import (
    DURATIONS,
    Amount,
    ClientTlsSpec,
    Name,
    Natural,
    Overlap,
    Period,
    Positive,
    Seconds,
    Spec,
    Timeout,
)
from gateway.core.specs.batches import BatchesSpec, FilesSpec, UploadsSpec
from gateway.core.specs.caches import CachesSpec
from gateway.core.specs.engines import (
    DEFAULT_SLOTS,
    EXTERNAL_SLOTS,
    BatchingSpec,
    EngineSpec,
    HealthSpec,
    SidecarSpec,
    TimeoutsSpec,
    WarmupSpec,
)
from gateway.core.specs.fleet import (
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
from gateway.core.specs.guardrails import GuardrailSpec, LabelSpec
from gateway.core.specs.hedging import HedgeSpec
from gateway.core.specs.identity import (
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
from gateway.core.specs.jobs import JobsSpec
from gateway.core.specs.limits import BudgetSpec, LimitMatchSpec, LimitSpec, LoopSpec, RateSpec, RollingSpec, WeightsSpec
from gateway.core.specs.listening import CorsSpec, SocketsSpec
from gateway.core.specs.models import BreakerSpec, ModelSpec, PoolMemberSpec, QueueSpec, RetrySpec, RoutingSpec
from gateway.core.specs.moderation import ModerationSpec
from gateway.core.specs.pipelines import PipelineSpec
from gateway.core.specs.prices import CostCentreSpec, EngineCostSpec, PriceSpec, SessionsSpec, UsageSpec
from gateway.core.specs.redis import RedisSpec
from gateway.core.specs.responses import ResponsesSpec
from gateway.core.specs.retention import CheckpointSpec, RetentionSpec
from gateway.core.specs.telemetry import ExporterSpec, TelemetrySpec, TracesSpec

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
