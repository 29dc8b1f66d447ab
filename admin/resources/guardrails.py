"""Guardrails: what is inspected, on which models. Their own settings are checked by the guardrail itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from admin.operation import Call
from admin.resource import Collection
from gateway.core.specs import GuardrailSpec


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    guardrails: list[dict[str, Any]] = config["guardrails"]
    return guardrails


async def check(call: Call, settings: GuardrailSpec, before: dict[str, Any] | None) -> None:
    await call.ports.check("guardrails", msgspec.to_builtins(settings))


GUARDRAILS = Collection("guardrails", "guardrail", GuardrailSpec, in_file, lambda body: "", check)


def operations() -> list[Any]:
    return GUARDRAILS.operations()
