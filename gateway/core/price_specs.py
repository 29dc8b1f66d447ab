"""Settings of prices. They are exact decimals as written; policies.prices makes whole numbers of them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.core.spec import Name, Spec

Sum = Annotated[float, Meta(ge=0, le=1e6)]
"""An amount of money, with at most 15 significant digits, which is what a number of JSON and YAML keeps exactly."""
Currency = Annotated[str, Meta(pattern=r"^[A-Za-z]{3}$")]
Moment = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2}))?$")]
"""A day (its first second, UTC), or an RFC 3339 time."""


class PriceSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the models that match cost from `since` on and before `until`. All but `request` are for `per` tokens.

    cached, image, audio: prompt tokens of these kinds, priced as `prompt` where absent; reasoning, audio_completion: generated ones, as
    `completion`. request: for each request. reference: where the figures come from.
    """

    name: Name | None = None
    model: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:/*-]{1,128}$")]
    prompt: Sum | None = None
    completion: Sum | None = None
    cached: Sum | None = None
    reasoning: Sum | None = None
    image: Sum | None = None
    audio: Sum | None = None
    audio_completion: Sum | None = None
    request: Sum | None = None
    per: Literal["1", "1K", "1M"] = "1M"
    currency: Currency = "usd"
    since: Moment | None = field(default=None, name="from")
    until: Moment | None = None
    reference: Annotated[str, Meta(max_length=512)] = ""


class CostCentreSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who pays for the requests of these tenants, keys and users; patterns with `*`."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    tenant: str = "*"
    key: str = "*"
    user: str = "*"


class UsageSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What callers are told of what their requests cost, and who pays: the first cost centre that matches, else the tenant's own."""

    cost_header: bool = False
    cost_centres: tuple[CostCentreSpec, ...] = ()
