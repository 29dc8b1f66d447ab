"""What is said about a resource before it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.app.configuration.resource_check import ResourceCheck
from gateway.core.errors import ConfigError


class Nothing:
    additions: Any = None


@pytest.fixture
def check() -> ResourceCheck:
    nothing: Any = Nothing()
    return ResourceCheck(nothing, nothing, nothing, OURS)


def guardrail(**settings: Any) -> dict[str, Any]:
    return {"name": "g", "type": "classifier", "on": ["request"], "settings": {"model": "m", **settings}}


async def test_a_guardrail_that_asks_a_model_can_be_stored(check: ResourceCheck) -> None:
    await check("guardrails", guardrail(labels={"injection": 0.9}))


async def test_one_with_wrong_settings_cannot(check: ResourceCheck) -> None:
    with pytest.raises(ConfigError, match="labels"):
        await check("guardrails", guardrail(labels={}))
