"""Settings of how engines come and go: started and stopped by demand, replaced, copied by load, behind a name, on machines that join."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.core.secret import Secret
from gateway.core.specs.base import Name, Natural, Seconds, Spec, Timeout

Replicas = Annotated[int, Meta(ge=1, le=64)]


class ScaleSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many replicas of an engine there are to be, by its load. target, target_kv: shares of slots and of KV memory in use to aim at.
    max_wait: for how long a queue may stand before one more is wanted. stabilization: for how long fewer must have been enough before
    one is taken away. devices: those of the copies, in turn; empty: the engine's own."""

    min: Replicas = 1
    max: Replicas = 1
    target: Annotated[float, Meta(gt=0, le=1)] = 0.8
    target_kv: Annotated[float, Meta(gt=0, le=1)] = 0.9
    max_wait: Timeout = 2.0
    stabilization: Seconds = 300.0
    devices: tuple[Annotated[str, Meta(pattern=r"^(cpu|metal|(cuda|rocm|vulkan):\d+(,\d+)*)$")], ...] = ()


class DnsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which records of the host name in `url` name the engine's addresses, and how they are followed. servers: whom to ask, ADDRESS:PORT;
    empty: those of the machine. min_ttl, max_ttl: bounds of the time between two questions. keep: for how long addresses stay in use that
    the name no longer has, or while it cannot be resolved. networks: where they may be; empty: anywhere but this machine and its links."""

    records: Literal["address", "srv"] = "address"
    servers: tuple[str, ...] = ()
    timeout: Timeout = 2.0
    min_ttl: Timeout = 5.0
    max_ttl: Timeout = 60.0
    keep: Seconds = 300.0
    max_addresses: Annotated[int, Meta(ge=1, le=1024)] = 64
    networks: tuple[str, ...] = ()


class PlaceSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the gateway has joined machines start where they have room for it. model: of the gateway's model files, by its name; they are
    sent there. device: `cpu`, `cuda` (any one GPU) or GPUs by number. copies: machines that are to run it at once. The rest: as of any
    engine."""

    runtime: Literal["llama.cpp", "onnx"]
    model: Annotated[str, Meta(min_length=1, max_length=255)]
    device: Annotated[str, Meta(pattern=r"^(cpu|cuda|cuda:\d{1,2}(,\d{1,2}){0,15})$")] = "cpu"
    fallback: Literal["cpu"] | None = None
    copies: Annotated[int, Meta(ge=1, le=64)] = 1
    slots: Annotated[int, Meta(ge=1, le=1024)] | None = None
    context: Annotated[int, Meta(ge=64, le=4 * 1024 * 1024)] = 2048
    queue: Annotated[int, Meta(ge=0, le=10000)] = 64
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    options: dict[str, Any] = {}


class JoinedSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An engine that joined machines bring, each an endpoint of its own. machines: patterns of the names of those that may. networks: where
    they may be; empty: anywhere but this machine and its links. place: what some of them are to start for it; None: they start it
    themselves."""

    machines: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9*-]{1,63}$")], ...] = ("*",)
    networks: tuple[str, ...] = ()
    place: PlaceSpec | None = None


class MachinesSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Machines that join. lease: for how long one counts as there after it was heard. reassign: for how long its lease may be over before
    the engines that were placed there are placed elsewhere. failing: for how long a placed engine may fail at a machine that is heard
    before it is started elsewhere; 0: it stays."""

    lease: Timeout = 1.5
    reassign: Seconds = 5.0
    failing: Seconds = 30.0


class ModelStoreSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An S3-compatible store of model files. endpoint: its URL; without one, AWS's. access_key, secret_key: without them, those that boto3
    finds (environment, profile, the machine's role). timeout: of one request, while nothing arrives."""

    bucket: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    prefix: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]*/)*$", max_length=128)] = ""
    endpoint: str | None = None
    region: str | None = None
    access_key: Secret | None = None
    secret_key: Secret | None = None
    timeout: Timeout = 30.0


class ModelSharingSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Model files that replicas on one store share. listen: where the others fetch them from this one, by TLS among replicas; without it
    and without `store` this one takes no part. address: how the others reach it; None: `listen`, with the host's name where that is every
    address. fetch: those that an engine needs, or all. parallel: models that are fetched at once. store: where they are put, too.
    directory: nothing is fetched, the registry is this directory, which all of them mount."""

    listen: Annotated[str, Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):\d{1,5}$")] | None = None
    address: Annotated[str, Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):\d{1,5}$", max_length=255)] | None = None
    fetch: Literal["needed", "all"] = "needed"
    parallel: Annotated[int, Meta(ge=1, le=16)] = 2
    store: ModelStoreSpec | None = None
    directory: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


class ModelSignaturesSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose signatures models carry (OpenSSF Model Signing). keys: files with the signers' public keys, PEM, relative to the
    configuration's folder; where there are any, a signature that a model has must be of one of them. required: models without one are
    refused, too."""

    keys: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...], Meta(max_length=16)] = ()
    required: bool = False


class TicketsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Direct tickets (`/v1/tickets`). models: patterns. expiry: from when on a ticket that was not used is not good. run: that its request
    may take. grace: for which a receipt is waited for then. max_tokens: that one may generate. max_open: of one tenant in one process."""

    enabled: bool = False
    models: tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...] = ("*",)
    expiry: Timeout = 30.0
    run: Timeout = 600.0
    grace: Timeout = 5.0
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 4096
    max_open: Annotated[int, Meta(ge=1, le=100_000)] = 64


class RolloutSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How an engine's traffic moves from its old process to its new one: in these shares, each for `step_seconds`."""

    steps: tuple[Annotated[float, Meta(gt=0, lt=1)], ...] = (0.1, 0.5)
    step_seconds: Seconds = 2.0
    max_failures: Natural = 2
    stop_first: bool = False


class LifecycleSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a sidecar runs: from the start or the first request, and until when. group: one engine of a group is loaded at a time."""

    load: Literal["eager", "lazy"] = "eager"
    idle_ttl: Seconds = 0.0
    pinned: bool = False
    group: Name | None = None
