"""Types of the operations below /status. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class BreakerView(TypedDict):
    state: str
    forced: NotRequired[str | None]
    failures: NotRequired[int]
    openings: NotRequired[int]


class ConfigState(TypedDict):
    """source: where the configuration in force came from: its file, the store, an administrator. refused: why the newest change was not
    put into force (null: it was). until_restart: it was applied as a text that the file does not have.
    """

    source: str
    applied_at: str
    refused: NotRequired[str | None]
    refused_at: NotRequired[str | None]
    refused_source: NotRequired[str | None]
    until_restart: NotRequired[bool]


class EndpointView(TypedDict):
    """limit: requests that it takes now. address: only for callers who may read it. shift: the share on its engine's new process."""

    name: str
    engine: str
    runtime: str
    state: str
    reason: str
    slots: int
    limit: int
    in_flight: int
    drained: bool
    healthy: bool
    breaker: BreakerView
    address: NotRequired[str | None]
    health: NotRequired[dict[str, Any]]
    shift: NotRequired[float | None]


class ModelView(TypedDict):
    """pool: its engines, with the version in force, the state of the endpoint and the rollout that is under way (its version, share and
    step). queued: requests that wait for a slot. source: where it is defined.
    """

    name: str
    source: str
    ready: bool
    pool: list[dict[str, Any]]
    aliases: NotRequired[list[str]]
    fallbacks: NotRequired[list[str]]
    queued: NotRequired[int]


class Status(TypedDict):
    """replica: the id of the one that answers. config_version: of the configuration in force. config: only for who may read it.
    in_flight: requests under way. not_ready: what keeps traffic out. compiled: whether the hot path runs as machine code. troubles: what
    else is wrong; none while all is well.
    """

    version: str
    replica: str
    started_at: str
    config_version: int
    ready: bool
    not_ready: list[str]
    in_flight: int
    gateway_url: str
    store: str
    models: list[ModelView]
    endpoints: list[EndpointView]
    limits: list[dict[str, Any]]
    config: NotRequired[ConfigState | None]
    insecure: NotRequired[bool]
    compiled: NotRequired[bool]
    troubles: NotRequired[list[Trouble]]


class Trouble(TypedDict):
    """about: redis, audit_log, audit_sink, audit_archive, audit_checkpoint_copies, master_key, certificate, revocation_list or
    guardrail. name: which of them; "" where there is one. reason: what is wrong; null without config:read.
    """

    about: str
    name: str
    reason: NotRequired[str | None]
