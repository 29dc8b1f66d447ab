"""What a search shows to people: the columns that say something."""

from __future__ import annotations

from typing import Any

import pytest

from admin.cli.audit_search import columns

KNOWN = {"time": "t", "tenant": "acme", "principal": "ci", "peer": "10.0.0.1", "outcome": "failed", "code": "x", "endpoint": "vllm"}
UNKNOWN = {"time": "t", "peer": "10.0.0.9", "outcome": "denied", "code": "invalid_api_key", "request_id": "r"}


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ([], []),
        ([KNOWN], ["time", "tenant", "principal", "outcome", "code", "endpoint"]),
        ([UNKNOWN], ["time", "outcome", "code", "peer", "request_id"]),
        ([KNOWN, UNKNOWN], ["time", "tenant", "principal", "outcome", "code", "endpoint", "peer", "request_id"]),
        ([{"time": "t", "event": "denials", "target": "10.0.0.9", "actor": "gatehouse"}], ["time", "event", "target", "actor"]),
    ],
)
def test_columns_that_say_something_are_shown_and_addresses_where_nobody_is_known(found: list[dict[str, Any]], shown: list[str]) -> None:
    assert list(columns(found)) == shown
