"""Types of the operations below /prices. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from gatehouse.client.types.model_copies import ResourceChange


class ModelPrice(TypedDict):
    """What a model costs now: decimal numbers for a million tokens, `request` for each request. basis: `tokens`; or `device_time`, where
    the time counts for which a request holds a slot of its engine, and there are no rates by tokens. version: as audit records name it.
    """

    model: str
    currency: str
    basis: str
    version: str
    prompt: NotRequired[str | None]
    completion: NotRequired[str | None]
    cached: NotRequired[str | None]
    reasoning: NotRequired[str | None]
    image: NotRequired[str | None]
    audio: NotRequired[str | None]
    audio_completion: NotRequired[str | None]
    request: NotRequired[str | None]


class ModelPrices(TypedDict):
    items: list[ModelPrice]


class PriceDryRun(TypedDict):
    dry_run: bool
    diff: list[ResourceChange]
    result: PriceView


class PricePage(TypedDict):
    items: list[PriceView]
    cursor: str | None


PricePatch = TypedDict(
    "PricePatch",
    {
        "name": "NotRequired[str]",
        "model": "NotRequired[str]",
        "prompt": "NotRequired[float | None]",
        "completion": "NotRequired[float | None]",
        "cached": "NotRequired[float | None]",
        "reasoning": "NotRequired[float | None]",
        "image": "NotRequired[float | None]",
        "audio": "NotRequired[float | None]",
        "audio_completion": "NotRequired[float | None]",
        "request": "NotRequired[float | None]",
        "per": 'NotRequired[Literal["1", "1K", "1M"] | None]',
        "currency": "NotRequired[str | None]",
        "from": "NotRequired[str | None]",
        "until": "NotRequired[str | None]",
        "reference": "NotRequired[str | None]",
        "table": 'NotRequired[Literal["public"] | None]',
        "listed_as": "NotRequired[str | None]",
    },
)


PriceSettings = TypedDict(
    "PriceSettings",
    {
        "name": "str",
        "model": "str",
        "prompt": "NotRequired[float | None]",
        "completion": "NotRequired[float | None]",
        "cached": "NotRequired[float | None]",
        "reasoning": "NotRequired[float | None]",
        "image": "NotRequired[float | None]",
        "audio": "NotRequired[float | None]",
        "audio_completion": "NotRequired[float | None]",
        "request": "NotRequired[float | None]",
        "per": 'NotRequired[Literal["1", "1K", "1M"]]',
        "currency": "NotRequired[str]",
        "from": "NotRequired[str | None]",
        "until": "NotRequired[str | None]",
        "reference": "NotRequired[str]",
        "table": 'NotRequired[Literal["public"] | None]',
        "listed_as": "NotRequired[str | None]",
    },
)
"""A price of the store has a name."""


PriceView = TypedDict(
    "PriceView",
    {
        "source": 'Literal["file", "store"]',
        "version": "NotRequired[int | None]",
        "created_at": "NotRequired[str | None]",
        "updated_at": "NotRequired[str | None]",
        "updated_by": "NotRequired[str | None]",
        "name": "str",
        "model": "str",
        "prompt": "NotRequired[float | None]",
        "completion": "NotRequired[float | None]",
        "cached": "NotRequired[float | None]",
        "reasoning": "NotRequired[float | None]",
        "image": "NotRequired[float | None]",
        "audio": "NotRequired[float | None]",
        "audio_completion": "NotRequired[float | None]",
        "request": "NotRequired[float | None]",
        "per": 'NotRequired[Literal["1", "1K", "1M"] | None]',
        "currency": "NotRequired[str | None]",
        "from": "NotRequired[str | None]",
        "until": "NotRequired[str | None]",
        "reference": "NotRequired[str | None]",
        "table": 'NotRequired[Literal["public"] | None]',
        "listed_as": "NotRequired[str | None]",
    },
)
