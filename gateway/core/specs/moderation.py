"""Settings of /v1/moderations."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.core.specs.base import Spec


class ModerationSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """guardrail: the name of the one that answers requests that name no model of this gateway. names: what they may name instead; a request
    without a model names the first of OpenAI's."""

    guardrail: str | None = None
    names: tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...] = (
        "omni-moderation-latest",
        "omni-moderation-2024-09-26",
        "text-moderation-latest",
        "text-moderation-stable",
    )
