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


class Settings(Struct, frozen=True):
    """rest: the configuration with those lists empty. parts: their members, encoded."""

    rest: ConfigSpec
    parts: dict[str, list[Raw]]


def packed(spec: ConfigSpec) -> Settings:
    """Raises TypeError, OverflowError or NotImplementedError for what cannot be encoded."""
    encoder = msgspec.msgpack.Encoder(enc_hook=revealed)
    parts = {name: [Raw(encoder.encode(member)) for member in getattr(spec, name)] for name in PARTS}
    empty: dict[str, Any] = dict.fromkeys(PARTS, ())
    return Settings(msgspec.structs.replace(spec, **empty), parts)


def unpacked(settings: Settings) -> Steps[ConfigSpec]:
    """The configuration, a member a step. Raises msgspec.MsgspecError."""
    lists: dict[str, Any] = {}
    for name, kind in PARTS.items():
        decoder = msgspec.msgpack.Decoder(kind, dec_hook=secret_hook)
        members = []
        for encoded in settings.parts.get(name, ()):
            members.append(decoder.decode(encoded))
            yield
        lists[name] = tuple(members)
    return msgspec.structs.replace(settings.rest, **lists)
