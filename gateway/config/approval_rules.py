"""Checks of the settings of approvals, beyond their types."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.url_rules import check_url
from gateway.core.errors import ConfigError
from gateway.core.specs.approvals import ApprovalsSpec

ErrorAt = Callable[[str, str], ConfigError]
"""(path, message) -> the error with its file and line."""


def check(spec: ApprovalsSpec, error: ErrorAt, shortest: int) -> None:
    """shortest: characters of a secret. Raises ConfigError."""
    webhook, path = spec.webhook, "approvals.webhook"
    if webhook is not None:
        check_url(webhook.url, f"{path}.url", error, "deliveries are signed with secret")
        if len(webhook.secret) < shortest:
            raise error(f"{path}.secret", f"must have {shortest} characters or more")
    if spec.max_bytes > spec.max_total_bytes:
        raise error("approvals.max_bytes", "is more than approvals.max_total_bytes, so nothing of that size could be kept")
