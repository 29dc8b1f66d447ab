"""Settings of approvals."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec, Spec, Timeout


class ApprovalWebhookSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server that is told of approvals and may send decisions back. secret: both sides sign with it. timeout: for one delivery."""

    url: Annotated[str, Meta(min_length=1)]
    secret: Secret
    timeout: Timeout = 5.0
    tls: ClientTlsSpec | None = None


class ApprovalsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers that are kept until somebody decides. max_bytes: of one; max_total_bytes: of all. max_pending: of one caller at a time.
    keep: how long a decided or expired one is remembered, without what it held. separation: who is not the requester: only another `person`
    (a key without a user may not decide for another key of its tenant without one), or any other `credential`.
    webhook: told of each."""

    max_bytes: Annotated[int, Meta(ge=1024, le=16 * 1024 * 1024)] = 1024 * 1024
    max_total_bytes: Annotated[int, Meta(ge=1024, le=1 << 40)] = 256 * 1024 * 1024
    max_pending: Annotated[int, Meta(ge=1, le=10_000)] = 100
    keep: Timeout = 30 * 86400.0
    separation: Literal["credential", "person"] = "person"
    webhook: ApprovalWebhookSpec | None = None
