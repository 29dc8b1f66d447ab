"""Change under load: endpoints are drained, resumed and replaced while requests and streams go on, and nobody notices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.adminapi import admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, Gatehouse, configuration, external
from tests.e2e.resilience import Load, changed, changes, reload, uncut, with_operator
from tests.fakes.answers import Step
from tests.waiting import until

HEALTH = {"interval": 0.2, "timeout": 30}
SLOW = Step(chunks=8, interval=0.02)
"""A stream that lasts long enough to be met by what happens to its engine."""
Launch = Callable[..., Gatehouse]


@pytest.fixture
def fleet(launch: Launch, tmp_path: Path) -> Callable[..., Gatehouse]:
    """Starts a gateway with the model m1 over engines a, b ... at these ports, and a key for its operator."""

    def start(*ports: int, **engine: Any) -> Gatehouse:
        names = "abcdefgh"[: len(ports)]
        listed = [external(name, port, **{"health": HEALTH, "slots": 16, **engine}) for name, port in zip(names, ports, strict=True)]
        return launch(
            with_operator(configuration(tmp_path / "state", engines=listed, models=[{"name": "m1", "pool": list(names)}]))
        ).start()

    return start


def operate(gatehouse: Gatehouse, action: str, endpoint: str = "a") -> None:
    with admin(gatehouse, "operator") as client:
        answer = client.post(f"/engines/{endpoint}/{action}")
    assert answer.status_code == 200, answer.text


def view(gatehouse: Gatehouse, endpoint: str = "a") -> dict[str, Any]:
    with admin(gatehouse, "operator") as client:
        found: dict[str, Any] = client.get(f"/endpoints/{endpoint}").json()
    return found


@contextmanager
def traffic(gatehouse: Gatehouse, **fields: Any) -> Iterator[tuple[Load, Load]]:
    """Requests and streams, without a pause; at the end, all of them were answered and no stream was cut."""
    plain, streams = Load(gatehouse, "m1", width=3, **fields), Load(gatehouse, "m1", width=3, stream=True, **fields)
    try:
        plain.more(10)
        streams.more(6)
        yield plain, streams
    finally:
        counts = plain.stop(), streams.stop()
    assert counts == ({200: len(plain.answers)}, {200: len(streams.answers)})
    assert uncut(streams)


def test_an_endpoint_is_drained_and_resumed_without_a_lost_request(
    fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    one, two = engines(default=SLOW), engines(default=SLOW)
    gatehouse = fleet(one.port, two.port)
    with traffic(gatehouse) as (plain, streams):
        until(lambda: view(gatehouse)["in_flight"] > 0, what="a request at the endpoint")
        operate(gatehouse, "drain")
        until(lambda: view(gatehouse)["in_flight"] == 0, what="the end of its requests")
        seen, drained = len(one.received), time.monotonic()
        plain.more(20)
        streams.more(10)
        assert len(one.received) == seen
        assert set(plain.places(drained)) | set(streams.places(drained)) == {"b"}
        operate(gatehouse, "resume")
        until(lambda: len(one.received) > seen + 5, what="requests at the resumed endpoint")
    assert all(request.cancelled is None for request in one.received)
    changed(gatehouse, "a", "draining", "ready")


@pytest.mark.alone
def test_a_resumed_endpoint_starts_slowly(fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread]) -> None:
    one, two = engines(default=SLOW), engines(default=SLOW)
    gatehouse = fleet(one.port, two.port, slots=20, health={**HEALTH, "slow_start": 3})
    until(lambda: view(gatehouse)["limit"] == 20, what="the end of the first slow start")

    def limits_met() -> int:
        operate(gatehouse, "drain")
        until(lambda: view(gatehouse)["in_flight"] == 0, what="the end of its requests")
        operate(gatehouse, "resume")
        views = [view(gatehouse)]

        def over() -> bool:
            views.append(view(gatehouse))
            return bool(views[-1]["limit"] == 20)

        until(over, what="the end of the slow start")
        limits = [each["limit"] for each in views]
        assert limits[0] >= 2 and limits == sorted(limits)
        assert all(each["in_flight"] <= each["limit"] for each in views)
        return len(set(limits))

    with traffic(gatehouse):
        until(lambda: limits_met() > 2, what="a slow start in steps")  # a machine that stands still for as long shows none


def test_an_engine_is_replaced_by_another_without_a_lost_request(
    fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    old, other, new = engines(default=SLOW), engines(default=SLOW), engines(default=SLOW)
    gatehouse = fleet(old.port, other.port)
    with traffic(gatehouse):
        until(lambda: len(old.received) > 5, what="requests at the old engine")
        config = gatehouse.config
        config["engines"][0]["url"] = f"http://127.0.0.1:{new.port}"
        reload(gatehouse, config)
        until(lambda: len(new.received) > 5, what="requests at the new engine")
        until(lambda: all(request.done for request in old.received), what="the end of the old engine's requests")
        seen = len(old.received)
        until(lambda: len(new.received) > 20, what="more requests at the new engine")
        assert len(old.received) == seen
    assert all(request.cancelled is None for request in old.received)


def test_other_settings_change_in_place_and_keep_the_connections(
    fleet: Callable[..., Gatehouse], engines: Callable[..., EngineThread]
) -> None:
    one = engines(default=SLOW)
    gatehouse = fleet(one.port)
    with traffic(gatehouse) as (plain, _):
        before = one.engine.connections
        config = gatehouse.config
        config["engines"][0] |= {"slots": 2, "headers": {"x-team": "blue"}}
        reload(gatehouse, config)
        until(lambda: view(gatehouse)["slots"] == 2, what="the new settings")
        until(lambda: view(gatehouse)["in_flight"] <= 2, what="the new limit")
        plain.more(10)
        assert one.received[-1].header("x-team") == "blue"
        assert one.engine.connections <= max(before, 6) + 2  # the probe's new client is one of them
    assert "down" not in changes(gatehouse, "a")


def test_a_sidecar_with_new_settings_replaces_the_old_one_without_a_lost_request(launch: Launch, tmp_path: Path) -> None:
    engine = {"name": "a", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 4, "context": 256, "threads": 1, "health": HEALTH}
    config = with_operator(configuration(tmp_path / "state", engines=[engine], models=[{"name": "m1", "pool": ["a"]}]))
    gatehouse = launch(config).start()
    (first,) = gatehouse.engines()
    with traffic(gatehouse, max_tokens=8) as (plain, streams):
        config["engines"][0]["slots"] = 6
        reload(gatehouse, config)
        until(lambda: view(gatehouse)["slots"] == 6, what="the new sidecar")
        until(lambda: first not in gatehouse.engines(), what="the end of the old sidecar")
        assert len(gatehouse.engines()) == 1
        plain.more(6)
        streams.more(6)
    assert "down" not in changes(gatehouse, "a")
