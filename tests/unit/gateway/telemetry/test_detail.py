"""OpenTelemetry's metrics for generative AI, and sums by tenant."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client.core import Metric

from gateway.core.types import Usage
from gateway.telemetry.detail import FAMILIES, MOST_ERRORS, OTHER, OTHER_ERROR, Detail, GenAi, Tenants, follow
from tests.steady import spent

MS = 1_000_000


def exchange(tenant: str = "acme", operation: str = "chat", sent: int = 10 * MS, first: int = 110 * MS) -> Any:
    principal, request = SimpleNamespace(tenant=tenant), SimpleNamespace(operation=operation)
    return SimpleNamespace(principal=principal, request=request, started_ns=0, sent_ns=sent, first_ns=first)


def sums(part: Any) -> dict[tuple[str, ...], float]:
    """What was counted by name and labels, without the buckets."""
    families: list[Metric] = list(part.collect())
    return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples if not s.name.endswith("_bucket")}


def test_a_stream_is_counted_as_the_conventions_say() -> None:
    detail = Detail(GenAi(), None)
    detail.settled(exchange(), "m", "ok", "", Usage(7, 11, 2), 610 * MS)
    found = {name: value for name, value in sums(detail).items() if name[0].endswith("_sum")}
    known = ("chat", "gatehouse", "m")
    assert {name: round(value, 6) for name, value in found.items()} == {
        ("gen_ai_server_request_duration_seconds_sum", *known, ""): 0.61,
        ("gen_ai_server_time_to_first_token_seconds_sum", *known): 0.11,
        ("gen_ai_server_time_per_output_token_seconds_sum", *known): 0.05,
        ("gen_ai_client_operation_duration_seconds_sum", *known, ""): 0.6,
        ("gen_ai_client_operation_time_to_first_chunk_seconds_sum", *known): 0.1,
        ("gen_ai_client_token_usage_sum", *known, "input"): 7.0,
        ("gen_ai_client_token_usage_sum", *known, "output"): 11.0,
    }


def test_what_fails_has_its_code_and_no_times_of_tokens() -> None:
    detail = Detail(GenAi(), None)
    detail.settled(exchange(), "m", "failed", "engine_failed", Usage(7, 11, 2), 610 * MS)
    detail.settled(exchange(sent=0, first=0), "m", "denied", "rate_limit_exceeded", None, MS)
    found = sums(detail)
    known = ("chat", "gatehouse", "m")
    assert found["gen_ai_server_request_duration_seconds_count", *known, "engine_failed"] == 1
    assert found["gen_ai_server_request_duration_seconds_count", *known, "rate_limit_exceeded"] == 1
    assert found["gen_ai_client_operation_duration_seconds_count", *known, "engine_failed"] == 1
    assert not [name for name in found if "time_" in name[0]]
    assert ("gen_ai_client_operation_duration_seconds_count", *known, "rate_limit_exceeded") not in found


def test_a_stream_from_a_cache_says_nothing_of_a_call() -> None:
    detail = Detail(GenAi(), None)
    detail.settled(exchange(sent=0, first=2 * MS), "m", "ok", "", None, 3 * MS)
    found = {name[0]: value for name, value in sums(detail).items() if name[0].endswith("_sum")}
    assert {name: round(value, 6) for name, value in found.items()} == {
        "gen_ai_server_request_duration_seconds_sum": 0.003,
        "gen_ai_server_time_to_first_token_seconds_sum": 0.002,
    }


def test_codes_of_an_engine_beyond_the_bound_share_one_series() -> None:
    genai = GenAi()
    for number in range(MOST_ERRORS + 5):
        genai.settled("m", "chat", f"code-{number}", (0, 1, 0, 2), None)
    counts = {name[4]: value for name, value in sums(genai).items() if name[0] == "gen_ai_client_operation_duration_seconds_count"}
    assert len(counts) == MOST_ERRORS + 1 and counts[OTHER_ERROR] == 5


def test_operations_have_the_conventions_names_and_share_a_series() -> None:
    detail = Detail(GenAi(), None)
    for operation in ("chat", "messages", "completions", "rerank"):
        detail.settled(exchange(operation=operation, first=0), "m", "ok", "", None, 20 * MS)
    counts = {name[1]: value for name, value in sums(detail).items() if name[0] == "gen_ai_server_request_duration_seconds_count"}
    assert counts == {"chat": 2, "text_completion": 1, "rerank": 1}


def test_the_series_of_thousands_of_models_are_made_when_they_are_written() -> None:
    genai = GenAi()
    for number in range(2000):
        genai.settled(f"m{number}", "chat", "", (0, MS, 2 * MS, 3 * MS), Usage(7, 11))
    families: list[Metric] = []
    assert (
        spent(lambda: families.extend(genai.collect())) < spent(lambda: [sample for family in families for sample in family.samples]) / 10
    )
    assert sum(1 for family in families for sample in family.samples if sample.name.endswith("_count")) == 7 * 2000


def test_every_family_is_told_even_while_it_is_empty() -> None:
    assert [family.name for family in GenAi().collect()] == [name for name, _, _ in FAMILIES]


def test_tenants_beyond_the_bound_share_one_series() -> None:
    tenants = Tenants(2)
    for tenant in ("a", "b", "c", "d", "a"):
        tenants.settled(tenant, "ok", 0.5, Usage(3, 2, 1))
    found = sums(tenants)
    assert {name[1]: value for name, value in found.items() if name[0] == "gatehouse_tenant_requests_total"} == {"a": 2, "b": 1, OTHER: 2}
    assert found["gatehouse_tenant_tokens_total", OTHER, "completion"] == 4
    assert found["gatehouse_tenant_request_seconds_total", "a"] == 1.0


def test_a_change_of_the_configuration_keeps_what_was_counted() -> None:
    assert follow(None, False, 0) is None
    first = follow(None, True, 3)
    assert first is not None and first.tenants is not None
    first.tenants.settled("a", "ok", 0.5, None)
    again = follow(first, False, 3)
    assert again is not None and again.genai is None and again.tenants is first.tenants
    other = follow(again, False, 4)
    assert other is not None and other.tenants is not first.tenants
    assert follow(other, False, 0) is None
