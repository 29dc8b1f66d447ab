"""Settings of engines, and what a sidecar is told. gateway.core.specs exports them with all others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from gateway.core.secret import Secret
from gateway.core.specs.base import (
    ClientTlsSpec,
    EngineName,
    Name,
    Positive,
    Seconds,
    Spec,
    Timeout,
)
from gateway.core.specs.fleet import DnsSpec, JoinedSpec, LifecycleSpec, RolloutSpec, ScaleSpec
from gateway.core.specs.prices import EngineCostSpec

DEFAULT_SLOTS = 8
"""Requests that run at once in a sidecar if neither the configuration nor the sidecar says."""
EXTERNAL_SLOTS = 256
"""Requests that run at once in an external engine, which batches and queues by itself, if neither the configuration nor the engine says."""


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
