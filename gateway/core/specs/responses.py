"""Settings of the answers of `/v1/responses` that are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.specs.base import Spec, Timeout


class ResponsesSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers of `/v1/responses` that are kept. retention: seconds for which one is. max_bytes: of one, with the conversation that led to
    it; max_total_bytes: of all of a tenant. scope: who may go on with one: only the caller that it was given to, or the whole tenant."""

    scope: Literal["caller", "tenant"] = "caller"
    retention: Timeout = 30 * 86400.0
    max_bytes: Annotated[int, Meta(ge=1024, le=32 * 1024 * 1024)] = 4 * 1024 * 1024
    max_total_bytes: Annotated[int, Meta(ge=1024, le=1 << 40)] = 1024 * 1024 * 1024
