"""Readiness names what is missing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.pipeline.plane import DataPlane
from gateway.server.health import Health
from gateway.telemetry.metrics import Metrics
from tests.unit.gateway.pipeline.world import World


def said(health: Health) -> tuple[bool, dict[str, Any]]:
    ready, report = health.ready()
    assert health.welcome() is ready, "without the report it says the same"
    return ready, report


def test_all_is_well() -> None:
    ready, report = said(Health(World().plane))
    assert ready
    assert report == {"status": "ready", "config_version": 7, "audit": True, "models": {"m": "ready"}}


def test_a_store_that_answers() -> None:
    ready, report = said(Health(World().plane, lambda: None))
    assert (ready, report["store"]) == (True, True) and "store_lost" not in report


def test_a_store_that_is_away_is_told_with_what_still_works_and_keeps_no_traffic_out() -> None:
    ready, report = said(Health(World().plane, lambda: 1_800_000_000.9))
    assert (ready, report["status"], report["store"]) == (True, "ready", False)
    assert report["store_lost"]["since"] == "2027-01-15T08:00:00Z"
    assert set(report["store_lost"]) == {"since", "works", "refused", "waits"} and msgspec.json.encode(report)


@pytest.mark.parametrize("keys", [True, False])
def test_that_nobody_can_log_in_yet_is_told_and_keeps_no_traffic_out(keys: bool) -> None:
    ready, report = said(Health(World().plane, keys=lambda: keys))
    assert (ready, report.get("no_keys")) == (True, None if keys else True)


def test_before_the_first_snapshot() -> None:
    ready, report = said(Health(DataPlane(Metrics())))
    assert (ready, report["not_ready"]) == (False, ["snapshot"])


def no_audit(world: World) -> None:
    world.audit.accepting, world.audit.fault = False, "disk full"  # type: ignore[misc]


def no_endpoint(world: World) -> None:
    world.route.ready = False


def draining(world: World) -> None:
    world.plane.draining = True


@pytest.mark.parametrize(("change", "missing"), [(no_audit, "audit"), (no_endpoint, "endpoints"), (draining, "draining")])
def test_what_is_missing_is_named(change: Any, missing: str) -> None:
    world = World()
    change(world)
    ready, report = said(Health(world.plane))
    assert not ready
    assert (report["status"], report["not_ready"]) == ("not ready", [missing])
    assert report.get("audit_fault") == ("disk full" if missing == "audit" else None)


def test_one_model_that_can_answer_is_enough() -> None:
    world = World(fallback=True)
    world.route.ready = False
    ready, report = said(Health(world.plane))
    assert ready
    assert report["models"] == {"m": "no ready endpoint", "n": "ready"}


@pytest.mark.parametrize("seen", [True, False])
def test_an_engine_that_is_only_assumed_to_work_brings_no_traffic_yet(seen: bool) -> None:
    world = World(fallback=True)
    world.route.ready = False
    ready, report = said(Health(world.plane, seen=lambda: seen))
    assert ready is seen
    assert report["models"] == {"m": "no ready endpoint", "n": "ready" if seen else "not probed yet"}
    assert report.get("not_ready") == (None if seen else ["endpoints"])


def test_a_gateway_without_models_waits_for_no_engine() -> None:
    world = World()
    world.snapshot.models = {}
    assert said(Health(world.plane, seen=lambda: False))[0]


def test_an_insecure_configuration_says_so() -> None:
    world = World()
    world.snapshot.spec = msgspec.structs.replace(world.snapshot.spec, insecure=True)
    assert said(Health(world.plane))[1]["insecure"] is True
