"""Durations as they are shown: the texts of the configuration, which read back as the same seconds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.durations import shown
from gateway.core.specs import EngineSpec, LimitSpec, ModelSpec, RateSpec, TimeoutsSpec
from gateway.core.units import duration, written


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (1e-6, "1us"), (0.0005, "500us"), (0.05, "50ms"), (1, "1s"), (1.5, "1.5s"), (10, "10s"), (90, "1m30s"), (3600, "1h"),
        (61.25, "1m1.25s"), (86400, "24h"), (90000, "1d1h"), (604800, "7d"), (31622400, "366d"),
    ],
)  # fmt: skip
def test_a_duration_is_written_as_people_write_it(seconds: float, text: str) -> None:
    assert (written(seconds), duration(text)) == (text, seconds)


@given(st.integers(0, 40_000_000_000_000))
def test_every_duration_reads_back_as_the_same(microseconds: int) -> None:
    assert round((duration(written(microseconds / 1_000_000)) or 0.0) * 1_000_000) == microseconds


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TimeoutsSpec(total=90.0), {"connect": "2s", "total": "1m30s"}),
        (LimitSpec(name="x", requests=RateSpec(rate=5, per=60)), {"per": "key", "requests": {"rate": 5, "per": "1m", "burst": None}}),
    ],
)
def test_only_durations_become_texts(spec: Any, expected: dict[str, Any]) -> None:
    plain = msgspec.to_builtins(spec)
    found = shown(plain, type(spec))
    assert {name: found[name] for name in expected} == expected
    assert plain == msgspec.to_builtins(spec)  # a copy
    assert shown(None, type(spec)) is None


def test_durations_are_found_at_every_depth() -> None:
    engine = msgspec.to_builtins(EngineSpec(name="e", runtime="external", url="http://h:1"))
    found = shown(engine, EngineSpec)
    assert found["timeouts"]["connect"] == "2s" and found["slots"] == engine["slots"] and found["options"] == engine["options"]
    model = shown(msgspec.to_builtins(ModelSpec(name="m", pool=("e",))), ModelSpec)
    assert isinstance(model["routing"]["queue"]["timeout"], str) and isinstance(model["routing"]["breaker"]["open_for"], str)
