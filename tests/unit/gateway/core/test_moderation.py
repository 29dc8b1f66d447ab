"""Which guardrail answers a request for moderation."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.errors import RequestError
from gateway.core.moderation import Moderations


class Judge:
    def __init__(self, name: str, model: str) -> None:
        self.name, self.model = name, model

    def moderate(self, texts: Any, principal: Any, seconds: float) -> Any:
        raise AssertionError


ONE, TWO = Judge("one", "m1"), Judge("two", "m2")


def test_a_model_of_a_guardrail_and_the_names_of_the_default() -> None:
    found = Moderations(ONE, {"m2": TWO}, ["omni-moderation-latest"], ["theirs"])
    assert found.model("m2", True) == "m2" and found.of("m2") is TWO and found.of("m1") is ONE
    assert found.model("omni-moderation-latest", False) == "m1"
    assert found.model("theirs", True) == "theirs" and found.of("theirs") is None
    assert found.model("nothing", False) == "nothing"
    with pytest.raises(RequestError) as wrong:
        found.model("chat", True)
    assert wrong.value.code == "unsupported_operation"


def test_a_model_of_the_gateway_wins_over_a_name_of_openai() -> None:
    found = Moderations(ONE, {}, ["omni-moderation-latest"], ["omni-moderation-latest"])
    assert found.model("omni-moderation-latest", True) == "omni-moderation-latest"


def test_without_a_guardrail_it_says_what_is_missing() -> None:
    with pytest.raises(RequestError, match=r"moderation\.guardrail") as missing:
        Moderations(names=["omni-moderation-latest"]).model("omni-moderation-latest", False)
    assert (missing.value.status, missing.value.code) == (404, "moderation_not_configured")
