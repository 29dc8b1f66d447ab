"""Engines of the store: settings that may be set remotely, with sealed secrets and the engine's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from admin.moments import Timestamp
from admin.operation import Call
from admin.permissions import FIELDS
from admin.resources.engines import EngineView, engine_view
from admin.resources.stored_fleet import FleetCollection, unused
from gateway.core.errors import ConfigError, RequestError
from gateway.core.secret import Secret
from gateway.core.specs import EngineSpec
from gateway.core.storage import engine_secret

UPSTREAM: Final = ("url", "api_key", "headers", "tls", "dns", "joined")
SecretText = Annotated[str, Meta(min_length=1, max_length=8192)]


class EngineTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """TLS towards an external engine. Certificates are files of the machine: they belong in the configuration file."""

    server_name: str | None = None


_OTHER: Final[dict[str, Any]] = {"api_key": SecretText | None, "tls": EngineTls | None, "headers": dict[str, SecretText]}
"""Settings whose type differs from the configuration file's."""


def _field(known: msgspec.structs.FieldInfo) -> Any:
    kind = _OTHER.get(known.name, known.type)
    if known.required:
        return (known.name, kind)
    if known.default is not msgspec.NODEFAULT:
        return (known.name, kind, msgspec.field(default=known.default))
    return (known.name, kind, msgspec.field(default_factory=known.default_factory))


EngineSettings = msgspec.defstruct(
    "EngineSettings",
    [_field(known) for known in msgspec.structs.fields(EngineSpec)],
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    module=__name__,
)
"""EngineSpec as the admin API takes it: all settings, secrets as texts."""
_DESTINATION: Final = "url, dns.servers, dns.records or tls.server_name"


class StoredEngineView(EngineView, kw_only=True):
    """An engine with its settings and its state."""

    settings: dict[str, Any]
    in_force: bool
    failed: bool
    revision: int | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    updated_by: str | None = None


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    engines: list[dict[str, Any]] = config["engines"]
    return engines


def keep(call: Call, body: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """The body with its secrets sealed for this engine at this address. An unchanged secret stays as stored."""
    was, kept = before or {}, dict(body)
    if isinstance(kept.get("api_key"), str):
        kept["api_key"] = _sealed(call, body, was, "api_key", kept["api_key"], was.get("api_key"))
    old = was.get("headers") or {}
    kept["headers"] = {name: _sealed(call, body, was, f"headers.{name}", text, old.get(name)) for name, text in kept["headers"].items()}
    for field in UPSTREAM:
        if kept.get(field) != was.get(field) and (kept.get(field) or was.get(field)):
            call.require(FIELDS["engines", field])
    return kept


def _sealed(call: Call, body: dict[str, Any], was: dict[str, Any], field: str, text: str, before: str | None) -> str:
    if "${" in text:  # a reference, which is checked where it is read, and is no secret: whoever may name one may name it anywhere
        return text
    if text == before:  # a patch that does not name it
        if _destination(body) != _destination(was):
            raise RequestError(f"This secret belongs to the old {_DESTINATION}: send it again, or null to remove it.", param=field)
        return text
    purpose = engine_secret(str(body["name"]), body.get("url"), field)
    if before is not None and body.get("url") == was.get("url"):
        try:
            if call.store.unseal(before, purpose) == Secret(text):
                return before
        except ConfigError:
            pass  # it was a reference, or cannot be opened any more
    return call.store.seal(Secret(text), purpose)


def _destination(body: dict[str, Any]) -> tuple[Any, ...]:
    """What decides who gets a secret: where the engine is, whom that is asked of, and whose certificate is trusted. Whoever could change
    it and keep the secret could have it sent to themselves."""
    dns, tls = body.get("dns") or {}, body.get("tls") or {}
    return body.get("url"), tuple(dns.get("servers") or ()), dns.get("records") or "address", tls.get("server_name")


async def check(call: Call, settings: Any, before: dict[str, Any] | None) -> None:
    if before is not None and (settings.runtime == "external") != (before["runtime"] == "external"):
        raise RequestError(
            "An engine does not change between external and a sidecar: make another one, then change the pools.", param="runtime"
        )


def hidden(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """Shows the address only to callers who may read addresses."""
    return body if call.access.may(FIELDS["endpoints", "address"]) else {**body, "url": None}


def members(model: dict[str, Any]) -> list[str]:
    """The engines of a model's pool."""
    return [member if isinstance(member, str) else str(member["engine"]) for member in model["pool"]]


ENGINES: FleetCollection[Any] = FleetCollection(
    "engines",
    "engine",
    EngineSettings,
    in_file,
    lambda body: "",
    check,
    unused("models", "engine", members),
    running=lambda call, names: [engine_view(engine) for engine in call.ports.fleet.engines(names)],
    shown=StoredEngineView,
    blank=lambda settings: {"runtime": settings["runtime"], "state": "unknown"},
    keep=keep,
    secrets=("api_key", "headers"),
    hidden=hidden,
)


def operations() -> list[Any]:
    return ENGINES.operations()
