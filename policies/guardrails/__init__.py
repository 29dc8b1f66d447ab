"""The pure guardrails by type. To add one: a file here, a line in TYPES, a test file, a heading in docs/guardrails.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from gateway.core.errors import ConfigError
from gateway.core.ports import Guardrail
from gateway.core.specs import GuardrailSpec, Spec
from policies.guardrails import denylist

ReadText = Callable[[str], str]
"""Gives the text of a file named in the settings; raises OSError."""


class GuardrailType(NamedTuple):
    """`settings`: the schema of GuardrailSpec.settings. `build(name, settings, read)` makes the guardrail or raises ValueError."""

    settings: type[Spec]
    build: Callable[[str, Any, ReadText], Guardrail]


TYPES: Mapping[str, GuardrailType] = MappingProxyType(
    {
        "denylist": GuardrailType(denylist.DenyListSettings, denylist.build),
    }
)


def schemas() -> dict[str, type[Spec]]:
    """The settings of every type, for the configuration's loader."""
    return {name: kind.settings for name, kind in TYPES.items()}


def build(spec: GuardrailSpec, read: ReadText) -> Guardrail:
    """The guardrail that a specification describes. Raises ConfigError with one sentence."""
    kind = TYPES.get(spec.type)
    if kind is None:
        raise ConfigError(f"there is no guardrail '{spec.type}'; known: {', '.join(sorted(TYPES))}", path=f"guardrails ({spec.name})")
    try:
        return kind.build(spec.name, msgspec.convert(spec.settings, kind.settings), read)
    except (OSError, ValueError) as error:
        reason = f"cannot read {error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        if isinstance(error, msgspec.ValidationError):
            reason += f"; known settings: {', '.join(kind.settings.__struct_fields__)}"
        raise ConfigError(reason, path=f"guardrails ({spec.name})") from None
