"""A configuration on its way to a worker, in parts that are read one by one: a thousand engines at once would hold the loop."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from gateway.app.workers.codec import revealed
from gateway.core.secret import secret_hook
from gateway.core.slices import Steps
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, GuardrailSpec, HookSpec, LimitSpec, ModelSpec, PriceSpec

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
"""Members that are encoded between two pauses."""


class Settings(Struct, frozen=True):
    """rest: the configuration with those lists empty. parts: their members, encoded."""

    rest: ConfigSpec
    parts: dict[str, list[Raw]]


def packed(spec: ConfigSpec) -> Steps[Settings]:
    """In steps. Raises TypeError, OverflowError or NotImplementedError for what cannot be encoded."""
    encoder = msgspec.msgpack.Encoder(enc_hook=revealed)
    parts: dict[str, list[Raw]] = {}
    for name in PARTS:
        members = parts[name] = []
        for number, member in enumerate(getattr(spec, name), 1):
            members.append(Raw(encoder.encode(member)))
            if number % AT_ONCE == 0:
                yield
    empty: dict[str, Any] = dict.fromkeys(PARTS, ())
    return Settings(msgspec.structs.replace(spec, **empty), parts)


def unpacked(settings: Settings, before: ConfigSpec | None = None) -> Steps[ConfigSpec]:
    """The configuration, a member a step. before: the one in force, of which members that are the same stay the same objects, so that what
    is built from them sees by identity that they have not changed. Raises msgspec.MsgspecError."""
    lists: dict[str, Any] = {}
    for name, kind in PARTS.items():
        decoder = msgspec.msgpack.Decoder(kind, dec_hook=secret_hook)
        known = {one.name: one for one in getattr(before, name, ())}
        members = []
        for encoded in settings.parts.get(name, ()):
            member = decoder.decode(encoded)
            same = known.get(member.name)
            members.append(same if same == member else member)
            yield
        lists[name] = tuple(members)
    return msgspec.structs.replace(settings.rest, **lists)
