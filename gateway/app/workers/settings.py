"""A configuration on its way to a worker, in parts that are read one by one: a thousand engines at once would hold the loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from gateway.app.workers.codec import revealed
from gateway.core.secret import secret_hook
from gateway.core.slices import Steps, portions
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, GuardrailSpec, HookSpec, LimitSpec, ModelSpec, PriceSpec, RoleSpec

PARTS: Final = MappingProxyType(
    {
        "engines": EngineSpec,
        "models": ModelSpec,
        "limits": LimitSpec,
        "prices": PriceSpec,
        "guardrails": GuardrailSpec,
        "hooks": HookSpec,
        "bindings": BindingSpec,
    }
)
"""The lists of a configuration, each with the type of its members."""
AT_ONCE: Final = 16
"""Members that are encoded between two pauses, and together."""


class Settings(Struct, frozen=True):
    """rest: the configuration with those lists, and the roles, empty. parts: their members, AT_ONCE of them encoded together, as the feed
    takes longer for a hundred thousand small parts than for what they hold. roles: the same of names and roles."""

    rest: ConfigSpec
    parts: dict[str, list[Raw]]
    roles: list[Raw]


def packed(spec: ConfigSpec) -> Steps[Settings]:
    """In steps. Raises TypeError, OverflowError or NotImplementedError for what cannot be encoded."""
    encoder = msgspec.msgpack.Encoder(enc_hook=revealed)
    parts: dict[str, list[Raw]] = {}
    for name in PARTS:
        parts[name] = yield from _together(getattr(spec, name), encoder)
    roles = yield from _together(spec.roles.items(), encoder)
    empty: dict[str, Any] = dict.fromkeys(PARTS, ())
    return Settings(msgspec.structs.replace(spec, **empty, roles={}), parts, roles)


def _together(members: Iterable[Any], encoder: msgspec.msgpack.Encoder) -> Steps[list[Raw]]:
    found: list[Raw] = []
    rest = iter(members)
    while some := list(islice(rest, AT_ONCE)):
        found.append(Raw(encoder.encode(some)))
        yield
    return found


def unpacked(settings: Settings, before: ConfigSpec | None = None) -> Steps[ConfigSpec]:
    """The configuration, a member a step. before: the one in force, of which members that are the same stay the same objects, so that what
    is built from them sees by identity that they have not changed. Raises msgspec.MsgspecError."""
    lists: dict[str, Any] = {}
    for name, kind in PARTS.items():
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[kind], dec_hook=secret_hook)  # type: ignore[valid-type]
        known = yield from _by_name(getattr(before, name, ()))
        members = []
        for encoded in settings.parts.get(name, ()):
            for member in decoder.decode(encoded):
                same = known.get(member.name)
                members.append(same if same == member else member)
                yield
        lists[name] = tuple(members)
    pairs = msgspec.msgpack.Decoder(list[tuple[str, RoleSpec]], dec_hook=secret_hook)
    roles: dict[str, RoleSpec] = {}
    there = {} if before is None else before.roles
    for encoded in settings.roles:
        for name, role in pairs.decode(encoded):
            known_role = there.get(name)
            roles[name] = known_role if known_role is not None and known_role == role else role
        yield
    return msgspec.structs.replace(settings.rest, **lists, roles=roles)


def _by_name(members: Sequence[Any]) -> Steps[dict[str, Any]]:
    known: dict[str, Any] = {}
    for some in portions(members):
        known.update([(one.name, one) for one in some])
        yield
    return known
