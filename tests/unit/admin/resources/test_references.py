"""Secrets in a file: masked, shown where they are references, and the mask read back as what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from admin.resources.references import holds_mask, masked, restored
from gateway.core.errors import RequestError
from gateway.core.secret import MASK

STORED = {
    "name": "e",
    "api_key": "${env:GATEHOUSE_SECRET_A}",
    "headers": {"authorization": "Bearer ${env:GATEHOUSE_SECRET_B}", "x-key": "sealed", "x-mixed": "tenant-7 ${env:GATEHOUSE_SECRET_B}"},
    "settings": {"sinks": [{"host": "a", "token": "one"}, {"host": "b", "token": "two"}], "max_tokens": 5},
}


def test_references_are_shown_and_all_else_is_masked() -> None:
    shown = masked(STORED)
    assert shown["api_key"] == STORED["api_key"] and shown["settings"]["max_tokens"] == 5
    assert shown["headers"] == {"authorization": "Bearer ${env:GATEHOUSE_SECRET_B}", "x-key": MASK, "x-mixed": MASK}
    assert [one["token"] for one in shown["settings"]["sinks"]] == [MASK, MASK]
    assert holds_mask(shown) and not holds_mask(STORED)
    assert restored(shown, STORED) == STORED


def test_members_of_a_list_keep_their_own_secrets_wherever_they_move() -> None:
    shown = masked(STORED)
    shown["settings"]["sinks"].reverse()
    assert restored(shown, STORED)["settings"]["sinks"] == STORED["settings"]["sinks"][::-1]  # type: ignore[index]
    shown["settings"]["sinks"][0]["host"] = "elsewhere"
    with pytest.raises(RequestError) as caught:
        restored(shown, STORED)
    assert caught.value.param == "settings.sinks[0]"


def test_a_login_in_an_address_is_masked_and_comes_back_with_its_own_address_only() -> None:
    stored = {"settings": {"url": "https://gate:hunter2@scan.example/v1"}}
    shown = masked(stored)
    assert shown == {"settings": {"url": "https://gate:********@scan.example/v1"}} and holds_mask(shown)
    assert restored(shown, stored) == stored
    with pytest.raises(RequestError):
        restored({"settings": {"url": "https://gate:********@elsewhere.example/v1"}}, stored)


@pytest.mark.parametrize("stored", [{}, {"api_key": None}, {"api_key": ""}, {"api_key": {"a": 1}}])
def test_a_mask_of_nothing_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        restored({"api_key": MASK}, stored)
    assert caught.value.param == "api_key"
