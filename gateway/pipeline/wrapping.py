"""An attempt around an attempt: what stands between an exchange and the attempt that routing gave it."""

from __future__ import annotations

from typing import Any

from gateway.core.ports import Attempt, AttemptResult


class WrappedAttempt:
    """An attempt (gateway.core.ports.Attempt) that says of its endpoint what another one says. client: its own way there."""

    __slots__ = (
        "_attempt",
        "apis",
        "client",
        "device",
        "endpoint_header",
        "endpoint_name",
        "first_byte_timeout",
        "idle_timeout",
        "request_headers",
        "salting",
        "total_timeout",
        "upstream_model",
    )

    def __init__(self, attempt: Attempt, client: Any) -> None:
        self._attempt = attempt
        self.client: Any = client
        self.endpoint_name, self.endpoint_header = attempt.endpoint_name, attempt.endpoint_header
        self.upstream_model, self.request_headers = attempt.upstream_model, attempt.request_headers
        self.first_byte_timeout, self.idle_timeout = attempt.first_byte_timeout, attempt.idle_timeout
        self.total_timeout = attempt.total_timeout
        self.salting, self.apis, self.device = attempt.salting, attempt.apis, attempt.device

    def answering(self) -> None:
        self._attempt.answering()

    def close(self, result: AttemptResult) -> None:
        self._attempt.close(result)
