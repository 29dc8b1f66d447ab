"""Settings of prices. They are exact decimals as written; policies.prices makes whole numbers of them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.core.specs.base import Name, Seconds, Spec

Sum = Annotated[float, Meta(ge=0, le=1e6)]
"""An amount of money, with at most 15 significant digits, which is what a number of JSON and YAML keeps exactly."""
Currency = Annotated[str, Meta(pattern=r"^[A-Za-z]{3}$")]
Moment = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2}))?$")]
"""A day (its first second, UTC), or an RFC 3339 time."""


class PriceSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the models that match cost from `since` on and before `until`. All but `request` are for `per` tokens.

    table: instead of rates, those of the public table that Gatehouse brings (policies.public_prices). listed_as: the model's name there,
    its own where absent.
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
    table: Literal["public"] | None = None
    listed_as: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class EngineCostSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an engine of one's own costs: `rate` for each hour of each of its `devices`, shared by its slots.

    prefill, decode: rates for the time until the first event of a stream and after it, `rate` where absent. slots: by how many the devices
    are shared, where that is not the engine's own number.
    """

    rate: Sum
    devices: Annotated[int, Meta(ge=1, le=1024)] = 1
    currency: Currency = "usd"
    prefill: Sum | None = None
    decode: Sum | None = None
    slots: Annotated[int, Meta(ge=1, le=65536)] | None = None


class CostCentreSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who pays for the requests of these tenants, keys and users; patterns with `*`."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    tenant: str = "*"
    key: str = "*"
    user: str = "*"


class SessionsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is remembered of sessions: for so long, and never of more than `most`, the last ones; 0: nothing."""

    keep: Seconds = 7 * 86400.0
    most: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000


class UsageSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What callers are told of what their requests cost, and who pays: the first cost centre that matches, else the tenant's own."""

    cost_header: bool = False
    cost_centres: tuple[CostCentreSpec, ...] = ()
    sessions: SessionsSpec = SessionsSpec()
