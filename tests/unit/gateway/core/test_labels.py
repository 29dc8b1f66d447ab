"""The labels that a request has before anything has read it. Their way through the pipeline: tests/unit/gateway/pipeline/test_labels.py."""

from __future__ import annotations

from gateway.core.labels import REMEMBERED, Labels
from gateway.core.specs import LabelSpec
from policies.patterns import matches


def test_patterns_of_tenants_and_models_are_looked_up_once_each() -> None:
    asked: list[str] = []

    def counted(pattern: str, name: str) -> bool:
        asked.append(name)
        return matches(pattern, name)

    labels = Labels({"a": LabelSpec(tenants=("x-*", "y")), "b": LabelSpec(tenants=("*",), models=("m",))}, counted)
    assert labels.of_tenant("x-1") == {"a", "b"} and labels.of_tenant("y") == {"a", "b"} and labels.of_tenant("z") == {"b"}
    assert labels.of_model("m") == {"b"} and labels.of_model("n") == frozenset()
    before = len(asked)
    assert labels.of_tenant("x-1") == {"a", "b"} and len(asked) == before
    assert "a" in labels and "c" not in labels


def test_what_is_remembered_has_a_bound() -> None:
    labels = Labels({"a": LabelSpec(tenants=("t-*",))}, matches)
    for number in range(REMEMBERED + 10):
        assert labels.of_tenant(f"t-{number}") == {"a"}
    assert len(labels._of_tenant) <= REMEMBERED
