"""Who made a batch: what makes them another caller."""

from __future__ import annotations

from gateway.app.batch_creators import COMPARED
from gateway.core.types import Principal

DERIVED = {"recorded", "key_salt", "tenant_salt", "login"}
"""Kept beside the rest, or told again by each login."""


def test_every_right_of_a_caller_is_compared() -> None:
    assert set(COMPARED) | DERIVED == set(Principal.__slots__) and not set(COMPARED) & DERIVED
