"""When an engine on trial is withdrawn."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.rollouts import Side, class_of, no_durations
from gateway.core.specs.rollouts import CanarySpec
from policies.canaries import verdict


def side(answers: int = 100, errors: int = 0, first: float = 0.0, rate: float = 0.0) -> Side:
    durations = no_durations()
    if first:
        durations[class_of(first)] = answers
    made = Side(answers, errors, first=durations)
    if rate:
        made.seconds, made.completion_tokens = 100.0, int(rate * 100)
    return made


@pytest.mark.parametrize(
    ("settings", "canary", "others", "why"),
    [
        ({}, side(), side(), ""),
        ({}, side(49, 49), side(), ""),
        ({}, side(50, 6), side(0), "12.0% of 50 requests failed; 10.0% may"),
        ({}, side(100, 10), side(100, 10), ""),
        ({}, side(100, 8), side(100, 1), "8.0% of 100 requests failed, of the others' 1.0%; 5.0% more may"),
        ({}, side(100, 8), side(20, 0), ""),
        ({"errors_over": None}, side(100, 8), side(100, 1), ""),
        ({"max_errors": None, "errors_over": None}, side(100, 100), side(100, 0), ""),
        ({}, side(first=4.0), side(first=1.0), "the first token came within"),
        ({}, side(first=2.0), side(first=1.0), ""),
        ({}, side(first=4.0), side(0), ""),
        ({"max_first_token": 3.0}, side(first=4.0), side(0), "3 s are allowed"),
        ({}, side(rate=10), side(rate=50), "it gave 10 tokens/s, the others 50"),
        ({}, side(rate=20), side(rate=50), ""),
        ({}, side(rate=1024), side(rate=51_234), "it gave 1020 tokens/s, the others 51200"),
        ({"min_tokens_per_second": 2_500_000}, side(rate=1_234_567), side(0), "it gave 1230000 tokens/s; 2500000 are wanted"),
        ({"min_tokens_per_second": 30}, side(rate=20), side(0), "30 are wanted"),
        ({"tokens_factor": None}, side(rate=1), side(rate=50), ""),
    ],
)
def test_each_bound_counts_where_there_are_enough_requests(settings: dict[str, Any], canary: Side, others: Side, why: str) -> None:
    found = verdict(CanarySpec(engine="next", **settings), canary, others)
    assert (why in found) if why else found == ""
