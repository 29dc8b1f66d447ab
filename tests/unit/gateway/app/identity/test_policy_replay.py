"""The comparison of two ways to decide, over records of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.ports import Window
from gateway.app.identity import policy_replay
from gateway.app.identity.policy_replay import Comparison
from gateway.core.specs import ModelSpec
from gateway.core.types import Decision
from policies.replay import Records

YES, NO = Decision(True, "", "yes"), Decision(False, "No.", "no")
MODELS = (ModelSpec(name="m", pool=("a",)),)


def record(number: int = 0, **more: Any) -> dict[str, Any]:
    known = {
        "kind": "intent",
        "time": 1000.0 - number,
        "request_id": f"r{number}",
        "tenant": "acme",
        "principal": "k",
        "credential": "api_key",
    }
    return {**known, "operation": "chat", "model": "m", "bytes": 1, "rule": "yes", "caller": {}, **more}


def compared(
    records: Iterator[dict[str, Any]] | list[dict[str, Any]], last: int = 100, tenants: frozenset[str] | None = None
) -> dict[str, Any]:
    comparison = Comparison(Records(MODELS, ("chat",)), lambda *asked: YES, lambda *asked: NO, str)
    return comparison.of(iter(records), Window(last=last, since=None, tenants=tenants))


def test_what_changes_is_grouped_by_caller_and_model() -> None:
    found = compared([record(n, principal=f"k{n % 2}") for n in range(5)])
    assert (found["decisions"], found["replayed"], found["denied"], found["allowed"]) == (5, 5, 5, 0)
    assert [(one["principal"], one["requests"], one["request_id"]) for one in found["changes"]] == [("k0", 3, "r0"), ("k1", 2, "r1")]
    assert (found["first"], found["last"]) == (996.0, 1000.0) and (found["changes"][1]["first"], found["changes"][1]["last"]) == (
        997.0,
        999.0,
    )


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared([record(n) for n in range(9)], last=4)["decisions"] == 4
    assert compared([record(tenant="globex"), record()], tenants=frozenset({"acme"}))["decisions"] == 1
    assert compared([record()], tenants=frozenset())["decisions"] == 0
    monkeypatch.setattr(policy_replay, "MAX_CHANGES", 2)
    found = compared([record(n, principal=f"k{n}") for n in range(5)])
    assert (len(found["changes"]), found["left_out"], found["denied"]) == (2, 3, 5)
    monkeypatch.setattr(policy_replay, "SECONDS", -1.0)
    late = compared([record(n) for n in range(300)], last=1000)
    assert late["decisions"] == policy_replay.TURN - 1 and not late["complete"]


def test_what_was_decided_otherwise_then_is_said() -> None:
    denied = {"kind": "outcome", "decision": "deny", "facts": {"bytes": 1}}
    assert compared([record(), record(**denied)])["decided_otherwise_then"] == 1


def test_what_cannot_be_made_again_is_counted_by_what_is_missing() -> None:
    older = {name: value for name, value in record().items() if name != "caller"}
    broken = record(facts="<DecisionFacts>")
    found = compared([older, older, broken, record(caller={"unrecorded": ["groups"]}), {"kind": "event", "time": 1.0}])
    assert found["not_replayed"] == [
        {"fact": "older", "decisions": 2},
        {"fact": "unreadable", "decisions": 1},
        {"fact": "principal.groups", "decisions": 1},
    ]
    assert (found["decisions"], found["replayed"], found["changes"]) == (4, 0, [])


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(0, 1e9) | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from([*record(), "facts", "decision", "kind"]),
        JSON | st.dictionaries(st.sampled_from(["groups", "bounds", "tools", "max_tokens", "unrecorded", "reach"]), JSON),
    )
)
def test_no_record_stops_a_comparison(odd: dict[str, Any]) -> None:
    found = compared([{**record(), **odd}, record(1)])
    assert found["decisions"] in (1, 2)
