"""A limit limits something, and lets something pass."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.config.limit_rules import check_limit
from gateway.core.errors import ConfigError
from gateway.core.specs import LimitSpec


def problem(**limit: Any) -> str:
    spec = msgspec.convert({"name": "a", **limit}, LimitSpec)
    try:
        check_limit(spec, "limits[0]", lambda path, message: ConfigError(message, path=path))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({}, "limits[0]: limits nothing"),
        ({"requests": {"rate": 0.5}}, "limits[0].requests: allows 0.5 requests at once"),
        ({"budget": {"amount": 0.5}}, "limits[0].budget.amount: allows 0.5 tokens"),
        ({"budget": {"amount": 2e9, "unit": "usd"}}, "limits[0].budget.amount: is more than 1000000000 usd"),
        ({"budget": {"amount": 5, "timezone": "Europe/Nowhere"}}, "there is no time zone 'Europe/Nowhere'"),
        ({"budget": {"amount": 5, "timezone": "../x"}}, "there is no time zone"),
        ({"budget": {"amount": 5, "window": {"rolling": 3600}, "timezone": "Europe/Berlin"}}, "a rolling one begins at no certain time"),
        ({"session": {"calls": 5}}, "limits[0].session: bounds single sessions, but 'per' is key"),
        (
            {"requests": {"rate": 1}, "concurrent": 1, "precision": "leased"},
            "limits[0].precision: leased is for rates, and this limit has 'concurrent'",
        ),
        ({"requests": {"rate": 1}, "queued": 1, "precision": "leased"}, "this limit has 'queued', which is always exact"),
        ({"budget": {"amount": 5}, "precision": "leased"}, "this limit has 'budget', which is always exact"),
        ({"session": {}, "per": "session"}, "limits[0].session: bounds nothing"),
        ({"concurrent": 1, "weights": {"prompt": 0, "completion": 0}}, "limits[0].weights: makes every token count nothing"),
    ],
)
def test_what_is_refused(limit: dict[str, Any], message: str) -> None:
    assert message in problem(**limit)


@pytest.mark.parametrize(
    "limit",
    [
        {"requests": {"rate": 1}},
        {"queued": 5, "per": "tenant"},
        {"requests": {"rate": 1}, "tokens": {"rate": 5, "burst": 10}, "precision": "leased"},
        {"concurrent": 1, "per": "user", "match": {"group": "x"}},
    ],
)
def test_what_is_fine(limit: dict[str, Any]) -> None:
    assert problem(**limit) == ""
