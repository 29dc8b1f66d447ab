"""Settings of guardrails and data labels (docs/guardrails.md, docs/labels.md). gateway.core.specs exports them with all others."""

from __future__ import annotations

from typing import Any, Literal

from gateway.core.specs.base import Name, Spec, Timeout


class GuardrailSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """type: a file of policies/guardrails or gateway/guardrails. tenants, roles: of the callers whose requests it reads. mode: `monitor`
    counts and records, and does nothing. budget: seconds that one request, answer or piece of a stream may take; more is a failure. label:
    what the action `label` gives to a request."""

    name: Name
    type: str
    on: tuple[Literal["request", "response"], ...] = ("request", "response")
    models: tuple[str, ...] = ("*",)
    tenants: tuple[str, ...] = ("*",)
    roles: tuple[str, ...] = ("*",)
    mode: Literal["enforce", "monitor"] = "enforce"
    budget: Timeout = 30.0
    fail_mode: Literal["closed", "open"] = "closed"
    label: Name | None = None
    settings: dict[str, Any] = {}


class LabelSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One label. Requests of these tenants, and to these models, always have it; patterns with `*`."""

    tenants: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
