"""A scrape of a whole gateway."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.app.gateway import Gateway


async def test_the_scrape_of_a_whole_gateway_parses(gateway: Gateway) -> None:
    names = {family.name for family in text_string_to_metric_families(gateway.metrics.scrape().decode())}
    assert {"gatehouse_endpoint_up", "gatehouse_breaker_open", "gatehouse_audit_records", "gatehouse_guardrail_failures"} <= names
    gateway.fleet.registry.force("a", "open")
    shown = {
        (s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(gateway.metrics.scrape().decode()) for s in f.samples
    }
    states = {state: shown["gatehouse_breaker_state", "a", state] for state in ("closed", "half_open", "open")}
    assert states == {"closed": 0.0, "half_open": 0.0, "open": 1.0}
    assert (shown["gatehouse_breaker_open", "a"], shown["gatehouse_queued", "m"]) == (1.0, 0.0)


async def test_an_engine_that_nobody_needs_now_is_not_down_and_one_that_cannot_be_loaded_is(gateway: Gateway) -> None:
    def up() -> list[float]:
        families = text_string_to_metric_families(gateway.metrics.scrape().decode())
        return [s.value for f in families for s in f.samples if (s.name, s.labels.get("endpoint")) == ("gatehouse_endpoint_up", "a")]

    (endpoint,) = [one for one in gateway.fleet.registry.in_force() if one.name == "a"]
    assert len(up()) == 1
    endpoint.set_process("unloaded", "not needed now")
    assert up() == []
    endpoint.set_process("unloaded", "no such model file", "engine_failed")
    assert up() == [0.0]
